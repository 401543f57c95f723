"""Checks of a point of a box and a few rows: inside, optimal to rounding, or a proof that the set is empty.

Rows are measured by their terms, in roundings; a certificate of emptiness is a direction in which even the best corner
of the box misses the rows.

Called by `hardnet.solvers.polyhedron.box_rows`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import times_columnwise, times_rowwise
from hardnet.rows import bound_size
from hardnet.solvers.polyhedron.box_problem import EPS, BoxProblem

INSIDE = 4.0
"""Roundings of the output dtype by which a row may miss its bounds and count as satisfied."""
SOLVED = 8.0
"""Roundings of float64 up to which a row, and eight times as many up to which a point, counts as right."""
NO_SLOPE = 64 * EPS
"""Part of its terms below which an entry of ``A'v`` is rounding, where a certificate of emptiness needs a zero."""


def is_inside(problem: BoxProblem, rounding: float) -> Tensor:
    """Whether raw is in the box, and in the rows to rounding of its dtype: ``(B,)``."""
    raw = problem.raw
    boxed = ((raw >= problem.low) & (raw <= problem.high)).all(-1)
    size = times_rowwise(problem.A.abs(), raw.abs())
    slack = INSIDE * rounding * (size + bound_size(problem.lower, problem.upper, problem.A.abs().sum(-1)))
    return boxed & ((problem.excess(problem.times(raw)).abs() <= slack) & slack.isfinite()).all(-1)


def residual_of(problem: BoxProblem, y: Tensor, dual: Tensor) -> Tensor:
    """The optimality conditions in parts of what counts as solved, ``(B,)``: rows, signs, and y of the dual.

    Rows are measured by their size at y, multipliers by the change of y that they stand for, and y by the size of raw,
    since ``raw - A'dual`` cannot be known better.
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
    """``(B, k)``: v with ``v'A y > sigma(v)`` all over the box, or zero; rows are tried, then the dual's direction."""
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
    """Whether the least of ``v'A y`` over the box is above the most that the rows allow, by more than rounding."""
    slope = problem.transposed(v)
    terms = times_columnwise(problem.A.abs(), v.abs())
    corner = torch.where(slope > 0, problem.low, problem.high)
    slope = torch.where(corner.isinf() & (slope.abs() <= NO_SLOPE * terms), 0.0, slope)
    corner = torch.where(slope == 0, 0.0, corner)
    least = slope * corner
    most = torch.where(v > 0, problem.upper, problem.lower)
    most = torch.where(v == 0, 0.0, v * torch.where(v == 0, 0.0, most))
    # the products are added with the rounding of their terms, of which a slope may be a small part
    slack = INSIDE * rounding * ((terms * corner.abs()).sum(-1) + most.abs().sum(-1))
    return least.sum(-1) - most.sum(-1) > slack
