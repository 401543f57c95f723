"""Retraction: a point of ``lower <= g(y) <= upper, A_lower <= A y <= A_upper`` by Gauss-Newton steps.

Each step is the nearest point of the linearized set (`plan_step`), shortened until the violation decreases; affine
rows are part of every step and always hold.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.algebra.small import product
from hardnet.solvers.nonlinear.rows import (
    ELASTIC,
    EVERY_PASS,
    FINE,
    SUFFICIENT,
    Derivatives,
    Pace,
    Rows,
    chooser,
    elastic_rows,
    error_of,
    fixed_direction,
    row_norms,
    run,
    size_from,
)
from hardnet.solvers.nonlinear.step import StepRows, solve_step
from hardnet.solvers.solution import choose, take

# One step of a retraction: the nearest point of the linearized rows, and the violation predicted after it.
#
#     min over d, s   |d|^2 / 2 + |s / elastic|^2 / 2   subject to  lower <= g + J d + s <= upper
#
# The size of a violation is ``|v|``, each row in units of its gradient's length. Where the linearized rows are
# infeasible the slack s makes the step elastic.


CUT = 1e-3
"""Least fraction of a rejected step length that a retraction tries next."""
STATIONARY = 1e-9
"""Fraction of the violation that a step must be predicted to remove; below it the point is stationary."""
NUDGES = 2
"""Nudges of a sample before it counts as stuck."""
SOFTEST = 1e1
"""Largest elasticity of a row of length one."""
SHORT = 0.125
"""Step length below which the next step is more elastic."""
SHORTEST = 1e-12
"""Step length below which a step is given up; near a vanishing gradient a step may be many orders too long."""
CHORD, FAST = 1e-5, 1e-2
"""Where values may be read, samples keep their Jacobian from a violation of at most CHORD on, if the last step reduced
it by at least the factor FAST."""
NUDGE = 1e-2
"""Length, relative to the sample's size, of the nudge away from a stationary point that violates its rows."""


class Plan(NamedTuple):
    """The step of a pass and the violation predicted after it; ``(b,)`` unless stated.

    Attributes:
        step: ``(b, n)``.
        weight: The weight of each violation, ``(b, m)``.
        violation: The violation at the current point, ``(b, m)``.
        current: Its size.
        promised: The size predicted by the linearized rows after the full step.
        stationary: Whether no decrease is predicted.
    """

    step: Tensor
    weight: Tensor
    violation: Tensor
    current: Tensor
    promised: Tensor
    stationary: Tensor

    def merit(self, violation: Tensor) -> Tensor:
        """The size of the violations ``(b, m)``: ``(b,)``."""
        return torch.linalg.vector_norm(violation * self.weight, dim=-1)

    def accepts(self, there: Tensor, length: Tensor | float) -> Tensor:
        """Whether the violations ``(b, m)`` after a step of this length have decreased enough; False for NaN."""
        return self.merit(there) <= self.current + SUFFICIENT * length * (self.promised - self.current)

    def shorter(self, there: Tensor, length: Tensor) -> Tensor:
        """The next length t, which minimizes ``(1 - t) |v| + t^2 |c|``, with c from the violations there."""
        bent = self.merit(there - (1 - length).unsqueeze(-1) * self.violation)
        least = self.current * length.square() / (2 * bent)
        least = torch.where(bent.isfinite(), least, 0.1 * length)
        return torch.minimum(torch.maximum(least, CUT * length), 0.5 * length)


def plan_step(
    rows: Rows, at: Derivatives, violation: Tensor, size: Tensor, elastic: Tensor, unit: bool, look: bool = True
) -> Plan:
    """The step from a point with these derivatives.

    Args:
        rows: The rows.
        at: Their values and Jacobian.
        violation: ``(b, m)``.
        size: The size of the outputs, ``(b, 1)``.
        elastic: The elasticity of a row of length one, ``(b,)``.
        unit: Whether violations are measured in units of the rows' gradients.
        look: Whether values may be read.
    """
    J, norm = at.jacobian, row_norms(at.jacobian)
    least = violation / size.clamp_min(torch.finfo(norm.dtype).tiny)
    if not unit:
        norm, least = norm.amax(-1, keepdim=True).expand_as(norm), least.amax(-1, keepdim=True)
    soft = elastic_rows(rows, J, torch.maximum(norm, least) * elastic.unsqueeze(-1))
    own = StepRows(J, rows.lower - at.value, rows.upper - at.value, soft)
    step, dual = solve_step(own, tight=rows.tight, look=look)
    left = soft.square() * dual if rows.tight else rows.violation(at.value + product(J, step))
    weight = 1 / norm if unit else torch.ones_like(norm)
    current, promised = (torch.linalg.vector_norm(part * weight, dim=-1) for part in (violation, left))
    stationary = ~(current - promised > STATIONARY * current)
    stationary = stationary if unit else stationary | (damped_share(rows, at, look) <= STATIONARY)
    return Plan(step, weight, violation, current, promised, stationary)


