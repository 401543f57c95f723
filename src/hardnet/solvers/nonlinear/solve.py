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
from hardnet.solvers.nonlinear.retract import Goal, Retracted, retract
from hardnet.solvers.nonlinear.rows import (
    EVERY_PASS,
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
from hardnet.solvers.solution import Status, choose, place, solve_open, take

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
    rows: Rows, raw: Tensor, y: Tensor, at: Derivatives, last: Nearest, ratio: Tensor, tolerance: float, look: bool
) -> NonlinearSolution:
    """Check what holds at y, where `at` was evaluated, for the multipliers of `last`, and derive the status from it."""
    error, _ = relative_error(rows, at, y, raw)
    residual, rounding = kkt_residual(rows, raw, y, at, last.dual)
    optimal, flat = last.settled & (residual <= tolerance + rounding), last.flat
    flat = _confirmed_flat(rows, y, last.dual, optimal & flat) if look else flat
    weak = optimal & (flat | _dependent(rows, at.jacobian, last.dual))
    found = status_of(y, last.dual, error, ratio, tolerance, optimal, weak)
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
        point = on_affine_rows(some, _around(raw[todo], share, distance, number))[0]
        there = some.evaluate(point)
        y, finite = y.index_copy(0, todo, point), finite.index_copy(0, todo, _finite(there))
        at = place(at, todo, there)
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


# The iteration: retract, approach the nearest point, and report; as a fixed program it can be captured.


Mode = Literal["nearest", "retract"]

COARSE = 1e-3
"""Relative violation at which the search for the nearest point may start: its own steps reduce the rest."""
RESTARTS = 2
"""Number of other starts for samples whose rows do not hold after the first."""
MOST_PASSES, POLISHING_PASSES = 100, 4
"""Passes where values may be read; and passes of the last retraction in a fixed program: within `COARSE` of the set,
convergence is quadratic."""


class Aim(NamedTuple):
    """What is asked of a solve.

    Attributes:
        mode: ``"nearest"`` or ``"retract"``.
        tolerance: Violation, relative to a row's scale, that counts as zero.
        inside: Relative violation up to which raw is returned unchanged.
    """

    mode: Mode
    tolerance: float
    inside: float

    @property
    def fine(self) -> float:
        """The relative violation that the first retraction has to reach."""
        return COARSE if self.mode == "nearest" else FINE


class Samples(NamedTuple):
    """A batch to solve: its rows, raw ``(b, n)`` and where to start ``(b, n)``."""

    rows: Rows
    raw: Tensor
    start: Tensor

    def take(self, index: Tensor) -> Samples:
        """Some samples; `index` is in order."""
        if len(index) == len(self.raw):
            return self
        raw = self.raw[index]
        return Samples(self.rows.take(index), raw, raw if self.start is self.raw else self.start[index])


def iterate(batch: Samples, aim: Aim, at: Derivatives) -> NonlinearSolution:
    """Solve from the starts; samples without a finite start are INVALID. `at` are the rows at raw."""
    first = first_points(*batch, at)

    def solve(index: Tensor) -> NonlinearSolution:
        rows, raw, _ = batch.take(index)
        reached = _reach(rows, first.y[index], raw, take(first.at, index), aim, EVERY_PASS, MOST_PASSES)
        reached = reached._replace(stationary=reached.stationary | first.empty[index])
        return _report(rows, raw, reached, torch.ones_like(first.empty[index]), aim, EVERY_PASS, MOST_PASSES)

    return solve_open(unsolved(batch.raw, batch.rows), first.finite, solve)


