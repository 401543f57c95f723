"""``y = raw + P' s`` for a small A that all samples share, on a CPU: one compiled pass with the factor ``P = A⁺'``.

The tiles of `affine_few`, with the entries of A and P as scalars to every lane. The closed form is always applied a
second time, at y, which costs less here than to find out which samples need it.

Called by `hardnet.kernels.cpu.affine`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from hardnet.kernels.cpu.affine_shared import ACCURATE, length
from hardnet.kernels.cpu.compiling import Tile, compiled, summed
from hardnet.kernels.cpu.tiles import clamp, copy, fill, inner, keep, lanes_for, load, load_bound, split, store


class Work(NamedTuple):
    """The numbers of one tile and what is computed of them; m or n come before the lanes."""

    low: Tile
    high: Tile
    target: Tile
    excess: Tile
    point: Tile
    good: Tile
    moves: Tile


@compiled
def allocate(m: int, n: int, lanes: int) -> Work:
    """Memory for one tile."""
    low, high, target, excess = np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes))
    return Work(low, high, target, excess, np.empty((n, lanes)), np.empty(lanes), np.empty(lanes))


@compiled
def contracts(A: Tile, P: Tile) -> bool:
    """Whether two applications of the factor leave no more than rounding of s; that of dependent rows does not."""
    left = defect(A, P)
    return left * left <= ACCURATE * np.finfo(A.dtype).eps


@compiled
def defect(A: Tile, P: Tile) -> float:
    """The largest entry of ``A P' - I`` for unit rows: what one application of the factor leaves of s; NaN for none."""
    lengths, worst = np.empty(A.shape[0]), 0.0
    for i in range(A.shape[0]):
        lengths[i] = length(A[i])
    for i in range(A.shape[0]):
        for k in range(A.shape[0]):
            left = abs(inner(A[i], P[k]) - (1.0 if i == k else 0.0)) * lengths[k] / lengths[i]
            worst = left if not left <= worst else worst
    return worst


@compiled
def times(A: Tile, vector: Tile, out: Tile) -> None:
    """``A v`` for A ``(m, n)`` and v ``(n, lanes)``: ``(m, lanes)``."""
    for i in range(A.shape[0]):
        for lane in range(out.shape[1]):
            out[i, lane] = A[i, 0] * vector[0, lane]
        for j in range(1, A.shape[1]):
            entry = A[i, j]
            for lane in range(out.shape[1]):
                out[i, lane] += entry * vector[j, lane]


@compiled
def subtract_transposed(A: Tile, weights: Tile, out: Tile) -> None:
    """``out -= A' w`` for A ``(m, n)`` and w ``(m, lanes)``."""
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            entry = A[i, j]
            for lane in range(out.shape[1]):
                out[j, lane] -= entry * weights[i, lane]


@compiled
def exceed(work: Work, A: Tile) -> None:
    """``A v - target`` into `excess`, and which samples have one that is not zero."""
    for i in range(A.shape[0]):
        for lane in range(work.moves.size):
            work.excess[i, lane] -= work.target[i, lane]
            work.moves[lane] = 1.0 if work.excess[i, lane] != 0.0 else work.moves[lane]


@compiled
def prepare(work: Work, raw: Tile, A: Tile, P: Tile, lower: Tile, upper: Tile, first: int) -> None:
    """Load the samples from `first` on, ``clamp(A raw, lower, upper)`` into `target`, and their excess."""
    fill(work.good, 1.0 if contracts(A, P) else 0.0)
    fill(work.moves, 0.0)
    load(raw, first, work.point)
    load_bound(lower, first, -np.inf, work.low)
    load_bound(upper, first, np.inf, work.high)
    times(A, work.point, work.excess)
    clamp(work.excess, work.low, work.high, work.target, work.good)
    exceed(work, A)


@compiled
def forward(y: Tile, raw: Tile, A: Tile, P: Tile, lower: Tile, upper: Tile) -> int:
    """``y = raw + P' s``, corrected by what is left of s at y; the number of samples without an answer.

    Args:
        y: ``(B, n)``, written; a sample without violation gets the bits of raw, one without an answer NaN.
        raw: ``(B, n)``.
        A: ``(m, n)``.
        P: ``A⁺'``, ``(m, n)``.
        lower: ``(B, m)``, ``(1, m)`` for all samples, or ``(0, m)`` for none.
        upper: Like `lower`.
    """
    lanes = lanes_for(raw.shape[0], A.size)
    work, lost = allocate(A.shape[0], A.shape[1], lanes), 0
    for first in range(0, raw.shape[0], lanes):
        prepare(work, raw, A, P, lower, upper, first)
        subtract_transposed(P, work.excess, work.point)
        times(A, work.point, work.excess)
        exceed(work, A)
        subtract_transposed(P, work.excess, work.point)
        lost += store(work.point, work.good, first, y)
        keep(raw, work.good, work.moves, first, y)
    return lost


