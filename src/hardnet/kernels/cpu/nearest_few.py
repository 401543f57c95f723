"""The nearest point for few rows on a CPU: one pass per direction over the batch, tile by tile, compiled by numba.

The steps are those of `hardnet.nearest.few_rows`, where they are explained; the sample is the last index of every
array. Sums are formed in float64 whatever the dtype, and a sample is computed by the same instructions in any batch and
in any lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from hardnet.kernels.cpu.affine_few import substitute_transposed
from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.tiles import (
    bound_size,
    copy,
    dot,
    fill,
    keep,
    lanes_for,
    load,
    load_bound,
    store,
    subtract,
)
from hardnet.kernels.tolerances import FEW_ROWS

DEPENDENT, DOUBT, EMPTY = FEW_ROWS.dependent, FEW_ROWS.doubt, FEW_ROWS.empty
ROUNDINGS, STATIONARY, TOUCHES = FEW_ROWS.roundings, FEW_ROWS.stationary, FEW_ROWS.touches
SOLVED, INFEASIBLE, NOT_CONVERGED, INVALID = 0.0, 1.0, 2.0, 3.0
EXPONENT, TWICE_ONE = 0x7FF << 52, 2046 << 52
"""The exponent bits of a float64, and twice the exponent of 1: the exponents of ``2^k`` and ``2^-k`` add up to it."""


# The multipliers, by recursion over the rows ------------------------------------------------------------------------


class Frames(NamedTuple):
    """Memory of the recursion: the first index is the level k, the number of rows; level m + 1 holds input and result.

    The other indices are rows, coordinates where there are any, and lanes.
    """

    rows: Tile
    value: Tile
    free: Tile
    held: Tile
    hopeless: Tile
    contradicts: Tile
    share: Tile
    own: Tile
    constant: Tile
    excess: Tile
    step: Tile
    terms: Tile


@compiled
def frames(m: int, width: int, lanes: int) -> Frames:
    """Memory for m rows in `width` coordinates."""
    k = m + 2
    return Frames(
        np.empty((k, m, width, lanes)), np.empty((k, m, lanes)), np.empty((k, m, lanes)), np.empty((k, m, lanes)),
        np.empty((k, lanes)), np.empty((k, lanes)), np.empty((k, m, lanes)), np.empty((k, lanes)),
        np.empty((k, lanes)), np.empty((k, lanes)), np.empty((k, lanes)), np.empty(lanes),
    )  # fmt: skip


@compiled
def solve(square: Tile, low: Tile, high: Tile, noise: Tile, slack: Tile, keep: Frames) -> None:
    """Write the multipliers ``(m, lanes)`` to ``keep.free[m + 1]``, which sets are empty to ``keep.hopeless[m + 1]``.

    The recursion is a loop over its levels k, the numbers of rows, since numba does not cache recursive functions. A
    level is entered (stage 0), is solved without its last row (1), and is solved with that row pinned (2).

    Args:
        square: Squared length of the rows, ``(m, lanes)``.
        low: ``(m, lanes)``.
        high: ``(m, lanes)``.
        noise: Rounding of the values, ``(lanes,)``.
        slack: Violation allowed to a constant row, ``(lanes,)``.
        keep: Memory; level m + 1 of `keep.rows` and `keep.value` holds the rows and their values.
    """
    m = square.shape[0]
    stage = np.zeros(m + 2, np.int64)
    k = m
    while k <= m:
        origin, pinned = m + 1, 0  # the rows as reduced by the nearest level above that has pinned its row
        for level in range(m, k, -1):
            origin, pinned = (level, pinned + 1) if stage[level] == 2 else (origin, pinned)
        rows, value = keep.rows[origin], keep.value[origin]
        out = keep.held[k + 1] if stage[k + 1] == 2 else keep.free[k + 1]
        empty = keep.contradicts[k + 1] if stage[k + 1] == 2 else keep.hopeless[k + 1]
        if stage[k] == 0:
            part = 2.0 if pinned >= rows.shape[1] else DEPENDENT
            measure(rows[k - 1], square[k - 1], part, keep.own[k], keep.constant[k])
        if k == 1:
            clamp(value[0], low[0], high[0], slack, keep.own[1], keep.constant[1], out[0], empty)
            k += 1
        elif stage[k] == 0:
            stage[k] = 1
            k -= 1
        elif stage[k] == 1:
            pin(k, rows, value, low, high, noise, keep)
            stage[k] = 2
            k -= 1
        else:
            choose(k, slack, keep, out, empty)
            stage[k] = 0
            k += 1


@compiled
def measure(row: Tile, square: Tile, part: float, own: Tile, constant: Tile) -> None:
    """Whether a row is constant, given the pinned rows, and the inverse of its squared length otherwise."""
    dot(row, row, own)
    for lane in range(own.size):
        constant[lane] = 1.0 if own[lane] <= part * square[lane] else 0.0
        own[lane] = 1.0 / (1.0 if constant[lane] == 1.0 else own[lane])


@compiled
def clamp(value: Tile, low: Tile, high: Tile, slack: Tile, own: Tile, constant: Tile, dual: Tile, empty: Tile) -> None:
    """The multiplier of one row."""
    for lane in range(empty.size):
        over = value[lane] - min(max(value[lane], low[lane]), high[lane])
        lost = (constant[lane] == 1.0) & (abs(over) > slack[lane])
        sign = 1.0 if over > 0.0 else -1.0
        dual[lane] = over * own[lane] if constant[lane] == 0.0 else (sign if lost else 0.0)
        empty[lane] = 1.0 if lost else 0.0


@compiled
def pin(k: int, rows: Tile, value: Tile, low: Tile, high: Tile, noise: Tile, keep: Frames) -> None:
    """Evaluate the last of k rows, pin it at its target, and remove its direction from the others."""
    last, step, own = k - 1, keep.step[k], keep.own[k]
    for i in range(last):
        dot(rows[i], rows[last], keep.share[k, i])
    test(last, value, low, high, noise, keep.share[k], keep.free[k], keep.constant[k], keep.terms, keep.excess[k], step)
    for lane in range(step.size):
        step[lane] = (value[last, lane] - step[lane]) * own[lane]
    reduce_rows(last, rows, value, keep.share[k], own, step, keep.rows[k], keep.value[k])


@compiled
def test(
    last: int, value: Tile, low: Tile, high: Tile, noise: Tile, cross: Tile, free: Tile, constant: Tile, terms: Tile,
    excess: Tile, target: Tile,
) -> None:  # fmt: skip
    """The last row at the solution without it: its excess, zero if that is rounding, and its target."""
    for lane in range(excess.size):
        excess[lane], terms[lane] = value[last, lane], abs(value[last, lane])
    for i in range(last):
        for lane in range(excess.size):
            move = cross[i, lane] * free[i, lane]
            excess[lane] -= move
            terms[lane] += abs(move)
    for lane in range(excess.size):
        target[lane] = min(max(excess[lane], low[last, lane]), high[last, lane])
        over = excess[lane] - target[lane]
        doubt = DOUBT * (terms[lane] + abs(target[lane])) + noise[lane]
        excess[lane] = over if (abs(over) > doubt) | (constant[lane] == 1.0) else 0.0


@compiled
def reduce_rows(
    last: int, rows: Tile, value: Tile, cross: Tile, own: Tile, step: Tile, reduced: Tile, shifted: Tile
) -> None:
    """The other rows with the last one pinned, and their values; `cross` becomes the share of the last row in each."""
    for i in range(last):
        for lane in range(step.size):
            shifted[i, lane] = value[i, lane] - cross[i, lane] * step[lane]
            cross[i, lane] *= own[lane]
        for j in range(rows.shape[1]):
            for lane in range(step.size):
                reduced[i, j, lane] = rows[i, j, lane] - cross[i, lane] * rows[last, j, lane]


@compiled
def choose(k: int, slack: Tile, keep: Frames, dual: Tile, empty: Tile) -> None:
    """The multipliers without the last row, or with it where that row violates its bounds."""
    last, share, free, held, mine = k - 1, keep.share[k], keep.free[k], keep.held[k], keep.step[k]
    hopeless, contradicts, constant, excess = keep.hopeless[k], keep.contradicts[k], keep.constant[k], keep.excess[k]
    for lane in range(empty.size):
        mine[lane] = mine[lane] if contradicts[lane] == 0.0 else 0.0
    for i in range(last):
        for lane in range(empty.size):
            mine[lane] -= share[i, lane] * held[i, lane]
    for lane in range(empty.size):
        over, sure = excess[lane], hopeless[lane] == 0.0
        lost = sure & (constant[lane] == 1.0) & (abs(over) > slack[lane])
        leaves = sure & (constant[lane] == 0.0) & (over != 0.0)
        own = max(mine[lane], 0.0) if over > 0.0 else min(mine[lane], 0.0)
        sign = 1.0 if over > 0.0 else -1.0
        dual[last, lane] = own if leaves else (sign if lost else 0.0)
        empty[lane] = 1.0 if (not sure) | lost | (leaves & (contradicts[lane] == 1.0)) else 0.0
        constant[lane] = 1.0 if leaves else (2.0 if lost else 0.0)
    for i in range(last):
        for lane in range(empty.size):
            other = 0.0 if constant[lane] == 2.0 else free[i, lane]
            dual[i, lane] = held[i, lane] if constant[lane] == 1.0 else other


@compiled
def coordinates(rows: Tile, rest: Tile, out: Tile) -> None:
    """Rows ``(m, n, lanes)`` in ``(m, width, lanes)`` coordinates that keep angles and lengths; `rest` is overwritten.

    The rows themselves where width is n; else L of ``rows = L Q``, by Gram-Schmidt.
    """
    m, n, lanes = rows.shape
    if out.shape[1] == n:
        for i in range(m):
            for j in range(n):
                for lane in range(lanes):
                    out[i, j, lane] = rows[i, j, lane]
        return
    square, direction = np.empty(lanes), np.empty((n, lanes))
    fill(out, 0.0)
    for i in range(m):
        for j in range(n):
            for lane in range(lanes):
                rest[i, j, lane] = rows[i, j, lane]
    for k in range(m):
        dot(rows[k], rows[k], square)
        dot(rest[k], rest[k], out[k, k])
        for lane in range(lanes):
            clear = out[k, k, lane] > DEPENDENT * square[lane]
            out[k, k, lane] = np.sqrt(out[k, k, lane]) if clear else 0.0
            square[lane] = 1.0 / out[k, k, lane] if clear else 0.0
        for j in range(n):
            for lane in range(lanes):
                direction[j, lane] = rest[k, j, lane] * square[lane]
        for i in range(k + 1, m):
            dot(rest[i], direction, out[i, k])
            for j in range(n):
                for lane in range(lanes):
                    rest[i, j, lane] -= out[i, k, lane] * direction[j, lane]


# A tile: load and scale the rows, orthogonalize the active ones, correct and check y ---------------------------------


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


# The entry points ---------------------------------------------------------------------------------------------------


@compiled
def forward(
    y: Tile, dual: Tile, status: Tile, residual: Tile, raw: Tile, A: Tile, lower: Tile, upper: Tile,
    begin: int, end: int,
) -> int:  # fmt: skip
    """Compute the nearest point of each sample; return the number of samples that are not solved.

    Args:
        y: ``(B, n)``, written; NaN where it is not solved.
        dual: ``(B, m)``, written.
        status: ``(B, 1)``, written.
        residual: ``(B, 1)``, written.
        raw: ``(B, n)``.
        A: ``(B, m, n)``, or ``(1, m, n)`` for all samples.
        lower: ``(B, m)``, ``(1, m)`` for all samples, or ``(0, m)`` for none.
        upper: Like `lower`.
        begin: The first sample to compute.
        end: One past the last; both are multiples of a tile, or the size of the batch.
    """
    samples, n = raw.shape
    m, rounding = A.shape[1], np.finfo(raw.dtype).eps
    lanes, width = lanes_for(samples, m * n), min(m, n)
    work, memory = allocate(m, n, lanes), frames(m, width, lanes)
    small, value, empty = memory.rows[m + 1], memory.value[m + 1], memory.hopeless[m + 1]
    square, all_good = np.empty((m, lanes)), np.ones(lanes)
    far, noise, slack, moves = np.empty(lanes), np.empty(lanes), np.empty(lanes), np.empty(lanes)
    drift, ended, left = np.empty(lanes), np.empty((1, lanes)), np.empty((1, lanes))
    lost = 0
    for first in range(begin, end, lanes):
        prepare(work, A, lower, upper, first)
        load(raw, first, work.point)
        tolerances(work, rounding, far, noise, slack)
        coordinates(work.rows, work.R, small)
        for i in range(m):
            dot(work.rows[i], work.point, value[i])
            dot(small[i], small[i], square[i])
        solve(square, work.low, work.high, noise, slack, memory)
        copy(memory.free[m + 1], work.dual)
        mark_active(work, empty)
        fill(moves, 0.0)
        fill(drift, 0.0)
        correct(work, moves, drift)
        round_to(work.point, rounding)
        judge(work, rounding, far, drift, empty, ended[0], left[0])
        lost += store(work.point, work.good, first, y)
        keep(raw, work.good, moves, first, y)
        store(work.dual, all_good, first, dual)
        store(ended, all_good, first, status)
        store(left, all_good, first, residual)
    return lost


@compiled
def round_to(point: Tile, rounding: float) -> None:
    """Round in place to the dtype that will be stored: to float32, or not at all."""
    if rounding > np.finfo(np.float64).eps:
        flat = point.reshape(point.size)
        for index in range(flat.size):
            flat[index] = np.float32(flat[index])


@compiled
def backward(
    grad_raw: Tile, grad_A: Tile, grad_lower: Tile, grad_upper: Tile, grad_y: Tile,
    raw: Tile, A: Tile, y: Tile, dual: Tile, status: Tile, lower: Tile, upper: Tile,
    tangent: int, begin: int, end: int,
) -> int:  # fmt: skip
    """The gradients of `forward`; zero for samples without an answer.

    Args:
        grad_raw: ``(B, n)``, written.
        grad_A: ``(B, m, n)``, written, or ``(0, m, n)`` where it is not wanted.
        grad_lower: ``(B, m)``, written.
        grad_upper: ``(B, m)``, written.
        grad_y: ``(B, n)``.
        raw: As in `forward`.
        A: As in `forward`.
        y: From `forward`.
        dual: From `forward`.
        status: From `forward`.
        lower: As in `forward`.
        upper: As in `forward`.
        tangent: 1 to keep the part of the gradient of raw that pulls it back inside, else 0.
        begin: As in `forward`.
        end: As in `forward`.
    """
    samples, n = raw.shape
    m, lanes = A.shape[1], lanes_for(samples, A.shape[1] * n)
    work, matrix, all_good = allocate(m, n, lanes), np.empty((m, n, lanes)), np.ones(lanes)
    w, below, above, ended = np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)), np.empty((1, lanes))
    kept, at = np.empty((n, lanes)), np.empty((n, lanes))
    for first in range(begin, end, lanes):
        prepare(work, A, lower, upper, first)
        load(grad_y, first, kept)
        load(dual, first, work.dual)
        load(status, first, ended)
        load(y, first, at)
        answered(work, ended[0], kept, at)
        orthogonalize(work)
        for i in range(m):
            dot(work.R[i], kept, w[i])
            for lane in range(lanes):
                w[i, lane] *= work.inverse[i, lane]
        subtract(w, work.R, kept)
        substitute_transposed(work.L, w)
        if grad_A.shape[0] > 0:
            outer(work, w, kept, at, matrix)
            store(matrix.reshape((m * n, lanes)), all_good, first, grad_A.reshape((samples, m * n)))
        if tangent == 1:
            load(raw, first, work.point)
            let_through(work, w, kept)
        divide(work, w, below, above)
        store(kept, all_good, first, grad_raw)
        store(below, all_good, first, grad_lower)
        store(above, all_good, first, grad_upper)
    return 0


@compiled
def answered(work: Work, ended: Tile, gradient: Tile, at: Tile) -> None:
    """Mark the active rows; samples without an answer get none, and zero gradients."""
    for lane in range(ended.size):
        none = ended[lane] != SOLVED
        work.good[lane], work.step[lane] = (0.0, 1.0) if none else (1.0, 0.0)
    for j in range(at.shape[0]):
        for lane in range(ended.size):
            at[j, lane] = at[j, lane] if work.good[lane] == 1.0 else 0.0
            gradient[j, lane] = gradient[j, lane] if work.good[lane] == 1.0 else 0.0
    for i in range(work.dual.shape[0]):
        for lane in range(ended.size):
            work.dual[i, lane] = work.dual[i, lane] if work.good[lane] == 1.0 else 0.0
            work.shrink[i, lane] = work.shrink[i, lane] if work.good[lane] == 1.0 else 1.0
        for j in range(at.shape[0]):
            for lane in range(ended.size):
                work.rows[i, j, lane] = work.rows[i, j, lane] if work.good[lane] == 1.0 else 0.0
    mark_active(work, work.step)


@compiled
def outer(work: Work, w: Tile, u: Tile, at: Tile, out: Tile) -> None:
    """``-dual u' - w y'`` ``(m, n, lanes)``, with the multipliers of the unscaled rows."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for lane in range(out.shape[2]):
                weight = w[i, lane] * work.shrink[i, lane]
                out[i, j, lane] = -work.dual[i, lane] * u[j, lane] - weight * at[j, lane]


