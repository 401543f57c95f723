"""Retraction on a CPU: a pass for each sample, compiled by numba except for g and its derivatives.

    plan    min over d, s   |d|^2 / 2 + |s / elastic|^2 / 2   subject to  lower <= value + J d + s <= upper
    judge   whether the violation at ``y + length d`` has decreased as the linearized rows predict

`hardnet.solvers.nonlinear.retract` has the same in plain torch. A sample has the vectors
y, best, step and trial ``(B, n)``, the rows' value and violation ``(B, m)``, and the numbers named below.
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
from hardnet.kernels.cpu.launch import launch
from hardnet.kernels.cpu.pivoting import Room, room_for
from hardnet.kernels.cpu.tiles import row_dot
from hardnet.kernels.limits import CHORD, CUT, ELASTIC, FAST, NUDGES, SHORT, SHORTEST, SOFTEST, STATIONARY, SUFFICIENT

GOING, STATE, ERROR, RATIO, GIVE, LENGTH, NUDGED, STILL, STEPS = range(9)
"""Whether the sample is open; the outcome of the last trial; relative violation; the factor by which the last full step
reduced it; the elasticity of a row of length one; the length of the next trial; nudges so far; whether no decrease is
predicted for the step; steps."""
BEST_SIZE, BEST_ERROR, BEST_RATIO, CURRENT, PROMISED, UNSETTLED, LEAST, COUNT = range(9, 17)
"""The first three for the best point; the size of the violation, and its prediction after the step; whether the active
rows were not found; the least value for the size of the outputs; and how many numbers a sample has."""
TRYING, ACCEPTED, FULL, SHORTENED, GIVEN_UP = range(5)
"""STATE: a step is being tried; accepted; accepted in full length; accepted, but so short that rows become more
elastic; no length was accepted."""
TINY = np.finfo(np.float64).tiny


@compiled
def miss(value: float, lower: float, upper: float) -> float:
    """By how much a row is violated; NaN stays NaN."""
    return value - upper if not value <= upper else lower - value if value < lower else 0.0


@compiled
def copy(source: Tile, target: Tile) -> None:
    """Copy every number of a vector; a loop, since assigning arrays checks for overlaps."""
    for k in range(target.shape[0]):
        target[k] = source[k]


@compiled
def relative_error(J: Tile, y: Tile, violation: Tile, bounds: Tile, least: float) -> float:
    """The largest violation relative to ``|J_i|_1 max|y| + |bounds|``; a scale that is not finite counts as `TINY`."""
    m, n = J.shape
    size, error = least, 0.0
    for k in range(n):
        size = max(size, abs(y[k]))
    for i in range(m):
        length = 0.0
        for k in range(n):
            length += abs(J[i, k])
        scale = length * size + bounds[i]
        share = violation[i] / (scale if TINY < scale < np.inf else TINY)
        error = share if share > error or share != share else error
    return error


@compiled
def measure_rows(
    norm: Tile, soft: Tile, J: Tile, violation: Tile, size: float, give: float, curved: int, unit: int
) -> None:
    """Lengths of the gradients, 1 for a zero one, and the elasticity of each row; without `unit` the same for all."""
    m = J.shape[0]
    longest, farthest = 0.0, 0.0
    for i in range(m):
        total = row_dot(J[i], J[i])
        norm[i] = np.sqrt(total) if total > 0.0 or total != total else 1.0
        soft[i] = violation[i] / max(size, TINY)
        longest, farthest = max(longest, norm[i]), max(farthest, soft[i])
    for i in range(m):
        norm[i], soft[i] = (norm[i], soft[i]) if unit else (longest, farthest)
        soft[i] = give * max(norm[i], soft[i]) if i < curved else 0.0


@compiled
def solve_rows(
    step: Tile, dual: Tile, J: Tile, low: Tile, high: Tile, soft: Tile, gram: Tile, target: Tile, least: Tile,
    most: Tile, rate: Tile, slack: Tile, room: Room,
) -> bool:  # fmt: skip
    """The step and its multipliers ``(m,)``, 0 where they were not found; whether they were found."""
    make_gram(gram, target, J, J, target, 0)
    copy(low, least)
    copy(high, most)
    scale_rows(gram, target, least, most, rate, soft, soft, 0)
    sound = settle(dual, gram, target, least, most, slack, room)
    for k in range(J.shape[1]):
        step[k] = 0.0
    for i in range(J.shape[0]):
        dual[i] = dual[i] * rate[i] if sound else 0.0
        share, line = dual[i], J[i]
        for k in range(J.shape[1]):
            step[k] -= share * line[k]
    return sound


@compiled
def promise(J: Tile, step: Tile, dual: Tile, low: Tile, high: Tile, soft: Tile, weight: Tile) -> float:
    """The size of the violations after the step, by the linearized rows; for an equality its elastic slack."""
    total = 0.0
    for i in range(J.shape[0]):
        left = soft[i] * soft[i] * dual[i]
        if low[i] != high[i]:
            left = miss(row_dot(J[i], step), low[i], high[i])
        total += (left * weight[i]) ** 2
    return np.sqrt(total)


@compiled
def size_of(violation: Tile, weight: Tile) -> float:
    """``|v|`` with each row times its weight."""
    total = 0.0
    for i in range(violation.shape[0]):
        total += (violation[i] * weight[i]) ** 2
    return np.sqrt(total)


@compiled
def arrive(s: Tile, y: Tile, best: Tile, error: float, size: float, tolerance: float, fine: float) -> None:
    """Update a sample after a trial: its numbers, its best point, and whether it has ended."""
    if s[STATE] == FULL:
        s[RATIO], s[GIVE] = error / s[ERROR], max(s[GIVE] / 10, ELASTIC)
    elif s[STATE] == SHORTENED:
        s[GIVE] = min(s[GIVE] * 10, SOFTEST)
    elif s[STATE] == GIVEN_UP:
        s[GIVE] *= 10
    slow = s[STEPS] > 0 and error <= tolerance and error > 0.5 * s[ERROR]
    s[ERROR] = error
    if s[STEPS] == 0 or size <= s[BEST_SIZE]:
        s[BEST_SIZE], s[BEST_ERROR], s[BEST_RATIO] = size, error, s[RATIO]
        copy(y, best)
    if not error > fine or slow or s[NUDGED] > NUDGES or s[GIVE] > SOFTEST:
        s[GOING] = 0.0


@compiled
def plan_samples(
    numbers: Tile, best: Tile, step: Tile, weight: Tile, y: Tile, J: Tile, value: Tile, violation: Tile, lower: Tile,
    upper: Tile, bounds: Tile, limits: Tile, curved: int, unit: int, begin: int, end: int,
) -> int:  # fmt: skip
    """Update samples after the last trials, and plan the next step of every open sample; `limits`: tolerance and fine.

    Returns how many samples have a step that was not found or has no predicted decrease.
    """
    m, n = J.shape[1:]
    asking = 0
    gram, room = np.empty((m, m)), room_for(m)
    dual, low, high, norm, soft = np.empty(m), np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    target, least, most, rate, slack = np.empty(m), np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    damped = np.empty(n)
    for b in range(begin, end):
        s = numbers[b]
        if s[GOING] == 0.0:
            continue
        error = relative_error(J[b], y[b], violation[b], bounds[b], s[LEAST])
        for i in range(m):
            norm[i] = 1.0
        arrive(s, y[b], best[b], error, error if unit else size_of(violation[b], norm), limits[0], limits[1])
        if s[GOING] == 0.0:
            continue
        size = s[LEAST]
        for k in range(n):
            size = max(size, abs(y[b, k]))
        for i in range(m):
            low[i], high[i] = lower[b, i] - value[b, i], upper[b, i] - value[b, i]
        share = np.inf
        if not unit:  # the share of the violation that a damped step is predicted to remove
            measure_rows(norm, soft, J[b], violation[b], size, 1.0, curved, 0)
            for i in range(m):
                soft[i], weight[b, i] = norm[i] if i < curved else 0.0, 1.0
            sound = solve_rows(damped, dual, J[b], low, high, soft, gram, target, least, most, rate, slack, room)
            share = 1 - promise(J[b], damped, dual, low, high, soft, weight[b]) / size_of(violation[b], weight[b])
            s[UNSETTLED] = 0.0 if sound else 1.0
        measure_rows(norm, soft, J[b], violation[b], size, s[GIVE], curved, unit)
        for i in range(m):
            weight[b, i] = 1.0 / norm[i] if unit else 1.0
        sound = solve_rows(step[b], dual, J[b], low, high, soft, gram, target, least, most, rate, slack, room)
        s[UNSETTLED] = 0.0 if sound and (unit or s[UNSETTLED] == 0.0) else 1.0
        s[CURRENT] = size_of(violation[b], weight[b])
        s[PROMISED] = promise(J[b], step[b], dual, low, high, soft, weight[b])
        moving = s[CURRENT] - s[PROMISED] > STATIONARY * s[CURRENT] and share > STATIONARY
        s[STATE], s[STILL], s[LENGTH] = TRYING, 0.0 if moving else 1.0, 1.0
        asking += int(not moving or s[UNSETTLED] > 0.0)
    return asking


@compiled
def next_length(there: Tile, violation: Tile, weight: Tile, length: float, current: float) -> float:
    """The next length t, which minimizes ``(1 - t) |v| + t^2 |c|``, with c from the violations there."""
    total = 0.0
    for i in range(there.shape[0]):
        total += ((there[i] - (1 - length) * violation[i]) * weight[i]) ** 2
    bent = np.sqrt(total)
    least = current * length * length / (2 * bent) if bent < np.inf else 0.1 * length
    return min(max(least, CUT * length), 0.5 * length)


@compiled
def judge_samples(
    numbers: Tile, y: Tile, value: Tile, violation: Tile, fresh: Tile, trial: Tile, there: Tile, weight: Tile,
    lower: Tile, upper: Tile, begin: int, end: int,
) -> int:  # fmt: skip
    """Accept or refuse the trials; `fresh` is set to 1 where a sample has moved and needs a new Jacobian.

    Returns how many samples try a shorter step.
    """
    m, trying = value.shape[1], 0
    off = np.empty(m)
    for b in range(begin, end):
        s = numbers[b]
        if s[GOING] == 0.0 or s[STATE] != TRYING:
            continue
        finite = True
        for i in range(m):
            off[i] = miss(there[b, i], lower[b, i], upper[b, i])
            finite &= abs(there[b, i]) < np.inf
        length, still = s[LENGTH], s[STILL] > 0.0
        bound = s[CURRENT] + SUFFICIENT * length * (s[PROMISED] - s[CURRENT])
        if size_of(off, weight[b]) <= bound or (still and length == 1.0 and finite):
            s[STATE] = ACCEPTED if still else FULL if length == 1.0 else SHORTENED if length <= SHORT else ACCEPTED
            s[NUDGED] += s[STILL]
            s[STEPS] += 1.0
            fresh[b] = 0.0 if s[ERROR] <= CHORD and 0.0 < s[RATIO] <= FAST else 1.0
            copy(trial[b], y[b])
            copy(there[b], value[b])
            copy(off, violation[b])
            continue
        s[LENGTH] = next_length(off, violation[b], weight[b], length, s[CURRENT])
        s[STATE] = GIVEN_UP if s[LENGTH] < SHORTEST else TRYING
        s[NUDGED] += s[STILL] if s[STATE] == GIVEN_UP else 0.0
        s[STEPS] += 1.0 if s[STATE] == GIVEN_UP else 0.0
        trying += int(s[STATE] == TRYING)
    return trying


def _plan(
    numbers: Any, best: Any, step: Any, weight: Any, y: Any, J: Any, value: Any, violation: Any, lower: Any, upper: Any,
    bounds: Any, limits: Any, curved: int, unit: int, samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`plan_samples` with addresses."""
    few, many = (samples, m), (samples, n)
    return plan_samples(
        carray(numbers, (samples, COUNT)), carray(best, many), carray(step, many), carray(weight, few), carray(y, many),
        carray(J, (samples, m, n)), carray(value, few), carray(violation, few), carray(lower, few), carray(upper, few),
        carray(bounds, few), carray(limits, (2,)), curved, unit, begin, end,
    )  # fmt: skip


