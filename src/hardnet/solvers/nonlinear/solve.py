"""A point of ``lower <= g(y, x) <= upper`` and affine rows: the nearest one, or a near one, with its status.

1. A raw output that satisfies its rows is returned unchanged.
2. Rows that look affine around raw are projected onto exactly; the result is accepted only if g itself confirms it.
3. The remaining samples are projected onto the affine rows and retracted (`iterate`); for the nearest point the result
   is the start of sequential quadratic programming.
4. Everything reported is evaluated at the returned point, for the whole batch with x as it was given. Where that
   disagrees with what samples alone gave, the batch is solved again without calling g for a part of it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError
from hardnet.modes import may_look
from hardnet.rows import ordered
from hardnet.solvers.algebra.small import product, products, solve_definite
from hardnet.solvers.nonlinear.nearest import DEGENERATE, Nearest, approach
from hardnet.solvers.nonlinear.retract import Retracted, retract
from hardnet.solvers.nonlinear.rows import (
    FINE,
    Derivatives,
    Pace,
    Rows,
    fixed_direction,
    relative_error,
    row_norms,
    row_size,
)
from hardnet.solvers.polyhedron.projection import project_affine
from hardnet.solvers.solution import Status, choose, place, take

# How samples ended: the status of each, the tests behind it, and the record that a solve returns.


KKT_ROUNDINGS = 64
"""Roundings of the terms of ``J'dual`` that the KKT residual may have in addition to the tolerance."""
SLOW = 0.15
"""A full step near a regular point leaves less than this part of the violation; at a cusp or a double root, more."""
ROUNDED = 1e-13
"""Relative violation up to which rounding may be the reason that the last step did not reduce it."""
DEPENDENT_GRADIENTS = 1e-10
"""Least pivot of the unit gradients of active rows; below it they are dependent."""


class NonlinearStatus(IntEnum):
    """How one sample ended (stored as int8).

    OK: the rows hold to the tolerance and, for the nearest point, so do the KKT conditions, to the same tolerance
    relative to ``1 + |y - raw|`` plus 64 roundings of the terms of ``J'dual``. FEASIBLE_ONLY: the rows hold, the KKT
    conditions do not. NOT_CONVERGED: the rows do not hold. INFEASIBLE_LOCAL: the rows do not hold, and no small move
    reduces their violation. DEGENERATE: the rows hold, but gradients of active rows are dependent, or the point is not
    isolated. INVALID: raw, x or a bound is NaN or infinite, lower > upper, or g is not finite at raw or any of the
    other starts.
    """

    OK = 0
    FEASIBLE_ONLY = 1
    NOT_CONVERGED = 2
    INFEASIBLE_LOCAL = 3
    DEGENERATE = 4
    INVALID = 5


class NonlinearSolution(NamedTuple):
    """The outcome for each sample of a batch.

    Attributes:
        y: ``(B, n)``; the best point found where the rows do not hold, raw where INVALID.
        dual: Multipliers ``(B, m + k)``, positive at the upper bound; 0 from a retraction.
        status: `NonlinearStatus`, ``(B,)`` int8.
        iterations: ``(B,)``.
        violation: The largest violation relative to its row's scale, ``(B,)``.
        residual: The larger of ``|y - raw + J'dual| / (1 + |y - raw|)`` and the complementarity residual, ``(B,)``; 0
            from a retraction.
    """

    y: Tensor
    dual: Tensor
    status: Tensor
    iterations: Tensor
    violation: Tensor
    residual: Tensor


def unsolved(raw: Tensor, rows: Rows) -> NonlinearSolution:
    """A batch of INVALID samples, with y = raw."""
    count = torch.zeros(len(raw), dtype=torch.long, device=raw.device)
    nan = raw.new_full((len(raw),), torch.nan)
    status = torch.full_like(count, NonlinearStatus.INVALID, dtype=torch.int8)
    return NonlinearSolution(raw, torch.zeros_like(rows.lower), status, count, nan, nan)


def blame(found: NonlinearSolution, steps: Tensor, stationary: Tensor) -> NonlinearSolution:
    """Replace NOT_CONVERGED by INFEASIBLE_LOCAL where the violation is stationary; set the number of steps."""
    stuck = (found.status == NonlinearStatus.NOT_CONVERGED) & stationary
    status = torch.where(stuck, int(NonlinearStatus.INFEASIBLE_LOCAL), found.status.long()).to(torch.int8)
    return found._replace(status=status, iterations=steps)


