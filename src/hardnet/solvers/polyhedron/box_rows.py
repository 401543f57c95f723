"""The Euclidean projection onto a box and a few rows, in the multipliers of the rows: no matrix of n + k rows.

The nearest point is ``y = clamp(raw - A'dual, box_lower, box_upper)``, so k numbers determine it.

1. One row: the multiplier from sorted breakpoints. Several rows: an interior point method of a fixed number of steps.
2. Newton steps on ``A y(dual) = clamp(A y(dual) + dual, lower, upper)``, with y recomputed from the accumulated point
   ``raw - A'dual``, so that the rows hold to rounding of y, however far away raw was.
3. Checks up to rounding: rows, signs of multipliers, and certificates of an empty set. An answer whose rows do not hold
   never counts as solved, whichever solver found it.

All samples take the same steps and no value is read, so it can be compiled, exported and mapped.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import STRICT
from hardnet.products import times_rowwise
from hardnet.rows import BoxedBatch, boxed, ordered, take_rows
from hardnet.solvers.polyhedron.box_breakpoints import multiplier_of_one_row
from hardnet.solvers.polyhedron.box_checks import SOLVED, is_inside, residual_of, witness_of
from hardnet.solvers.polyhedron.box_factor import factorize_rows
from hardnet.solvers.polyhedron.box_interior import STEPS, multipliers_of_rows
from hardnet.solvers.polyhedron.box_problem import EPS, BoxProblem, power_near
from hardnet.solvers.polyhedron.projection import project_affine
from hardnet.solvers.repeat import repeat
from hardnet.solvers.solution import Solution, Status, place, take, verdict

NEWTON_STEPS = 8
"""Newton steps after the first multipliers: two or three are enough unless coordinates are at their bounds."""
NEWTON_STEPS_IN_GRAPHS = 3
"""The same in compiled code, and for one row in exported code, where each step is part of the graph."""


class Outcome(NamedTuple):
    """The outcome for a flat batch, in the original units.

    Attributes:
        y: ``(B, n)``, inside the box.
        place: Where each coordinate is, ``(B, n)`` int8: -1 at its lower bound, 1 at its upper, 0 free, 2 fixed.
        dual: ``(B, k)``.
        side: Which bound each row is at, ``(B, k)`` int8: -1 lower, 1 upper, 0 none, 2 an equality.
        status: ``(B,)`` int8.
        residual: ``(B,)``.
    """

    y: Tensor
    place: Tensor
    dual: Tensor
    side: Tensor
    status: Tensor
    residual: Tensor


class _Point(NamedTuple):
    """``point = raw - A'dual``, accumulated step by step, and the dual."""

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
    """``argmin |y - raw|  s.t.  lower <= A y <= upper,  box_lower <= y <= box_upper``, as a full `Solution`.

    It has no autograd, reads no value and raises nothing for bad samples: see ``.status``. For an empty set y is NaN
    and ``.dual`` proves it: no point of the box has ``dual' A y <= sum of dual times bound``.

    Args:
        raw: ``(*batch, n)``.
        A: ``(k, n)`` or ``(*batch, k, n)``, k of 1 to `MOST_BOX_ROWS`.
        lower: ``(k,)`` or ``(*batch, k)``; None is -inf.
        upper: Like `lower`; None is +inf.
        box_lower: ``(n,)`` or ``(*batch, n)``; None is -inf.
        box_upper: Like `box_lower`; None is +inf.
    """
    with torch.no_grad():
        rows = take_rows(raw, A, lower, upper, None, box_lower, box_upper)
        found = solve(*boxed(rows), rounding=torch.finfo(raw.dtype).eps, mode=rows.mode)
    y, dual = found.y.to(raw.dtype), found.dual.to(raw.dtype)
    count = torch.full_like(found.status, steps(A.shape[-2]), dtype=torch.long)
    return Solution(*map(rows.as_given, (y, dual, found.status, count, found.residual)))


def steps(k: int) -> int:
    """How many steps every sample takes; sorting the breakpoints of one row is not counted."""
    return NEWTON_STEPS if k == 1 else NEWTON_STEPS + STEPS


def solve(
    raw: Tensor,
    A: Tensor,
    lower: Tensor,
    upper: Tensor,
    low: Tensor,
    high: Tensor,
    *,
    rounding: float,
    mode: str = "eager",
) -> Outcome:
    """Project a flat batch (see `hardnet.rows.boxed`).

    `rounding` is the machine epsilon of the answer's dtype, and `mode` what records or transforms the call.
    """
    if mode == "export":  # see `repeat`
        A, lower, upper, low, high = (
            part.expand(raw.shape[0], *part.shape[1:]) for part in (A, lower, upper, low, high)
        )
    valid = _valid(raw, A, lower, upper, low, high)
    problem, scale = _problem(raw, A, lower, upper, low, high)
    first = multiplier_of_one_row(problem) if A.shape[-2] == 1 else multipliers_of_rows(problem, mode)
    found = _newton(problem, first, mode)
    inside = is_inside(problem, rounding).unsqueeze(-1)
    found = _Point(torch.where(inside, problem.raw, found.point), torch.where(inside, 0.0, found.dual))
    y = problem.clamp(found.point)
    residual = torch.where(inside.squeeze(-1), 0.0, residual_of(problem, y, found.dual))
    witness = witness_of(problem, found.dual, rounding)
    empty = (witness != 0).any(-1) & ~inside.squeeze(-1)
    met = torch.where(residual <= 1.0, int(Status.SOLVED), int(Status.FEASIBLE))
    status = torch.where(problem.holds(y, rounding), met, int(Status.NOT_CONVERGED))
    status = torch.where(empty, int(Status.INFEASIBLE), status)
    status = torch.where(valid, status, int(Status.INVALID))
    y = torch.where((valid & ~empty).unsqueeze(-1), y, torch.nan)
    dual = torch.where(empty.unsqueeze(-1), witness, found.dual) / scale
    sides = _place(problem, found.point), dual, _side(problem, found.dual)
    return Outcome(y, *sides, status.to(torch.int8), residual * SOLVED * EPS)


