"""``y = raw + A⁺ s`` for few rows on a CPU: one pass over the batch, tile by tile, compiled by numba.

Sums are formed in float64 whatever the dtype. With ``A = L R``, L unit lower triangular, the rows of R orthogonal
(modified Gram-Schmidt) and ``D = R R'`` diagonal,

    A⁺ s = R' D⁻¹ L⁻¹ s,    A⁺' g = L⁻' D⁻¹ R g,    (A A')⁻¹ s = L⁻' D⁻¹ L⁻¹ s:

the error grows with cond(A), not with its square, and does not depend on the scale of a row. A sample is computed by
the same instructions in any batch and in any lane. A shared A is factorized once, for the first tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.tiles import (
    add,
    copy,
    dot,
    fill,
    keep,
    lanes_for,
    load,
    load_bound,
    measure,
    outer,
    rest,
    split,
    store,
    subtract,
    suspicious,
    verify,
    violation,
)

# Gram-Schmidt on tiles of samples: ``A = L R`` with orthogonal rows R, and triangular solves with L.

CLOSE = 1e-6
"""Below this squared distance of a unit row from the rows before it, a row is orthogonalized twice."""


@compiled
def orthogonalize(R: Tile, L: Tile, inverse: Tile, size: Tile, rounding: float, good: Tile) -> None:
    """``A = L R`` in place of A ``(m, n, lanes)``: L, ``1 / D`` of ``D = R R'``; not `good` if rows nearly depend.

    Modified Gram-Schmidt, row by row. A row close to the span of those before it has lost its orthogonality to them and
    is orthogonalized again, lane by lane, so that no sample changes the bits of another.
    """
    along, chosen = np.empty(R.shape[-1]), np.empty(R.shape[-1])
    for i in range(R.shape[0]):
        dot(R[i], R[i], size[i])
        fill(chosen, 1.0)
        for k in range(i):
            take_out(R, L, inverse, i, k, along, chosen, 0.0)
        dot(R[i], R[i], inverse[i])
        close = 0
        for lane in range(R.shape[-1]):
            chosen[lane] = 1.0 if inverse[i, lane] < CLOSE * size[i, lane] else 0.0
            close += inverse[i, lane] < CLOSE * size[i, lane]
        if close > 0:
            for k in range(i):
                take_out(R, L, inverse, i, k, along, chosen, 1.0)
            dot(R[i], R[i], inverse[i])
        for lane in range(R.shape[-1]):
            good[lane] = good[lane] if inverse[i, lane] > rounding * size[i, lane] else 0.0
            inverse[i, lane] = 1.0 / inverse[i, lane]


@compiled
def take_out(R: Tile, L: Tile, inverse: Tile, i: int, k: int, along: Tile, chosen: Tile, kept: float) -> None:
    """Subtract from row i its component along row k in the chosen lanes, and store it in L (added if `kept`)."""
    dot(R[i], R[k], along)
    for lane in range(along.size):
        along[lane] = along[lane] * inverse[k, lane] if chosen[lane] != 0.0 else 0.0
        L[i, k, lane] = along[lane] + (L[i, k, lane] if kept != 0.0 else 0.0)
    for j in range(R.shape[1]):
        for lane in range(along.size):
            R[i, j, lane] -= along[lane] * R[k, j, lane]


@compiled
def substitute(L: Tile, inverse: Tile, right: Tile) -> None:
    """``D⁻¹ L⁻¹ r`` in place of r ``(m, lanes)``."""
    for i in range(right.shape[0]):
        for k in range(i):
            for lane in range(right.shape[-1]):
                right[i, lane] -= L[i, k, lane] * right[k, lane]
    for i in range(right.shape[0]):
        for lane in range(right.shape[-1]):
            right[i, lane] *= inverse[i, lane]


@compiled
def substitute_transposed(L: Tile, right: Tile) -> None:
    """``L⁻' r`` in place of r ``(m, lanes)``."""
    for i in range(right.shape[0] - 1, -1, -1):
        for k in range(i + 1, right.shape[0]):
            for lane in range(right.shape[-1]):
                right[i, lane] -= L[k, i, lane] * right[k, lane]


