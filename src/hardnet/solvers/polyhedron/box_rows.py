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

from hardnet.kernels.limits import POLYHEDRON
from hardnet.products import power_near, times_columnwise, times_rowwise
from hardnet.rows import BoxedBatch, boxed, ordered, take_rows
from hardnet.solvers.polyhedron.active import Factor, factorize_rows
from hardnet.solvers.polyhedron.fixed import repeat
from hardnet.solvers.polyhedron.projection import project_affine
from hardnet.solvers.solution import Found, Solution, Status, place, take, verdict
from hardnet.structure import bound_size
from hardnet.tolerances import row_size

# A box and a few rows in the form that the solvers share: one flat batch of float64 numbers, with rows of size 1.


EPS = torch.finfo(torch.float64).eps
INSIDE = 4.0
"""Roundings of its terms by which raw may miss a row and still count as inside."""


class BoxProblem(NamedTuple):
    """``argmin |y - raw|  subject to  lower <= A y <= upper,  low <= y <= high``, sample by sample.

    Attributes:
        raw: ``(B, n)``.
        A: ``(B, k, n)``, or ``(1, k, n)`` for all samples; each row divided by a power of two near its largest entry.
        lower: ``(B, k)`` or ``(1, k)``, divided likewise.
        upper: Like `lower`.
        low: ``(B, n)`` or ``(1, n)``.
        high: Like `low`.
    """

    raw: Tensor
    A: Tensor
    lower: Tensor
    upper: Tensor
    low: Tensor
    high: Tensor

    @property
    def equality(self) -> Tensor:
        """``lower == upper``."""
        return self.lower == self.upper

    @property
    def fixed(self) -> Tensor:
        """``low == high``."""
        return self.low == self.high

    def clamp(self, point: Tensor) -> Tensor:
        """The nearest point of the box."""
        return torch.minimum(torch.maximum(point, self.low), self.high)

    def times(self, y: Tensor) -> Tensor:
        """``A y``, ``(B, k)``."""
        return times_rowwise(self.A, y)

    def transposed(self, dual: Tensor) -> Tensor:
        """``A' dual``, ``(B, n)``."""
        return times_columnwise(self.A, dual)

    def size(self, y: Tensor) -> Tensor:
        """What a row's rounding is relative to, ``(B, k)``: outputs that the row does not read are none of it."""
        return row_size(self.A, y, self.lower, self.upper, EPS)

    def excess(self, product: Tensor) -> Tensor:
        """``A y - clamp(A y, lower, upper)``, ``(B, k)``."""
        return (product - self.upper).clamp_min(0.0) - (self.lower - product).clamp_min(0.0)

    def holds(self, y: Tensor, rounding: float) -> Tensor:
        """Whether every row is within `POLYHEDRON.verified` roundings of its size at y, ``(B,)``; false for NaN."""
        size = row_size(self.A, y, self.lower, self.upper, rounding)
        return ((self.excess(self.times(y)).abs() <= POLYHEDRON.verified * rounding * size) & size.isfinite()).all(-1)


# Checks for a box and a few rows: whether a point is inside, whether it is optimal, whether the set is empty.
#
# Violations of rows are measured in roundings of their terms; a certificate of emptiness is a direction in which even
# the best corner of the box misses the rows.


SOLVED_ROUNDINGS = 8.0
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
    return torch.maximum(rows.amax(-1), moved / 8) / (SOLVED_ROUNDINGS * EPS)


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


# One row and a box: the multiplier from the sorted breakpoints of a monotone, piecewise linear function.
#
# ``phi(t) = a' clamp(raw - a t, low, high)`` decreases with t, and its slope changes where a coordinate meets or leaves
# a bound, at ``(raw - low) / a`` and ``(raw - high) / a``. Bisection over these 2n sorted numbers, ``log2(2n + 1)``
# evaluations, finds the piece on which phi crosses its target; phi is linear there.


def multiplier_of_one_row(problem: BoxProblem) -> Tensor:
    """The t nearest to 0 with ``lower <= phi(t) <= upper``, ``(B, 1)``; the outermost breakpoint if there is none."""
    a = problem.A.squeeze(-2)
    at_raw = _phi(problem, a, torch.zeros_like(problem.raw[:, :1]))
    target = torch.minimum(torch.maximum(at_raw, problem.lower), problem.upper)
    points, count = _breakpoints(problem, a)
    before, after = _bracket(problem, a, target, points, count)
    return torch.where(at_raw == target, 0.0, _on_piece(problem, a, target, points, count, before, after))


