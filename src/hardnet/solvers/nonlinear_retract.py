"""Retraction: a point of ``lower <= g(y) <= upper, A_lower <= A y <= A_upper`` by Gauss-Newton steps.

Each step is the nearest point of the linearised set (`nonlinear_step`), shortened until the violation falls; affine
rows are rows of every step, and never give way. Where the linearisation has no point the step is elastic.

Called by `nonlinear_iterate` and `nonlinear_program` for the feasible point, for the start of the nearest one, and for
what remains violated at its end.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear_measure import FINE, elastic_rows, error_of, fixed_direction, row_norms, size_from
from hardnet.solvers.nonlinear_retract_state import SHORTEST, Merit, State, Trial, all_moved, begin, ended, moved
from hardnet.solvers.nonlinear_rows import Derivatives, Rows, Traced
from hardnet.solvers.nonlinear_search import EVERY_PASS, SUFFICIENT, Pace, choose, run, shorten
from hardnet.solvers.nonlinear_step import solve_step
from hardnet.solvers.small import product

CUT = 1e-3
"""Least part of a refused length that is tried next."""
CHORD, FAST = 1e-5, 1e-2
"""A sample keeps its Jacobian for the steps that follow where its violation is below CHORD and fell by FAST at once."""
STATIONARY = 1e-9
"""Share of the violation that a step must promise to remove; below it the point is stationary."""
NEARLY_STATIONARY = 1e-6
"""The same share where the iteration ended without an answer."""
NUDGE = 1e-2
"""Length of a nudge relative to the sample's size, at a stationary point that violates its rows."""