@compiled
def let_through(work: Work, w: Tile, u: Tile) -> None:
    """Add ``w_i a_i`` to u for inequality rows that raw violates, where that pulls raw back inside."""
    for i in range(w.shape[0]):
        value = work.rest[i]
        dot(work.rows[i], work.point, value)
        for lane in range(value.size):
            low, high, weight = work.low[i, lane], work.high[i, lane], work.dual[i, lane]
            above = (weight > 0.0) & (value[lane] > high) & (w[i, lane] > 0.0)
            below = (weight < 0.0) & (value[lane] < low) & (w[i, lane] < 0.0)
            value[lane] = -w[i, lane] if (above | below) & (low < high) else 0.0
    subtract(work.rest, work.rows, u)


@compiled
def divide(work: Work, w: Tile, below: Tile, above: Tile) -> None:
    """Assign ``w``, for the unscaled rows, to the bound that each active row meets; half to each for an equality."""
    for i in range(w.shape[0]):
        for lane in range(w.shape[1]):
            weight = w[i, lane] * work.shrink[i, lane]
            equal = work.low[i, lane] == work.high[i, lane]
            up = work.dual[i, lane] > 0.0
            above[i, lane] = 0.5 * weight if equal else (weight if up else 0.0)
            below[i, lane] = 0.5 * weight if equal else (0.0 if up else weight)


