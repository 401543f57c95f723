"""Tiles of few rows on a CPU: load and scale them, orthogonalize the active rows, correct and check y.

The steps are those of `hardnet.functional.nearest_formulas`; the sample is the last index of every array.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.nearest_program import DEPENDENT, DOUBT, EMPTY
from hardnet.kernels.cpu.tiles import bound_size, dot, fill, load, load_bound, subtract

ROUNDINGS, STATIONARY, TOUCHES = 16.0, 1e-8, 8 * 2.0**-52
SOLVED, INFEASIBLE, NOT_CONVERGED, INVALID = 0.0, 1.0, 2.0, 3.0
EXPONENT, TWICE_ONE = 0x7FF << 52, 2046 << 52
"""The exponent bits of a float64, and twice the exponent of 1: the exponents of ``2^k`` and ``2^-k`` add up to it."""


class Work(NamedTuple):
    """The scaled inputs and intermediate results of one tile; the axes are m, n, then the lanes."""

    rows: Tile
    R: Tile
    L: Tile
    inverse: Tile
    low: Tile
    high: Tile
    shrink: Tile
    active: Tile
    dual: Tile
    goal: Tile
    rest: Tile
    point: Tile
    good: Tile
    step: Tile


@compiled
def allocate(m: int, n: int, lanes: int) -> Work:
    """Memory for one tile."""
    return Work(
        np.empty((m, n, lanes)), np.empty((m, n, lanes)), np.empty((m, m, lanes)), np.empty((m, lanes)),
        np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)),
        np.empty((m, lanes)), np.empty((m, lanes)), np.empty((n, lanes)), np.empty(lanes), np.empty(lanes),
    )  # fmt: skip


@compiled
def load_rows(A: Tile, first: int, tile: Tile) -> None:
    """Rows ``(B, m, n)`` of the samples from `first` on, or ``(1, m, n)`` of all, into a tile ``(m, n, lanes)``."""
    matrices, m, n = A.shape
    if matrices > 1:
        load(A.reshape((matrices, m * n)), first, tile.reshape((m * n, tile.shape[2])))
        return
    for i in range(m):
        for j in range(n):
            for lane in range(tile.shape[2]):
                tile[i, j, lane] = A[0, i, j]


@compiled
def prepare(work: Work, A: Tile, lower: Tile, upper: Tile, first: int) -> None:
    """Load rows and bounds, scale each row by a power of two, and mark the samples with valid numbers."""
    m, n, lanes = work.rows.shape
    fill(work.good, 1.0)
    load_rows(A, first, work.rows)
    load_bound(lower, first, -np.inf, work.low)
    load_bound(upper, first, np.inf, work.high)
    for i in range(m):
        size = work.shrink[i]
        for lane in range(lanes):
            size[lane] = 0.0
        for j in range(n):
            for lane in range(lanes):
                entry = abs(work.rows[i, j, lane])
                work.good[lane] = work.good[lane] if entry < np.inf else 0.0
                size[lane] = max(size[lane], entry)
        bits = size.view(np.int64)
        for lane in range(lanes):
            exponent = bits[lane] & EXPONENT
            bits[lane] = TWICE_ONE - (exponent if exponent != 0 else TWICE_ONE // 2)
        for j in range(n):
            for lane in range(lanes):
                work.rows[i, j, lane] *= size[lane]
        for lane in range(lanes):
            low, high = work.low[i, lane] * size[lane], work.high[i, lane] * size[lane]
            valid = (low <= high) & (low < np.inf) & (high > -np.inf)
            work.good[lane] = work.good[lane] if valid else 0.0
            work.low[i, lane], work.high[i, lane] = low, high


@compiled
def tolerances(work: Work, rounding: float, length: Tile, noise: Tile, slack: Tile) -> None:
    """``|raw|_inf``, the rounding of the rows' values at raw, and the violation beyond which a set is empty."""
    m, n, lanes = work.rows.shape
    fill(length, 0.0)
    fill(noise, 0.0)
    fill(slack, 0.0)
    for j in range(n):
        for lane in range(lanes):
            entry = abs(work.point[j, lane])
            work.good[lane] = work.good[lane] if entry < np.inf else 0.0
            length[lane] = max(length[lane], entry)
    for i in range(m):
        row = work.rest[i]
        fill(row, 0.0)
        for j in range(n):
            for lane in range(lanes):
                row[lane] += abs(work.rows[i, j, lane])
        for lane in range(lanes):
            noise[lane] = max(noise[lane], row[lane])
            slack[lane] = max(slack[lane], bound_size(work.low[i, lane], work.high[i, lane], row[lane]))
    for lane in range(lanes):
        terms = noise[lane] * length[lane]
        noise[lane] = DOUBT * terms
        slack[lane] = EMPTY * terms + ROUNDINGS * rounding * slack[lane]


