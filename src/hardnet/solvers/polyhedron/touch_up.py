"""The last digits of a projection: correct rows that rounding left violated.

For the solvers a row is satisfied if it is violated by up to 1e-13 of its size, and their answers carry the rounding of
a whole solve; the certificate allows 16 roundings of the row's own terms.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hardnet.products import times_aligned
from hardnet.solvers.polyhedron.active import solve_active
from hardnet.solvers.polyhedron.problem import FEASIBLE, Problem

ROUNDS = 2
"""The most corrections of a sample by a projection; each leaves the rounding of one product."""
LONGEST = 4.0
"""A correction on the rows at their bounds may be at most this many times as long as all violations together."""
Project = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From raw ``(B, n)``, A, lower and upper ``(B, m)`` to the nearest points and their dual, NaN if there are none."""


def touch_up(
    problem: Problem, y: Tensor, dual: Tensor, moved: Tensor, worst: Tensor, project: Project
) -> tuple[Tensor, Tensor]:
    """``y + argmin |d|  subject to  lower - A y <= A d <= upper - A y``, if that is better, and its multipliers.

    ``d = -A'w`` adds w to the dual, so that ``raw - y = A'dual`` still holds.

    The first attempt uses only the rows at their bounds, ``d = A_J^+ (clamp(A y) - A y)``, a least squares solution if
    these contradict each other by a rounding. Samples that still have a violated row, or that would move farther than
    the rows require, go to `project`, at most twice. d is solved for in its own units, so its rounding is tiny.

    Args:
        problem: In units of size one.
        y: ``(B, n)``.
        dual: ``(B, m)``.
        moved: Which samples a solver moved, ``(B,)``; the others are raw, and only `project` may move them.
        worst: `Problem.beyond` of each sample, ``(B,)``.
        project: Solves a batch of such problems.
    """
    nearby, weight, left = _on_touching_rows(problem, y)
    better = moved & (left < worst)
    y, dual = torch.where(better.unsqueeze(-1), nearby, y), torch.where(better.unsqueeze(-1), dual + weight, dual)
    worst = torch.where(better, left, worst)
    rest = (worst > 0).nonzero().squeeze(-1)
    for _ in range(ROUNDS):
        if len(rest) == 0:
            break
        part, start = problem.take(rest), y[rest]
        product = times_aligned(part.A, start)
        step, weight = project(torch.zeros_like(start), part.A, part.lower - product, part.upper - product)
        point = start + step
        left = part.beyond(point, times_aligned(part.A, point))
        better = (left < worst[rest]) & point.isfinite().all(-1)
        y = y.index_copy(0, rest, torch.where(better.unsqueeze(-1), point, start))
        dual = dual.index_add(0, rest, torch.where(better.unsqueeze(-1), weight, 0))
        worst = worst.index_copy(0, rest, torch.where(better, left, worst[rest]))
        rest = rest[better & (left > 0)]
    return y, dual


def _on_touching_rows(problem: Problem, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``y + A_J^+ (clamp(A y) - A y)`` with J the rows at their bounds, its multipliers, and its `Problem.beyond`.

    The last is infinite if the step is longer than the rows require.
    """
    product = times_aligned(problem.A, y)
    target = product.clamp(problem.lower, problem.upper) - product
    touching = problem.violation(product) >= -FEASIBLE * times_aligned(problem.A.abs(), y.abs())
    weight = solve_active(problem.A, touching, target)
    step = times_aligned(problem.A.mT, weight)
    near = torch.linalg.vector_norm(step, dim=-1) <= LONGEST * (target.abs() / problem.norm).sum(-1)
    left = problem.beyond(y + step, times_aligned(problem.A, y + step))
    return y + step, -weight, torch.where(near, left, torch.inf)