def judged(
    rows: Rows,
    raw: Tensor,
    y: Tensor,
    at: Derivatives,
    dual: Tensor,
    ratio: Tensor,
    tolerance: float,
    settled: Tensor,
    flat: Tensor,
    look: bool = True,
) -> NonlinearSolution:
    """Check what holds at y, where `at` was evaluated, and derive the status from it."""
    error, _ = relative_error(rows, at, y, raw)
    residual, rounding = kkt_residual(rows, raw, y, at, dual)
    optimal = settled & (residual <= tolerance + rounding)
    flat = _confirmed_flat(rows, y, dual, optimal & flat) if look else flat
    weak = optimal & (flat | _dependent(rows, at.jacobian, dual))
    found = status_of(y, dual, error, ratio, tolerance, optimal, weak)
    return found._replace(residual=residual)


def kkt_residual(rows: Rows, raw: Tensor, y: Tensor, at: Derivatives, dual: Tensor) -> tuple[Tensor, Tensor]:
    """The KKT residual relative to ``1 + |y - raw|``, and the rounding that it may have, ``(b,)`` each."""
    away = y - raw
    size = 1 + away.abs().amax(-1)
    gap = torch.where(dual > 0, rows.upper - at.value, at.value - rows.lower)
    slack = torch.where(dual != 0, dual.abs() * gap.abs(), 0.0).amax(-1) / size.square()
    residual = torch.maximum((away + product(at.jacobian.mT, dual)).abs().amax(-1) / size, slack)
    terms = product(at.jacobian.abs().mT, dual.abs()).amax(-1) / size  # the rounding of the sum is relative to it
    return residual, KKT_ROUNDINGS * torch.finfo(y.dtype).eps * terms


def status_of(
    y: Tensor,
    dual: Tensor,
    error: Tensor,
    ratio: Tensor,
    tolerance: float,
    optimal: Tensor | None = None,
    weak: Tensor | None = None,
) -> NonlinearSolution:
    """The status of points with a relative violation `error`, which the last full step multiplied by `ratio`."""
    feasible = error <= tolerance
    degenerate = (ratio > SLOW) & (error > ROUNDED)
    degenerate = degenerate if weak is None else degenerate | weak
    status = torch.where(feasible if optimal is None else optimal, int(NonlinearStatus.OK), 1)
    status = torch.where(degenerate, int(NonlinearStatus.DEGENERATE), status)
    status = torch.where(feasible, status, int(NonlinearStatus.NOT_CONVERGED))
    return NonlinearSolution(y, dual, status.to(torch.int8), torch.zeros_like(status), error, torch.zeros_like(error))


def _confirmed_flat(rows: Rows, y: Tensor, dual: Tensor, flat: Tensor) -> Tensor:
    """Which of the samples marked `flat` have a curvature of W of at most `DEGENERATE` along their active rows."""
    todo = flat.nonzero().squeeze(-1)
    if len(todo) == 0:
        return flat
    some, own = rows.take(todo), dual[todo]
    at = some.evaluate(y[todo], lambda *_: own)
    unit = at.jacobian * ((some.equality | (own != 0)) / row_norms(at.jacobian)).unsqueeze(-1)
    eye = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    across = torch.linalg.pinv(unit, rtol=DEPENDENT_GRADIENTS) @ unit
    along = eye - across
    W: Tensor = eye + at.hessian  # pyright: ignore[reportOperatorIssue]
    least = torch.linalg.eigvalsh(along @ W @ along + across).amin(-1)
    return flat.index_copy(0, todo, least <= DEGENERATE)


def _dependent(rows: Rows, jacobian: Tensor, dual: Tensor) -> Tensor:
    """Whether the gradients of the active rows are dependent, ``(b,)``."""
    active = (rows.equality | (dual != 0)).to(jacobian)
    unit = jacobian * (active / row_norms(jacobian)).unsqueeze(-1)
    gram = products(unit, unit.mT).clone()
    gram.diagonal(dim1=-2, dim2=-1).add_(1 - active)
    return ~(solve_definite(gram, torch.zeros_like(gram[..., :1]))[1] > DEPENDENT_GRADIENTS)


# The starting point of the iteration: on the affine rows, where the rows of g are finite.