def _judge(
    numbers: Any, y: Any, value: Any, violation: Any, fresh: Any, trial: Any, there: Any, weight: Any, lower: Any,
    upper: Any, samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`judge_samples` with addresses."""
    few, many = (samples, m), (samples, n)
    return judge_samples(
        carray(numbers, (samples, COUNT)), carray(y, many), carray(value, few), carray(violation, few),
        carray(fresh, (samples,)), carray(trial, many), carray(there, few), carray(weight, few), carray(lower, few),
        carray(upper, few), begin, end,
    )  # fmt: skip


@cache
def _kernels() -> tuple[Callable[..., int], Callable[..., int]]:
    """The compiled kernels, which take addresses."""
    return compile_addresses(_plan, torch.float64), compile_addresses(_judge, torch.float64)


def plan(
    state: tuple[Tensor, ...], J: Tensor, bounds: tuple[Tensor, ...], limits: Tensor, curved: int, unit: bool
) -> int:
    """Update `state` after the trials and write the next steps; return how many were not found or predict no decrease.

    Args:
        state: Numbers ``(B, COUNT)``, best and step ``(B, n)``, weight ``(B, m)``, y ``(B, n)``, value and violation
            ``(B, m)``; all dense.
        J: ``(B, m, n)``.
        bounds: Lower, upper, and the size of the finite ones, ``(B, m)`` each.
        limits: Tolerance and fine, ``(2,)``.
        curved: The number of nonlinear rows, which are elastic; the affine rows come after them.
        unit: Whether violations are measured in units of the rows' gradients.
    """
    numbers, best, step, weight, y, value, violation = state
    inputs = [y, J, value, violation, *bounds, limits]
    return launch(_kernels()[0], [numbers, best, step, weight], inputs, (), J.shape, curved, int(unit), tile=1)


def judge(state: tuple[Tensor, ...], fresh: Tensor, trial: Tensor, there: Tensor, lower: Tensor, upper: Tensor) -> int:
    """Write accepted trials ``(B, n)``, with the rows `there` ``(B, m)``, into `state`; return how many try again.

    `fresh` ``(B,)`` is set to 1 where a sample has moved and needs a new Jacobian.
    """
    numbers, _, _, weight, y, value, violation = state
    outputs, inputs = [numbers, y, value, violation, fresh], [trial, there, weight, lower, upper]
    return launch(_kernels()[1], outputs, inputs, (), torch.Size((*there.shape, y.shape[1])), tile=1)
