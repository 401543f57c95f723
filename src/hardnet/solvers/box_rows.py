"""The Euclidean projection onto a box and a few rows, in the multipliers of the rows: no matrix of n + k rows.

The nearest point is ``y = clamp(raw - A'dual, box_lower, box_upper)``, so k numbers decide it.

1. One row: the multiplier from sorted breakpoints. Several: an interior point method of a fixed number of steps.
2. Newton's steps on ``A y(dual) = clamp(A y(dual) + dual, lower, upper)``, with y recomputed from the point
   ``raw - A'dual`` so far: the rows then hold to rounding of y, however far away raw was.
3. What rounding allows is checked: rows, signs of multipliers, and certificates of an empty set. No answer whose rows
   do not hold counts as solved, whoever found it.

All samples take the same steps, so nothing looks at values: it compiles, exports and maps. Called by
`hardnet.functional.box_rows` and `hardnet.functional.box_rows_gradient`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.gpu import nearest as gpu
from hardnet.modes import GRAPHS, mode
from hardnet.solvers.box_breakpoints import multiplier_of_one_row
from hardnet.solvers.box_factor import factorise_rows
from hardnet.solvers.box_interior import STEPS, multipliers_of_rows
from hardnet.solvers.box_problem import EPS, BoxProblem, power_of_two
from hardnet.solvers.projection import project_affine
from hardnet.solvers.solution import Solution, Status

NEWTON_STEPS = 8
"""Newton's steps after the first multipliers: two or three are enough unless coordinates lie at their bounds."""
NEWTON_STEPS_IN_GRAPHS = 3
"""The same in compiled and exported code, where each step is part of the graph."""
INSIDE = 4.0
"""Roundings of the output dtype by which a row may miss its bounds and count as satisfied."""
SOLVED = 8.0
"""Roundings of float64 up to which a row, and eight times as many up to which a point, counts as right."""
STRICT = 1e-11
"""Part of the sample's size above which a multiplier makes its row strictly active."""
NO_SLOPE = 64 * EPS
"""Part of its terms below which an entry of ``A'v`` is rounding, where a certificate of emptiness needs a zero."""


class Outcome(NamedTuple):
    """A flat batch, in the units that came in.

    Attributes:
        y: ``(B, n)``, inside the box.
        dual: ``(B, k)``.
        place: Where each coordinate is, ``(B, n)`` int8: -1 at its lower bound, 1 at its upper, 0 free, 2 fixed.
        side: Which bound each row is at, ``(B, k)`` int8: -1 lower, 1 upper, 0 none, 2 an equality.
        status: ``(B,)`` int8.
        residual: ``(B,)``.
    """

    y: Tensor
    dual: Tensor
    place: Tensor
    side: Tensor
    status: Tensor
    residual: Tensor


class _Point(NamedTuple):
    """``point = raw - A'dual``, as it was accumulated, and the dual."""

    point: Tensor
    dual: Tensor


def project_box_rows(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
    box_lower: Tensor | None = None,
    box_upper: Tensor | None = None,
) -> Solution:
    """``argmin |y - raw|  s.t.  lower <= A y <= upper,  box_lower <= y <= box_upper``, with what the solver knows.

    No autograd, no look at values, nothing raised for bad samples: see ``.status``. For an empty set y is NaN and
    ``.dual`` shows it: no point of the box has ``dual' A y <= sum of dual times bound``.

    Args:
        raw: ``(*batch, n)``.
        A: ``(k, n)`` or ``(*batch, k, n)``, k of 1 to `MOST_BOX_ROWS`.
        lower: ``(k,)`` or ``(*batch, k)``; None is -inf.
        upper: Like `lower`; None is +inf.
        box_lower: ``(n,)`` or ``(*batch, n)``; None is -inf.
        box_upper: Like `box_lower`; None is +inf.
    """
    with torch.no_grad():
        batch, flat = flatten(raw, A, lower, upper, box_lower, box_upper)
        found = solve(*flat, rounding=torch.finfo(raw.dtype).eps)
    y, dual = (part.to(raw.dtype).reshape(*batch, part.shape[-1]) for part in (found.y, found.dual))
    status, residual = found.status.reshape(batch), found.residual.reshape(batch)
    return Solution(y, dual, status, torch.full_like(status, steps(A.shape[-2]), dtype=torch.long), residual)


