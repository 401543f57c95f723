"""A point of ``lower <= g(y, x) <= upper`` beside affine rows: the nearest one, or a near one, with its status.

1. A raw output that satisfies its rows is returned as it came.
2. Rows that look affine around raw are projected onto exactly; the answer counts only if g itself confirms it.
3. The rest is projected onto the affine rows and retracted (`nonlinear_retract`); for the nearest point that is the
   start of sequential quadratic programming (`nonlinear_nearest`).
4. What is reported is evaluated at the point that is returned. Called by `hardnet.functional.nonlinear`,
`hardnet.functional.nonlinear_gradient` and `hardnet.layers.nonlinear`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hardnet.modes import may_look
from hardnet.solvers.nonlinear_direction import DEGENERATE
from hardnet.solvers.nonlinear_nearest import approach
from hardnet.solvers.nonlinear_retract import (
    FINE,
    Retracted,
    fixed_direction,
    relative_error,
    retract,
    row_norms,
    row_size,
)
from hardnet.solvers.nonlinear_rows import Derivatives, Rows
from hardnet.solvers.nonlinear_search import Pace, choose
from hardnet.solvers.projection import project_affine
from hardnet.solvers.small import product, products, solve_definite
from hardnet.solvers.solution import Status

Mode = Literal["nearest", "retract"]

COARSE = 1e-3
"""Relative violation from which the search for the nearest point starts: its own steps do the rest."""
AFFINE = 1e-12
"""Part of a row's scale by which it may differ from its linearisation and look affine."""
LOOKS, MOST = 4, 30
"""On a GPU: passes between two looks at which samples are open, and the most passes before a sample goes alone."""
POLISH = 4
"""Passes of the last retraction in a fixed program: it starts within `COARSE` of the set, where steps are quadratic."""
RESTARTS = 2
"""Other starts for samples whose rows do not hold after the first."""
KKT_ROUNDINGS = 64
"""Roundings of the terms of ``J'dual`` by which the KKT conditions may be missed beside the tolerance."""
SLOW = 0.15
"""A full step near a regular point leaves less than this part of the violation; a cusp or a double root more."""
DEPENDENT = 1e-10
"""Least pivot of the unit gradients of active rows; below it they are dependent."""


class NonlinearStatus(IntEnum):
    """How one sample ended (stored as int8).

    OK: the rows hold to the tolerance and, for the nearest point, the KKT conditions too, to the same tolerance of
    ``1 + |y - raw|`` and 64 roundings of the terms of ``J'dual``. FEASIBLE_ONLY: the rows
    hold, the KKT conditions do not. NOT_CONVERGED: the rows do not hold. INFEASIBLE_LOCAL: nor can any small move
    reduce their violation. DEGENERATE: the rows hold, but gradients of active rows are dependent, or the point is not
    isolated. INVALID: NaN or infinite numbers, or lower > upper.
    """

    OK = 0
    FEASIBLE_ONLY = 1
    NOT_CONVERGED = 2
    INFEASIBLE_LOCAL = 3
    DEGENERATE = 4
    INVALID = 5