OTHERS = ((0.5, 0.0), (0.1, 0.0), (1.0, 1.0), (1.0, -1.0), (1.0, 2.0), (1.0, -2.0), (0.0, 0.1), (0.0, 0.0))
"""Other starts where g is not finite: a multiple of raw, and a distance from there relative to the sample's size."""


class Start(NamedTuple):
    """First points ``(b, n)``, the rows there, where these are finite, and where the affine rows are infeasible."""

    y: Tensor
    at: Derivatives
    finite: Tensor
    empty: Tensor


def sound_bounds(rows: Rows) -> Tensor:
    """Whether the bounds are valid: not NaN, in order, and not infinite on the wrong side: ``(B,)``."""
    return ordered(rows.lower, rows.upper).all(-1)


def first_points(rows: Rows, raw: Tensor, start: Tensor, at: Derivatives) -> Start:
    """The starts, moved onto the affine rows; where g or its slope is not finite there, the first of `OTHERS` that is.

    Args:
        rows: The rows.
        raw: ``(b, n)``.
        start: ``(b, n)``, finite.
        at: The rows at raw.
    """
    y, empty = on_affine_rows(rows, start)
    at = at if y is raw else rows.evaluate(y)
    finite = _finite(at)
    for number, (share, distance) in enumerate(OTHERS):
        todo = (~finite).nonzero().squeeze(-1)
        if len(todo) == 0:
            break
        some = rows.take(todo)
        point = _around(raw[todo], share, distance, number)
        point = on_affine_rows(some, point)[0]
        there = some.evaluate(point)
        y, finite = y.index_copy(0, todo, point), finite.index_copy(0, todo, _finite(there))
        at = Derivatives(*(old.index_copy(0, todo, new) for old, new in zip(at[:2], there[:2], strict=True)))  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
    return Start(y, at, finite, empty)


def elsewhere(rows: Rows, raw: Tensor, attempt: int) -> Tensor:
    """A point about as far from raw as raw is large, in a fixed direction, on the affine rows."""
    return on_affine_rows(rows, _around(raw, 1.0, 1.0, attempt))[0]


def on_affine_rows(rows: Rows, y: Tensor) -> tuple[Tensor, Tensor]:
    """The projection onto the affine rows alone, and where they are infeasible."""
    if not rows.A.shape[-2]:
        return y, torch.zeros(len(y), dtype=torch.bool, device=y.device)
    found = project_affine(y, rows.A, rows.lower[:, rows.curved :], rows.upper[:, rows.curved :])
    return found.y, found.status == int(Status.INFEASIBLE)


def _around(raw: Tensor, share: float, distance: float, number: int) -> Tensor:
    """``share raw + distance size direction``."""
    return share * raw + distance * row_size(raw, raw).clamp_min(0.1) * fixed_direction(raw, number)


def _finite(at: Derivatives) -> Tensor:
    """Whether values and slopes are finite, ``(b,)``; a number that is not finite makes their sum not finite."""
    if bool((at.value.sum() + at.jacobian.sum()).isfinite()):
        return torch.ones_like(at.value[:, 0], dtype=torch.bool)
    return at.value.isfinite().all(-1) & at.jacobian.isfinite().flatten(1).all(-1)


# The iteration where values may be read: retract, approach the nearest point, and report.


Mode = Literal["nearest", "retract"]

COARSE = 1e-3
"""Relative violation at which the search for the nearest point may start: its own steps reduce the rest."""
RESTARTS = 2
"""Number of other starts for samples whose rows do not hold after the first."""


def iterate(rows: Rows, raw: Tensor, start: Tensor, mode: Mode, tolerance: float, at: Derivatives) -> NonlinearSolution:
    """Solve from the starts ``(b, n)``; samples without a finite start are INVALID. `at` are the rows at raw."""
    first = first_points(rows, raw, start, at)
    if bool(first.finite.all()):
        return _from(rows, raw, first, mode, tolerance)
    index = first.finite.nonzero().squeeze(-1)
    whole = unsolved(raw, rows)
    if len(index) == 0:
        return whole
    part = Start(first.y[index], first.at.take(index), first.finite[index], first.empty[index])
    return place(whole, index, _from(rows.take(index), raw[index], part, mode, tolerance))