def unsettled(status: Tensor) -> Tensor:
    """The samples ``(B,)`` that another solver may still solve, or prove to be the nearest."""
    return (status == int(Status.NOT_CONVERGED)) | (status == int(Status.FEASIBLE))


def settle(found: Outcome, flat: BoxedBatch, rounding: float) -> Outcome:
    """Solve the samples that are `unsettled` as n + k dense rows."""
    index = unsettled(found.status).nonzero().squeeze(-1)
    if len(index) == 0:
        return found
    raw, *others = flat
    left: BoxedBatch = (raw[index], *(part if len(part) == 1 else part[index] for part in others))  # pyright: ignore[reportAssignmentType]
    settled = _by_dense_rows(*left, rounding)
    worse = (found.status[index] == int(Status.FEASIBLE)) & (settled.status == int(Status.NOT_CONVERGED))
    return place(found, index[~worse], take(settled, (~worse).nonzero().squeeze(-1)))


def _by_dense_rows(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, rounding: float
) -> Outcome:
    """Solve by the solver for any polyhedron, then clamp; NOT_CONVERGED if rows do not hold after that.

    The multipliers of nearly dependent rows may be so large that their rounding makes a row miss its bounds.
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
    status = verdict(found.status, problem.holds(y, rounding))
    y = torch.where(((status != int(Status.INFEASIBLE)) & (status != int(Status.INVALID))).unsqueeze(-1), y, torch.nan)
    return Outcome(y, place, dual, side, status, found.residual)


def _valid(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Whether raw and A are finite, and bounds ordered, not NaN and not infinite on the wrong side: ``(B,)``."""
    numbers = raw.isfinite().all(-1) & A.isfinite().all(-1).all(-1)
    return numbers & ordered(lower, upper).all(-1) & ordered(low, high).all(-1)


def _problem(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor
) -> tuple[BoxProblem, Tensor]:
    """Rows of size 1 and the power of two each was divided by, ``(B, k)``; bad numbers become zero or absent bounds."""
    raw, A = (torch.where(part.isfinite(), part, 0.0) for part in (raw, A))
    scale = power_near(A.abs().amax(-1))
    sound = lambda bound, absent: torch.where(bound.isnan() | (bound == -absent), absent, bound)
    lower, low = sound(lower, -torch.inf), sound(low, -torch.inf)
    upper, high = torch.maximum(sound(upper, torch.inf), lower), torch.maximum(sound(high, torch.inf), low)
    return BoxProblem(raw, A / scale.unsqueeze(-1), lower / scale, upper / scale, low, high), scale


def _newton(problem: BoxProblem, dual: Tensor, mode: str) -> _Point:
    """Newton steps from the first multipliers."""
    found = _Point(problem.raw - problem.transposed(dual), dual)
    step = lambda *parts: _newton_step(problem, _Point(*parts))
    if mode == "compile" or (mode == "export" and dual.shape[-1] == 1):
        for _ in range(NEWTON_STEPS_IN_GRAPHS):
            found = step(*found)
        return found
    return _Point(*repeat(step, found, NEWTON_STEPS, exported=mode == "export"))


def _newton_step(problem: BoxProblem, found: _Point) -> _Point:
    """Move active rows to their bounds by the free coordinates, and set the multipliers of the other rows to zero."""
    point, dual = found
    y = problem.clamp(point)
    near = 4 * EPS * problem.raw.abs().amax(-1, keepdim=True)  # the point is accurate to rounding of raw
    free = (point > problem.low - near) & (point < problem.high + near) & ~problem.fixed
    rows = torch.where(free.unsqueeze(-2), problem.A, 0.0)
    product = problem.times(y)
    weight = rows.square().sum(-1)
    goal = product + torch.where(weight > 0, weight, 1.0) * dual
    target = torch.minimum(torch.maximum(goal, problem.lower), problem.upper)
    active = (goal != target) | problem.equality
    dropped = torch.where(active, 0.0, dual)
    miss = product - target + times_rowwise(rows, problem.transposed(dropped))
    miss = torch.where(active & (miss.abs() > EPS * problem.size(y)), miss, 0.0)
    step = factorize_rows(rows * active.unsqueeze(-1)).solve(miss) - dropped
    return _Point(point - problem.transposed(step), dual + step)


def _place(problem: BoxProblem, point: Tensor) -> Tensor:
    """The code of each coordinate; one that touches its bound with a zero multiplier is free."""
    place = (point > problem.high).long() - (point < problem.low).long()  # ONNX Runtime has no `where` for int8
    return torch.where(problem.fixed, 2, place).to(torch.int8)


def _side(problem: BoxProblem, dual: Tensor) -> Tensor:
    """The code of each row: the sign of a multiplier that is more than rounding, or an equality."""
    weight = (problem.A.abs().amax(-1) * dual).abs()
    size = torch.maximum(problem.raw.abs().amax(-1, keepdim=True), weight.amax(-1, keepdim=True))
    side = torch.where(weight > STRICT * size, dual.sign(), 0.0)
    return torch.where(problem.equality, 2, side).to(torch.int8)
