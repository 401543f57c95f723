"""The last digits of a projection: rows that rounding left violated are met again.

The solvers call a row satisfied that is violated by 1e-13 of its size, and their answers carry the rounding of a whole
solve. The certificate allows 16 roundings of the row's own terms. Called by `hardnet.solvers.projection_steps` with
every answer that may be looked at.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hardnet.solvers.problem import Problem, multiply

CERTAIN = 6 * torch.finfo(torch.float64).eps
"""Part of ``sum |a_j y_j|`` beyond which a violated row is met again: well below what the certificate allows."""
ROUNDS = 2
"""Most corrections of a sample; each leaves the rounding of one product."""
Project = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From raw ``(B, n)``, A, lower and upper ``(B, m)`` to the nearest points, NaN where there is none."""


def touch_up(problem: Problem, y: Tensor, chosen: Tensor, project: Project) -> Tensor:
    """``y + argmin |d|  subject to  lower - A y <= A d <= upper - A y``, for samples with a row beyond `CERTAIN`.

    The correction d has units of its own, so that its rounding is that of a tiny number.

    Args:
        problem: In units of size one.
        y: ``(B, n)``.
        chosen: Samples that have an answer: ``(B,)``.
        project: Solves a batch of such problems.
    """
    for _ in range(ROUNDS):
        beyond = _beyond(problem, y)
        index = (chosen & (beyond > 0).any(-1)).nonzero().squeeze(-1)
        if len(index) == 0:
            break
        part, start = problem.take(index), y[index]
        product = multiply(part.A, start)
        moved = start + project(torch.zeros_like(start), part.A, part.lower - product, part.upper - product)
        better = (_beyond(part, moved).amax(-1) < beyond[index].amax(-1)).unsqueeze(-1)
        y = y.index_copy(0, index, torch.where(better, moved, start))
    return y


def _beyond(problem: Problem, y: Tensor) -> Tensor:
    """How far each row is violated beyond `CERTAIN`: ``(B, m)``; negative where it is satisfied."""
    return problem.violation(multiply(problem.A, y)) - CERTAIN * multiply(problem.A.abs(), y.abs())