def _from(rows: Rows, raw: Tensor, start: Start, mode: Mode, tolerance: float) -> NonlinearSolution:
    """The solution from finite first points."""
    coarse = mode == "nearest"
    first = _reach(rows, start.y, raw, tolerance, COARSE if coarse else FINE, start.at)
    stationary = first.stationary | start.empty
    if not coarse:
        found = status_of(first.y, torch.zeros_like(rows.lower), first.error, first.ratio, tolerance)
        return blame(found, first.steps, stationary)
    return blame(*_nearest(rows, raw, first, tolerance), stationary)


def _nearest(rows: Rows, raw: Tensor, first: Retracted, tolerance: float) -> tuple[NonlinearSolution, Tensor]:
    """The nearest point, from retracted points that are close to their rows; and the steps of all phases."""
    near = first.error <= COARSE
    second = _approach(rows, raw, first, near)
    start = choose(second.settled, second.y, first.y)
    at = rows.evaluate(start)
    last = retract(rows, start, raw, tolerance=tolerance, at=at)
    y = choose(near, last.y, first.y)
    at = at if torch.equal(y, start) else rows.evaluate(y)
    found = judged(rows, raw, y, at, second.dual, last.ratio, tolerance, second.settled, second.flat)
    return found, first.steps + second.steps + last.steps


def _approach(rows: Rows, raw: Tensor, first: Retracted, near: Tensor) -> Nearest:
    """`approach` from the points that are `near`; the others stay where they are, not settled."""
    if bool(near.all()):
        return approach(rows, first.y, raw)
    none = torch.zeros_like(near)
    whole = Nearest(first.y, torch.zeros_like(rows.lower), none, none, torch.zeros_like(first.steps))
    index = near.nonzero().squeeze(-1)
    if len(index) == 0:
        return whole
    part = approach(rows.take(index), first.y[index], raw[index])
    return place(whole, index, part)


def _reach(rows: Rows, y: Tensor, raw: Tensor, tolerance: float, fine: float, at: Derivatives) -> Retracted:
    """Retract with rows scaled to length one; retry violated samples in the rows' own units, to the least squares.

    Samples that are still violated restart from points around raw, and keep the least-squares point if that fails.
    """
    enough = max(tolerance, fine)
    found = retract(rows, y, raw, tolerance=tolerance, fine=fine, at=at)
    for attempt in range(1 + RESTARTS):
        todo = (~(found.error <= enough)).nonzero().squeeze(-1)
        if len(todo) == 0:
            break
        some, point = rows.take(todo), raw[todo]
        first = y[todo] if attempt == 0 else elsewhere(some, point, attempt)
        most = 100 if attempt == 0 else 50
        again = retract(some, first, point, tolerance=tolerance, fine=fine, iterations=most, unit=attempt > 0)
        better = ((again.error <= enough) | (attempt == 0)).nonzero().squeeze(-1)
        found = place(found, todo[better], take(again, better))
    return found


# The solver as a fixed program, so that a batch can be captured: retraction, nearest point and status.


POLISHING_PASSES = 4
"""Passes of the last retraction in a fixed program: within `COARSE` of the set, convergence is quadratic."""


def run_program(
    rows: Rows, raw: Tensor, start: Tensor, mode: Mode, tolerance: float, inside: float, pace: Pace, passes: int
) -> NonlinearSolution:
    """Solve by a fixed program, except for the checks that `pace` allows; without them it can be captured.

    Every sample is retracted; no other starts are tried, and rows that look affine are not treated separately.
    """
    finite = raw.isfinite().all(-1) & start.isfinite().all(-1)
    point, y = choose(finite, raw, torch.zeros_like(raw)), choose(finite, start, torch.zeros_like(raw))
    at = rows.evaluate(y)
    valid = finite & sound_bounds(rows) & at.value.isfinite().all(-1)
    error, _ = relative_error(rows, at if start is raw else rows.evaluate(point), point, point)
    going = valid & ~(error <= inside)
    dual, coarse = torch.zeros_like(at.value), mode == "nearest"
    common = {"tolerance": tolerance, "iterations": passes, "pace": pace}
    first = retract(rows, y, point, fine=COARSE if coarse else FINE, at=at, going=going, **common)
    if coarse:
        near = going & (first.error <= COARSE)
        second = approach(rows, first.y, point, iterations=passes, going=near, pace=pace)
        dual = choose(near, second.dual, dual)
        common["iterations"] = min(passes, POLISHING_PASSES)
        last = retract(rows, choose(second.settled, second.y, first.y), point, going=near, **common)
        y = choose(near, last.y, first.y)
        found = judged(
            rows, point, y, rows.evaluate(y), dual, last.ratio, tolerance, second.settled, second.flat, look=False
        )
        found = blame(found, first.steps + second.steps + last.steps, first.stationary)
    else:
        found = blame(status_of(first.y, dual, first.error, first.ratio, tolerance), first.steps, first.stationary)
    return _masked(found, raw, error, going, valid)