@compiled
def orthogonalize(work: Work) -> None:
    """``A_J = L R`` of the active rows; a row that is not active, or depends on those before it, has inverse zero."""
    m, n, lanes = work.rows.shape
    for i in range(m):
        square = work.rest[i]
        for j in range(n):
            for lane in range(lanes):
                work.R[i, j, lane] = work.rows[i, j, lane] if work.active[i, lane] == 1.0 else 0.0
        dot(work.R[i], work.R[i], square)
        for k in range(i):
            dot(work.R[i], work.R[k], work.L[i, k])
            for lane in range(lanes):
                work.L[i, k, lane] *= work.inverse[k, lane]
            for j in range(n):
                for lane in range(lanes):
                    work.R[i, j, lane] -= work.L[i, k, lane] * work.R[k, j, lane]
        dot(work.R[i], work.R[i], work.inverse[i])
        for lane in range(lanes):
            own = work.inverse[i, lane]
            work.inverse[i, lane] = 1.0 / own if own > DEPENDENT * square[lane] else 0.0


@compiled
def mark_active(work: Work, empty: Tile) -> None:
    """Which rows are active, and their target bounds."""
    for i in range(work.active.shape[0]):
        for lane in range(empty.size):
            dual, low, high = work.dual[i, lane], work.low[i, lane], work.high[i, lane]
            active = ((dual != 0.0) | (low == high)) & (empty[lane] == 0.0) & (work.good[lane] != 0.0)
            work.active[i, lane] = 1.0 if active else 0.0
            work.goal[i, lane] = high if dual > 0.0 else low


@compiled
def correct(work: Work, moves: Tile, drift: Tile) -> None:
    """Replace raw by ``x = raw - A_J' dual``, then ``y = x - A_J^+ (A_J x - t)``; which move, and ``|y - x|_inf``."""
    m, n, lanes = work.rows.shape
    orthogonalize(work)
    for i in range(m):
        for lane in range(lanes):
            weight = work.dual[i, lane] if work.active[i, lane] == 1.0 else 0.0
            work.rest[i, lane] = weight
            moves[lane] = 1.0 if weight != 0.0 else moves[lane]
    subtract(work.rest, work.rows, work.point)
    for i in range(m):
        dot(work.rows[i], work.point, work.rest[i])
        for lane in range(lanes):
            left = work.rest[i, lane] - work.goal[i, lane] if work.active[i, lane] == 1.0 else 0.0
            moves[lane] = 1.0 if left != 0.0 else moves[lane]
            work.rest[i, lane] = left
        for k in range(i):
            for lane in range(lanes):
                work.rest[i, lane] -= work.L[i, k, lane] * work.rest[k, lane]
    for i in range(m):
        for lane in range(lanes):
            work.rest[i, lane] *= work.inverse[i, lane]
    for j in range(n):
        step = work.step
        fill(step, 0.0)
        for i in range(m):
            for lane in range(lanes):
                step[lane] += work.rest[i, lane] * work.R[i, j, lane]
        for lane in range(lanes):
            work.point[j, lane] -= step[lane]
            drift[lane] = max(drift[lane], abs(step[lane]))


@compiled
def judge(work: Work, rounding: float, far: Tile, drift: Tile, empty: Tile, status: Tile, residual: Tile) -> None:
    """Status and KKT residual ``(lanes,)`` of the point as it is stored; zero multipliers for invalid samples."""
    m, n, lanes = work.rows.shape
    length, terms = work.step, work.inverse[0]
    fill(length, 0.0)
    fill(residual, 0.0)
    for j in range(n):
        for lane in range(lanes):
            length[lane] = max(length[lane], abs(work.point[j, lane]))
    for i in range(m):
        dot(work.rows[i], work.point, work.rest[i])
        fill(terms, 0.0)
        for j in range(n):
            for lane in range(lanes):
                terms[lane] += abs(work.rows[i, j, lane])
        for lane in range(lanes):
            at, low, high = work.rest[i, lane], work.low[i, lane], work.high[i, lane]
            bounds = bound_size(low, high, terms[lane])
            # if all bounds of a row are 0, it holds to the rounding of raw, or of 1 as in a certificate
            least = 0.0 if bounds > 0.0 else rounding * min(far[lane], 1.0)
            size = terms[lane] * (length[lane] + least) + bounds
            goal = work.goal[i, lane] if work.active[i, lane] == 1.0 else min(max(at, low), high)
            missed = abs(at - goal) / (size if size > 0.0 else 1.0) if size < np.inf else np.inf
            residual[lane] = residual[lane] if missed <= residual[lane] else missed  # keeps NaN
            weight = work.dual[i, lane]
            holds = (abs(weight) * terms[lane] * terms[lane] > TOUCHES * size) | (empty[lane] == 1.0)
            work.dual[i, lane] = weight * work.shrink[i, lane] if holds & (work.good[lane] != 0.0) else 0.0
    for lane in range(lanes):
        size = far[lane] + length[lane]
        moved = drift[lane] / (size if size > 0.0 else 1.0)
        solved = (residual[lane] <= ROUNDINGS * rounding) & (moved <= STATIONARY) & (size < np.inf)
        known = INFEASIBLE if empty[lane] == 1.0 else (SOLVED if solved else NOT_CONVERGED)
        status[lane] = known if work.good[lane] != 0.0 else INVALID
        worst = residual[lane] if moved <= residual[lane] else moved
        residual[lane] = worst if work.good[lane] != 0.0 else 0.0
        work.good[lane] = 1.0 if status[lane] == SOLVED else 0.0
