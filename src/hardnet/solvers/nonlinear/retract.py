"""Retraction: a point of ``lower <= g(y) <= upper, A_lower <= A y <= A_upper`` by Gauss-Newton steps.

Each step is the nearest point of the linearized set (`retract_step`), shortened until the violation decreases; affine
rows are part of every step and always hold. A step that is refused is tried shorter in the next pass, so that the
operations of a pass do not depend on values, nor a sample's result on the other samples of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import MOST_STEP_ROWS, SHORTEST
from hardnet.solvers.algebra.small import compiles
from hardnet.solvers.nonlinear.measure import FINE, error_of, size_from
from hardnet.solvers.nonlinear.retract_compiled import walk
from hardnet.solvers.nonlinear.retract_state import State, Trial, begin, ended, moved, outcome
from hardnet.solvers.nonlinear.retract_step import damped_share, nudged, plan_step
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.search import EVERY_PASS, TRIALS, Pace, run
from hardnet.solvers.solution import choose

NEARLY_STATIONARY = 1e-6
"""Removable share of the violation below which a sample counts as stationary if the iteration has failed."""


class Retracted(NamedTuple):
    """Where the iteration ended, per sample: the point ``(B, n)`` and what is known about it, ``(B,)`` each.

    ``ratio`` is the factor by which the last full step reduced the violation: near a regular point it tends to zero.
    """

    y: Tensor
    error: Tensor
    stationary: Tensor
    ratio: Tensor
    steps: Tensor


def retract(
    rows: Rows,
    y: Tensor,
    raw: Tensor,
    *,
    tolerance: float,
    fine: float = FINE,
    iterations: int = 100,
    unit: bool = True,
    at: Derivatives | None = None,
    going: Tensor | None = None,
    pace: Pace = EVERY_PASS,
) -> Retracted:
    """Iterate from y ``(B, n)``, which satisfies the affine rows; each sample stops on its own.

    A sample stops when its violation is below `fine`, when it is below `tolerance` and decreases no more, when it is
    still stationary after two nudges, or when its rows would have to be more elastic than the limit.

    Args:
        rows: The rows.
        y: Where to start.
        raw: ``(B, n)``, to which rounding is relative.
        tolerance: Relative violation that counts as zero.
        fine: Relative violation that ends the iteration at once.
        iterations: The maximum number of steps; where values may not be read, of passes.
        unit: Whether violations are measured in units of the rows' gradients; else in the rows' own units, so that
            rows that cannot be satisfied end at the least sum of squared violations.
        at: The derivatives at y, where they are known.
        going: Samples that are to move, ``(B,)``; by default all.
        pace: When values may be read.
    """
    at = rows.evaluate(y) if at is None else at
    if pace.free and going is None and compiles(at.jacobian, "retraction", MOST_STEP_ROWS):
        found = walk(rows, y, raw, at, tolerance=tolerance, fine=fine, passes=iterations, unit=unit)
    else:
        state = begin(rows, y, raw, at, fine, unit)
        state = state if going is None else state._replace(going=state.going & going)
        one = lambda some, now: _pass(some, now, tolerance, fine, unit, pace.free)
        found = run(rows, state, one, outcome, TRIALS * iterations if pace.free else iterations, pace)
    return Retracted(*found) if unit else _settle_stationary(rows, Retracted(*found), tolerance)


def _pass(rows: Rows, now: State, tolerance: float, fine: float, unit: bool, look: bool) -> State:
    """One trial of every open sample."""
    size, at = size_from(now.y, now.unit), Derivatives(now.value, now.jacobian)
    plan, stationary = plan_step(rows, at, now.violation, size, now.elastic, unit, look)
    nudging = stationary & (now.length == 1)
    trial = choose(nudging, nudged(now.y, size), now.y + now.length.unsqueeze(-1) * plan.step)
    traced = rows.trace(trial)
    there = rows.violation(traced.value)
    good = plan.accepts(there, now.length) | (nudging & traced.value.isfinite().all(-1))
    accepted, shorter = now.going & good, plan.shorter(there, now.length)
    at = rows.derive(traced)
    error, _ = error_of(rows, there, at.jacobian, size_from(trial, now.unit))
    given_up = now.going & ~accepted & (shorter < SHORTEST)
    length = torch.where(now.going & ~accepted & ~given_up, shorter, 1.0)
    tried = Trial(trial, at, there, error, accepted, stationary, now.length, given_up)
    new = moved(now, tried)._replace(length=length)
    return ended(new, now, unit, tolerance, fine)


def _settle_stationary(rows: Rows, result: Retracted, tolerance: float) -> Retracted:
    """Mark violated samples as stationary also where only a tiny share of the violation can be removed."""
    todo = (~(result.error <= tolerance)).nonzero().squeeze(-1)
    if len(todo):
        some = rows.take(todo)
        at = some.evaluate(result.y[todo])
        result.stationary[todo] |= damped_share(some, at) <= NEARLY_STATIONARY
    return result