def _masked(found: NonlinearSolution, raw: Tensor, error: Tensor, going: Tensor, valid: Tensor) -> NonlinearSolution:
    """The solution with raw for samples that did not have to move, and with invalid samples marked INVALID."""
    status = torch.where(going, found.status.long(), int(NonlinearStatus.OK))
    status = torch.where(valid, status, int(NonlinearStatus.INVALID)).to(torch.int8)
    numbers = (choose(going, part, torch.zeros_like(part)) for part in (found.dual, found.residual))
    dual, residual = (choose(valid, part, torch.full_like(part, torch.nan)) for part in numbers)
    violation = torch.where(valid, torch.where(going, found.violation, error), torch.nan)
    steps = torch.where(going, found.iterations, 0)
    dual = choose(valid, dual, torch.zeros_like(dual))
    return NonlinearSolution(choose(going, found.y, raw), dual, status, steps, violation, residual)


AFFINE = 1e-12
"""Part of a row's scale by which it may differ from its linearization, or among batches, and still be the same."""
LOOKS, MOST = 4, 30
"""On a GPU: passes between two checks of which samples are open, and the most passes of the fixed program; samples that
are not OK after these are solved again, reading values."""


def solve_nonlinear(
    rows: Rows,
    raw: Tensor,
    *,
    mode: Mode = "nearest",
    tolerance: float = 1e-10,
    start: Tensor | None = None,
    inside: float = FINE,
    iterations: int | None = None,
) -> NonlinearSolution:
    """Solve a flat batch raw ``(B, n)`` in float64.

    Args:
        rows: The rows.
        raw: ``(B, n)``.
        mode: ``"nearest"`` or ``"retract"``.
        tolerance: Violation, relative to a row's scale, that counts as zero.
        start: Where to start, ``(B, n)``; by default raw.
        inside: Relative violation up to which raw is returned unchanged.
        iterations: None: until every sample has stopped. A number: exactly that many passes, without reading values.
    """
    with torch.no_grad():
        first = raw if start is None else start
        if iterations is not None:
            still = Pace(0, False)
            return run_program(rows.prepared(look=False), raw, first, mode, tolerance, inside, still, iterations)
        rows = rows.prepared(look=True)
        if len(raw) > 1 and _told_apart(rows, raw):
            found = _solve_batch(rows, raw, first, mode, tolerance, inside)
            if _confirmed(rows, raw, found, tolerance):
                return found
        together = rows._replace(x=rows.x._replace(apart=False))
        return _solve_batch(together, raw, first, mode, tolerance, inside)


def _told_apart(rows: Rows, raw: Tensor) -> bool:
    """Whether g at raw says of the first sample and of the others alone what it says of all samples together."""
    point = torch.where(raw.isfinite(), raw, 0.0)
    first = torch.arange(len(raw), device=raw.device) < 1
    try:
        parts = [rows.take(some.nonzero().squeeze(-1)).value(point[some]) for some in (first, ~first)]
    except (RuntimeError, IndexError, ShapeError):  # where they are not of the parts, all samples together raise them
        return False
    whole, parts = rows.value(point), torch.cat(parts)
    if torch.allclose(parts, whole, rtol=AFFINE, atol=0, equal_nan=True):
        return True
    scale = relative_error(rows, rows.evaluate(point), point, point)[1]
    return bool((((parts - whole).abs() <= AFFINE * scale) | (parts.isnan() & whole.isnan()) | (parts == whole)).all())


def _confirmed(rows: Rows, raw: Tensor, found: NonlinearSolution, tolerance: float) -> bool:
    """Whether the rows at y, with x as it was given, confirm the violation and the KKT residual of every sample."""
    y = torch.where(found.y.isfinite(), found.y, 0.0)
    at = rows.evaluate(y)
    error, _ = relative_error(rows, at, y, raw)
    residual, rounding = kkt_residual(rows, raw, y, at, found.dual)
    same = (error <= found.violation + tolerance) | found.violation.isnan()
    optimal = (residual <= found.residual + tolerance + rounding) | (found.dual == 0).all(-1)
    return bool(((same & optimal) | (found.status == NonlinearStatus.INVALID)).all())


