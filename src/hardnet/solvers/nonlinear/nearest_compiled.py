"""The passes towards the nearest point on a CPU, where compiled code does everything except g and its derivatives.

A sample whose full step is refused tries a corrected step, then shorter ones, within the same pass. Samples that have
ended leave the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear.direction import first_multipliers, forms_metric
from hardnet.solvers.nonlinear.nearest_step import Plan, plan_step, step_back
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.solution import choose


class Walk(NamedTuple):
    """The samples in progress: the kernel's numbers ``(b, COUNT)``, points ``(b, n)``, values per row ``(b, m)``."""

    numbers: Tensor
    y: Tensor
    raw: Tensor
    dual: Tensor
    weight: Tensor


def walk(rows: Rows, y: Tensor, raw: Tensor, passes: int) -> list[Tensor]:
    """Iterate from y ``(B, n)`` to the end: the point, multipliers, settled, flat and steps."""
    from hardnet.kernels.cpu.approach import GOING

    now, index = _begin(rows, y, raw), torch.arange(len(y))
    whole = [part.clone() for part in _outcome(now)]
    for count in range(passes):
        at = _evaluate(rows, now, first=count == 0)
        plan = plan_step(rows, at, now.y, now.raw, now.weight)
        now = now._replace(dual=at.dual, weight=plan.weight)
        _try(rows, now, at, plan)
        open_ = (now.numbers[:, GOING] > 0).nonzero().squeeze(-1)
        if len(open_) == 0:
            break
        if len(open_) < len(index):
            _place(whole, index, now)
            index, rows, now = index[open_], rows.take(open_), Walk(*(part[open_] for part in now))
    _place(whole, index, now)
    return whole


def _begin(rows: Rows, y: Tensor, raw: Tensor) -> Walk:
    """The samples at their first points."""
    from hardnet.kernels.cpu.approach import COUNT, GOING

    numbers, none = y.new_zeros(len(y), COUNT), torch.zeros_like(rows.lower, memory_format=torch.contiguous_format)
    numbers[:, GOING] = 1.0
    return Walk(numbers, y.clone(memory_format=torch.contiguous_format), raw, none, none)


def _evaluate(rows: Rows, now: Walk, first: bool) -> Derivatives:
    """The rows at y with multipliers and, where it is formed, the Hessian of the Lagrangian.

    Samples that take the step of the plain projection get a Hessian of 0.
    """
    from hardnet.kernels.cpu.approach import STRAIGHT

    start = lambda value, J: first_multipliers(rows, value, J, now.y - now.raw)
    if not forms_metric(rows, now.y):
        at = rows.evaluate(now.y)
        now.numbers[:, STRAIGHT] = 1.0  # there is no other step to try
        return at._replace(dual=start(at.value, at.jacobian) if first else now.dual.clone())
    at = rows.evaluate(now.y, start if first else lambda *_: now.dual)
    straight = now.numbers[:, STRAIGHT] > 0
    if bool(straight.any()):
        at = at._replace(hessian=choose(straight, torch.zeros_like(at.hessian), at.hessian))  # pyright: ignore[reportArgumentType]
    return at._replace(dual=at.dual.clone(memory_format=torch.contiguous_format))  # pyright: ignore[reportOptionalMemberAccess]


def _try(rows: Rows, now: Walk, at: Derivatives, plan: Plan) -> None:
    """Try the full steps, then corrected, then ever shorter ones; write the results into the samples."""
    from hardnet.kernels.cpu.approach import CURRENT, FLAT, GOING, LAST, LENGTH, MOVED, NOISE, SLOPE, TRIED, judge

    one = torch.ones_like(plan.current)
    known = {MOVED: 0 * one, LENGTH: one, TRIED: 0 * one, LAST: plan.last.to(one), FLAT: plan.flat.to(one)}
    known |= {CURRENT: plan.current, SLOPE: plan.slope, NOISE: plan.noise}
    now.numbers[:, list(known)] = torch.stack(list(known.values()), dim=-1)
    trial = now.y + plan.step
    there = rows.value(trial)
    while True:
        wants = judge(now.numbers, now.y, now.dual, now.raw, trial, there, plan, (rows.lower, rows.upper))
        todo = ((now.numbers[:, MOVED] == 0) & (now.numbers[:, GOING] > 0)).nonzero().squeeze(-1)
        if len(todo) == 0:
            return
        some = rows.take(todo)
        point = torch.addcmul(now.y[todo], now.numbers[todo, LENGTH : LENGTH + 1], plan.step[todo])
        if bool(wants.any()):
            back = step_back(some, at.value[todo], at.jacobian[todo], there[todo])
            point = point + choose(wants[todo], back, torch.zeros_like(back))
        trial[todo], there[todo] = point, some.value(point)


def _outcome(now: Walk) -> list[Tensor]:
    """The results of the samples when they have ended."""
    from hardnet.kernels.cpu.approach import FLAT, SETTLED, STEPS

    settled, flat, steps = now.numbers[:, [SETTLED, FLAT, STEPS]].unbind(-1)
    return [now.y, now.dual, settled > 0, flat > 0, steps.long()]


def _place(whole: list[Tensor], index: Tensor, now: Walk) -> None:
    """Write the results of the samples `index` into those of the batch."""
    for old, new in zip(whole, _outcome(now), strict=True):
        old.index_copy_(0, index, new)
