"""The projection onto a box and one row on a CPU: a safeguarded Newton method, sample by sample, compiled by numba.

``phi(t) = a' clamp(raw - a t, low, high)`` decreases with t and is piecewise linear. Each pass over the n coordinates
moves the point ``raw - a t`` in place and returns phi and its slope. The next t is Newton's if that lies between the
last t on either side of the root, else the next breakpoint or the midpoint. This takes O(n) per pass and a handful of
passes. See `hardnet.solvers.polyhedron.box_rows` for the same in plain torch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from hardnet.kernels.cpu.compiling import Tile, compiled, summed
from hardnet.kernels.cpu.tiles import bound_size
from hardnet.kernels.limits import STRICT

PASSES, PATIENCE, BLOCK = 80, 20, 256
"""The most passes, the number of passes after which every third one halves the bracket, and the coordinates per partial
sum."""
EPS = 2.0**-52
SOLVED, INFEASIBLE, NOT_CONVERGED, INVALID = 0.0, 1.0, 2.0, 3.0
INSIDE = 4.0
"""Roundings of the output dtype by which a row may miss its bounds and still count as satisfied."""


@summed
def sweep_block(p: Tile, a: Tile, low: Tile, high: Tile, step: float, j: int, end: int) -> tuple[float, float, float]:
    """``p -= a step``; ``a'clamp(p)``, the sum of ``a^2`` over the free coordinates, and the largest ``|clamp(p)|``.

    The largest is that of the coordinates which the row reads: the others do not round it.
    """
    phi, slope, largest = 0.0, 0.0, 0.0
    for i in range(j, end):
        moved = p[i] - a[i] * step
        p[i] = moved
        y = min(max(moved, low[i]), high[i])
        phi += a[i] * y
        slope += a[i] * a[i] if (moved == y) & (low[i] < high[i]) else 0.0
        largest = max(largest, abs(y) if a[i] != 0.0 else 0.0)
    return phi, slope, largest


@compiled
def sweep(p: Tile, a: Tile, low: Tile, high: Tile, step: float) -> tuple[float, float, float]:
    """The same over all coordinates, block by block, so that n roundings do not add up."""
    phi, slope, largest = 0.0, 0.0, 0.0
    for j in range(0, p.shape[0], BLOCK):
        part = sweep_block(p, a, low, high, step, j, min(j + BLOCK, p.shape[0]))
        phi, slope, largest = phi + part[0], slope + part[1], max(largest, part[2])
    return phi, slope, largest


@compiled
def next_breakpoint(p: Tile, a: Tile, low: Tile, high: Tile, sign: float) -> float:
    """How far t moves, up (sign 1) or down, until a coordinate at its bound becomes free; infinite if none does."""
    nearest = np.inf
    for i in range(p.shape[0]):
        slope = sign * a[i]
        if low[i] < high[i]:
            if slope > 0.0 and p[i] > high[i]:
                nearest = min(nearest, (p[i] - high[i]) / slope)
            elif slope < 0.0 and p[i] < low[i]:
                nearest = min(nearest, (p[i] - low[i]) / slope)
    return nearest


@compiled
def next_step(miss: float, slope: float, back: float, ahead: float, passes: int) -> float:
    """Newton's step if it stays within the bracket, else to its midpoint; NaN if the bracket is unbounded.

    After `PATIENCE` passes, every third step goes to the midpoint. The ends of the bracket are distances from the
    current t, which may be too large to resolve neighboring points.
    """
    step = miss / slope if slope > 0.0 else np.nan
    bounded = back > -np.inf and ahead < np.inf
    if step > back and step < ahead and not (bounded and passes > PATIENCE and passes % 3 == 0):
        return step
    return back + 0.5 * (ahead - back) if bounded else np.nan


@compiled
def row_scale(a: Tile) -> float:
    """The largest power of two up to the largest entry; 1 for a row of zeros, NaN for one that is not finite."""
    largest = 0.0
    for i in range(a.shape[0]):
        largest = max(largest, abs(a[i])) if abs(a[i]) < np.inf else np.nan
        if largest != largest:
            return np.nan
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0.0 else 1.0


@compiled
def sound(raw: Tile, low: Tile, high: Tile) -> bool:
    """Whether raw is finite, and the bounds of the box are in order and not infinite on the wrong side."""
    good = True
    for i in range(raw.shape[0]):
        good &= (abs(raw[i]) < np.inf) & (low[i] <= high[i]) & (low[i] < np.inf) & (high[i] > -np.inf)
    return good


@compiled
def inside(raw: Tile, a: Tile, low: Tile, high: Tile, lower: float, upper: float, rounding: float) -> bool:
    """Whether raw is in the box and satisfies the row to rounding."""
    product, size, weight, boxed = 0.0, 0.0, 0.0, True
    for i in range(raw.shape[0]):
        term = a[i] * raw[i]
        product += term
        size += abs(term)
        weight += abs(a[i])
        boxed &= (raw[i] >= low[i]) & (raw[i] <= high[i])
    slack = INSIDE * rounding * (size + bound_size(lower, upper, weight))
    return boxed and slack < np.inf and product <= upper + slack and product >= lower - slack


@compiled
def search(
    p: Tile, a: Tile, low: Tile, high: Tile, lower: float, upper: float, rounding: float
) -> tuple[float, float, float]:
    """The multiplier t, the status, and how far the row misses relative to its size; p becomes ``raw - a t``."""
    phi, slope, largest = sweep(p, a, low, high, 0.0)
    weight = np.sum(np.abs(a))
    target = min(max(phi, lower), upper)
    t, back, ahead, limits = 0.0, -np.inf, np.inf, bound_size(lower, upper, weight)
    for passes in range(PASSES):
        miss, size = phi - target, weight * largest + limits
        if not size < np.inf:  # sums overflow: no conclusion is possible
            break
        if abs(miss) <= 2.0 * EPS * size:
            return t, SOLVED, abs(miss) / max(size, 2.0**-1000)
        sign = 1.0 if miss > 0.0 else -1.0
        back, ahead = 0.0 if miss > 0.0 else back, ahead if miss > 0.0 else 0.0
        step = next_step(miss, slope, back, ahead, passes)
        if step != step:
            far = next_breakpoint(p, a, low, high, sign)
            if far == np.inf:  # the row is as close to its target as the box allows
                empty = abs(miss) > INSIDE * rounding * (weight * largest + abs(target))
                return sign if empty else t, INFEASIBLE if empty else SOLVED, abs(miss) / max(size, 2.0**-1000)
            step = sign * far * (1.0 + 4.0 * EPS)
        phi, slope, largest = sweep(p, a, low, high, step)
        t, back, ahead = t + step, back - step, ahead - step
    return t, NOT_CONVERGED, np.inf


@compiled
def write(y: Tile, place: Tile, p: Tile, low: Tile, high: Tile) -> None:
    """``clamp(p)``, and the place of each coordinate: -1 at the lower bound, 1 at the upper, 0 free, 2 fixed."""
    for i in range(p.shape[0]):
        y[i] = min(max(p[i], low[i]), high[i])
        above, below = 1.0 if p[i] > high[i] else 0.0, 1.0 if p[i] < low[i] else 0.0
        place[i] = 2.0 if low[i] == high[i] else above - below


@compiled
def side_of(raw: Tile, a: Tile, t: float, lower: float, upper: float) -> float:
    """The side of the row: -1 lower, 1 upper, 2 an equality, 0 if its multiplier is zero or only rounding."""
    if lower == upper:
        return 2.0
    far, weight = 0.0, 0.0
    for i in range(raw.shape[0]):
        far, weight = max(far, abs(raw[i])), max(weight, abs(a[i] * t))
    return np.sign(t) if weight > STRICT * max(far, weight) else 0.0


@compiled
def project(
    y: Tile, place: Tile, found: Tile, raw: Tile, A: Tile, rounding: float,
    lower: Tile, upper: Tile, low: Tile, high: Tile, begin: int, end: int,
) -> int:  # fmt: skip
    """Project the samples from `begin` to `end`; `found` ``(B, 4)`` gets multiplier, side, status and residual.

    A, the bounds of the row and the box have one entry for all samples or one per sample.
    """
    n = raw.shape[1]
    p, a = np.empty(n), np.empty(n)
    for b in range(begin, end):
        row, least, most = A[b % A.shape[0]], low[b % low.shape[0]], high[b % high.shape[0]]
        scale = row_scale(row)
        under, over = lower[b % lower.shape[0], 0] / scale, upper[b % upper.shape[0], 0] / scale
        good = (under <= over) & (under < np.inf) & (over > -np.inf) & sound(raw[b], least, most)
        if not good:
            y[b], place[b] = np.nan, 0.0
            found[b, 0], found[b, 1], found[b, 2], found[b, 3] = np.nan, 0.0, INVALID, np.nan
            continue
        for i in range(n):
            p[i], a[i] = raw[b, i], row[i] / scale
        t, status, miss = 0.0, SOLVED, 0.0
        if not inside(raw[b], a, least, most, under, over, rounding):
            t, status, miss = search(p, a, least, most, under, over, rounding)
        write(y[b], place[b], p, least, most)
        if status != SOLVED:
            y[b] = np.nan
        found[b, 0], found[b, 1], found[b, 2], found[b, 3] = t / scale, side_of(raw[b], a, t, under, over), status, miss
    return 0


def _project(
    y: Any, place: Any, found: Any, raw: Any, A: Any, rounding: Any, lower: Any, upper: Any, low: Any, high: Any,
    rows: int, samples: int, m: int, n: int, lowers: int, uppers: int, lows: int, highs: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`project`, called with addresses; m is 1."""
    return project(
        carray(y, (samples, n)), carray(place, (samples, n)), carray(found, (samples, 4)), carray(raw, (samples, n)),
        carray(A, (rows, n)), carray(rounding, (1,))[0], carray(lower, (lowers, m)), carray(upper, (uppers, m)),
        carray(low, (lows, n)), carray(high, (highs, n)), begin, end,
    )  # fmt: skip


ENTRIES = (_project,)
"""The entry point to compile; it takes addresses."""