# The closed form of a tile.


class Work(NamedTuple):
    """The inputs and intermediate results of one tile; the axes are m, n, then the lanes."""

    rows: Tile
    R: Tile
    L: Tile
    inverse: Tile
    size: Tile
    low: Tile
    high: Tile
    target: Tile
    signed: Tile
    point: Tile
    regular: Tile
    good: Tile
    moves: Tile
    most: Tile


@compiled
def allocate(m: int, n: int, lanes: int) -> Work:
    """Memory for one tile."""
    return Work(
        np.empty((m, n, lanes)), np.empty((m, n, lanes)), np.empty((m, m, lanes)),
        np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)),
        np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)),
        np.empty((n, lanes)), np.empty(lanes), np.empty(lanes), np.empty(lanes), np.empty(lanes),
    )  # fmt: skip


@compiled
def factorize(work: Work, A: Tile, first: int) -> None:
    """``A = L R`` of the samples from `first` on, and which of them have independent rows."""
    matrices, m, n = A.shape
    rounding = 4 * n * np.finfo(A.dtype).eps
    fill(work.regular, 1.0)
    load(A.reshape((matrices, m * n)), first, work.rows.reshape((m * n, work.regular.size)))
    copy(work.rows, work.R)
    orthogonalize(work.R, work.L, work.inverse, work.size, rounding * rounding, work.regular)


@compiled
def prepare(work: Work, raw: Tile, A: Tile, lower: Tile, upper: Tile, first: int, begin: int) -> None:
    """Load the samples from `first` on, their violation s into `signed`, and factorize A unless that is done."""
    if A.shape[0] > 1 or first == begin:
        factorize(work, A, first if A.shape[0] > 1 else 0)
    copy(work.regular, work.good)
    fill(work.moves, 0.0)
    load(raw, first, work.point)
    load_bound(lower, first, -np.inf, work.low)
    load_bound(upper, first, np.inf, work.high)
    violation(work.rows, work.point, work.low, work.high, work.target, work.signed, work.good, work.moves)


@compiled
def forward(y: Tile, raw: Tile, A: Tile, lower: Tile, upper: Tile, begin: int, end: int) -> int:
    """``y = raw + A⁺ s``, corrected by the residual at y; returns the number of samples without an answer.

    Where the correction is more than rounding, the result is verified.

    Args:
        y: ``(B, n)``, written; a sample without violation gets the bits of raw, one without an answer NaN.
        raw: ``(B, n)``.
        A: ``(B, m, n)``, or ``(1, m, n)`` for all samples.
        lower: ``(B, m)``, ``(1, m)`` for all samples, or ``(0, m)`` for none.
        upper: Like `lower`.
        begin: The first sample to compute.
        end: One past the last; both are multiples of `WIDE`, or the size of the batch.
    """
    lanes = lanes_for(raw.shape[0], A.shape[1] * A.shape[2])
    work, lost = allocate(A.shape[1], A.shape[2], lanes), 0
    for first in range(begin, end, lanes):
        prepare(work, raw, A, lower, upper, first, begin)
        substitute(work.L, work.inverse, work.signed)
        add(work.signed, work.R, work.point)
        rest(work.rows, work.point, work.target, work.signed)
        measure(work.point, work.most)
        doubt = suspicious(work.signed, work.size, work.most, 4 * np.finfo(np.float64).eps)
        substitute(work.L, work.inverse, work.signed)
        add(work.signed, work.R, work.point)
        if doubt:
            verify(work.rows, work.point, work.low, work.high, np.finfo(A.dtype).eps, work.good)
        lost += store(work.point, work.good, first, y)
        keep(raw, work.good, work.moves, first, y)
    return lost


