"""The compromise on an empty set, by proximal steps on the dual, which need no feasible point.

Each step solves the problem with Gram matrix ``G + I/weight`` and product ``A raw + dual/weight`` (an augmented
Lagrangian step), which pivoting can always finish. The multipliers diverge along a proof of emptiness, while y
converges to the compromise: the point nearest to raw among those with the least sum of squared distances to the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import times_aligned
from hardnet.solvers.polyhedron.active import solve_active
from hardnet.solvers.polyhedron.pivoting import pivot
from hardnet.solvers.polyhedron.problem import Problem

STEPS = 24
FIRST_WEIGHT, LAST_WEIGHT = 1e4, 1e8
BALANCED = 1e-10
"""How large ``A'v`` may be at the compromise, relative to the distances v to the rows."""


def compromise(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Y ``(B, n)``, its active rows ``(B, m)`` (+1 at or beyond the upper bound, -1 the lower), and the steps.

    The samples have unit rows and empty sets. At the compromise the distances v to the rows satisfy ``A'v = 0``.
    """
    gram = torch.bmm(problem.A, problem.A.mT)
    dual, y, side = torch.zeros_like(problem.lower), problem.raw, torch.zeros_like(problem.lower)
    open_, steps = torch.ones_like(y[:, 0], dtype=torch.bool), torch.zeros_like(y[:, 0], dtype=torch.long)
    weight = FIRST_WEIGHT
    for _ in range(STEPS):
        dual, new_side, taken = _proximal_step(problem, gram, dual, weight)
        found = _polish(problem, problem.raw - times_aligned(problem.A.mT, dual), new_side)
        keep = open_.unsqueeze(-1)
        y, side, steps = torch.where(keep, found, y), torch.where(keep, new_side, side), steps + taken * open_
        open_ = open_ & ~_balanced(problem, y)
        if not bool(open_.any()):
            break
        weight = min(10 * weight, LAST_WEIGHT)
    return y, side, steps


def _balanced(problem: Problem, y: Tensor) -> Tensor:
    product = times_aligned(problem.A, y)
    missing = product - product.clamp(problem.lower, problem.upper)
    return times_aligned(problem.A.mT, missing).abs().amax(-1) <= BALANCED * missing.abs().amax(-1)


def _polish(problem: Problem, y: Tensor, side: Tensor) -> Tensor:
    """``y - A_J^+(A_J y - b_J)``, twice: exact on the active set."""
    active = side != 0
    bound = torch.where(side > 0, problem.upper, problem.lower)
    for _ in range(2):
        missing = torch.where(active, times_aligned(problem.A, y) - bound, 0.0)
        y = y - times_aligned(problem.A.mT, solve_active(problem.A, active, missing))
    return y


def _proximal_step(problem: Problem, gram: Tensor, dual: Tensor, weight: float) -> tuple[Tensor, Tensor, Tensor]:
    m = gram.shape[-1]
    regular = gram + torch.eye(m, dtype=gram.dtype, device=gram.device) / weight
    product = problem.product + dual / weight
    moved = pivot(regular, product, problem.lower, problem.upper, problem.slack, 20 * m + 100)
    return moved.dual, moved.side, moved.steps