def _solve_batch(
    rows: Rows, raw: Tensor, first: Tensor, mode: Mode, tolerance: float, inside: float
) -> NonlinearSolution:
    """The solution of all samples, of which those that are open at the end of a pass may be evaluated alone."""
    if may_look(raw):
        return _look(rows, raw, first, mode, tolerance, inside)
    found = run_program(rows, raw, first, mode, tolerance, inside, Pace(LOOKS, False), MOST)
    again = (found.status != NonlinearStatus.OK).nonzero().squeeze(-1)
    if len(again) == 0:
        return found
    return place(found, again, _look(rows.take(again), raw[again], first[again], mode, tolerance, inside))


def _look(rows: Rows, raw: Tensor, start: Tensor, mode: Mode, tolerance: float, inside: float) -> NonlinearSolution:
    """The solution where values may be read; points that are not finite and bounds out of order are INVALID."""
    valid = sound_bounds(rows) & raw.isfinite().all(-1)
    valid = valid if start is raw else valid & start.isfinite().all(-1)
    if bool(valid.all()):
        return _solve(rows, raw, start, mode, tolerance, inside)
    index = valid.nonzero().squeeze(-1)
    point = raw[index]
    first = point if start is raw else start[index]
    return place(unsolved(raw, rows), index, _solve(rows.take(index), point, first, mode, tolerance, inside))


def _solve(rows: Rows, raw: Tensor, start: Tensor, mode: Mode, tolerance: float, inside: float) -> NonlinearSolution:
    """Samples inside unchanged, those whose rows look affine by projection, the rest by iteration."""
    if len(raw) == 0:
        return unsolved(raw, rows)
    at = rows.evaluate(raw)
    error, scale = relative_error(rows, at, raw, raw)
    zero = torch.zeros_like(error)
    whole = NonlinearSolution(raw, torch.zeros_like(at.value), zero.to(torch.int8), zero.long(), error, zero)
    todo = (~(error <= inside)).nonzero().squeeze(-1)
    todo, whole = _straight(rows, raw, at, scale, todo, whole, tolerance)
    if len(todo) == 0:
        return whole
    if len(todo) == len(raw):
        return iterate(rows, raw, start, mode, tolerance, at)
    point = raw[todo]
    first = point if start is raw else start[todo]
    return place(whole, todo, iterate(rows.take(todo), point, first, mode, tolerance, at.take(todo)))


def _straight(
    rows: Rows, raw: Tensor, at: Derivatives, scale: Tensor, todo: Tensor, whole: NonlinearSolution, tolerance: float
) -> tuple[Tensor, NonlinearSolution]:
    """The samples of `todo` that remain, and the solution with those whose rows g confirms to be affine."""
    chosen = _looking_affine(rows, raw, at, scale, todo)
    if len(chosen) == 0:
        return todo, whole
    found = _project(rows.take(chosen), raw[chosen], at.value[chosen], at.jacobian[chosen], tolerance)
    confirmed = torch.zeros(len(raw), dtype=torch.bool, device=raw.device)
    confirmed[chosen] = found.status == NonlinearStatus.OK
    return todo[~confirmed[todo]], place(whole, chosen, found)


def _looking_affine(rows: Rows, raw: Tensor, at: Derivatives, scale: Tensor, todo: Tensor) -> Tensor:
    """The samples of `todo` whose g at two other points agrees with its linearization at raw."""
    for length in (0.7, -1.3):
        if len(todo) == 0:
            break
        point = raw[todo]
        move = length * row_size(point, point).clamp_min(0.1) * fixed_direction(raw)
        there = at.value[todo] + product(at.jacobian[todo], move)
        off = (rows.take(todo).value(point + move) - there).abs()
        todo = todo[(off <= AFFINE * scale[todo]).all(-1)]
    return todo