@compiled
def backward(
    grad_raw: Tile, grad_A: Tile, grad_lower: Tile, grad_upper: Tile, grad_y: Tile,
    raw: Tile, A: Tile, lower: Tile, upper: Tile, begin: int, end: int,
) -> int:  # fmt: skip
    """The gradients of `forward` from its inputs: the formulas of `hardnet.functional.affine_formulas`.

    Args:
        grad_raw: ``(B, n)``, written.
        grad_A: ``(B, m, n)``, written, or ``(0, m, n)`` where it is not wanted.
        grad_lower: ``(B, m)``, written.
        grad_upper: ``(B, m)``, written.
        grad_y: ``(B, n)``.
        raw: As in `forward`.
        A: As in `forward`.
        lower: As in `forward`.
        upper: As in `forward`.
        begin: As in `forward`.
        end: As in `forward`.
    """
    samples, m, n = raw.shape[0], A.shape[1], A.shape[2]
    lanes = lanes_for(samples, m * n)
    work, matrix, lost = allocate(m, n, lanes), np.empty((m, n, lanes)), 0
    w, below, above, q = np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes)), np.empty((m, lanes))
    kept, across, step = np.empty((n, lanes)), np.empty((n, lanes)), np.empty((n, lanes))
    for first in range(begin, end, lanes):
        prepare(work, raw, A, lower, upper, first, begin)
        load(grad_y, first, kept)
        pull_back(work, kept, w, across)
        split(w, work.signed, below, above)
        subtract(below, work.rows, kept)
        subtract(above, work.rows, kept)
        lost += store(kept, work.good, first, grad_raw)
        store(below, work.good, first, grad_lower)
        store(above, work.good, first, grad_upper)
        if grad_A.shape[0] > 0:
            push(work, q, step)
            outer(q, across, w, step, below, above, work.point, matrix)
            store(matrix.reshape((m * n, lanes)), work.good, first, grad_A.reshape((samples, m * n)))
    return lost


@compiled
def pull_back(work: Work, gradient: Tile, w: Tile, across: Tile) -> None:
    """``w = A⁺' g`` and ``g - A⁺ A g``, the part of g orthogonal to the rows."""
    for i in range(w.shape[0]):
        dot(work.R[i], gradient, w[i])
        for lane in range(w.shape[1]):
            w[i, lane] *= work.inverse[i, lane]
    copy(gradient, across)
    subtract(w, work.R, across)
    if w.shape[0] == across.shape[0]:  # for a square A this part is only rounding, which q would amplify
        fill(across, 0.0)
    substitute_transposed(work.L, w)


@compiled
def push(work: Work, q: Tile, step: Tile) -> None:
    """``step = A⁺ s`` and ``q = (A A')⁻¹ s``."""
    copy(work.signed, q)
    substitute(work.L, work.inverse, q)
    fill(step, 0.0)
    add(q, work.R, step)
    substitute_transposed(work.L, q)


def _forward(
    y: Any, raw: Any, A: Any, lower: Any, upper: Any,
    matrices: int, samples: int, m: int, n: int, lowers: int, uppers: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`forward`, called with addresses."""
    return forward(
        carray(y, (samples, n)), carray(raw, (samples, n)), carray(A, (matrices, m, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)), begin, end,
    )  # fmt: skip


def _backward(
    grad_raw: Any, grad_A: Any, grad_lower: Any, grad_upper: Any, grad_y: Any, raw: Any, A: Any, lower: Any, upper: Any,
    wanted: int, matrices: int, samples: int, m: int, n: int, lowers: int, uppers: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`backward`, called with addresses; `wanted` is B if the gradient of A is wanted, else 0."""
    return backward(
        carray(grad_raw, (samples, n)), carray(grad_A, (wanted, m, n)),
        carray(grad_lower, (samples, m)), carray(grad_upper, (samples, m)),
        carray(grad_y, (samples, n)), carray(raw, (samples, n)), carray(A, (matrices, m, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)), begin, end,
    )  # fmt: skip


ENTRIES = (_forward, _backward)
"""The entry points to compile, one per direction; they take addresses."""