class Retracted(NamedTuple):
    """Where the iteration ended, per sample: the point ``(B, n)`` and what is known of it, ``(B,)`` each.

    ``ratio`` is by how much the last full step reduced the violation: near a regular point it tends to zero.
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
    """Iterate from y ``(B, n)``, which satisfies the affine rows; each sample stops by itself.

    A sample stops when its violation is below `fine`, when it is below `tolerance` and falls no more, or when it is
    stationary after two nudges.

    Args:
        rows: The rows.
        y: Where to start.
        raw: ``(B, n)``, which rounding is relative to.
        tolerance: Relative violation that counts as none.
        fine: Relative violation that ends the iteration at once.
        iterations: The most passes.
        unit: Whether violations are measured in units of the rows' gradients; else in the rows' own units, so that
            what cannot be satisfied ends at the least sum of squared violations.
        at: The derivatives at y, where they are known.
        going: Samples that are to move, ``(B,)``; by default all.
        pace: When values may be looked at.
    """
    at = rows.evaluate(y) if at is None else at
    state = begin(rows, y, raw, at, fine, unit, going)
    found = run(
        rows,
        state,
        lambda some, now: _pass(some, now, tolerance, fine, unit, pace.free),
        lambda now: (now.best, now.best_error, now.stationary, now.best_ratio, now.steps),
        iterations,
        pace,
    )
    return Retracted(*found) if unit else _settle_stationary(rows, Retracted(*found), tolerance)


class Plan(NamedTuple):
    """The step of a pass and what it promises; ``(b,)`` unless said.

    Attributes:
        step: ``(b, n)``.
        merit: What violations are measured by.
        violation: That of the present point, ``(b, m)``.
        current: Its size.
        promised: The size that the linearised rows promise after the full step.
    """

    step: Tensor
    merit: Merit
    violation: Tensor
    current: Tensor
    promised: Tensor

    def take(self, index: Tensor) -> Plan:
        """That of some samples."""
        step, merit, *rest = self
        return Plan(step[index], merit.take(index), *(part[index] for part in rest))

    def accepts(self, there: Tensor, length: Tensor) -> Tensor:
        """Whether the violations ``(b, m)`` after a step of this length have fallen enough; NaN never has."""
        return self.merit(there) <= self.current + SUFFICIENT * length * (self.promised - self.current)

    def shorter(self, there: Tensor, length: Tensor) -> Tensor:
        """The next length: the least ``|(1 - t) v + t^2 c|``, with the bending c that the violations there show."""
        bent = self.merit(there - (1 - length).unsqueeze(-1) * self.violation)
        least = self.current * length.square() / (2 * bent)
        least = torch.where(bent.isfinite(), least, 0.1 * length)
        return torch.minimum(torch.maximum(least, CUT * length), 0.5 * length)


def _pass(rows: Rows, now: State, tolerance: float, fine: float, unit: bool, look: bool) -> State:
    """One trial of every open sample."""
    size = size_from(now.y, now.unit)
    plan, stationary = _plan(rows, now, size, unit, look)
    move = now.length.unsqueeze(-1) * plan.step
    if not look or bool(stationary.any()):
        move = choose(stationary, NUDGE * size.clamp_min(NUDGE) * fixed_direction(now.y), move)
    trial, traced, accepted, length, shorter = _try(rows, now, plan, now.y + move, stationary, look)
    there = rows.violation(traced.value)
    at = _derive(rows, now, traced, look)
    error, _ = error_of(rows, there, at.jacobian, size_from(trial, now.unit))
    tried = Trial(trial, at, there, error, accepted, stationary, length)
    plain = accepted & ~stationary & (length == 1)
    simple = look and bool(plain.all())
    new = all_moved(now, tried) if simple else moved(now, tried, plain, shorter, look)
    return ended(new, now, plan.merit, unit, tolerance, fine, look)


def _plan(rows: Rows, now: State, size: Tensor, unit: bool, look: bool) -> tuple[Plan, Tensor]:
    """The step, and which samples are stationary: it promises nothing there."""
    J, norm = now.jacobian, row_norms(now.jacobian)
    norm = norm if unit else norm.amax(-1, keepdim=True).expand_as(norm)
    soft = _softness(rows, now, norm, size, unit)
    low, high = rows.lower - now.value, rows.upper - now.value
    step, dual = solve_step(J, low, high, soft, tight=rows.tight, look=look)
    merit = Merit(1 / norm if unit else None)
    left = soft.square() * dual if rows.tight else rows.violation(now.value + product(J, step))
    plan = Plan(step, merit, now.violation, merit(now.violation), merit(left))
    stationary = ~(plan.current - plan.promised > STATIONARY * plan.current)
    if not unit:
        stationary = stationary | (_damped_share(rows, now, norm, look) <= STATIONARY)
    return plan, stationary


def _try(
    rows: Rows, now: State, plan: Plan, trial: Tensor, stationary: Tensor, look: bool
) -> tuple[Tensor, Traced, Tensor, Tensor, Tensor]:
    """The trial points with their rows, which are accepted, the lengths they have, and the lengths to try next."""
    traced = rows.trace(trial)
    there = rows.violation(traced.value)
    good = plan.accepts(there, now.length) | (stationary & traced.value.isfinite().all(-1))
    if not look:
        return trial, traced, now.going & good, now.length, plan.shorter(there, now.length)
    accepted, refused = now.going & good, now.going & ~good
    if not bool(refused.any()):
        return trial, traced, accepted, now.length, now.length

    def judge(point: Tensor, length: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        some, own = rows.take(index), plan.take(index)
        reached = some.violation(some.value(point))
        return own.accepts(reached, length), own.shorter(reached, length)

    next_length = plan.shorter(there, now.length)
    trial, accepted, tried = shorten(now.y, plan.step, trial, accepted, refused, next_length, judge, SHORTEST)
    return trial, rows.trace(trial), accepted, torch.where(refused, tried, 1.0), tried


def _softness(rows: Rows, now: State, norm: Tensor, size: Tensor, unit: bool) -> Tensor:
    """How far each row gives way, ``(b, m)``."""
    least = now.violation / size.clamp_min(torch.finfo(norm.dtype).tiny)
    least = least if unit else least.amax(-1, keepdim=True)
    return elastic_rows(rows, now.jacobian, torch.maximum(norm, least) * now.elastic.unsqueeze(-1))


def _derive(rows: Rows, now: State, traced: Traced, look: bool) -> Derivatives:
    """The derivatives at the trial point; a sample that is nearly there keeps its Jacobian, which is as good there."""
    if not look:
        return rows.derive(traced)
    keeps = (now.error <= CHORD) & (now.ratio <= FAST) & (now.ratio > 0) | ~now.going
    if bool(keeps.all()):
        return Derivatives(traced.value, now.jacobian)
    at = rows.derive(traced)
    return Derivatives(at.value, choose(keeps, now.jacobian, at.jacobian) if bool(keeps.any()) else at.jacobian)


def _settle_stationary(rows: Rows, result: Retracted, tolerance: float) -> Retracted:
    """Violated samples also count as stationary where only a tiny share of the violation could be removed."""
    todo = (~(result.error <= tolerance)).nonzero().squeeze(-1)
    if len(todo):
        some = rows.take(todo)
        at = some.evaluate(result.y[todo])
        norm = row_norms(at.jacobian).amax(-1, keepdim=True).expand_as(at.value)
        result.stationary[todo] |= _damped_share(some, at, norm) <= NEARLY_STATIONARY
    return result


def _damped_share(rows: Rows, at: Derivatives | State, norm: Tensor, look: bool = True) -> Tensor:
    """The share of the violation that a step of a gradient's length promises to remove: 0 at a stationary point."""
    soft = elastic_rows(rows, at.jacobian, norm)
    step = solve_step(at.jacobian, rows.lower - at.value, rows.upper - at.value, soft, tight=rows.tight, look=look)[0]
    current = torch.linalg.vector_norm(rows.violation(at.value), dim=-1)
    promised = torch.linalg.vector_norm(rows.violation(at.value + product(at.jacobian, step)), dim=-1)
    return torch.where(current > 0, 1 - promised / current, 1.0)