def nudged(y: Tensor, size: Tensor) -> Tensor:
    """Y ``(b, n)`` moved a little in a fixed direction, for samples of the size ``(b, 1)``."""
    return y + NUDGE * size.clamp_min(NUDGE) * fixed_direction(y)


def damped_share(rows: Rows, at: Derivatives, look: bool = True) -> Tensor:
    """The share of the violation that a damped step is predicted to remove: 0 at a stationary point.

    The elasticity of each row is the length of the longest gradient.
    """
    J, norm = at.jacobian, row_norms(at.jacobian)
    soft = elastic_rows(rows, J, norm.amax(-1, keepdim=True).expand_as(norm))
    own = StepRows(J, rows.lower - at.value, rows.upper - at.value, soft)
    step, _ = solve_step(own, tight=rows.tight, look=look)
    current = torch.linalg.vector_norm(rows.violation(at.value), dim=-1)
    promised = torch.linalg.vector_norm(rows.violation(at.value + product(J, step)), dim=-1)
    return torch.where(current > 0, 1 - promised / current, 1.0)


# The state of a retraction in progress: where the samples are, and how a trial step changes it.


class State(NamedTuple):
    """The samples of a batch in progress; ``(b,)`` unless stated.

    Attributes:
        going: Open samples.
        y: The current points, ``(b, n)``.
        unit: The least value for the size of the outputs, ``(b, 1)``.
        value: The rows at y, ``(b, m)``.
        violation: By how much they are violated, ``(b, m)``.
        jacobian: Their Jacobian there, ``(b, m, n)``.
        error: The relative violation at y.
        ratio: The factor by which the last full step reduced it.
        elastic: The elasticity of rows of length one.
        length: The length of the next trial step.
        nudges: How often the sample was nudged.
        best: The least violated point so far, ``(b, n)``; `best_size`, `best_error` and `best_ratio` belong to it.
        steps: Passes so far.
        stationary: Whether no decrease was predicted for the last step.
    """

    going: Tensor
    y: Tensor
    unit: Tensor
    value: Tensor
    violation: Tensor
    jacobian: Tensor
    error: Tensor
    ratio: Tensor
    elastic: Tensor
    length: Tensor
    nudges: Tensor
    best: Tensor
    best_size: Tensor
    best_error: Tensor
    best_ratio: Tensor
    steps: Tensor
    stationary: Tensor


class Goal(NamedTuple):
    """Where a retraction stops.

    Attributes:
        tolerance: Relative violation that counts as zero.
        fine: Relative violation that ends the iteration at once.
        unit: Whether violations are measured in units of the rows' gradients; else in the rows' own units, so that
            rows that cannot be satisfied end at the least sum of squared violations.
    """

    tolerance: float
    fine: float = FINE
    unit: bool = True


def begin(rows: Rows, y: Tensor, raw: Tensor, at: Derivatives, goal: Goal) -> State:
    """The state at the first points."""
    least, violation = raw.abs().amax(-1, keepdim=True).clamp_max(1.0), rows.violation(at.value)
    error, _ = error_of(rows, violation, at.jacobian, size_from(y, least))
    zero, one = torch.zeros_like(error), torch.ones_like(error)
    size = error if goal.unit else torch.linalg.vector_norm(violation, dim=-1)
    count = torch.zeros_like(error, dtype=torch.long)
    open_ = error > goal.fine
    known = (violation, at.jacobian, error, zero, ELASTIC * one, one, count, y, size, error, zero, count)
    return State(open_, y, least, at.value, *known, torch.zeros_like(open_))


def ended(new: State, before: State, goal: Goal, look: bool) -> State:
    """The new state with its best points updated and finished samples closed."""
    error = new.error
    size = error if goal.unit else torch.linalg.vector_norm(new.violation, dim=-1)
    pick = chooser(before.going & (size <= before.best_size), look)
    slow = (error <= goal.tolerance) & (error > 0.5 * before.error) & (new.length == 1)
    stuck = (new.nudges > NUDGES) | (new.elastic > SOFTEST)
    return new._replace(
        best=pick(new.y, new.best),
        best_size=pick(size, new.best_size),
        best_error=pick(error, new.best_error),
        best_ratio=pick(new.ratio, new.best_ratio),
        going=before.going & (error > goal.fine) & ~(slow | stuck),
    )


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
    goal: Goal,
    *,
    iterations: int = 100,
    at: Derivatives | None = None,
    going: Tensor | None = None,
    pace: Pace = EVERY_PASS,
) -> Retracted:
    """Iterate from y ``(B, n)``, which satisfies the affine rows; each sample stops on its own.

    A sample stops when its violation is below ``goal.fine``, when it is below ``goal.tolerance`` and decreases no more,
    when it is still stationary after two nudges, or when its rows would have to be more elastic than the limit.

    Args:
        rows: The rows.
        y: Where to start.
        raw: ``(B, n)``, to which rounding is relative.
        goal: Where it stops.
        iterations: The maximum number of steps; where values may not be read, of passes.
        at: The derivatives at y, where they are known.
        going: Samples that are to move, ``(B,)``; by default all.
        pace: When values may be read.
    """
    at = rows.evaluate(y) if at is None else at
    look, state = pace.free, begin(rows, y, raw, at, goal)
    state = state if going is None else state._replace(going=state.going & going)
    plan = lambda some, now: plan_step(
        some,
        Derivatives(now.value, now.jacobian),
        now.violation,
        size_from(now.y, now.unit),
        now.elastic,
        goal.unit,
        look,
    )
    one = lambda some, now, steps: _attempt(some, now, steps, goal, look)
    end = run(rows, state, plan, one, iterations, pace)
    found = Retracted(end.best, end.best_error, end.stationary, end.best_ratio, end.steps)
    return found if goal.unit else _settle_stationary(rows, found, goal.tolerance)


