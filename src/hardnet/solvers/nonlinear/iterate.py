"""The iteration where values may be read: retract, approach the nearest point, and report."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hardnet.solvers.nonlinear.measure import FINE
from hardnet.solvers.nonlinear.nearest import Nearest, approach
from hardnet.solvers.nonlinear.retract import Retracted, retract
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.start import Start, elsewhere, first_points
from hardnet.solvers.nonlinear.status import NonlinearSolution, blame, judged, status_of, unsolved
from hardnet.solvers.solution import choose, place, take

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
