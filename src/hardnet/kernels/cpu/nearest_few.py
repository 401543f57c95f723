"""The nearest point for few rows on a CPU: one pass per direction over the batch, tile by tile, compiled by numba.

Sums are formed in float64 whatever the dtype, and a sample is computed by the same instructions in any batch and in any
lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from hardnet.kernels.cpu.affine_few import substitute_transposed
from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.nearest_program import coordinates, frames, solve
from hardnet.kernels.cpu.nearest_tiles import (
    SOLVED,
    Work,
    allocate,
    correct,
    judge,
    mark_active,
    orthogonalize,
    prepare,
    tolerances,
)
from hardnet.kernels.cpu.tiles import copy, dot, fill, keep, lanes_for, load, store, subtract


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
