"""Checks for a box and a few rows: whether a point is inside, whether it is optimal, whether the set is empty.

Violations of rows are measured in roundings of their terms; a certificate of emptiness is a direction in which even the
best corner of the box misses the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import times_columnwise, times_rowwise
from hardnet.rows import bound_size
from hardnet.solvers.polyhedron.box_problem import EPS, BoxProblem

INSIDE = 4.0
"""How far a row may miss its bounds and still count as satisfied, in roundings of the output dtype."""
SOLVED = 8.0
"""The error up to which a row counts as correct, in roundings of float64; for a point it is eight times as many."""
NO_SLOPE = 64 * EPS
"""The fraction of its terms below which an entry of ``A'v`` counts as zero in a certificate of emptiness."""


def is_inside(problem: BoxProblem, rounding: float) -> Tensor:
    """Whether raw is in the box and satisfies the rows to rounding of its dtype: ``(B,)``."""
    raw = problem.raw
    boxed = ((raw >= problem.low) & (raw <= problem.high)).all(-1)
    size = times_rowwise(problem.A.abs(), raw.abs())
    slack = INSIDE * rounding * (size + bound_size(problem.lower, problem.upper, problem.A.abs().sum(-1)))
    return boxed & ((problem.excess(problem.times(raw)).abs() <= slack) & slack.isfinite()).all(-1)


def residual_of(problem: BoxProblem, y: Tensor, dual: Tensor) -> Tensor:
    """The residual of the optimality conditions, ``(B,)``: rows, signs, and y as a function of the dual; 1 is solved.

    Rows are measured relative to their size at y, multipliers by the change of y that they cause, and y relative to the
    size of raw, since ``raw - A'dual`` cannot be more accurate.
    """
    product, size = problem.times(y), problem.size(y)
    shift = problem.A.abs().sum(-1) * dual
    target = torch.minimum(torch.maximum(product + shift, problem.lower), problem.upper)
    rows = (product - target).abs() / torch.where(size > 0, size, 1.0)
    again = problem.clamp(problem.raw - problem.transposed(dual))
    reach = torch.maximum(problem.raw.abs().amax(-1), y.abs().amax(-1))
    reach = torch.maximum(reach, times_columnwise(problem.A.abs(), dual.abs()).amax(-1))
    moved = (y - again).abs().amax(-1) / torch.where(reach > 0, reach, 1.0)
    return torch.maximum(rows.amax(-1), moved / 8) / (SOLVED * EPS)


def witness_of(problem: BoxProblem, dual: Tensor, rounding: float) -> Tensor:
    """A v ``(B, k)`` with ``v'A y > sigma(v)`` on the whole box, or zero; tries the rows, then the dual's direction."""
    k = dual.shape[-1]
    largest = dual.abs().amax(-1, keepdim=True)
    direction = dual / torch.where(largest > 0, largest, 1.0)
    eye = torch.eye(k, dtype=dual.dtype, device=dual.device).expand(dual.shape[0], k, k)
    chosen = torch.zeros_like(dual)
    candidates = [sign * eye[:, i] for i in range(k) for sign in (1.0, -1.0)]
    for candidate in candidates if k == 1 else [*candidates, direction]:
        found = _contradicts(problem, candidate, rounding).unsqueeze(-1)
        chosen = torch.where(found & (chosen == 0).all(-1, keepdim=True), candidate, chosen)
    return chosen


def _contradicts(problem: BoxProblem, v: Tensor, rounding: float) -> Tensor:
    """Whether the minimum of ``v'A y`` over the box exceeds the most that the rows allow, by more than rounding."""
    slope = problem.transposed(v)
    terms = times_columnwise(problem.A.abs(), v.abs())
    corner = torch.where(slope > 0, problem.low, problem.high)
    slope = torch.where(corner.isinf() & (slope.abs() <= NO_SLOPE * terms), 0.0, slope)
    corner = torch.where(slope == 0, 0.0, corner)
    least = slope * corner
    most = torch.where(v > 0, problem.upper, problem.lower)
    most = torch.where(v == 0, 0.0, v * torch.where(v == 0, 0.0, most))
    # the rounding of a slope is relative to its terms, which may be much larger than the slope
    slack = INSIDE * rounding * ((terms * corner.abs()).sum(-1) + most.abs().sum(-1))
    return least.sum(-1) - most.sum(-1) > slack
