"""The passes of a retraction on a CPU, where compiled code does everything except g and its derivatives.

A sample whose trial is refused tries shorter steps within the same pass. Samples that have ended leave the batch once
they are a quarter of it, unless the batch has at most `HANDFUL` samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import ELASTIC
from hardnet.solvers.nonlinear.measure import size_from
from hardnet.solvers.nonlinear.retract_step import nudged, plan_step
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.search import WORTH

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


def walk(
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
