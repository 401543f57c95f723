"""Retraction: a point of ``lower <= g(y) <= upper, A_lower <= A y <= A_upper`` by Gauss-Newton steps.

Each step is the nearest point of the linearized set (`plan_step`), shortened until the violation decreases; affine
rows are part of every step and always hold. A step that is refused is tried shorter in the next pass, so that the
operations of a pass do not depend on values, nor a sample's result on the other samples of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import (
    CUT,
    ELASTIC,
    MOST_STEP_ROWS,
    NUDGES,
    SHORT,
    SHORTEST,
    SOFTEST,
    STATIONARY,
    SUFFICIENT,
)
from hardnet.solvers.algebra.small import compiles, product
from hardnet.solvers.nonlinear.rows import (
    EVERY_PASS,
    FINE,
    TRIALS,
    WORTH,
    Derivatives,
    Pace,
    Rows,
    elastic_rows,
    error_of,
    fixed_direction,
    row_norms,
    run,
    size_from,
)
from hardnet.solvers.nonlinear.step import solve_step
from hardnet.solvers.solution import choose

# One step of a retraction: the nearest point of the linearized rows, and the violation predicted after it.
#
#     min over d, s   |d|^2 / 2 + |s / elastic|^2 / 2   subject to  lower <= g + J d + s <= upper
#
# The size of a violation is ``|v|``, each row in units of its gradient's length. Where the linearized rows are
# infeasible the slack s makes the step elastic.


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
    """

    step: Tensor
    weight: Tensor
    violation: Tensor
    current: Tensor
    promised: Tensor

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
) -> tuple[Plan, Tensor]:
    """The step from a point with these derivatives, and which samples are stationary: no decrease is predicted.

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
    step, dual = solve_step(J, rows.lower - at.value, rows.upper - at.value, soft, tight=rows.tight, look=look)
    left = soft.square() * dual if rows.tight else rows.violation(at.value + product(J, step))
    weight = 1 / norm if unit else torch.ones_like(norm)
    current, promised = (torch.linalg.vector_norm(part * weight, dim=-1) for part in (violation, left))
    stationary = ~(current - promised > STATIONARY * current)
    stationary = stationary if unit else stationary | (damped_share(rows, at, look) <= STATIONARY)
    return Plan(step, weight, violation, current, promised), stationary


def nudged(y: Tensor, size: Tensor) -> Tensor:
    """Y ``(b, n)`` moved a little in a fixed direction, for samples of the size ``(b, 1)``."""
    return y + NUDGE * size.clamp_min(NUDGE) * fixed_direction(y)


def damped_share(rows: Rows, at: Derivatives, look: bool = True) -> Tensor:
    """The share of the violation that a damped step is predicted to remove: 0 at a stationary point.

    The elasticity of each row is the length of the longest gradient.
    """
    J, norm = at.jacobian, row_norms(at.jacobian)
    soft = elastic_rows(rows, J, norm.amax(-1, keepdim=True).expand_as(norm))
    step, _ = solve_step(J, rows.lower - at.value, rows.upper - at.value, soft, tight=rows.tight, look=look)
    current = torch.linalg.vector_norm(rows.violation(at.value), dim=-1)
    promised = torch.linalg.vector_norm(rows.violation(at.value + product(J, step)), dim=-1)
    return torch.where(current > 0, 1 - promised / current, 1.0)


# The passes of a retraction on a CPU, where compiled code does everything except g and its derivatives.
#
# A sample whose trial is refused tries shorter steps within the same pass. Samples that have ended leave the batch once
# they are a quarter of it, unless the batch has at most `HANDFUL` samples.


HANDFUL = 48
"""Batch size up to which samples that have ended stay: removing them costs more than evaluating g for them."""


class Walk(NamedTuple):
    """The samples in progress, written to by the kernel: its numbers ``(b, COUNT)``, points and rows."""

    numbers: Tensor
    best: Tensor
    step: Tensor
    weight: Tensor
    y: Tensor
    value: Tensor
    violation: Tensor


def walk_compiled(
    rows: Rows, y: Tensor, raw: Tensor, at: Derivatives, *, tolerance: float, fine: float, passes: int, unit: bool
) -> list[Tensor]:
    """Iterate from y ``(B, n)`` to the end: best point, error, stationary, ratio and steps."""
    from hardnet.kernels.cpu.retraction import GOING, plan

    now, jacobian = _begin(rows, y, raw, at), at.jacobian.clone(memory_format=torch.contiguous_format)
    limits, index = torch.tensor([tolerance, fine], dtype=y.dtype), torch.arange(len(y))
    whole = [part.clone() for part in _outcome(now)]
    for count in range(passes + 1):
        asking = plan(now, jacobian, (rows.lower, rows.upper, rows.size), limits, rows.curved, unit)  # pyright: ignore[reportArgumentType]
        open_ = (now.numbers[:, GOING] > 0).nonzero().squeeze(-1)
        if len(open_) == 0 or count == passes:
            break
        if len(open_) <= WORTH * len(index) and len(index) > HANDFUL:
            _place(whole, index, now)
            index, rows, jacobian = index[open_], rows.take(open_), jacobian[open_]
            now = Walk(*(part[open_] for part in now))
        if asking:
            _settle(rows, now, jacobian, unit)
        fresh = _try(rows, now, asking > 0).nonzero().squeeze(-1)
        if len(fresh) == len(index):
            jacobian = rows.evaluate(now.y).jacobian.contiguous()
        elif len(fresh):
            jacobian.index_copy_(0, fresh, rows.take(fresh).evaluate(now.y[fresh]).jacobian)
    _place(whole, index, now)
    return whole


def _try(rows: Rows, now: Walk, nudge: bool) -> Tensor:
    """Try ever shorter steps; return for which samples the Jacobian must be evaluated again, ``(b,)``."""
    from hardnet.kernels.cpu.retraction import GOING, LENGTH, STATE, TRYING, judge

    fresh = torch.zeros_like(now.numbers[:, 0])
    trial = now.y + now.step
    if nudge:
        _nudge(now, trial)
    there = rows.value(trial)
    while judge(now, fresh, trial, there, rows.lower, rows.upper):
        todo = ((now.numbers[:, STATE] == TRYING) & (now.numbers[:, GOING] > 0)).nonzero().squeeze(-1)
        trial[todo] = torch.addcmul(now.y[todo], now.numbers[todo, LENGTH : LENGTH + 1], now.step[todo])
        there[todo] = rows.take(todo).value(trial[todo])
    return fresh


def _begin(rows: Rows, y: Tensor, raw: Tensor, at: Derivatives) -> Walk:
    """The samples at their first points."""
    from hardnet.kernels.cpu.retraction import ACCEPTED, COUNT, GIVE, GOING, LEAST, LENGTH, STATE

    numbers = y.new_zeros(len(y), COUNT)
    for place, number in ((GOING, 1.0), (STATE, ACCEPTED), (GIVE, ELASTIC), (LENGTH, 1.0)):
        numbers[:, place] = number
    numbers[:, LEAST] = raw.abs().amax(-1).clamp_max(1.0)
    value = at.value.clone(memory_format=torch.contiguous_format)
    own = y.clone(memory_format=torch.contiguous_format)
    return Walk(numbers, own.clone(), torch.zeros_like(own), torch.ones_like(value), own, value, rows.violation(value))


def _outcome(now: Walk) -> list[Tensor]:
    """The results of the samples when they have ended."""
    from hardnet.kernels.cpu.retraction import BEST_ERROR, BEST_RATIO, STEPS, STILL

    error, still, ratio, steps = (now.numbers[:, place] for place in (BEST_ERROR, STILL, BEST_RATIO, STEPS))
    return [now.best, error, still > 0, ratio, steps.long()]


def _place(whole: list[Tensor], index: Tensor, now: Walk) -> None:
    """Write the results of the samples `index` into those of the batch."""
    for old, new in zip(whole, _outcome(now), strict=True):
        old.index_copy_(0, index, new)


def _settle(rows: Rows, now: Walk, jacobian: Tensor, unit: bool) -> None:
    """Compute the steps of samples whose active rows the kernel did not find."""
    from hardnet.kernels.cpu.retraction import CURRENT, GIVE, LEAST, PROMISED, STILL, UNSETTLED

    todo = (now.numbers[:, UNSETTLED] > 0).nonzero().squeeze(-1)
    if len(todo) == 0:
        return
    some, numbers = Derivatives(now.value[todo], jacobian[todo]), now.numbers[todo]
    size = size_from(now.y[todo], numbers[:, LEAST : LEAST + 1])
    plan, stationary = plan_step(rows.take(todo), some, now.violation[todo], size, numbers[:, GIVE], unit)
    now.step[todo], now.weight[todo] = plan.step, plan.weight
    found = (plan.current, plan.promised, stationary.to(plan.current), torch.zeros_like(plan.current))
    for place, number in zip((CURRENT, PROMISED, STILL, UNSETTLED), found, strict=True):
        now.numbers[todo, place] = number


def _nudge(now: Walk, trial: Tensor) -> None:
    """For samples without a predicted decrease, try a nudged point."""
    from hardnet.kernels.cpu.retraction import LEAST, STILL

    still = (now.numbers[:, STILL] > 0).nonzero().squeeze(-1)
    if len(still):
        y = now.y[still]
        trial[still] = nudged(y, size_from(y, now.numbers[still, LEAST : LEAST + 1]))


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


class Trial(NamedTuple):
    """The result of a trial step: point, derivatives, violation, error, and whether it was accepted.

    ``length`` ``(b,)`` is the length of the step; ``given_up`` are samples for which no length was short enough.
    """

    y: Tensor
    at: Derivatives
    violation: Tensor
    error: Tensor
    accepted: Tensor
    stationary: Tensor
    length: Tensor
    given_up: Tensor


def begin(rows: Rows, y: Tensor, raw: Tensor, at: Derivatives, fine: float, unit: bool) -> State:
    """The state at the first points."""
    least, violation = raw.abs().amax(-1, keepdim=True).clamp_max(1.0), rows.violation(at.value)
    error, _ = error_of(rows, violation, at.jacobian, size_from(y, least))
    zero, one = torch.zeros_like(error), torch.ones_like(error)
    size = error if unit else torch.linalg.vector_norm(violation, dim=-1)
    count = torch.zeros_like(error, dtype=torch.long)
    open_ = error > fine
    known = (violation, at.jacobian, error, zero, ELASTIC * one, one, count, y, size, error, zero, count)
    return State(open_, y, least, at.value, *known, torch.zeros_like(open_))


def outcome(now: State) -> tuple[Tensor, ...]:
    """The results of the samples when they have ended."""
    return now.best, now.best_error, now.stationary, now.best_ratio, now.steps


def moved(now: State, tried: Trial) -> State:
    """The state after the trials: accepted trials become the current points, and short ones make rows more elastic."""
    accepted, stationary = tried.accepted, tried.stationary
    plain = accepted & ~stationary & (tried.length == 1)
    stiffer, softer = (now.elastic / 10).clamp_min(ELASTIC), now.elastic * 10
    softer = torch.where(accepted, softer.clamp_max(SOFTEST), softer)
    short = tried.given_up | (accepted & ~stationary & (tried.length <= SHORT))
    return now._replace(
        y=choose(accepted, tried.y, now.y),
        value=choose(accepted, tried.at.value, now.value),
        violation=choose(accepted, tried.violation, now.violation),
        jacobian=choose(accepted, tried.at.jacobian, now.jacobian),
        error=torch.where(accepted, tried.error, now.error),
        ratio=torch.where(plain, tried.error / now.error, now.ratio),
        elastic=torch.where(short, softer, torch.where(plain, stiffer, now.elastic)),
        nudges=now.nudges + (stationary & now.going),
        steps=now.steps + now.going,
        stationary=torch.where(now.going, stationary, now.stationary),
    )


def ended(new: State, before: State, unit: bool, tolerance: float, fine: float) -> State:
    """The new state with its best points updated and finished samples closed."""
    error = new.error
    size = error if unit else torch.linalg.vector_norm(new.violation, dim=-1)
    better = before.going & (size <= before.best_size)
    slow = (error <= tolerance) & (error > 0.5 * before.error) & (new.length == 1)
    stuck = (new.nudges > NUDGES) | (new.elastic > SOFTEST)
    return new._replace(
        best=choose(better, new.y, new.best),
        best_size=torch.where(better, size, new.best_size),
        best_error=torch.where(better, error, new.best_error),
        best_ratio=torch.where(better, new.ratio, new.best_ratio),
        going=before.going & (error > fine) & ~(slow | stuck),
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
        found = walk_compiled(rows, y, raw, at, tolerance=tolerance, fine=fine, passes=iterations, unit=unit)
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
