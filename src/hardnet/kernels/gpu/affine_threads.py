"""``y = raw + A^+ s`` for tiny matrices (m n <= 64): one sample per thread, all its numbers in registers.

The matrices of ``BLOCK`` samples lie next to each other in memory. They are read as one ``(BLOCK, WIDTH)`` tile, along
memory, and then split column by column into vectors over samples; the compiler turns the splits into one exchange
through shared memory, after which every entry of a sample belongs to one thread and no more words are exchanged.

Called by `hardnet.kernels.gpu.affine_launch` and `hardnet.kernels.gpu.nearest_few`.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import (
    CORRECTIONS,
    add,
    doubtful,
    factor,
    missing,
    reached,
    solve,
    some_nonzero,
    split_by_side,
    store_from,
    violations,
    widen,
)


@triton.jit
def _unpack(tile, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Columns of a ``(BLOCK, WIDTH)`` tile as a tuple of ``(BLOCK,)`` vectors, WIDTH a power of two."""
    parts = (tile,)
    for level in tl.static_range(8):  # the last bit of the column first
        if WIDTH >> level > 1:
            evens = ()
            odds = ()
            for i in tl.static_range(1 << level):
                even, odd = tl.split(tl.reshape(parts[i], (BLOCK, WIDTH >> (level + 1), 2)))
                evens = evens + (even,)
                odds = odds + (odd,)
            parts = evens + odds
    columns = ()
    for i in tl.static_range(WIDTH):
        columns = columns + (tl.reshape(parts[i], (BLOCK,)),)
    return columns


@triton.jit
def _load(
    pointer, samples, mask, stride, count: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr
):
    """``count`` neighbouring numbers of each sample, as a tuple of vectors; split before they are widened."""
    columns = tl.arange(0, WIDTH)[None, :]
    inside = mask[:, None] & (columns < count)
    tile = tl.load(pointer + samples[:, None] * stride + columns, mask=inside, other=0.0)
    parts = _unpack(tile, BLOCK, WIDTH)
    values = ()
    for i in tl.static_range(count):
        values = values + (widen(parts[i], COMPUTE),)
    return values


@triton.jit
def _store(pointer, values, good, samples, mask, count: tl.constexpr, BLOCK: tl.constexpr):
    """Write ``count`` neighbouring numbers of each sample; NaN for a sample that is not good.

    Two and four numbers leave as one word of each thread. Wider joins would make the compiler repeat the arithmetic
    in the layout of the store, which costs more than stores with a stride.
    """
    if count == 2:
        pair = tl.where(good[:, None], tl.join(values[0], values[1]), float("nan"))
        store_from(pointer + samples[:, None] * 2 + tl.arange(0, 2)[None, :], pair, mask[:, None])
    elif count == 4:
        four = tl.join(tl.join(values[0], values[2]), tl.join(values[1], values[3]))
        four = tl.where(good[:, None], tl.reshape(four, (BLOCK, 4)), float("nan"))
        store_from(pointer + samples[:, None] * 4 + tl.arange(0, 4)[None, :], four, mask[:, None])
    else:
        for i in tl.static_range(count):
            store_from(pointer + samples * count + i, tl.where(good, values[i], float("nan")), mask)


