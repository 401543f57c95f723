"""The nearest point on a CPU: a pass for each sample, compiled by numba except for g and its derivatives.

    plan    min over d, s   1/2 d'W d + (y - raw)'d - dual's + |s / elastic|^2 / 2
            subject to  lower <= value + J d + s <= upper
    judge   whether the merit ``|y - raw|^2 / 2 + weight . violation`` has decreased as predicted

with ``W = I + sum_i dual_i Hess g_i``. See `hardnet.solvers.nonlinear.nearest` for the same in plain torch, and
for samples whose W is not positive definite or whose active rows are not found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray
from torch import Tensor

from hardnet.kernels.cpu.active_set import make_gram, scale_rows, settle
from hardnet.kernels.cpu.compiling import Tile, compile_addresses, compiled
from hardnet.kernels.cpu.definite import eliminate
from hardnet.kernels.cpu.launch import launch
from hardnet.kernels.cpu.pivoting import room_for
from hardnet.kernels.cpu.retraction import miss
from hardnet.kernels.cpu.tiles import largest, row_dot
from hardnet.kernels.limits import (
    DISTANT,
    ELASTIC,
    FAR,
    FLATTEST,
    MERIT_ROUNDING,
    SEARCH_CUT,
    SHORTEST_SEARCH,
    SMALL_STEP,
    SUFFICIENT,
)

GOING, MOVED, LENGTH, TRIED, STRAIGHT, LAST, SETTLED, FLAT, STEPS, CURRENT, SLOPE, NOISE, COUNT = range(13)
"""The numbers of a sample: whether it is open; whether its step was accepted; the length of the next trial; whether the
correction was tried; whether the step ignores curvature; whether the step is the last one; whether the sample ended
with such a step; whether the Lagrangian is flat; steps so far; the merit, its predicted change, and its rounding. COUNT
is how many numbers there are."""
TINY = np.finfo(np.float64).tiny


@compiled
def solve_lagrangian(W: Tile, solved: Tile, away: Tile, H: Tile, J: Tile) -> bool:
    """``W^-1 [J', -away]``, ``(n, m + 1)``; whether W is positive definite."""
    m, n = J.shape
    for k in range(n):
        for j in range(n):
            W[k, j] = H[k, j] + (1.0 if k == j else 0.0)
        for i in range(m):
            solved[k, i] = J[i, k]
        solved[k, m] = -away[k]
    return eliminate(W, solved) > FLATTEST


@compiled
def weigh(
    sums: Tile, weight: Tile, scale: Tile, dual: Tile, before: Tile, J: Tile, step: Tile, away: Tile, value: Tile,
    lower: Tile, upper: Tile, bounds: Tile, size: float,
) -> None:  # fmt: skip
    """Weights and scales of the rows; in `sums` the merit, its predicted change in a full step, and its rounding."""
    m, n = J.shape
    now, slope, noise = 0.0, 0.0, 0.0
    for k in range(n):
        now += away[k] * away[k]
        slope += away[k] * step[k]
    now /= 2
    for i in range(m):
        then, length = value[i], 0.0
        for k in range(n):
            then += J[i, k] * step[k]
            length += abs(J[i, k])
        weight[i] = max(before[i], 1.5 * abs(dual[i]))
        scale[i] = bounds[i] + length * size
        scale[i] = max(scale[i] if scale[i] < np.inf else TINY, TINY)
        violation = miss(value[i], lower[i], upper[i])
        now += weight[i] * violation
        slope += weight[i] * (miss(then, lower[i], upper[i]) - violation)
        noise += weight[i] * scale[i]
    sums[0], sums[1], sums[2] = now, min(slope, 0.0), MERIT_ROUNDING * (now + noise)


@compiled
def plan_samples(
    step: Tile, dual: Tile, weight: Tile, scale: Tile, sums: Tile, last: Tile, good: Tile, J: Tile, H: Tile,
    value: Tile, lower: Tile, upper: Tile, bounds: Tile, y: Tile, raw: Tile, center: Tile, before: Tile, curved: int,
    begin: int, end: int,
) -> int:  # fmt: skip
    """All samples from `begin` to `end`; `good` is 1 where W is positive definite and the active rows were found."""
    m, n = J.shape[1:]
    gram, W, solved, room = np.empty((m, m)), np.empty((n, n)), np.empty((n, m + 1)), room_for(m)
    target, low, high, rate = np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    slack, soft, away, free = np.empty(m), np.empty(m), np.empty(n), np.empty(n)
    for b in range(begin, end):
        for k in range(n):
            away[k] = y[b, k] - raw[b, k]
        sound = solve_lagrangian(W, solved, away, H[b], J[b])
        for k in range(n):
            free[k] = solved[k, m]
        make_gram(gram, target, J[b], solved, free, 1)
        for i in range(m):
            low[i], high[i] = lower[b, i] - value[b, i], upper[b, i] - value[b, i]
            total = row_dot(J[b, i], J[b, i])
            soft[i] = ELASTIC * (np.sqrt(total) if total > 0.0 else 1.0) if i < curved else 0.0
        scale_rows(gram, target, low, high, rate, soft, center[b], 1)
        sound = sound and settle(dual[b], gram, target, low, high, slack, room)
        good[b] = 1.0 if sound else 0.0
        for i in range(m):
            dual[b, i] = dual[b, i] * rate[i] if sound else 0.0
        for k in range(n):
            step[b, k] = free[k]
            for i in range(m):
                step[b, k] -= solved[k, i] * dual[b, i]
        size, reach = largest(y[b]), largest(away)
        rounded = max(size, min(largest(raw[b]), 1.0))
        weigh(
            sums[b], weight[b], scale[b], dual[b], before[b], J[b], step[b], away, value[b], lower[b], upper[b],
            bounds[b], rounded,
        )  # fmt: skip
        last[b] = 1.0 if largest(step[b]) <= SMALL_STEP * (size + DISTANT * reach) else 0.0
    return 0


@compiled
def merit(
    trial: Tile, raw: Tile, there: Tile, lower: Tile, upper: Tile, weight: Tile, scale: Tile
) -> tuple[float, float]:
    """``|trial - raw|^2 / 2 + weight . violation``, and the largest violation relative to its row's scale."""
    total, worst = 0.0, 0.0
    for k in range(trial.shape[0]):
        total += (trial[k] - raw[k]) ** 2 / 2
    for i in range(there.shape[0]):
        violation = miss(there[i], lower[i], upper[i])
        total += weight[i] * violation
        share = violation / scale[i]
        worst = share if share > worst or share != share else worst
    return total, worst


@compiled
def judge_samples(
    numbers: Tile, y: Tile, dual: Tile, wants: Tile, raw: Tile, trial: Tile, there: Tile, found: Tile, weight: Tile,
    scale: Tile, lower: Tile, upper: Tile, begin: int, end: int,
) -> int:  # fmt: skip
    """Accept or refuse the trials; `wants` is 1 where a refused full step is to be corrected."""
    m, n = there.shape[1], y.shape[1]
    for b in range(begin, end):
        s = numbers[b]
        wants[b] = 0.0
        if s[GOING] == 0.0 or s[MOVED] > 0.0:
            continue
        reached, worst = merit(trial[b], raw[b], there[b], lower[b], upper[b], weight[b], scale[b])
        length = s[LENGTH]
        if reached <= s[CURRENT] + SUFFICIENT * length * s[SLOPE] + s[NOISE] and worst <= FAR:
            s[GOING], s[SETTLED], s[MOVED], s[STRAIGHT] = 1.0 - s[LAST], s[LAST], 1.0, 0.0
            s[STEPS] += 1.0
            for k in range(n):
                y[b, k] = trial[b, k]
        elif length == 1.0 and s[TRIED] == 0.0:
            wants[b] = s[TRIED] = 1.0
            continue
        else:
            excess = 2 * (reached - s[CURRENT] - length * s[SLOPE])
            shorter = -s[SLOPE] * length * length / excess if excess > 0.0 else 0.5 * length
            s[LENGTH] = min(max(shorter, SEARCH_CUT * length), 0.5 * length)
            if s[LENGTH] >= SHORTEST_SEARCH:
                continue
            s[GOING], s[MOVED], s[STRAIGHT] = 1.0 - s[STRAIGHT], 1.0, 1.0  # once more with the plain projection
            s[STEPS] += 1.0
            if s[GOING] > 0.0:
                continue
        for i in range(m):
            dual[b, i] = found[b, i]
    return 0


def _plan(
    step: Any, dual: Any, weight: Any, scale: Any, sums: Any, last: Any, good: Any, J: Any, H: Any, value: Any,
    lower: Any, upper: Any, bounds: Any, y: Any, raw: Any, center: Any, before: Any, curved: int,
    samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`plan_samples` with addresses."""
    few, many, each = (samples, m), (samples, n), (samples,)
    return plan_samples(
        carray(step, many), carray(dual, few), carray(weight, few), carray(scale, few), carray(sums, (samples, 3)),
        carray(last, each), carray(good, each), carray(J, (samples, m, n)), carray(H, (samples, n, n)),
        carray(value, few), carray(lower, few), carray(upper, few), carray(bounds, few), carray(y, many),
        carray(raw, many), carray(center, few), carray(before, few), curved, begin, end,
    )  # fmt: skip


def _judge(
    numbers: Any, y: Any, dual: Any, wants: Any, raw: Any, trial: Any, there: Any, found: Any, weight: Any, scale: Any,
    lower: Any, upper: Any, samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`judge_samples` with addresses."""
    few, many = (samples, m), (samples, n)
    return judge_samples(
        carray(numbers, (samples, COUNT)), carray(y, many), carray(dual, few), carray(wants, (samples,)),
        carray(raw, many), carray(trial, many), carray(there, few), carray(found, few), carray(weight, few),
        carray(scale, few), carray(lower, few), carray(upper, few), begin, end,
    )  # fmt: skip


@cache
def _kernels() -> tuple[Callable[..., int], Callable[..., int]]:
    """The compiled kernels, which take addresses."""
    return compile_addresses(_plan, torch.float64), compile_addresses(_judge, torch.float64)


def plan(
    J: Tensor,
    H: Tensor,
    value: Tensor,
    lower: Tensor,
    upper: Tensor,
    bounds: Tensor,
    y: Tensor,
    raw: Tensor,
    dual: Tensor,
    weight: Tensor,
    curved: int,
) -> tuple[Tensor, ...]:
    """Step ``(B, n)``, multipliers, weights and scales ``(B, m)``; merit, slope, rounding, last, settled ``(B,)``.

    Args:
        J: ``(B, m, n)``.
        H: ``sum_i dual_i Hess g_i``, ``(B, n, n)``.
        value: The rows at y, ``(B, m)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        bounds: The size of the finite bounds, ``(B, m)``.
        y: ``(B, n)``.
        raw: ``(B, n)``.
        dual: Multipliers at y, ``(B, m)``.
        weight: The weights of the violations in the last step, ``(B, m)``.
        curved: The number of nonlinear rows, which are elastic; the affine rows come after them.
    """
    step, (found, new, scale) = torch.empty_like(y), J.new_empty(3, *J.shape[:2])
    sums, (last, good) = J.new_empty(len(J), 3), J.new_empty(2, len(J))
    inputs = [J, H, value, lower, upper, bounds, y, raw, dual, weight]
    launch(_kernels()[0], [step, found, new, scale, sums, last, good], inputs, (), J.shape, curved, tile=1)
    current, slope, noise = sums.unbind(-1)
    last = last > 0
    return step, found, new, scale, current, slope, torch.where(last, torch.inf, noise), last, good > 0


def judge(
    numbers: Tensor,
    y: Tensor,
    dual: Tensor,
    raw: Tensor,
    trial: Tensor,
    there: Tensor,
    plan: Any,
    bounds: tuple[Tensor, Tensor],
) -> Tensor:
    """Write accepted trials into numbers, y and dual; return which full steps are to be corrected, ``(B,)``.

    Args:
        numbers: ``(B, COUNT)``.
        y: ``(B, n)``.
        dual: ``(B, m)``.
        raw: ``(B, n)``.
        trial: ``(B, n)``.
        there: The rows at the trials, ``(B, m)``.
        plan: The steps, with ``dual``, ``weight`` and ``scale``, ``(B, m)`` each.
        bounds: Lower and upper, ``(B, m)`` each.
    """
    wants = torch.empty_like(numbers[:, 0])
    inputs = [raw, trial, there, plan.dual, plan.weight, plan.scale, *bounds]
    shape = torch.Size((*there.shape, y.shape[1]))
    launch(_kernels()[1], [numbers, y, dual, wants], inputs, (), shape, tile=1)
    return wants > 0