def steps(k: int) -> int:
    """How many steps every sample takes after the breakpoints of one row were sorted."""
    return NEWTON_STEPS if k == 1 else NEWTON_STEPS + STEPS


def flatten(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    box_lower: Tensor | None,
    box_upper: Tensor | None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Size, tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """One flat batch in this dtype, with a batch of 1 for what all samples share and infinities for absent bounds."""
    (k, n), shapes = A.shape[-2:], [raw.shape[:-1], A.shape[:-2]]
    shapes += [bound.shape[:-1] for bound in (lower, upper, box_lower, box_upper) if bound is not None]
    batch = torch.broadcast_shapes(*shapes)

    def flat(part: Tensor, core: int) -> Tensor:
        own = part.shape[-core:]
        if part.dim() == core:
            return part.to(dtype).unsqueeze(0)
        return part.to(dtype).expand(*batch, *own).reshape(-1, *own)

    bound = lambda part, size, absent: flat(raw.new_full((size,), absent) if part is None else part, 1)
    rows = bound(lower, k, -torch.inf), bound(upper, k, torch.inf)
    box = bound(box_lower, n, -torch.inf), bound(box_upper, n, torch.inf)
    return batch, (raw.to(dtype).expand(*batch, n).reshape(-1, n), flat(A, 2), *rows, *box)


def solve(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, *, rounding: float
) -> Outcome:
    """Project a flat batch (see `flatten`); `rounding` is that of the dtype the answer will have."""
    valid = _valid(raw, A, lower, upper, low, high)
    problem, scale = _problem(raw, A, lower, upper, low, high)
    first = multiplier_of_one_row(problem) if A.shape[-2] == 1 else multipliers_of_rows(problem)
    found = _newton(problem, first)
    inside = _inside(problem, rounding).unsqueeze(-1)
    found = _Point(torch.where(inside, problem.raw, found.point), torch.where(inside, 0.0, found.dual))
    y = problem.clamp(found.point)
    residual = torch.where(inside.squeeze(-1), 0.0, _residual(problem, y, found.dual))
    witness = _witness(problem, found.dual, rounding)
    empty = (witness != 0).any(-1) & ~inside.squeeze(-1)
    good = (residual <= 1.0) & problem.holds(y, rounding)
    status = torch.where(good, int(Status.SOLVED), int(Status.NOT_CONVERGED))
    status = torch.where(empty, int(Status.INFEASIBLE), status)
    status = torch.where(valid, status, int(Status.INVALID)).to(torch.int8)
    y = torch.where((status == int(Status.SOLVED)).unsqueeze(-1), y, torch.nan)
    dual = torch.where(empty.unsqueeze(-1), witness, found.dual) / scale
    return Outcome(y, dual, _place(problem, found.point), _side(problem, found.dual), status, residual * SOLVED * EPS)


def solve_or_settle(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, *, rounding: float
) -> Outcome:
    """The same where a look is free: one row by compiled code, and what did not converge as n + k dense rows."""
    flat = (raw, A, lower, upper, low, high)
    careful = lambda *some: _settle(solve(*some, rounding=rounding), some, partial(_by_dense_rows, rounding=rounding))
    if A.shape[-2] > 1 or not HAS_NUMBA or raw.numel() == 0:
        return careful(*flat)
    return _settle(_by_compiled_code(*flat, rounding), flat, careful)


def solve_without_look(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, *, rounding: float
) -> Outcome:
    """The same for eager calls where a look would wait for the device: one row of plain memory by one launch."""
    flat = (raw, A, lower, upper, low, high)
    if not gpu.takes_box(flat):
        return solve(*flat, rounding=rounding)
    y, place, dual, side, status, residual = gpu.nearest_in_box(flat, rounding)
    return Outcome(y, dual, place, side, status, residual)


def _settle(found: Outcome, flat: tuple[Tensor, ...], solver: Callable[..., Outcome]) -> Outcome:
    """The samples that did not converge by another solver."""
    index = (found.status == int(Status.NOT_CONVERGED)).nonzero().squeeze(-1)
    if len(index) == 0:
        return found
    raw, *shared = flat
    settled = solver(raw[index], *(part if len(part) == 1 else part[index] for part in shared))
    return Outcome(*(old.index_copy(0, index, new.to(old.dtype)) for old, new in zip(found, settled, strict=True)))


def _by_compiled_code(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, rounding: float
) -> Outcome:
    """One row on a CPU, by numba; the row is equality, or active on the side of its multiplier."""
    from hardnet.kernels.cpu.nearest_box import nearest_in_box

    y, place, found = nearest_in_box(raw, A, lower, upper, low, high, rounding)
    dual, status, residual = found[:, :1].clone(), found[:, 1].to(torch.int8), found[:, 2].clone()
    weight = (A.abs().amax(-1) * dual).abs()
    strict = weight > STRICT * torch.maximum(raw.abs().amax(-1, keepdim=True), weight)
    side = torch.where(lower == upper, 2, torch.where(strict, dual.sign(), 0.0))
    return Outcome(y, dual, place.to(torch.int8), side.expand(dual.shape).to(torch.int8), status, residual)


def _by_dense_rows(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, rounding: float
) -> Outcome:
    """The same by the solver for any polyhedron, then clamped; NOT_CONVERGED, and NaN, if rows do not hold after that.

    Among nearly dependent rows the multipliers are so large that a row misses its bounds by what they round to.
    """
    k, n = A.shape[-2:]
    spread = lambda part: part.expand(len(raw), *part.shape[1:])
    eye = torch.eye(n, dtype=raw.dtype, device=raw.device).unsqueeze(0)
    dense = torch.cat([spread(A), spread(eye)], dim=-2)
    ends = (torch.cat([spread(rows), spread(box)], dim=-1) for rows, box in ((lower, low), (upper, high)))
    found = project_affine(raw, dense, *ends)
    problem, _ = _problem(raw, A, lower, upper, low, high)
    y, dual, place = problem.clamp(found.y), found.dual[:, :k], found.dual[:, k:].sign()
    place = torch.where(problem.fixed, 2, place).to(torch.int8)
    side = torch.where(problem.equality, 2, dual.sign()).to(torch.int8)
    lost = (found.status == int(Status.SOLVED)) & ~problem.holds(y, rounding)
    status = torch.where(lost, int(Status.NOT_CONVERGED), found.status).to(torch.int8)
    y = torch.where((status == int(Status.SOLVED)).unsqueeze(-1), y, torch.nan)
    return Outcome(y, dual, place, side, status, found.residual)


def _valid(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Finite raw and A, bounds that are no NaN, in order, and not infinite on the wrong side: ``(B,)``."""
    ordered = lambda least, most: ((least <= most) & (least < torch.inf) & (most > -torch.inf)).all(-1)
    numbers = raw.isfinite().all(-1) & A.isfinite().all(-1).all(-1)
    return numbers & ordered(lower, upper) & ordered(low, high)


def _problem(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor
) -> tuple[BoxProblem, Tensor]:
    """Rows of size 1 and the power of two each was divided by, ``(B, k)``; zeros and open bounds for bad numbers."""
    raw, A = (torch.where(part.isfinite(), part, 0.0) for part in (raw, A))
    scale = power_of_two(A.abs().amax(-1))
    sound = lambda bound, absent: torch.where(bound.isnan() | (bound == -absent), absent, bound)
    lower, low = sound(lower, -torch.inf), sound(low, -torch.inf)
    upper, high = torch.maximum(sound(upper, torch.inf), lower), torch.maximum(sound(high, torch.inf), low)
    return BoxProblem(raw, A / scale.unsqueeze(-1), lower / scale, upper / scale, low, high), scale


def _inside(problem: BoxProblem, rounding: float) -> Tensor:
    """Whether raw is in the box, and in the rows to rounding of its dtype: ``(B,)``."""
    raw = problem.raw
    boxed = ((raw >= problem.low) & (raw <= problem.high)).all(-1)
    size = (problem.A.abs() * raw.abs().unsqueeze(-2)).sum(-1)
    bounds = torch.where(problem.lower.isfinite(), problem.lower.abs(), 0.0)
    bounds = torch.maximum(bounds, torch.where(problem.upper.isfinite(), problem.upper.abs(), 0.0))
    slack = INSIDE * rounding * (size + bounds)
    return boxed & (problem.excess(problem.times(raw)).abs() <= slack).all(-1)


def _newton(problem: BoxProblem, dual: Tensor) -> _Point:
    """Newton's steps from the first multipliers."""
    found = _Point(problem.raw - problem.transposed(dual), dual)
    for _ in range(NEWTON_STEPS_IN_GRAPHS if mode() in GRAPHS else NEWTON_STEPS):
        found = _newton_step(problem, found)
    return found


def _newton_step(problem: BoxProblem, found: _Point) -> _Point:
    """Active rows to their bounds over the free coordinates, multipliers of the others to zero."""
    point, dual = found
    y = problem.clamp(point)
    near = 4 * EPS * problem.raw.abs().amax(-1, keepdim=True)  # the point is known to rounding of raw
    free = (point > problem.low - near) & (point < problem.high + near) & ~problem.fixed
    rows = torch.where(free.unsqueeze(-2), problem.A, 0.0)
    product = problem.times(y)
    weight = rows.square().sum(-1)
    goal = product + torch.where(weight > 0, weight, 1.0) * dual
    target = torch.minimum(torch.maximum(goal, problem.lower), problem.upper)
    active = (goal != target) | problem.equality
    dropped = torch.where(active, 0.0, dual)
    miss = product - target + (rows * problem.transposed(dropped).unsqueeze(-2)).sum(-1)
    miss = torch.where(active & (miss.abs() > EPS * problem.size(y)), miss, 0.0)
    step = factorise_rows(rows * active.unsqueeze(-1)).solve(miss) - dropped
    return _Point(point - problem.transposed(step), dual + step)


def _residual(problem: BoxProblem, y: Tensor, dual: Tensor) -> Tensor:
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
    reach = torch.maximum(reach, (problem.A.abs() * dual.abs().unsqueeze(-1)).sum(-2).amax(-1))
    moved = (y - again).abs().amax(-1) / torch.where(reach > 0, reach, 1.0)
    return torch.maximum(rows.amax(-1), moved / 8) / (SOLVED * EPS)


def _witness(problem: BoxProblem, dual: Tensor, rounding: float) -> Tensor:
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
    terms = (problem.A.abs() * v.abs().unsqueeze(-1)).sum(-2)
    corner = torch.where(slope > 0, problem.low, problem.high)
    slope = torch.where(corner.isinf() & (slope.abs() <= NO_SLOPE * terms), 0.0, slope)
    corner = torch.where(slope == 0, 0.0, corner)
    least = slope * corner
    most = torch.where(v > 0, problem.upper, problem.lower)
    most = torch.where(v == 0, 0.0, v * torch.where(v == 0, 0.0, most))
    # the products are added with the rounding of their terms, of which a slope may be a small part
    slack = INSIDE * rounding * ((terms * corner.abs()).sum(-1) + most.abs().sum(-1))
    return least.sum(-1) - most.sum(-1) > slack


def _place(problem: BoxProblem, point: Tensor) -> Tensor:
    """The code of each coordinate; one that touches its bound without a multiplier is free."""
    place = (point > problem.high).to(torch.int8) - (point < problem.low).to(torch.int8)
    return torch.where(problem.fixed, 2, place).to(torch.int8)


def _side(problem: BoxProblem, dual: Tensor) -> Tensor:
    """The code of each row: the sign of a multiplier that is more than rounding, or an equality."""
    weight = (problem.A.abs().amax(-1) * dual).abs()
    size = torch.maximum(problem.raw.abs().amax(-1, keepdim=True), weight.amax(-1, keepdim=True))
    side = torch.where(weight > STRICT * size, dual.sign(), 0.0)
    return torch.where(problem.equality, 2, side).to(torch.int8)