def _phi(problem: BoxProblem, a: Tensor, at: Tensor) -> Tensor:
    """``a' clamp(raw - a t)``, ``(B, 1)``."""
    return (a * problem.clamp(problem.raw - a * at)).sum(-1, keepdim=True)


def _breakpoints(problem: BoxProblem, a: Tensor) -> tuple[Tensor, Tensor]:
    """The breakpoints, finite ones first and sorted, ``(B, 2n)``, and how many are finite, ``(B, 1)``."""
    safe = torch.where(a == 0, 1.0, a)
    ends = torch.cat([(problem.raw - side) / safe for side in (problem.low, problem.high)], dim=-1)
    met = (a != 0).expand(problem.raw.shape)
    good = torch.cat([met, met], dim=-1) & ends.isfinite()
    points = torch.where(good, ends, torch.inf).sort(dim=-1).values
    return points, good.sum(-1, keepdim=True)


def _at(points: Tensor, index: Tensor, count: Tensor) -> Tensor:
    """The breakpoint at that index, clamped to the valid range; 0 if there are none."""
    index = torch.minimum(index, count - 1).clamp_min(0)
    return torch.where(count > 0, points.gather(-1, index), 0.0)


def _bracket(problem: BoxProblem, a: Tensor, target: Tensor, points: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the last breakpoint where phi is at least the target (-1 if none), and the next index."""
    before, after = torch.full_like(count, -1), count
    for _ in range(points.shape[-1].bit_length()):
        middle = (before + after) // 2
        high = _phi(problem, a, _at(points, middle, count)) >= target
        split = after - before > 1
        before, after = torch.where(split & high, middle, before), torch.where(split & ~high, middle, after)
    return before, after


def _on_piece(
    problem: BoxProblem, a: Tensor, target: Tensor, points: Tensor, count: Tensor, before: Tensor, after: Tensor
) -> Tensor:
    """Where the line between two breakpoints, or beyond the outermost one, meets the target."""
    left, right = _at(points, before, count), _at(points, after, count)
    first, last = _phi(problem, a, left), _phi(problem, a, right)
    falls = first - last
    inner = left + (right - left) * ((first - target) / torch.where(falls > 0, falls, 1.0))
    below, above = problem.low.isinf(), problem.high.isinf()
    square, rises = a.square(), a > 0
    # written with & and |, since ONNX Runtime has no `where` for masks
    first_free, last_free = (rises & above) | (~rises & below), (rises & below) | (~rises & above)
    # beyond the breakpoints only the coordinates without a bound on that side are free
    start = torch.where(first_free, square, 0.0).sum(-1, keepdim=True)
    end = torch.where(last_free, square, 0.0).sum(-1, keepdim=True)
    slope = torch.where(before < 0, start, end)
    outer = left + torch.where(slope > 0, (first - target) / torch.where(slope > 0, slope, 1.0), 0.0)
    return torch.where((before < 0) | (after >= count), outer, inner)


# A box and several rows: multipliers by an interior point method, with the same number of steps for every sample.
#
# The variables are ``z = (y, s)`` with ``A y = s``, so that the row bounds become a box as well, and each of the k
# equalities has a multiplier. A predictor-corrector step solves k equations, whatever n is; the rest is elementwise.


INTERIOR_STEPS = 32
"""Number of steps: typical problems need 10 to 15, thin boxes and sets without an interior 25 to 30."""
INTERIOR_STEPS_IN_GRAPHS = 16
"""The same in compiled code, where each step is part of the graph."""
ROW_CURVATURE = 1e-12
"""Curvature added for ``s``, which has none, so that rows far from their bounds stay solvable; the Newton steps that
follow undo it."""
TO_THE_BORDER = 0.995
"""The fraction of the way to the nearest bound that a step may go."""
DONE = 1e-28
"""The mean of slack times multiplier at which a sample stops moving."""


FARTHEST_BOUND = 1e9
"""A bound farther away than this many sizes of the sample is dropped: its gap would dominate the mean of all gaps."""


class _Frame(NamedTuple):
    """Center and curvature of the objective, bounds of z, and which exist, ``(B, n + k)`` each; ``M = [A, -I]``."""

    center: Tensor
    curvature: Tensor
    low: Tensor
    high: Tensor
    has_low: Tensor
    has_high: Tensor
    free: Tensor
    M: Tensor


class _State(NamedTuple):
    """z, its distances to its bounds (1 if absent), the k multipliers of ``M z = 0``, and those of the bounds.

    The distances are stored beside z: computed as differences, they would lose their digits near the bounds.
    """

    z: Tensor
    below: Tensor
    above: Tensor
    dual: Tensor
    at_low: Tensor
    at_high: Tensor


def multipliers_of_rows(problem: BoxProblem, mode: str) -> Tensor:
    """Approximate multipliers ``(B, k)`` of ``lower <= A y <= upper``; `mode` is the mode of the call."""
    unit = _unit(problem)
    frame = _frame(problem, unit)
    state = _start(frame)
    step = lambda *parts: _step(frame, _State(*parts))
    going = lambda *parts: _going(frame, _State(*parts))
    count = INTERIOR_STEPS_IN_GRAPHS if mode == "compile" else INTERIOR_STEPS
    state = _State(*repeat(step, state, count, going, exported=mode == "export"))
    return state.dual * unit


def _unit(problem: BoxProblem) -> Tensor:
    """A power of two near the largest relevant number of the sample, ``(B, 1)``."""
    inside = problem.clamp(problem.raw)
    reach = torch.maximum(problem.raw.abs().amax(-1, keepdim=True), inside.abs().amax(-1, keepdim=True))
    away = problem.excess(problem.times(inside)).abs().amax(-1, keepdim=True)
    return power_near(torch.maximum(reach, torch.where(away.isfinite(), away, 0.0)))


def _frame(problem: BoxProblem, unit: Tensor) -> _Frame:
    """The problem in z, in the sample's unit."""
    batch, k = problem.raw.shape[0], problem.A.shape[-2]
    zero = torch.zeros_like(problem.raw[:, :1]).expand(batch, k)
    join = lambda first, second: torch.cat([first, second.expand(batch, k)], dim=-1)
    spread = lambda bound: bound.expand(problem.raw.shape)
    low = join(spread(problem.low), problem.lower) / unit
    high = join(spread(problem.high), problem.upper) / unit
    low, high = torch.where(low > -FARTHEST_BOUND, low, -torch.inf), torch.where(high < FARTHEST_BOUND, high, torch.inf)
    curvature = join(torch.ones_like(problem.raw), zero + ROW_CURVATURE)
    eye = torch.eye(k, dtype=problem.A.dtype, device=problem.A.device)
    M = torch.cat([problem.A, -eye.expand(problem.A.shape[0], k, k)], dim=-1)
    center = join(problem.raw / unit, zero)
    return _Frame(center, curvature, low, high, low > -torch.inf, high < torch.inf, low < high, M)


def _start(frame: _Frame) -> _State:
    """Raw and its rows, moved inside their bounds by a fraction of the width; multipliers of 1."""
    margin = 0.1 * (frame.high - frame.low).clamp(0.0, 1.0)
    k = frame.M.shape[-2]
    between = lambda z: torch.minimum(torch.maximum(z, frame.low + margin), frame.high - margin)
    y = between(frame.center)[:, :-k]
    rows = times_rowwise(frame.M[..., :-k], y)
    z = between(torch.cat([y, rows], dim=-1))
    z = torch.where(frame.free, z, torch.where(frame.has_low, frame.low, 0.0))
    some_low, some_high = frame.has_low & frame.free, frame.has_high & frame.free
    below, above = torch.where(some_low, z - frame.low, 1.0), torch.where(some_high, frame.high - z, 1.0)
    return _State(z, below, above, torch.zeros_like(z[:, -k:]), some_low.to(z.dtype), some_high.to(z.dtype))


class _Equations(NamedTuple):
    """The parts of the equations of a step."""

    inverse: Tensor
    factor: Factor
    slope: Tensor
    miss: Tensor


def _step(frame: _Frame, state: _State) -> _State:
    """A predictor and a centered corrector, taken as far as the bounds allow."""
    equations = _equations(frame, state)
    count, gap, none = *_gap(state), torch.zeros_like(state.z)
    guess = _direction(frame, state, equations, none, none)
    after = _products(state, guess, _reach(state, guess, 1.0)) / count
    center = (after / torch.where(gap > 0, gap, 1.0)).clamp(0.0, 1.0) ** 3 * gap
    low_goal = torch.where(state.at_low > 0, center - guess.at_low * guess.z, 0.0)
    high_goal = torch.where(state.at_high > 0, center + guess.at_high * guess.z, 0.0)
    move = _direction(frame, state, equations, low_goal, high_goal)
    reach = _reach(state, move, TO_THE_BORDER)
    sound = torch.stack([part.isfinite().all(-1) for part in move]).all(0).unsqueeze(-1)
    going = sound & ((gap > DONE) | (equations.miss.abs().amax(-1, keepdim=True) > DONE))
    return _State(*(torch.where(going, old + reach * way, old) for old, way in zip(state, move, strict=True)))


def _going(frame: _Frame, state: _State) -> Tensor:
    """Whether some sample is not done: a bool ``()``."""
    miss = times_rowwise(frame.M, state.z).abs().amax(-1, keepdim=True)
    return ((_gap(state)[1] > DONE) | (miss > DONE)).any()


def _gap(state: _State) -> tuple[Tensor, Tensor]:
    """How many bounds there are, and the mean of slack times multiplier: ``(B, 1)`` each."""
    count = ((state.at_low > 0).sum(-1, keepdim=True) + (state.at_high > 0).sum(-1, keepdim=True)).clamp_min(1)
    return count, _products(state, state, 0.0) / count


def _equations(frame: _Frame, state: _State) -> _Equations:
    """The left-hand side of a step's equations, factorized."""
    weight = frame.curvature + state.at_low / state.below + state.at_high / state.above
    inverse = torch.where(frame.free, 1.0 / weight, 0.0)
    factor = factorize_rows(frame.M * inverse.sqrt().unsqueeze(-2))
    slope = frame.curvature * (state.z - frame.center) + times_columnwise(frame.M, state.dual)
    return _Equations(inverse, factor, slope, times_rowwise(frame.M, state.z))


def _direction(frame: _Frame, state: _State, equations: _Equations, low_goal: Tensor, high_goal: Tensor) -> _State:
    """The step to ``at_low * below = low_goal``, ``at_high * above = high_goal`` and ``M z = 0``, to first order."""
    inverse, factor, slope, miss = equations
    below, above = state.below, state.above
    pull = (slope - low_goal / below + high_goal / above) * inverse
    dual = factor.solve(miss - times_rowwise(frame.M, pull))
    z = -pull - inverse * times_columnwise(frame.M, dual)
    at_low = low_goal / below - state.at_low - state.at_low * z / below
    at_high = high_goal / above - state.at_high + state.at_high * z / above
    return _State(
        z, torch.where(state.at_low > 0, z, 0.0), torch.where(state.at_high > 0, -z, 0.0), dual, at_low, at_high
    )


def _products(state: _State, move: _State, reach: Tensor | float) -> Tensor:
    """The sum of distance times multiplier after the fraction `reach` of a move, ``(B, 1)``."""
    low = (state.at_low + reach * move.at_low) * (state.below + reach * move.below)
    high = (state.at_high + reach * move.at_high) * (state.above + reach * move.above)
    total = torch.where(state.at_low > 0, low, 0.0) + torch.where(state.at_high > 0, high, 0.0)
    return total.sum(-1, keepdim=True)


def _reach(state: _State, move: _State, part: float) -> Tensor:
    """The fraction of a move, at most 1, that goes the fraction `part` of the way to the first zero: ``(B, 1)``."""
    some_low, some_high = state.at_low > 0, state.at_high > 0
    rates = [
        torch.where(some_low, -move.below / state.below, 0.0),
        torch.where(some_high, -move.above / state.above, 0.0),
        torch.where(some_low, -move.at_low / torch.where(some_low, state.at_low, 1.0), 0.0),
        torch.where(some_high, -move.at_high / torch.where(some_high, state.at_high, 1.0), 0.0),
    ]
    fastest = torch.stack([rate.amax(-1) for rate in rates]).amax(0)
    return (part / fastest.clamp_min(part)).unsqueeze(-1)


DUAL_STEPS = 8
"""Newton steps after the first multipliers: two or three are enough unless coordinates are at their bounds."""
NEWTON_STEPS_IN_GRAPHS = 3
"""The same in compiled code, and for one row in exported code, where each step is part of the graph."""


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
    return DUAL_STEPS if k == 1 else DUAL_STEPS + INTERIOR_STEPS


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
) -> Found:
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
    return Found(y, *sides, status.to(torch.int8), residual * SOLVED_ROUNDINGS * EPS)


def unsettled(status: Tensor) -> Tensor:
    """The samples ``(B,)`` that another solver may still solve, or prove to be the nearest."""
    return (status == int(Status.NOT_CONVERGED)) | (status == int(Status.FEASIBLE))


def settle(found: Found, flat: BoxedBatch, rounding: float) -> Found:
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
) -> Found:
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
    return Found(y, place, dual, side, status, found.residual)


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
    return _Point(*repeat(step, found, DUAL_STEPS, exported=mode == "export"))


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
    side = torch.where(weight > POLYHEDRON.strict * size, dual.sign(), 0.0)
    return torch.where(problem.equality, 2, side).to(torch.int8)
