"""``y = raw + P' s`` for a small A that all samples share, on a CPU: one compiled pass with the factor ``P = A⁺'``.

The tiles of `affine_few`, with the entries of A and P as scalars to every lane. The closed form is always applied a
second time, at y, which costs less here than to find out which samples need it; where the error of the factor, squared,
of a long way to the set is more than rounding of a short y, the outcome is verified.

Called by `hardnet.kernels.cpu.affine`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from hardnet.kernels.cpu.affine_shared import ACCURATE, LEFT, length, weight
from hardnet.kernels.cpu.compiling import Tile, compiled, summed
from hardnet.kernels.cpu.tiles import (
    at_bounds,
    clamp,
    copy,
    fill,
    inner,
    keep,
    lanes_for,
    load,
    load_bound,
    split,
    store,
)


class Work(NamedTuple):
    """The numbers of one tile and what is computed of them; m or n come before the lanes."""

    low: Tile
    high: Tile
    target: Tile
    excess: Tile
    point: Tile
    good: Tile
    moves: Tile
    most: Tile


@compiled
def allocate(m: int, n: int, lanes: int) -> Work:
    """Memory for one tile."""
    low, high, target, excess = np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes))
    good, moves, most = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    return Work(low, high, target, excess, np.empty((n, lanes)), good, moves, most)


@compiled
def contracts(left: float, rounding: float) -> bool:
    """Whether two applications of a factor with this `defect` leave only rounding of s; that of NaN does not."""
    return left * left <= ACCURATE * rounding


@compiled
def defect(A: Tile, P: Tile) -> float:
    """The largest entry of ``A P' - I`` for unit rows: what one application of the factor leaves of s; NaN for none."""
    rows, factor, lengths, worst = A.astype(np.float64), P.astype(np.float64), np.empty(A.shape[0]), 0.0
    for i in range(A.shape[0]):
        lengths[i] = length(rows[i])
    for i in range(A.shape[0]):
        for k in range(A.shape[0]):
            left = abs(inner(rows[i], factor[k]) - (1.0 if i == k else 0.0)) * lengths[k] / lengths[i]
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
def prepare(work: Work, raw: Tile, A: Tile, lower: Tile, upper: Tile, first: int, regular: bool) -> None:
    """Load the samples from `first` on, ``clamp(A raw, lower, upper)`` into `target`, and their excess."""
    fill(work.good, 1.0 if regular else 0.0)
    fill(work.moves, 0.0)
    load(raw, first, work.point)
    load_bound(lower, first, -np.inf, work.low)
    load_bound(upper, first, np.inf, work.high)
    times(A, work.point, work.excess)
    clamp(work.excess, work.low, work.high, work.target, work.good)
    exceed(work, A)


@compiled
def measure(point: Tile, most: Tile) -> None:
    """``max |y|`` of each lane."""
    fill(most, 0.0)
    for j in range(point.shape[0]):
        for lane in range(most.size):
            most[lane] = max(most[lane], abs(point[j, lane]))


@compiled
def suspicious(work: Work, lengths: Tile, trust: float) -> bool:
    """Whether some excess of unit rows that the last application was given is over `trust` of the largest output.

    That application leaves up to m times the `defect` of it.
    """
    found = 0
    for i in range(lengths.size):
        least = trust * lengths[i]
        for lane in range(work.most.size):
            found += not abs(work.excess[i, lane]) <= least * work.most[lane]
    return found > 0


@compiled
def verify(work: Work, A: Tile) -> None:
    """A lane is not good if one of its rows is not `at_bounds`."""
    times(A, work.point, work.excess)
    for i in range(A.shape[0]):
        share = weight(A[i])
        for lane in range(work.good.size):
            product, low, high = work.excess[i, lane], work.low[i, lane], work.high[i, lane]
            met = at_bounds(product, low, high, share, work.most[lane], np.finfo(A.dtype).eps)
            work.good[lane] = work.good[lane] if met else 0.0


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
    lanes, m = lanes_for(raw.shape[0], A.size), A.shape[0]
    work, lost, lengths = allocate(m, A.shape[1], lanes), 0, np.empty(m)
    for i in range(m):
        lengths[i] = length(A[i])
    left, rounding = defect(A, P), np.finfo(A.dtype).eps
    regular, trust = contracts(left, rounding), LEFT * rounding / (m * left)
    for first in range(0, raw.shape[0], lanes):
        prepare(work, raw, A, lower, upper, first, regular)
        subtract_transposed(P, work.excess, work.point)
        times(A, work.point, work.excess)
        exceed(work, A)
        subtract_transposed(P, work.excess, work.point)
        measure(work.point, work.most)
        if suspicious(work, lengths, trust):
            verify(work, A)
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
    regular = contracts(defect(A, P), np.finfo(A.dtype).eps)
    for first in range(0, raw.shape[0], lanes):
        prepare(work, raw, A, lower, upper, first, regular)
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
