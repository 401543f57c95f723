"""``y = raw + s P`` for one A of 9 to 64 rows that all samples share, given its factor ``P = A^+'``.

A program takes several samples as the rows of a tile. The products with A' and with P run on the float64 matrix units,
over chunks of columns: A is read for ``A raw``, then A and P for y and ``A y`` together. P is rounded to its dtype, so
a sample that ends farther from its bounds than the rounding of y explains is corrected with P again, starting from y.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import VERIFIED, load_as, store_from, widen
from hardnet.kernels.gpu.gram import multiply_add

COMPUTE = tl.constexpr(tl.float64)


@triton.jit
def _places(matrix, rows, columns, height, width):
    """Pointers to the entries of a tile of a matrix of this size, and which of them exist."""
    return (
        matrix + rows[:, None] * width + columns[None, :],
        (rows < height)[:, None] & (columns < width)[None, :],
    )


@triton.jit
def _load(matrix, rows, columns, height, width):
    """A tile of a matrix, zero beyond it."""
    pointers, exist = _places(matrix, rows, columns, height, width)
    return load_as(pointers, exist, COMPUTE)


@triton.jit
def _load_bound(bound, samples, rows, absent, batch, m: tl.constexpr, KIND: tl.constexpr):
    """A bound of every sample and row; ``KIND`` is absent 0, shared 1, per sample 2. Rows beyond m are free."""
    if KIND == 2:
        pointers, exist = _places(bound, samples, rows, batch, m)
        value = tl.where((rows < m)[None, :], load_as(pointers, exist, COMPUTE), absent)
    elif KIND == 1:
        value = tl.where(rows < m, load_as(bound + rows, rows < m, COMPUTE), absent)[None, :]
    else:
        value = tl.full((1, 1), absent, COMPUTE)
    return value


@triton.jit
def _violations(
    products, lower, upper, samples, rows, batch,
    m: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """``s = relu(lower - A f) - relu(A f - upper)``, ``A f + s``, and which samples are valid.

    Where a row is violated, ``A f + s`` is the bound itself, without rounding.
    """
    low = _load_bound(lower, samples, rows, float("-inf"), batch, m, LOWER)
    high = _load_bound(upper, samples, rows, float("inf"), batch, m, UPPER)
    signed = tl.maximum(low - products, 0.0) - tl.maximum(products - high, 0.0)
    sound = (low <= high) & (tl.abs(products) < float("inf")) & (tl.abs(signed) < float("inf"))
    goal = tl.where(signed > 0.0, low, tl.where(signed < 0.0, high, products))
    return signed, goal, tl.sum(tl.where(sound, 0, 1), axis=1) == 0


@triton.jit
def _some(condition):
    """Which samples have a row that meets a condition."""
    return tl.sum(tl.where(condition, 1, 0), axis=1) != 0


@triton.jit
def _off(rest, limit):
    """Which samples have a row that misses by more than its limit, or a limit that overflows."""
    return _some((tl.abs(rest) > limit) | (limit == float("inf")))


@triton.jit
def _regular(P, rows, m: tl.constexpr, n: tl.constexpr):
    """Whether the factor exists: it is all NaN for dependent rows, so checking its first column is enough."""
    column = load_as(P + rows * n, rows < m, COMPUTE)
    return tl.sum(tl.where(column == column, 0, 1), axis=0) == 0


@triton.jit
def _move(
    y, source, A, P, step, moves, good, writes, samples, rows, batch,
    m: tl.constexpr, n: tl.constexpr, S: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Write ``y = f + step P`` for the f at the source, f itself if nothing moves; return ``A y`` and ``max |y|``."""
    at_y = tl.zeros((S, M), COMPUTE)
    size = tl.zeros((S, K), COMPUTE)
    for start in range(0, n, K):
        columns = start + tl.arange(0, K)
        f = _load(source, samples, columns, batch, n)
        shift = multiply_add(step, _load(P, rows, columns, m, n), tl.zeros((S, K), COMPUTE))
        moved = tl.where(moves[:, None], f + shift, f).to(y.dtype.element_ty)
        pointers, exist = _places(y, samples, columns, batch, n)
        store_from(pointers, tl.where(good[:, None], moved, float("nan")), exist & writes[:, None])
        rounded = widen(moved, COMPUTE)
        at_y = multiply_add(rounded, tl.trans(_load(A, rows, columns, m, n)), at_y)
        size = tl.maximum(size, tl.abs(rounded))
    tl.debug_barrier()  # y may be read by other threads than those that wrote it
    return at_y, tl.max(size, axis=1)


