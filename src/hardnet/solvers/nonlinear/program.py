"""The solver as a fixed program, so that a batch can be captured: retraction, nearest point and status."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.solvers.nonlinear.iterate import COARSE, Mode
from hardnet.solvers.nonlinear.measure import FINE, relative_error
from hardnet.solvers.nonlinear.nearest import approach
from hardnet.solvers.nonlinear.retract import retract
from hardnet.solvers.nonlinear.rows import Rows
from hardnet.solvers.nonlinear.search import Pace
from hardnet.solvers.nonlinear.start import sound_bounds
from hardnet.solvers.nonlinear.status import NonlinearSolution, NonlinearStatus, blame, judged, status_of
from hardnet.solvers.solution import choose

POLISH = 4
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
        common["iterations"] = min(passes, POLISH)
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