@compiled
def backward(
    grad_raw: Tile, grad_A: Tile, grad_lower: Tile, grad_upper: Tile,
    grad_y: Tile, raw: Tile, A: Tile, P: Tile, lower: Tile, upper: Tile,
) -> int:  # fmt: skip
    """The gradients of `forward` from its inputs: the formulas of `hardnet.functional.affine_formulas`.

    Args:
        grad_raw: ``(B, n)``, written.
        grad_A: ``(1, m, n)``, written, or ``(0, m, n)`` where it is not wanted.
        grad_lower: ``(B, m)``, written.
        grad_upper: ``(B, m)``, written.
        grad_y: ``(B, n)``.
        raw: As for `forward`, like the rest.
        A: See there.
        P: See there.
        lower: See there.
        upper: See there.
    """
    m, n = A.shape
    lanes = lanes_for(raw.shape[0], A.size)
    work, total, lost = allocate(m, n, lanes), np.zeros((m, n)), 0
    w, above, below, q = np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes))
    kept, across, step = np.empty((n, lanes)), np.empty((n, lanes)), np.empty((n, lanes))
    for first in range(0, raw.shape[0], lanes):
        prepare(work, raw, A, P, lower, upper, first)
        load(grad_y, first, kept)
        times(P, kept, w)
        split(w, work.excess, above, below)
        copy(kept, across)
        subtract_transposed(A, below, kept)
        subtract_transposed(A, above, kept)
        lost += store(kept, work.good, first, grad_raw)
        store(below, work.good, first, grad_lower)
        store(above, work.good, first, grad_upper)
        if grad_A.shape[0] > 0:
            subtract_transposed(A, w, across)
            if m == n:  # nothing lies across the rows of a square A but rounding, which q would enlarge
                fill(across, 0.0)
            fill(step, 0.0)
            subtract_transposed(P, work.excess, step)
            times(P, step, q)
            add_outer(q, across, w, step, above, below, work.point, min(lanes, raw.shape[0] - first), total)
    for matrix in range(grad_A.shape[0]):
        for i in range(m):
            for j in range(n):
                grad_A[matrix, i, j] = total[i, j] if lost == 0 else np.nan
    return lost


@summed
def add_outer(
    q: Tile, across: Tile, w: Tile, step: Tile, above: Tile, below: Tile, point: Tile, full: int, out: Tile
) -> None:
    """``out += sum over the full lanes of q (g - A⁺ A g)' - w step' - V w raw'``: ``(m, n)``."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            entry = 0.0
            for lane in range(full):
                active = above[i, lane] + below[i, lane]
                entry += q[i, lane] * across[j, lane] - w[i, lane] * step[j, lane] - active * point[j, lane]
            out[i, j] += entry


@compiled
def factorise(P: Tile, A: Tile) -> int:
    """``P = A⁺' = L⁻' D⁻¹ R`` for A ``(m, n)`` with ``A = L R``; NaN where the rows are dependent to rounding.

    Gram-Schmidt, twice for every row, leaves R orthogonal to rounding whatever the condition of A.
    """
    m, n = A.shape
    R, L, inverse = np.empty((m, n)), np.zeros((m, m)), np.empty((m, n))
    rounding, regular = 4 * n * np.finfo(A.dtype).eps, True
    for i in range(m):
        size = 0.0
        for j in range(n):
            R[i, j] = A[i, j]
            size += R[i, j] * R[i, j]
        for k in range(2 * i):
            remove(R, L, i, k % i)
        left = inner(R[i], R[i])
        regular &= left > rounding * rounding * size
        for j in range(n):
            inverse[i, j] = R[i, j] / left
    for i in range(m - 1, -1, -1):
        for k in range(i + 1, m):
            for j in range(n):
                inverse[i, j] -= L[k, i] * inverse[k, j]
        for j in range(n):
            P[i, j] = inverse[i, j] if regular else np.nan
    return 0


@compiled
def remove(R: Tile, L: Tile, i: int, k: int) -> None:
    """Take out of row i what lies along row k, and note how much in L."""
    along = inner(R[i], R[k]) / inner(R[k], R[k])
    L[i, k] += along
    for j in range(R.shape[1]):
        R[i, j] -= along * R[k, j]


def _forward(
    y: Any, raw: Any, A: Any, P: Any, lower: Any, upper: Any, samples: int, m: int, n: int, lowers: int, uppers: int
) -> int:
    """`forward` of addresses."""
    return forward(
        carray(y, (samples, n)), carray(raw, (samples, n)), carray(A, (m, n)), carray(P, (m, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)),
    )  # fmt: skip


def _backward(
    grad_raw: Any, grad_A: Any, grad_lower: Any, grad_upper: Any,
    grad_y: Any, raw: Any, A: Any, P: Any, lower: Any, upper: Any,
    matrices: int, samples: int, m: int, n: int, lowers: int, uppers: int,
) -> int:  # fmt: skip
    """`backward` of addresses; `matrices` is 1 where the gradient of A is wanted, else 0."""
    return backward(
        carray(grad_raw, (samples, n)), carray(grad_A, (matrices, m, n)),
        carray(grad_lower, (samples, m)), carray(grad_upper, (samples, m)),
        carray(grad_y, (samples, n)), carray(raw, (samples, n)), carray(A, (m, n)), carray(P, (m, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)),
    )  # fmt: skip


def _factorise(P: Any, A: Any, m: int, n: int) -> int:
    """`factorise` of addresses."""
    return factorise(carray(P, (m, n)), carray(A, (m, n)))


ENTRIES = (_forward, _backward, _factorise)
"""What is compiled: both directions and the factor, of addresses."""