def _report(
    rows: Rows, raw: Tensor, first: Retracted, going: Tensor, aim: Aim, pace: Pace, passes: int
) -> NonlinearSolution:
    """The outcome of retracted points; for the nearest point, after its search from those close to their rows."""
    dual = torch.zeros_like(rows.lower)
    if aim.mode == "retract":
        found = status_of(first.y, dual, first.error, first.ratio, aim.tolerance)
        return blame(found, first.steps, first.stationary)
    near = going & (first.error <= COARSE)
    second = approach(rows, first.y, raw, iterations=passes, going=near, pace=pace)
    second = second._replace(dual=choose(near, second.dual, dual))
    start = choose(second.settled, second.y, first.y)
    at, few = rows.evaluate(start), passes if pace.free else min(passes, POLISHING_PASSES)
    last = retract(rows, start, raw, Goal(aim.tolerance), iterations=few, at=at, going=near, pace=pace)
    y = choose(near, last.y, first.y)
    at = at if pace.free and torch.equal(y, start) else rows.evaluate(y)
    found = judged(rows, raw, y, at, second, last.ratio, aim.tolerance, pace.free)
    return blame(found, first.steps + second.steps + last.steps, first.stationary)


def _reach(
    rows: Rows, y: Tensor, raw: Tensor, at: Derivatives, aim: Aim, pace: Pace, passes: int, going: Tensor | None = None
) -> Retracted:
    """Retract with rows scaled to length one.

    Where values may be read, violated samples are retracted in the rows' own units, to the least squares; those that
    are still violated restart from points around raw, and keep the least-squares point if that fails.
    """
    enough, goal = max(aim.tolerance, aim.fine), Goal(aim.tolerance, aim.fine)
    found = retract(rows, y, raw, goal, iterations=passes, at=at, going=going, pace=pace)
    for attempt in range(1 + RESTARTS if pace.free else 0):
        todo = (~(found.error <= enough)).nonzero().squeeze(-1)
        if len(todo) == 0:
            break
        some, point = rows.take(todo), raw[todo]
        first = y[todo] if attempt == 0 else elsewhere(some, point, attempt)
        most = MOST_PASSES if attempt == 0 else MOST_PASSES // 2
        again = retract(some, first, point, goal._replace(unit=attempt > 0), iterations=most)
        better = ((again.error <= enough) | (attempt == 0)).nonzero().squeeze(-1)
        found = place(found, todo[better], take(again, better))
    return found


def run_program(batch: Samples, aim: Aim, pace: Pace, passes: int) -> NonlinearSolution:
    """Solve by a fixed program, except for the checks that `pace` allows; without them it can be captured.

    Every sample is retracted; no other starts are tried, and rows that look affine are not treated separately.
    """
    rows, raw, start = batch
    finite = raw.isfinite().all(-1) & start.isfinite().all(-1)
    point, y = choose(finite, raw, torch.zeros_like(raw)), choose(finite, start, torch.zeros_like(raw))
    at = rows.evaluate(y)
    valid = finite & sound_bounds(rows) & at.value.isfinite().all(-1)
    error, _ = relative_error(rows, at if start is raw else rows.evaluate(point), point, point)
    going = valid & ~(error <= aim.inside)
    found = _report(rows, point, _reach(rows, y, point, at, aim, pace, passes, going), going, aim, pace, passes)
    status = torch.where(going, found.status.long(), int(NonlinearStatus.OK))
    status = torch.where(valid, status, int(NonlinearStatus.INVALID)).to(torch.int8)
    numbers = (choose(going, part, torch.zeros_like(part)) for part in (found.dual, found.residual))
    dual, residual = (choose(valid, part, torch.full_like(part, torch.nan)) for part in numbers)
    violation = torch.where(valid, torch.where(going, found.violation, error), torch.nan)
    dual = choose(valid, dual, torch.zeros_like(dual))
    steps = torch.where(going, found.iterations, 0)
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
    aim = Aim(mode, tolerance, inside)
    with torch.no_grad():
        batch = Samples(rows.prepared(look=iterations is None), raw, raw if start is None else start)
        if iterations is not None:
            return run_program(batch, aim, Pace(0, False), iterations)
        if len(raw) > 1 and _told_apart(batch.rows, raw):
            found = _solve_batch(batch, aim)
            if _confirmed(batch.rows, raw, found, tolerance):
                return found
        together = batch.rows._replace(x=rows.x._replace(apart=False))
        return _solve_batch(batch._replace(rows=together), aim)


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


