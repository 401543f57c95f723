"""``y = raw + A^+ s`` for up to 64 rows: one sample per program, its rows in blocks of 16, the Gram matrix on chip.

Rows 16 i to 16 i + 15 are block i. The Gram matrix is a tuple of 16 x 16 tiles (lower triangle, packed by rows), summed
over chunks of columns by the matrix units. It is factorised by blocks, ``G = L D L'`` with 16 x 16 diagonal blocks,
each inverted by Gauss-Jordan steps; L keeps its unit diagonal to itself. What follows from the factor, the columns
meet again: A is read from memory once and then from the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.common import add, load_as, masked_by, store_from

SIZE = tl.constexpr(16)


@triton.jit
def _load_blocks(
    A, base, start,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Columns start to start + CHUNK of A as a tuple of 16-row tiles; zero beyond the matrix."""
    columns = start + tl.arange(0, CHUNK)[None, :]
    tiles = ()
    for i in tl.static_range(BLOCKS):
        rows = (tl.arange(0, SIZE) + i * SIZE)[:, None]
        tiles = tiles + (load_as(A + base * m * n + rows * n + columns, (rows < m) & (columns < n), COMPUTE),)
    return tiles


@triton.jit
def _load_chunk(vector, base, start, n: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr):
    """Entries start to start + CHUNK of a vector of length n."""
    columns = start + tl.arange(0, CHUNK)
    return load_as(vector + base * n + columns, columns < n, COMPUTE)


@triton.jit
def _load_bound(bound, base, i: tl.constexpr, absent, ROWS: tl.constexpr, m: tl.constexpr, COMPUTE: tl.constexpr):
    """Block i of a bound; absent 0, shared 1, per sample 2. Rows beyond m are free."""
    rows = tl.arange(0, SIZE) + i * SIZE
    if ROWS > 0:
        value = load_as(bound + base * (m * (ROWS - 1)) + rows, rows < m, COMPUTE)
        value = tl.where(rows < m, value, absent)
    else:
        value = tl.full((SIZE,), absent, COMPUTE)
    return value


@triton.jit
def _invert(tile, tolerance):
    """Inverse of a 16 x 16 positive definite tile with diagonal <= 1; false when a pivot is lost to rounding.

    Step k of Gauss-Jordan takes ``t_ij - t_ik t_kj / p`` everywhere but in row and column k, which become ``t_kj / p``
    and ``-t_ik / p``. Both are the same rank-one update when entry k of the column is set to ``p - 1`` and entry k
    of the row to ``1 + 1 / p``; since p <= 1, nothing cancels.
    """
    places = tl.arange(0, SIZE)
    regular = True
    for k in range(SIZE):
        here = places == k
        unit = tl.where(here, 1.0, 0.0).to(tile.dtype)
        across = tl.sum(tile * unit[:, None], axis=0)
        down = tl.sum(tile * unit[None, :], axis=1)
        pivot = tl.sum(across * unit, axis=0)
        clear = pivot > tolerance  # false for NaN
        regular = regular & clear
        pivot = tl.where(clear, pivot, 1.0)
        reciprocal = 1.0 / pivot
        across = tl.where(here, 1.0 + reciprocal, across * reciprocal)
        down = tl.where(here, pivot - 1.0, down)
        tile -= down[:, None] * across[None, :]
    return tile, regular


@triton.jit
def _multiply(left, right):
    """Product of two tiles in full precision."""
    return tl.dot(left, right, input_precision="ieee", out_dtype=left.dtype)


@triton.jit
def _multiply_add(left, right, total):
    """``total + left right`` in full precision."""
    return tl.dot(left, right, total, input_precision="ieee", out_dtype=left.dtype)


@triton.jit
def _dots(tiles, vector, BLOCKS: tl.constexpr):
    """``A v`` for the columns of a chunk, block by block."""
    products = ()
    for i in tl.static_range(BLOCKS):
        products = products + (tl.sum(tiles[i] * vector[None, :], axis=1),)
    return products


@triton.jit
def _combine(tiles, weights, BLOCKS: tl.constexpr):
    """``A' w`` for the columns of a chunk."""
    total = tiles[0] * weights[0][:, None]
    for i in tl.static_range(1, BLOCKS):
        total += tiles[i] * weights[i][:, None]
    return tl.sum(total, axis=0)