def _forward(
    y: Any, dual: Any, status: Any, residual: Any, raw: Any, A: Any, lower: Any, upper: Any,
    matrices: int, samples: int, m: int, n: int, lowers: int, uppers: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`forward`, called with addresses; `matrices` is B, or 1 if all samples share A."""
    return forward(
        carray(y, (samples, n)), carray(dual, (samples, m)), carray(status, (samples, 1)),
        carray(residual, (samples, 1)), carray(raw, (samples, n)), carray(A, (matrices, m, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)), begin, end,
    )  # fmt: skip


def _backward(
    grad_raw: Any, grad_A: Any, grad_lower: Any, grad_upper: Any, grad_y: Any, raw: Any, A: Any, y: Any, dual: Any,
    status: Any, lower: Any, upper: Any, wanted: int, tangent: int, matrices: int, samples: int, m: int, n: int,
    lowers: int, uppers: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`backward`, called with addresses; `wanted` is B if the gradient of A is wanted, else 0."""
    return backward(
        carray(grad_raw, (samples, n)), carray(grad_A, (wanted, m, n)),
        carray(grad_lower, (samples, m)), carray(grad_upper, (samples, m)), carray(grad_y, (samples, n)),
        carray(raw, (samples, n)), carray(A, (matrices, m, n)), carray(y, (samples, n)), carray(dual, (samples, m)),
        carray(status, (samples, 1)), carray(lower, (lowers, m)), carray(upper, (uppers, m)), tangent, begin, end,
    )  # fmt: skip


ENTRIES = (_forward, _backward)
"""The entry points to compile, one per direction; they take addresses."""