def _solve_batch(batch: Samples, aim: Aim) -> NonlinearSolution:
    """The solution of all samples, of which those that are open at the end of a pass may be evaluated alone."""
    if may_look(batch.raw):
        return _look(batch, aim)
    found = run_program(batch, aim, Pace(LOOKS, False), MOST)
    return solve_open(found, found.status != NonlinearStatus.OK, lambda index: _look(batch.take(index), aim))


def _look(batch: Samples, aim: Aim) -> NonlinearSolution:
    """The solution where values may be read; points that are not finite and bounds out of order are INVALID."""
    rows, raw, start = batch
    valid = sound_bounds(rows) & raw.isfinite().all(-1)
    valid = valid if start is raw else valid & start.isfinite().all(-1)
    return solve_open(unsolved(raw, rows), valid, lambda index: _solve(batch.take(index), aim))


def _solve(batch: Samples, aim: Aim) -> NonlinearSolution:
    """Samples inside unchanged, those whose rows g confirms to be affine by projection, the rest by iteration."""
    rows, raw, _ = batch
    at = rows.evaluate(raw)
    error, scale = relative_error(rows, at, raw, raw)
    zero = torch.zeros_like(error)
    found = NonlinearSolution(raw, torch.zeros_like(at.value), zero.to(torch.int8), zero.long(), error, zero)
    left = ~(error <= aim.inside)
    straight = _looking_affine(rows, raw, at, scale, left.nonzero().squeeze(-1))
    if len(straight):
        part = _project(rows.take(straight), raw[straight], take(at, straight), aim.tolerance)
        found, left = place(found, straight, part), left.index_copy(0, straight, part.status != NonlinearStatus.OK)
    return solve_open(found, left, lambda index: iterate(batch.take(index), aim, take(at, index)))


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


def _project(rows: Rows, raw: Tensor, at: Derivatives, tolerance: float) -> NonlinearSolution:
    """The projection onto the rows as they are at raw; OK where the rows of g hold there with the same derivative."""
    shift = product(at.jacobian, raw) - at.value
    found = project_affine(raw, at.jacobian, rows.lower + shift, rows.upper + shift)
    there = rows.evaluate(found.y)
    error, _ = relative_error(rows, there, found.y, raw)
    bent = (there.jacobian - at.jacobian).abs().amax(-1) > AFFINE * row_norms(at.jacobian)
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


UNCERTAIN = 16
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
    noise = UNCERTAIN * unit * scale
    nearest = torch.minimum((value - lower).abs(), (upper - value).abs())
    outside = torch.maximum(value - upper, lower - value) > 0
    held = (lower == upper) | outside | (nearest <= HELD * scale)
    residual = torch.where(held, nearest + noise, 0.0)
    size = torch.linalg.matrix_norm(jacobian).unsqueeze(-1)
    other = torch.diag_embed(torch.where(held, 0.0, size))  # so that rows not held do not give the least singular value
    rows = torch.cat([torch.where(held.unsqueeze(-1), jacobian, 0.0), other], dim=-1)
    finite = rows.isfinite().flatten(-2).all(-1) & residual.isfinite().all(-1)
    singular = torch.linalg.svdvals(torch.where(finite[..., None, None], rows, 0.0)).amin(-1)
    wrong = UNCERTAIN * max(rows.shape[-2:]) * unit * size.squeeze(-1)
    beta = 1 / (singular - wrong)
    slope = torch.linalg.vector_norm(torch.where(held, curvature, 0.0), dim=-1)
    step = beta * torch.linalg.vector_norm(residual, dim=-1)
    h = beta * slope * step
    radius = 2 * step / (1 + (1 - 2 * h).clamp_min(0.0).sqrt()) * (1 + UNCERTAIN * unit)
    reach = torch.linalg.vector_norm(jacobian, dim=-1) * radius.unsqueeze(-1)
    reach = (reach + curvature * radius.unsqueeze(-1).square() / 2) * (1 + UNCERTAIN * unit) + noise
    inside = (value - reach >= lower) & (value + reach <= upper)
    proven = finite & (beta > 0) & (h <= 0.5) & (held | inside).all(-1) & (lower <= upper).all(-1)
    return Existence(proven, torch.where(proven, radius, torch.inf), h)