def _attempt(rows: Rows, now: State, plan: Plan, goal: Goal, look: bool) -> State:
    """The state after one trial of every open sample; where values may be read, after ever shorter ones.

    Accepted trials become the current points, and short ones make rows more elastic.
    """
    stationary, full = plan.stationary, now.length == 1
    nudging, point = stationary & full, torch.addcmul(now.y, now.length.unsqueeze(-1), plan.step)
    nudges = not look or bool(stationary.any())
    if nudges:
        point = choose(nudging, nudged(now.y, size_from(now.y, now.unit)), point)
    traced = rows.trace(point)
    there = rows.violation(traced.value)
    accepted = plan.accepts(there, now.length)
    if look and not nudges and bool((accepted & full).all()):  # as usual: every sample takes its full step
        chord = bool(((now.error <= CHORD) & (now.ratio > 0) & (now.ratio <= FAST)).all())
        jacobian = now.jacobian if chord else rows.derive(traced).jacobian
        error = error_of(rows, there, jacobian, size_from(point, now.unit))[0]
        new = now._replace(
            y=point,
            value=traced.value,
            violation=there,
            jacobian=jacobian,
            error=error,
            ratio=error / now.error,
            elastic=(now.elastic / 10).clamp_min(ELASTIC),
            steps=now.steps + 1,
            stationary=stationary,
        )
        return ended(new, now, goal, look)
    accepted, length = now.going & (accepted | (nudging & traced.value.isfinite().all(-1))), now.length
    if look:
        point, length, accepted = _search(rows, now, plan, point, there, accepted)
        refused, shorter, given_up = torch.zeros_like(accepted), length, ~accepted
        traced = rows.trace(point)
        there = rows.violation(traced.value)
    else:
        refused, shorter = now.going & ~accepted, plan.shorter(there, length)
        given_up, refused = refused & (shorter < SHORTEST), refused & ~(shorter < SHORTEST)
    jacobian = rows.derive(traced).jacobian
    error = error_of(rows, there, jacobian, size_from(point, now.unit))[0]
    pick, plain = chooser(accepted, look), accepted & ~stationary & (length == 1)
    stiffer, softer = (now.elastic / 10).clamp_min(ELASTIC), now.elastic * 10
    softer = torch.where(accepted, softer.clamp_max(SOFTEST), softer)
    short = given_up | (accepted & ~stationary & (length <= SHORT))
    new = now._replace(
        y=pick(point, now.y),
        value=pick(traced.value, now.value),
        violation=pick(there, now.violation),
        jacobian=pick(jacobian, now.jacobian),
        error=pick(error, now.error),
        ratio=torch.where(plain, error / now.error, now.ratio),
        elastic=torch.where(short, softer, torch.where(plain, stiffer, now.elastic)),
        length=torch.where(refused, shorter, 1.0),
        nudges=now.nudges + (stationary & now.going & ~refused),
        steps=now.steps + (now.going & ~refused),
        stationary=torch.where(now.going, stationary, now.stationary),
    )
    return ended(new, now, goal, look)


def _search(
    rows: Rows, now: State, plan: Plan, point: Tensor, there: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The points, the lengths, and which samples have moved, after ever shorter steps of those that were refused."""
    point, length, accepted = point.clone(), now.length.clone(), accepted.clone()
    todo = (~accepted).nonzero().squeeze(-1)
    y, steps, there, size = now.y[todo], take(plan, todo), there[todo], length[todo]
    while len(todo):
        size = steps.shorter(there, size)
        trial, some = torch.addcmul(y, size.unsqueeze(-1), steps.step), rows.take(todo)
        there = some.violation(some.value(trial))
        good = steps.accepts(there, size) & (size >= SHORTEST)
        point[todo], length[todo], accepted[todo] = choose(good, trial, y), size, good
        left = (~good & (size >= SHORTEST)).nonzero().squeeze(-1)
        todo, y, steps, there, size = todo[left], y[left], take(steps, left), there[left], size[left]
    return point, length, accepted


def _settle_stationary(rows: Rows, result: Retracted, tolerance: float) -> Retracted:
    """Mark violated samples as stationary also where only a tiny share of the violation can be removed."""
    todo = (~(result.error <= tolerance)).nonzero().squeeze(-1)
    if len(todo):
        some = rows.take(todo)
        at = some.evaluate(result.y[todo])
        result.stationary[todo] |= damped_share(some, at) <= NEARLY_STATIONARY
    return result
