"""A point of ``lower <= g(y, x) <= upper`` and affine rows: the nearest one, or a near one, with its status.

1. A raw output that satisfies its rows is returned unchanged.
2. Rows that look affine around raw are projected onto exactly; the result is accepted only if g itself confirms it.
3. The remaining samples are projected onto the affine rows and retracted (`iterate`); for the nearest point the result
   is the start of sequential quadratic programming.
4. Everything reported is evaluated at the returned point, for the whole batch with x as it was given. Where that
   disagrees with what samples alone gave, the batch is solved again without calling g for a part of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.errors import ShapeError
from hardnet.modes import may_look
from hardnet.solvers.algebra.small import product
from hardnet.solvers.nonlinear.iterate import Mode, iterate
from hardnet.solvers.nonlinear.measure import FINE, fixed_direction, relative_error, row_norms, row_size
from hardnet.solvers.nonlinear.program import run_program
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.search import Pace
from hardnet.solvers.nonlinear.start import sound_bounds
from hardnet.solvers.nonlinear.status import NonlinearSolution, NonlinearStatus, kkt_residual, unsolved
from hardnet.solvers.polyhedron.projection import project_affine
from hardnet.solvers.solution import Status, place

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