class NonlinearSolution(NamedTuple):
    """The outcome of a batch, sample by sample.

    Attributes:
        y: ``(B, n)``; the best point found where no status says that the rows hold, raw where INVALID.
        dual: Multipliers ``(B, m + k)``, positive at the upper bound; 0 from a retraction.
        status: `NonlinearStatus`, ``(B,)`` int8.
        iterations: ``(B,)``.
        violation: The largest violation relative to its row's scale, ``(B,)``.
        residual: The larger of ``|y - raw + J'dual| / (1 + |y - raw|)`` and complementarity, ``(B,)``; 0 from a
            retraction.
    """

    y: Tensor
    dual: Tensor
    status: Tensor
    iterations: Tensor
    violation: Tensor
    residual: Tensor


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
        tolerance: Violation relative to a row's scale that counts as none.
        start: Where to start, ``(B, n)``; by default at raw.
        inside: Relative violation up to which raw itself is the answer.
        iterations: None: until each sample has ended. A number: that many passes, without a look at any value.
    """
    with torch.no_grad():
        first = raw if start is None else start
        if iterations is not None:
            return _program(rows.prepared(look=False), raw, first, mode, tolerance, inside, Pace(0, False), iterations)
        rows = rows.prepared(look=True)
        if may_look(raw):
            return _look(rows, raw, first, mode, tolerance, inside)
        found = _program(rows, raw, first, mode, tolerance, inside, Pace(LOOKS, False), MOST)
        again = ((found.status != NonlinearStatus.OK) & (found.status != NonlinearStatus.INVALID)).nonzero().squeeze(-1)
        if len(again) == 0:
            return found
        return _place(found, again, _look(rows.take(again), raw[again], first[again], mode, tolerance, inside))


def _look(rows: Rows, raw: Tensor, start: Tensor, mode: Mode, tolerance: float, inside: float) -> NonlinearSolution:
    """The solution where values may be looked at."""
    valid = _valid(rows, raw, start)
    if bool(valid.all()):
        return _solve(rows, raw, start, mode, tolerance, inside)
    index = valid.nonzero().squeeze(-1)
    part = _solve(rows.take(index), raw[index], start[index], mode, tolerance, inside)
    return _spread(raw, rows, index, part)


def _program(
    rows: Rows, raw: Tensor, start: Tensor, mode: Mode, tolerance: float, inside: float, pace: Pace, passes: int
) -> NonlinearSolution:
    """The same operations whatever the values, but for the looks of `pace`: a batch that can be captured.

    Every sample is retracted; no other starts are tried, and rows that look affine are rows like others.
    """
    finite = raw.isfinite().all(-1) & start.isfinite().all(-1)
    point, y = choose(finite, raw, torch.zeros_like(raw)), choose(finite, start, torch.zeros_like(raw))
    at = rows.evaluate(y)
    valid = finite & _sound(rows) & at.value.isfinite().all(-1)
    error, _ = relative_error(rows, at if start is raw else rows.evaluate(point), point, point)
    going = valid & ~(error <= inside)
    dual, coarse = torch.zeros_like(at.value), mode == "nearest"
    common = {"tolerance": tolerance, "iterations": passes, "pace": pace}
    first = retract(rows, y, point, fine=COARSE if coarse else FINE, at=at, going=going, **common)
    if coarse:
        near = going & (first.error <= COARSE)
        second = approach(rows, first.y, point, iterations=passes, going=near, pace=pace)
        dual = choose(near, second.dual, dual)
        common["iterations"] = min(passes, POLISH)
        last = retract(rows, choose(second.settled, second.y, first.y), point, going=near, **common)
        y = choose(near, last.y, first.y)
        found = _judged(rows, point, y, dual, last.ratio, tolerance, second.settled, second.flat, look=False)
        found = _blame(found, first.stationary, first.steps + second.steps + last.steps)
    else:
        found = _blame(_status(first.y, dual, first.error, first.ratio, tolerance), first.stationary, first.steps)
    return _masked(found, raw, error, going, valid)


def _masked(found: NonlinearSolution, raw: Tensor, error: Tensor, going: Tensor, valid: Tensor) -> NonlinearSolution:
    """The solution with raw itself for samples that did not have to move, and INVALID ones."""
    status = torch.where(going, found.status.long(), int(NonlinearStatus.OK))
    status = torch.where(valid, status, int(NonlinearStatus.INVALID)).to(torch.int8)
    numbers = (choose(going, part, torch.zeros_like(part)) for part in (found.dual, found.residual))
    dual, residual = (choose(valid, part, torch.full_like(part, torch.nan)) for part in numbers)
    violation = torch.where(valid, torch.where(going, found.violation, error), torch.nan)
    steps = torch.where(going, found.iterations, 0)
    dual = choose(valid, dual, torch.zeros_like(dual))
    return NonlinearSolution(choose(going, found.y, raw), dual, status, steps, violation, residual)


def _valid(rows: Rows, raw: Tensor, start: Tensor) -> Tensor:
    """Finite points and rows there, bounds that are no NaN, in order, not infinite on the wrong side: ``(B,)``."""
    points = raw.isfinite().all(-1) & start.isfinite().all(-1)
    finite = torch.where(points.unsqueeze(-1), start, 0.0)
    return _sound(rows) & points & rows.value(finite).isfinite().all(-1)


def _sound(rows: Rows) -> Tensor:
    """Bounds that are no NaN, in order, not infinite on the wrong side: ``(B,)``."""
    lower, upper = rows.lower, rows.upper
    return ((lower <= upper) & (lower < torch.inf) & (upper > -torch.inf)).all(-1)


def _spread(raw: Tensor, rows: Rows, index: Tensor, part: NonlinearSolution) -> NonlinearSolution:
    """The whole batch: INVALID outside of `index`."""
    count = torch.zeros(len(raw), dtype=torch.long, device=raw.device)
    nan = raw.new_full((len(raw),), torch.nan)
    status = torch.full_like(count, NonlinearStatus.INVALID, dtype=torch.int8)
    whole = NonlinearSolution(raw, torch.zeros_like(rows.lower), status, count, nan, nan)
    return _place(whole, index, part)


def _place(whole: NonlinearSolution, index: Tensor, part: NonlinearSolution) -> NonlinearSolution:
    pairs = zip(whole, part, strict=True)
    return NonlinearSolution(*(old.index_copy(0, index, new.to(old.dtype)) for old, new in pairs))


def _solve(rows: Rows, raw: Tensor, start: Tensor, mode: Mode, tolerance: float, inside: float) -> NonlinearSolution:
    """The samples inside as they came, the affine-looking ones by projection, the rest by iteration."""
    if len(raw) == 0:
        none = torch.zeros_like(raw[:, 0])
        return _status(raw, rows.lower.clone(), none, none, tolerance)
    at = rows.evaluate(raw)
    error, scale = relative_error(rows, at, raw, raw)
    zero = torch.zeros_like(error)
    whole = NonlinearSolution(raw, torch.zeros_like(at.value), zero.to(torch.int8), zero.long(), error, zero)
    todo = (~(error <= inside)).nonzero().squeeze(-1)
    if len(todo) == 0:
        return whole
    some, point = rows.take(todo), raw[todo]
    straight = _looks_affine(some, point, at.value[todo], at.jacobian[todo], scale[todo]).nonzero().squeeze(-1)
    if len(straight):
        chosen = todo[straight]
        found = _project(rows.take(chosen), raw[chosen], at.value[chosen], at.jacobian[chosen], tolerance)
        whole = _place(whole, chosen, found)
        confirmed = torch.zeros(len(raw), dtype=torch.bool, device=raw.device)
        confirmed[chosen] = found.status == NonlinearStatus.OK
        todo = todo[~confirmed[todo]]
    if len(todo) == 0:
        return whole
    point = raw[todo]
    first = point if start is raw else start[todo]
    return _place(whole, todo, _iterate(rows.take(todo), point, first, mode, tolerance, at.take(todo)))


def _looks_affine(rows: Rows, raw: Tensor, value: Tensor, jacobian: Tensor, scale: Tensor) -> Tensor:
    """Whether g at two other points is what its linearisation at raw says: ``(b,)``."""
    same = torch.ones(len(raw), dtype=torch.bool, device=raw.device)
    for length in (0.7, -1.3):
        move = length * row_size(raw, raw).clamp_min(0.1) * fixed_direction(raw)
        there = value + product(jacobian, move)
        same &= ((rows.value(raw + move) - there).abs() <= AFFINE * scale).all(-1)
    return same


def _project(rows: Rows, raw: Tensor, value: Tensor, jacobian: Tensor, tolerance: float) -> NonlinearSolution:
    """The projection onto the linearised rows; OK where g holds there and has the same derivative."""
    shift = product(jacobian, raw) - value
    found = project_affine(raw, jacobian, rows.lower + shift, rows.upper + shift)
    at = rows.evaluate(found.y)
    error, _ = relative_error(rows, at, found.y, raw)
    bent = (at.jacobian - jacobian).abs().amax(-1) > AFFINE * row_norms(jacobian)
    good = (found.status == Status.SOLVED) & (error <= tolerance) & ~bent.any(-1)
    status = torch.where(good, int(NonlinearStatus.OK), int(NonlinearStatus.NOT_CONVERGED)).to(torch.int8)
    return NonlinearSolution(found.y, found.dual, status, found.iterations, error, found.residual)


def _iterate(
    rows: Rows, raw: Tensor, start: Tensor, mode: Mode, tolerance: float, at: Derivatives
) -> NonlinearSolution:
    """Project onto the affine rows, retract, approach, and report."""
    y, empty = _on_affine_rows(rows, start)
    coarse = mode == "nearest"
    first = _reach(rows, y, raw, tolerance, COARSE if coarse else FINE, at if y is raw else None)
    if not coarse:
        found = _status(first.y, torch.zeros_like(rows.lower), first.error, first.ratio, tolerance)
        return _blame(found, first.stationary | empty, first.steps)
    near = (first.error <= COARSE).nonzero().squeeze(-1)
    y, dual = first.y.clone(), torch.zeros_like(rows.lower)
    settled, flat, steps = torch.zeros_like(empty), torch.zeros_like(empty), first.steps.clone()
    if len(near):
        second = approach(rows.take(near), first.y[near], raw[near])
        y[near], dual[near], settled[near], flat[near] = second.y, second.dual, second.settled, second.flat
        steps[near] += second.steps
    y = torch.where(settled.unsqueeze(-1), y, first.y)
    last = retract(rows, y, raw, tolerance=tolerance)
    near = (first.error <= COARSE).unsqueeze(-1)
    found = _judged(rows, raw, torch.where(near, last.y, first.y), dual, last.ratio, tolerance, settled, flat)
    return _blame(found, first.stationary | empty, steps + last.steps)


def _reach(rows: Rows, y: Tensor, raw: Tensor, tolerance: float, fine: float, at: Derivatives | None) -> Retracted:
    """Retract with rows of length one; what that leaves violated again in the rows' own units, to the least squares.

    What is still violated starts anew from points around raw, and keeps the least squares where that is no better.
    """
    enough = max(tolerance, fine)
    found = retract(rows, y, raw, tolerance=tolerance, fine=fine, at=at)
    for attempt in range(1 + RESTARTS):
        todo = (~(found.error <= enough)).nonzero().squeeze(-1)
        if len(todo) == 0:
            break
        some, point = rows.take(todo), raw[todo]
        first = y[todo] if attempt == 0 else _elsewhere(some, point, attempt)
        most = 100 if attempt == 0 else 50
        again = retract(some, first, point, tolerance=tolerance, fine=fine, iterations=most, unit=attempt > 0)
        better = ((again.error <= enough) | (attempt == 0)).nonzero().squeeze(-1)
        taken = Retracted(*(part[better] for part in again))
        found = Retracted(*(old.index_copy(0, todo[better], new) for old, new in zip(found, taken, strict=True)))
    return found


def _elsewhere(rows: Rows, raw: Tensor, attempt: int) -> Tensor:
    """A point about as far from raw as raw is large, in a fixed direction, on the affine rows."""
    y = raw + row_size(raw, raw).clamp_min(0.1) * fixed_direction(raw, attempt)
    return _on_affine_rows(rows, y)[0]


def _on_affine_rows(rows: Rows, y: Tensor) -> tuple[Tensor, Tensor]:
    """The projection onto the affine rows alone, and where they have no point."""
    if not rows.A.shape[-2]:
        return y, torch.zeros(len(y), dtype=torch.bool, device=y.device)
    found = project_affine(y, rows.A, rows.lower[:, rows.curved :], rows.upper[:, rows.curved :])
    return found.y, found.status == Status.INFEASIBLE


def _blame(found: NonlinearSolution, stationary: Tensor, steps: Tensor) -> NonlinearSolution:
    """INFEASIBLE_LOCAL in place of NOT_CONVERGED where the violation was stationary; with the number of steps."""
    stuck = (found.status == NonlinearStatus.NOT_CONVERGED) & stationary
    status = torch.where(stuck, int(NonlinearStatus.INFEASIBLE_LOCAL), found.status.long()).to(torch.int8)
    return found._replace(status=status, iterations=steps)


def _judged(
    rows: Rows,
    raw: Tensor,
    y: Tensor,
    dual: Tensor,
    ratio: Tensor,
    tolerance: float,
    settled: Tensor,
    flat: Tensor,
    look: bool = True,
) -> NonlinearSolution:
    """What holds at y, evaluated there, and the status that it amounts to."""
    at, away = rows.evaluate(y), y - raw
    error, _ = relative_error(rows, at, y, raw)
    size = 1 + away.abs().amax(-1)
    gap = torch.where(dual > 0, rows.upper - at.value, at.value - rows.lower)
    slack = torch.where(dual != 0, dual.abs() * gap.abs(), 0.0).amax(-1) / size.square()
    residual = torch.maximum((away + product(at.jacobian.mT, dual)).abs().amax(-1) / size, slack)
    terms = product(at.jacobian.abs().mT, dual.abs()).amax(-1) / size  # what is added up: rounding is relative to it
    optimal = settled & (residual <= tolerance + KKT_ROUNDINGS * torch.finfo(y.dtype).eps * terms)
    flat = _confirmed_flat(rows, y, dual, optimal & flat) if look else flat
    weak = optimal & (flat | _dependent(rows, at.jacobian, dual))
    found = _status(y, dual, error, ratio, tolerance, optimal, weak)
    return found._replace(residual=residual)


def _status(
    y: Tensor,
    dual: Tensor,
    error: Tensor,
    ratio: Tensor,
    tolerance: float,
    optimal: Tensor | None = None,
    weak: Tensor | None = None,
) -> NonlinearSolution:
    """The status of points with a relative violation `error`, found by steps that last reduced it by `ratio`."""
    feasible = error <= tolerance
    degenerate = (ratio > SLOW) & (error > 10 * FINE)
    degenerate = degenerate if weak is None else degenerate | weak
    status = torch.where(feasible if optimal is None else optimal, int(NonlinearStatus.OK), 1)
    status = torch.where(degenerate, int(NonlinearStatus.DEGENERATE), status)
    status = torch.where(feasible, status, int(NonlinearStatus.NOT_CONVERGED))
    return NonlinearSolution(y, dual, status.to(torch.int8), torch.zeros_like(status), error, torch.zeros_like(error))


def _confirmed_flat(rows: Rows, y: Tensor, dual: Tensor, flat: Tensor) -> Tensor:
    """Which of the samples that looked flat have a curvature of W of at most `DEGENERATE` along their active rows."""
    todo = flat.nonzero().squeeze(-1)
    if len(todo) == 0:
        return flat
    some, own = rows.take(todo), dual[todo]
    at = some.evaluate(y[todo], lambda *_: own)
    unit = at.jacobian * ((some.equality | (own != 0)) / row_norms(at.jacobian)).unsqueeze(-1)
    eye = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    across = torch.linalg.pinv(unit, rtol=DEPENDENT) @ unit
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
    return ~(solve_definite(gram, torch.zeros_like(gram[..., :1]))[1] > DEPENDENT)
