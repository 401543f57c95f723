"""The multipliers of the nearest point for few rows on a CPU, by recursion over the rows, for tiles of samples.

The same recursion as `hardnet.solvers.polyhedron.few_rows.solve`, where it is explained; the sample is the last index.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.tiles import dot, fill

EPS = float(np.finfo(np.float64).eps)
DEPENDENT, DOUBT, EMPTY = (64 * EPS) ** 2, 8 * EPS, 64 * EPS


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