@triton.jit
def forward(
    y, raw, A, P, lower, upper, batch,
    m: tl.constexpr, n: tl.constexpr, S: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    LOWER: tl.constexpr, UPPER: tl.constexpr, ROUNDING: tl.constexpr, CORRECTIONS: tl.constexpr,
):  # fmt: skip
    """``y = raw + s P``; NaN for a sample whose numbers are invalid, and for all if the rows of A are dependent.

    Rounding y moves row i by at most half of ``eps |a_i|_1 max |y|``. A sample with a row farther than this from its
    goal is corrected, independently of the other samples of the tile; NaN where that does not help.
    """
    samples = tl.program_id(0).to(tl.int64) * S + tl.arange(0, S)
    rows = tl.arange(0, M)
    products = tl.zeros((S, M), COMPUTE)
    lengths = tl.zeros((M, K), COMPUTE)
    for start in range(0, n, K):
        columns = start + tl.arange(0, K)
        tile = _load(A, rows, columns, m, n)
        products = multiply_add(_load(raw, samples, columns, batch, n), tl.trans(tile), products)
        lengths += tl.abs(tile)
    signed, goal, valid = _violations(products, lower, upper, samples, rows, batch, m, LOWER, UPPER)
    rounding = (ROUNDING * tl.sum(lengths, axis=1))[None, :]
    moves = _some(signed != 0.0)
    good = valid & _regular(P, rows, m, n)
    at_y, size = _move(y, raw, A, P, signed, moves, good, samples < batch, samples, rows, batch, m, n, S, M, K)
    rest = goal - at_y
    needs = good & moves & _off(rest, rounding * size[:, None])
    left = CORRECTIONS
    while (left > 0) & (tl.max(needs.to(tl.int32), axis=0) > 0):
        at_y, size = _move(y, y, A, P, rest, needs, good, needs, samples, rows, batch, m, n, S, M, K)
        rest = goal - at_y
        needs = needs & _off(rest, rounding * size[:, None])
        left -= 1
    off, _, _ = _violations(at_y, lower, upper, samples, rows, batch, m, LOWER, UPPER)
    bound = tl.where(off != 0.0, tl.abs(at_y + off), 0.0)
    lost = needs & _off(off, VERIFIED * (rounding * (size[:, None] + ROUNDING) + ROUNDING * bound))
    if tl.max(lost.to(tl.int32), axis=0) > 0:
        for start in range(0, n, K):
            pointers, exist = _places(y, samples, start + tl.arange(0, K), batch, n)
            store_from(pointers, tl.full((S, K), float("nan"), COMPUTE), exist & lost[:, None])


@triton.jit
def backward(
    grad_raw, grad_lower, grad_upper, grad_y, raw, A, P, lower, upper, batch,
    m: tl.constexpr, n: tl.constexpr, S: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """Write ``w = g P'`` to the violated side and ``g - A' V w`` to raw.

    NaN for invalid numbers or dependent rows, and g for a sample that does not move.
    """
    samples = tl.program_id(0).to(tl.int64) * S + tl.arange(0, S)
    rows = tl.arange(0, M)
    products = tl.zeros((S, M), COMPUTE)
    w = tl.zeros((S, M), COMPUTE)
    for start in range(0, n, K):
        columns = start + tl.arange(0, K)
        f = _load(raw, samples, columns, batch, n)
        g = _load(grad_y, samples, columns, batch, n)
        products = multiply_add(f, tl.trans(_load(A, rows, columns, m, n)), products)
        w = multiply_add(g, tl.trans(_load(P, rows, columns, m, n)), w)
    signed, _, valid = _violations(products, lower, upper, samples, rows, batch, m, LOWER, UPPER)
    moves = _some(signed != 0.0)
    good = (valid & _regular(P, rows, m, n))[:, None]
    below, exist = _places(grad_lower, samples, rows, batch, m)
    above, _ = _places(grad_upper, samples, rows, batch, m)
    store_from(below, tl.where(good, tl.where(signed > 0.0, w, 0.0), float("nan")), exist)
    store_from(above, tl.where(good, tl.where(signed < 0.0, w, 0.0), float("nan")), exist)
    active = tl.where(signed != 0.0, w, 0.0)
    for start in range(0, n, K):
        columns = start + tl.arange(0, K)
        g = _load(grad_y, samples, columns, batch, n)
        along = multiply_add(active, _load(A, rows, columns, m, n), tl.zeros((S, K), COMPUTE))
        kept = tl.where(good, tl.where(moves[:, None], g - along, g), float("nan"))
        pointers, inside = _places(grad_raw, samples, columns, batch, n)
        store_from(pointers, kept, inside)