def _project(rows: Rows, raw: Tensor, value: Tensor, jacobian: Tensor, tolerance: float) -> NonlinearSolution:
    """The projection onto the linearized rows; OK where the rows of g hold there with the same derivative."""
    shift = product(jacobian, raw) - value
    found = project_affine(raw, jacobian, rows.lower + shift, rows.upper + shift)
    at = rows.evaluate(found.y)
    error, _ = relative_error(rows, at, found.y, raw)
    bent = (at.jacobian - jacobian).abs().amax(-1) > AFFINE * row_norms(jacobian)
    good = (found.status == int(Status.SOLVED)) & (error <= tolerance) & ~bent.any(-1)
    status = torch.where(good, int(NonlinearStatus.OK), int(NonlinearStatus.NOT_CONVERGED)).to(torch.int8)
    return NonlinearSolution(found.y, found.dual, status, found.iterations, error, found.residual)


# The Newton-Kantorovich theorem: an exact solution of ``lower <= g(y) <= upper`` within a known distance of y.
#
# For the rows held at a bound, with residual r, Jacobian J, ``beta = |J^+|`` and ``|J(a) - J(b)| <= L |a - b|``:
#
#     h = beta L (beta |r|) <= 1/2   proves a zero within   2 beta |r| / (1 + sqrt(1 - 2 h)),
#
# since g restricted to ``y + range(J')`` has the derivative J there, whose inverse has norm beta. Every other row must
# hold in the whole ball: its distance to each bound must be at least ``|J_i| radius + L_i radius^2 / 2``.


ROUNDINGS = 16
"""Roundings of float64, relative to the row's scale, by which a value of g may be wrong."""
HELD = 1e-8
"""A row is held at a bound if it is within this part of its scale from the bound."""


class Existence(NamedTuple):
    """What is proven for each sample, ``(*batch,)`` each.

    Attributes:
        proven: Whether an exact solution is proven to exist within `radius` of y.
        radius: That distance; infinite where nothing is proven.
        h: ``beta L beta |r|``, at most 1/2 where the theorem applies.
    """

    proven: Tensor
    radius: Tensor
    h: Tensor


def prove_existence(
    value: Tensor, jacobian: Tensor, lower: Tensor, upper: Tensor, scale: Tensor, curvature: Tensor
) -> Existence:
    """Apply the theorem to each sample in float64, with rounding errors counted against it.

    Args:
        value: g at y, ``(*batch, m)``.
        jacobian: ``(*batch, m, n)``.
        lower: ``(*batch, m)``.
        upper: ``(*batch, m)``.
        scale: The scale of each row, to which its rounding error is relative, ``(*batch, m)``.
        curvature: A bound on the largest absolute eigenvalue of each row's Hessian around y, ``(m,)`` or
            ``(*batch, m)``.
    """
    unit = torch.finfo(value.dtype).eps
    noise = ROUNDINGS * unit * scale
    nearest = torch.minimum((value - lower).abs(), (upper - value).abs())
    outside = torch.maximum(value - upper, lower - value) > 0
    held = (lower == upper) | outside | (nearest <= HELD * scale)
    residual = torch.where(held, nearest + noise, 0.0)
    size = torch.linalg.matrix_norm(jacobian).unsqueeze(-1)
    other = torch.diag_embed(torch.where(held, 0.0, size))  # so that rows not held do not give the least singular value
    rows = torch.cat([torch.where(held.unsqueeze(-1), jacobian, 0.0), other], dim=-1)
    finite = rows.isfinite().flatten(-2).all(-1) & residual.isfinite().all(-1)
    singular = torch.linalg.svdvals(torch.where(finite[..., None, None], rows, 0.0)).amin(-1)
    wrong = ROUNDINGS * max(rows.shape[-2:]) * unit * size.squeeze(-1)
    beta = 1 / (singular - wrong)
    slope = torch.linalg.vector_norm(torch.where(held, curvature, 0.0), dim=-1)
    step = beta * torch.linalg.vector_norm(residual, dim=-1)
    h = beta * slope * step
    radius = 2 * step / (1 + (1 - 2 * h).clamp_min(0.0).sqrt()) * (1 + ROUNDINGS * unit)
    reach = torch.linalg.vector_norm(jacobian, dim=-1) * radius.unsqueeze(-1)
    reach = (reach + curvature * radius.unsqueeze(-1).square() / 2) * (1 + ROUNDINGS * unit) + noise
    inside = (value - reach >= lower) & (value + reach <= upper)
    proven = finite & (beta > 0) & (h <= 0.5) & (held | inside).all(-1) & (lower <= upper).all(-1)
    return Existence(proven, torch.where(proven, radius, torch.inf), h)