@triton.jit
def _load_bound(
    bound, samples, mask, absent, like,
    ROWS: tl.constexpr, m: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A bound row by row, or its infinite stand-in; ``ROWS`` is absent 0, shared 1, per sample 2."""
    if ROWS > 0:
        values = _load(bound, samples, mask, m * (ROWS - 1), m, M, BLOCK, like.dtype)
    else:
        values = ()
        for _ in tl.static_range(m):
            values = values + (tl.full((BLOCK,), absent, like.dtype),)
    return values


@triton.jit
def _dots(entries, vector, m: tl.constexpr, n: tl.constexpr):
    """``A v`` as a tuple of m vectors."""
    products = ()
    for i in tl.static_range(m):
        total = entries[i * n] * vector[0]
        for j in tl.static_range(1, n):
            total = tl.fma(entries[i * n + j], vector[j], total)
        products = products + (total,)
    return products


@triton.jit
def _largest(vector, n: tl.constexpr):
    """``|v|_inf``."""
    size = tl.abs(vector[0])
    for j in tl.static_range(1, n):
        size = tl.maximum(size, tl.abs(vector[j]))
    return size


@triton.jit
def _lengths(entries, m: tl.constexpr, n: tl.constexpr):
    """``|a|_1`` of every row."""
    totals = ()
    for i in tl.static_range(m):
        total = tl.abs(entries[i * n])
        for j in tl.static_range(1, n):
            total += tl.abs(entries[i * n + j])
        totals = totals + (total,)
    return totals


@triton.jit
def _combine(entries, weights, m: tl.constexpr, n: tl.constexpr):
    """``A' w`` as a tuple of n vectors."""
    sums = ()
    for j in tl.static_range(n):
        total = entries[j] * weights[0]
        for i in tl.static_range(1, m):
            total = tl.fma(entries[i * n + j], weights[i], total)
        sums = sums + (total,)
    return sums


@triton.jit
def _factor(entries, mask, tolerance, m: tl.constexpr, n: tl.constexpr):
    """``A A' = L D L'``, as `common.factor` returns it."""
    squares = ()
    gram = ()
    for i in tl.static_range(m):
        for j in tl.static_range(i + 1):
            total = entries[i * n] * entries[j * n]
            for k in tl.static_range(1, n):
                total = tl.fma(entries[i * n + k], entries[j * n + k], total)
            if j < i:
                gram = gram + (total,)
            else:
                squares = squares + (total,)
    return factor(squares, gram, mask, tolerance, m)


@triton.jit
def _solve_refined(entries, lower, inverse, right, m: tl.constexpr, n: tl.constexpr, REFINE: tl.constexpr):
    """``(A A')^-1 r`` and ``A^+ r``, with ``REFINE`` corrections by the residual ``r - A (A^+ r)``."""
    solution = solve(lower, inverse, right, m)
    image = _combine(entries, solution, m, n)
    for _ in tl.static_range(REFINE):
        residual = add(right, _dots(entries, image, m, n), -1.0, m)
        correction = solve(lower, inverse, residual, m)
        solution = add(solution, correction, 1.0, m)
        image = add(image, _combine(entries, correction, m, n), 1.0, n)  # A' q anew would round as coarsely as before
    return solution, image


@triton.jit
def _corrected(
    point, products, signed, low, high, entries, unit, inverse, m: tl.constexpr, n: tl.constexpr, TIMES: tl.constexpr
):
    """Moved again at y, whose rounding is that of y and not of a raw output far away."""
    for _ in tl.static_range(TIMES):
        rest = missing(products, signed, low, high, _dots(entries, point, m, n), m)
        point = add(point, _combine(entries, solve(unit, inverse, rest, m), m, n), 1.0, n)
    return point


@triton.jit
def _where_moved(moves, point, f, n: tl.constexpr):
    """The point of the samples that move, raw itself of the others."""
    moved = ()
    for j in tl.static_range(n):
        moved = moved + (tl.where(moves, point[j], f[j]),)
    return moved


@triton.jit
def forward(
    y, raw, A, lower, upper, batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MN: tl.constexpr, BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr, EACH: tl.constexpr,
    ROUNDING: tl.constexpr,
):  # fmt: skip
    """``y = raw + A^+ s``; NaN for a sample whose numbers are invalid, or whose y does not reach its rows.

    ``EACH`` is 1 where every sample has its own A, and 0 where all share one.
    """
    samples = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = samples < batch
    entries = _load(A, samples, mask, m * n * EACH, m * n, MN, BLOCK, COMPUTE)
    f = _load(raw, samples, mask, n, n, N, BLOCK, COMPUTE)
    low = _load_bound(lower, samples, mask, float("-inf"), entries[0], LOWER, m, M, BLOCK)
    high = _load_bound(upper, samples, mask, float("inf"), entries[0], UPPER, m, M, BLOCK)
    products = _dots(entries, f, m, n)
    signed, valid = violations(products, low, high, mask, m)
    unit, inverse, regular, least = _factor(entries, mask, tolerance, m, n)
    point = add(f, _combine(entries, solve(unit, inverse, signed, m), m, n), 1.0, n)
    point = _corrected(point, products, signed, low, high, entries, unit, inverse, m, n, REFINE)
    moves = some_nonzero(signed, m)
    moved = _where_moved(moves, point, f, n)
    good = valid & regular
    _store(y, moved, good, samples, mask, n, BLOCK)
    if doubtful(least, _largest(f, n), _largest(moved, n)):
        closer = _corrected(point, products, signed, low, high, entries, unit, inverse, m, n, CORRECTIONS - REFINE)
        again = _where_moved(moves, closer, f, n)
        size = _largest(again, n)
        verified = reached(_dots(entries, again, m, n), low, high, _lengths(entries, m, n), size, ROUNDING, m)
        _store(y, again, good & verified, samples, mask, n, BLOCK)


@triton.jit
def backward(
    grad_raw, grad_A, grad_lower, grad_upper, grad_y, raw, A, lower, upper,
    batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MN: tl.constexpr, BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr, EACH: tl.constexpr,
    ROUNDING: tl.constexpr, MATRIX: tl.constexpr,
):  # fmt: skip
    """The gradients of `forward`, from its inputs alone: the formulas of `affine_reference.backward`."""
    samples = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = samples < batch
    entries = _load(A, samples, mask, m * n * EACH, m * n, MN, BLOCK, COMPUTE)
    f = _load(raw, samples, mask, n, n, N, BLOCK, COMPUTE)
    g = _load(grad_y, samples, mask, n, n, N, BLOCK, COMPUTE)
    low = _load_bound(lower, samples, mask, float("-inf"), entries[0], LOWER, m, M, BLOCK)
    high = _load_bound(upper, samples, mask, float("inf"), entries[0], UPPER, m, M, BLOCK)
    signed, valid = violations(_dots(entries, f, m, n), low, high, mask, m)
    unit, inverse, regular, _ = _factor(entries, mask, tolerance, m, n)
    w, tangent = _solve_refined(entries, unit, inverse, _dots(entries, g, m, n), m, n, REFINE)
    good = valid & regular
    active, below, above = split_by_side(w, signed, m)
    _store(grad_raw, add(g, _combine(entries, active, m, n), -1.0, n), good, samples, mask, n, BLOCK)
    _store(grad_lower, below, good, samples, mask, m, BLOCK)
    _store(grad_upper, above, good, samples, mask, m, BLOCK)
    if MATRIX:
        q, image = _solve_refined(entries, unit, inverse, signed, m, n, REFINE)
        normal = add(g, tangent, -1.0, n)
        slopes = ()
        for i in tl.static_range(m):
            for j in tl.static_range(n):
                slopes = slopes + (tl.fma(-active[i], f[j], tl.fma(-w[i], image[j], q[i] * normal[j])),)
        _store(grad_A, slopes, good, samples, mask, m * n, BLOCK)