@triton.jit
def _gram(
    A, f, g, base,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    BOTH: tl.constexpr,
):  # fmt: skip
    """``A A'`` (tiles packed by rows), ``A f`` and, if ``BOTH``, ``A g`` (blocks), in one pass over A."""
    gram = ()
    first = ()
    second = ()
    for i in tl.static_range(BLOCKS):
        for _ in tl.static_range(i + 1):
            gram = gram + (tl.zeros((SIZE, SIZE), COMPUTE),)
        first = first + (tl.zeros((SIZE,), COMPUTE),)
        second = second + (tl.zeros((SIZE,), COMPUTE),)
    for start in range(0, n, CHUNK):
        tiles = _load_blocks(A, base, start, m, n, BLOCKS, CHUNK, COMPUTE)
        sums = ()
        for i in tl.static_range(BLOCKS):
            for j in tl.static_range(i + 1):
                sums = sums + (_multiply_add(tiles[i], tl.trans(tiles[j]), gram[i * (i + 1) // 2 + j]),)
        gram = sums
        first = add(first, _dots(tiles, _load_chunk(f, base, start, n, CHUNK, COMPUTE), BLOCKS), 1.0, BLOCKS)
        if BOTH:
            second = add(second, _dots(tiles, _load_chunk(g, base, start, n, CHUNK, COMPUTE), BLOCKS), 1.0, BLOCKS)
    return gram, first, second


@triton.jit
def _factor(gram, tolerance, m: tl.constexpr, BLOCKS: tl.constexpr):
    """``S G S = L D L'`` by blocks, the scales S that give its rows length 1, and whether A has full rank.

    The tiles are packed by columns, ``(D_0^-1, L_10, L_20, ..., D_1^-1, L_21, ...)``: tile (i, j) is number
    ``j BLOCKS - j (j - 1) / 2 + i - j``.
    """
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    scales = ()
    scaled = ()
    for i in tl.static_range(BLOCKS):
        squares = tl.sum(tl.where(rows == columns, gram[i * (i + 3) // 2], 0.0), axis=1)
        scales = scales + (1.0 / tl.sqrt(tl.where(tl.arange(0, SIZE) + i * SIZE < m, squares, 1.0)),)
        for j in tl.static_range(i + 1):
            scaled = scaled + (gram[i * (i + 1) // 2 + j] * scales[i][:, None] * scales[j][None, :],)
    tiles = ()
    regular = True
    for j in tl.static_range(BLOCKS):  # scaled holds what the columns before left of blocks j, j + 1, ...
        padding = (rows == columns) & (rows + j * SIZE >= m)
        inverse, clear = _invert(tl.where(padding, 1.0, scaled[0]), tolerance)
        regular = regular & clear
        column = ()
        rest = ()
        for i in tl.static_range(1, BLOCKS - j):
            column = column + (_multiply(scaled[i * (i + 1) // 2], inverse),)
            for k in tl.static_range(1, i + 1):
                update = _multiply(column[i - 1], tl.trans(scaled[k * (k + 1) // 2]))
                rest = rest + (scaled[i * (i + 1) // 2 + k] - update,)
        tiles = tiles + (inverse,) + column
        scaled = rest
    return tiles, scales, regular


@triton.jit
def _solve(factor, scales, right, BLOCKS: tl.constexpr):
    """``S (L D L')^-1 S r``, block by block."""
    half = ()
    for i in tl.static_range(BLOCKS):
        entry = right[i] * scales[i]
        for j in tl.static_range(i):
            entry -= tl.sum(factor[j * BLOCKS - j * (j - 1) // 2 + i - j] * half[j][None, :], axis=1)
        half = half + (entry,)
    solution = ()
    for back in tl.static_range(BLOCKS):
        inverse = factor[(BLOCKS - 1 - back) * BLOCKS - (BLOCKS - 1 - back) * (BLOCKS - 2 - back) // 2]
        entry = tl.sum(inverse * half[BLOCKS - 1 - back][None, :], axis=1)
        for below in tl.static_range(back):  # solution[0] is the block below this one
            tile = factor[(BLOCKS - 1 - back) * BLOCKS - (BLOCKS - 1 - back) * (BLOCKS - 2 - back) // 2 + below + 1]
            entry -= tl.sum(tile * solution[below][:, None], axis=0)
        solution = (entry,) + solution
    scaled = ()
    for i in tl.static_range(BLOCKS):
        scaled = scaled + (solution[i] * scales[i],)
    return scaled


@triton.jit
def _solve_refined(
    A, base, factor, scales, right,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    REFINE: tl.constexpr,
):  # fmt: skip
    """``(A A')^-1 r`` with ``REFINE`` corrections by the residual ``r - A A' q``, each one pass over the cached A."""
    solution = _solve(factor, scales, right, BLOCKS)
    for _ in tl.static_range(REFINE):
        residual = right
        for start in range(0, n, CHUNK):
            tiles = _load_blocks(A, base, start, m, n, BLOCKS, CHUNK, COMPUTE)
            residual = add(residual, _dots(tiles, _combine(tiles, solution, BLOCKS), BLOCKS), -1.0, BLOCKS)
        solution = add(solution, _solve(factor, scales, residual, BLOCKS), 1.0, BLOCKS)
    return solution


@triton.jit
def _violations(
    products, lower, upper, base, m: tl.constexpr, BLOCKS: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr
):
    """``s = relu(lower - A f) - relu(A f - upper)`` by blocks; whether the numbers are valid; whether some s is not 0."""
    signed = ()
    faults = tl.zeros((SIZE,), tl.int32)
    moves = tl.zeros((SIZE,), tl.int32)
    for i in tl.static_range(BLOCKS):
        low = _load_bound(lower, base, i, float("-inf"), LOWER, m, products[i].dtype)
        high = _load_bound(upper, base, i, float("inf"), UPPER, m, products[i].dtype)
        step = tl.maximum(low - products[i], 0.0) - tl.maximum(products[i] - high, 0.0)
        sound = (low <= high) & (tl.abs(products[i]) < float("inf")) & (tl.abs(step) < float("inf"))
        faults += tl.where(sound, 0, 1)
        moves += tl.where(step != 0.0, 1, 0)
        signed = signed + (step,)
    return signed, tl.sum(faults, axis=0) == 0, tl.sum(moves, axis=0) != 0


@triton.jit
def forward(
    y, raw, A, lower, upper, batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr,
):  # fmt: skip
    """``y = raw + A^+ s``; NaN for a sample whose numbers are invalid or whose rows are dependent."""
    base = tl.program_id(0).to(tl.int64)
    gram, products, _ = _gram(A, raw, raw, base, m, n, BLOCKS, CHUNK, COMPUTE, False)
    signed, valid, moves = _violations(products, lower, upper, base, m, BLOCKS, LOWER, UPPER)
    factor, scales, regular = _factor(gram, tolerance, m, BLOCKS)
    q = _solve_refined(A, base, factor, scales, signed, m, n, BLOCKS, CHUNK, COMPUTE, REFINE)
    good = valid & regular
    for start in range(0, n, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        f = _load_chunk(raw, base, start, n, CHUNK, COMPUTE)
        tiles = _load_blocks(A, base, start, m, n, BLOCKS, CHUNK, COMPUTE)
        moved = tl.where(moves, f + _combine(tiles, q, BLOCKS), f)
        store_from(y + base * n + columns, tl.where(good, moved, float("nan")), columns < n)


@triton.jit
def backward(
    grad_raw, grad_A, grad_lower, grad_upper, grad_y, raw, A, lower, upper, batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr,
    NEED_RAW: tl.constexpr, NEED_A: tl.constexpr, NEED_LOWER: tl.constexpr, NEED_UPPER: tl.constexpr,
):  # fmt: skip
    """The gradients of `forward`, from its inputs alone: the formulas of `affine_reference.backward`."""
    base = tl.program_id(0).to(tl.int64)
    gram, products, slopes = _gram(A, raw, grad_y, base, m, n, BLOCKS, CHUNK, COMPUTE, True)
    signed, valid, _ = _violations(products, lower, upper, base, m, BLOCKS, LOWER, UPPER)
    factor, scales, regular = _factor(gram, tolerance, m, BLOCKS)
    w = _solve_refined(A, base, factor, scales, slopes, m, n, BLOCKS, CHUNK, COMPUTE, REFINE)
    q = _solve_refined(A, base, factor, scales, signed, m, n, BLOCKS, CHUNK, COMPUTE, REFINE)
    active = masked_by(w, signed, BLOCKS)
    good = valid & regular
    for i in tl.static_range(BLOCKS):
        rows = tl.arange(0, SIZE) + i * SIZE
        if NEED_LOWER:
            above = tl.where(signed[i] > 0.0, w[i], 0.0)
            store_from(grad_lower + base * m + rows, tl.where(good, above, float("nan")), rows < m)
        if NEED_UPPER:
            below = tl.where(signed[i] < 0.0, w[i], 0.0)
            store_from(grad_upper + base * m + rows, tl.where(good, below, float("nan")), rows < m)
    for start in range(0, n, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        tiles = _load_blocks(A, base, start, m, n, BLOCKS, CHUNK, COMPUTE)
        f = _load_chunk(raw, base, start, n, CHUNK, COMPUTE)
        g = _load_chunk(grad_y, base, start, n, CHUNK, COMPUTE)
        if NEED_RAW:
            kept = g - _combine(tiles, active, BLOCKS)
            store_from(grad_raw + base * n + columns, tl.where(good, kept, float("nan")), columns < n)
        if NEED_A:
            normal = g - _combine(tiles, w, BLOCKS)
            image = _combine(tiles, q, BLOCKS)
            for i in tl.static_range(BLOCKS):
                places = (tl.arange(0, SIZE) + i * SIZE)[:, None]
                entry = q[i][:, None] * normal[None, :] - w[i][:, None] * image[None, :]
                entry = tl.where(good, entry - active[i][:, None] * f[None, :], float("nan"))
                inside = (places < m) & (columns < n)[None, :]
                store_from(grad_A + base * m * n + places * n + columns[None, :], entry, inside)
