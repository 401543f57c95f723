"""The closed form of up to 64 rows on a GPU: one sample per program, its rows in blocks of 16."""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import VERIFIED, add, load_as, split_by_side, store_from

# Loads of one sample in 16-row blocks, and ``A A'`` on the matrix units together with ``A f`` and ``A g``.
#
# Rows 16 i to 16 i + 15 are block i. The Gram matrix is a tuple of 16 x 16 tiles (lower triangle, packed by rows),
# summed over chunks of columns.


SIZE = tl.constexpr(16)
PAIR = tl.constexpr(8)


@triton.jit
def load_blocks(
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
def load_chunk(vector, base, start, n: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr):
    """Entries start to start + CHUNK of a vector of length n."""
    columns = start + tl.arange(0, CHUNK)
    return load_as(vector + base * n + columns, columns < n, COMPUTE)


@triton.jit
def _load_pair(f, g, base, start, n: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr, BOTH: tl.constexpr):
    """The two vectors as the first columns of a tile, so that the matrix units multiply A by both at once."""
    rows = (start + tl.arange(0, CHUNK))[:, None]
    which = tl.arange(0, PAIR)[None, :]
    pair = load_as(f + base * n + rows + 0 * which, (rows < n) & (which == 0), COMPUTE)
    if BOTH:
        pair += load_as(g + base * n + rows + 0 * which, (rows < n) & (which == 1), COMPUTE)
    return pair


@triton.jit
def _load_last_block(
    A, f, g, base, start,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    BOTH: tl.constexpr,
):  # fmt: skip
    """The last block of a chunk of A, with f and, if ``BOTH``, g as its rows m and m + 1."""
    columns = start + tl.arange(0, CHUNK)[None, :]
    rows = (tl.arange(0, SIZE) + (BLOCKS - 1) * SIZE)[:, None]
    places = tl.where(rows == m, f + base * n + columns, A + base * m * n + rows * n + columns)
    if BOTH:
        places = tl.where(rows == m + 1, g + base * n + columns, places)
    return load_as(places, (rows < (m + 2 if BOTH else m + 1)) & (columns < n), COMPUTE)


@triton.jit
def load_bound(bound, base, i: tl.constexpr, absent, ROWS: tl.constexpr, m: tl.constexpr, COMPUTE: tl.constexpr):
    """Block i of a bound; ``ROWS`` is absent 0, shared 1, per sample 2. Rows beyond m are free."""
    rows = tl.arange(0, SIZE) + i * SIZE
    if ROWS > 0:
        value = load_as(bound + base * (m * (ROWS - 1)) + rows, rows < m, COMPUTE)
        value = tl.where(rows < m, value, absent)
    else:
        value = tl.full((SIZE,), absent, COMPUTE)
    return value


@triton.jit
def multiply_add(left, right, total):
    """``total + left right`` in full precision."""
    return tl.dot(left, right, total, input_precision="ieee", out_dtype=left.dtype)


@triton.jit
def gram_and_images(
    A, f, g, base,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    BOTH: tl.constexpr,
):  # fmt: skip
    """``A A'`` (tiles packed by rows), ``A f`` and, if ``BOTH``, ``A g`` (blocks), in one pass over A.

    Where the last block has spare rows, the vectors fill them, and their images are rows of the Gram matrix: they need
    no separate product, and the registers hold all sums.
    """
    spare: tl.constexpr = BLOCKS * SIZE - m
    if spare >= (2 if BOTH else 1):
        gram, first, second = _gram_of_more_rows(A, f, g, base, m, n, BLOCKS, CHUNK, COMPUTE, BOTH)
    else:
        gram, first, second = _gram_and_pair(A, f, g, base, m, n, BLOCKS, CHUNK, COMPUTE, BOTH)
    return gram, first, second


@triton.jit
def _gram_of_more_rows(
    A, f, g, base,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    BOTH: tl.constexpr,
):  # fmt: skip
    """The Gram matrix of the rows of A, f and g, split into ``A A'``, ``A f`` and ``A g``."""
    gram = _no_sums(BLOCKS, COMPUTE)
    for start in range(0, n, CHUNK):
        tiles = load_blocks(A, base, start, m, n, BLOCKS - 1, CHUNK, COMPUTE)
        tiles = tiles + (_load_last_block(A, f, g, base, start, m, n, BLOCKS, CHUNK, COMPUTE, BOTH),)
        gram = _add_products(gram, tiles, BLOCKS)
    places = tl.arange(0, SIZE) + (BLOCKS - 1) * SIZE
    rows = places[:, None]
    kept = ()
    for i in tl.static_range((BLOCKS - 1) * BLOCKS // 2):
        kept = kept + (gram[i],)
    first = ()
    second = ()
    for j in tl.static_range(BLOCKS):
        tile = gram[(BLOCKS - 1) * BLOCKS // 2 + j]
        if j == BLOCKS - 1:
            tile = tl.where((places < m)[None, :], tile, 0.0)
        first = first + (tl.sum(tl.where(rows == m, tile, 0.0), axis=0),)
        second = second + (tl.sum(tl.where(rows == m + 1, tile, 0.0), axis=0),)
        kept = kept + (tl.where(rows < m, tile, 0.0),)
    return kept, first, second


@triton.jit
def _gram_and_pair(
    A, f, g, base,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    BOTH: tl.constexpr,
):  # fmt: skip
    """The Gram matrix of A, and A times the two vectors as one narrow tile."""
    gram = _no_sums(BLOCKS, COMPUTE)
    images = ()
    for _ in tl.static_range(BLOCKS):
        images = images + (tl.zeros((SIZE, PAIR), COMPUTE),)
    for start in range(0, n, CHUNK):
        tiles = load_blocks(A, base, start, m, n, BLOCKS, CHUNK, COMPUTE)
        pair = _load_pair(f, g, base, start, n, CHUNK, COMPUTE, BOTH)
        gram = _add_products(gram, tiles, BLOCKS)
        mapped = ()
        for i in tl.static_range(BLOCKS):
            mapped = mapped + (multiply_add(tiles[i], pair, images[i]),)
        images = mapped
    which = tl.arange(0, PAIR)[None, :]
    first = ()
    second = ()
    for i in tl.static_range(BLOCKS):
        first = first + (tl.sum(tl.where(which == 0, images[i], 0.0), axis=1),)
        second = second + (tl.sum(tl.where(which == 1, images[i], 0.0), axis=1),)
    return gram, first, second


@triton.jit
def _no_sums(BLOCKS: tl.constexpr, COMPUTE: tl.constexpr):
    """The zero tiles of a Gram matrix before its first chunk."""
    gram = ()
    for _ in tl.static_range(BLOCKS * (BLOCKS + 1) // 2):
        gram = gram + (tl.zeros((SIZE, SIZE), COMPUTE),)
    return gram


@triton.jit
def _add_products(gram, tiles, BLOCKS: tl.constexpr):
    """The Gram matrix plus the products of a chunk of columns."""
    sums = ()
    for i in tl.static_range(BLOCKS):
        for j in tl.static_range(i + 1):
            sums = sums + (multiply_add(tiles[i], tl.trans(tiles[j]), gram[i * (i + 1) // 2 + j]),)
    return sums


@triton.jit
def row_scales(gram, m: tl.constexpr, BLOCKS: tl.constexpr):
    """``1 / |a_i|`` of the rows, from the diagonal of the Gram matrix."""
    places = tl.arange(0, SIZE)
    scales = ()
    for i in tl.static_range(BLOCKS):
        squares = tl.sum(tl.where(places[:, None] == places[None, :], gram[i * (i + 3) // 2], 0.0), axis=1)
        scales = scales + (tl.rsqrt(tl.where(places + i * SIZE < m, squares, 1.0)),)
    return scales


# Dense algebra of one sample in the 16-row blocks: the factor of ``A A'`` and solves.
#
# The Gram matrix is scaled to a unit diagonal and factorized by blocks, ``S G S = L D L'``, with the diagonal blocks
# of D inverted by symmetric Gauss-Jordan sweeps; the unit diagonal of L is not stored.


@triton.jit
def _pivots(tile, k, tolerance):
    """Columns k and k + 1 of a tile as one 2 x 2 pivot, which halves the chain of dependent steps.

    Returns the unit vectors and the columns as pairs, the coupling of the columns over the first pivot, 1 / the pivots
    (the second after the first), whether both are clear of zero, and the larger of their inverses.
    """
    places = tl.arange(0, SIZE)
    unit = tl.where(places == k, 1.0, 0.0).to(tile.dtype)
    next_unit = tl.where(places == k + 1, 1.0, 0.0).to(tile.dtype)
    column = tl.sum(tile * unit[None, :], axis=1)
    next_column = tl.sum(tile * next_unit[None, :], axis=1)
    pivot = tl.sum(column * unit, axis=0)
    coupling = tl.sum(column * next_unit, axis=0)
    clear = pivot > tolerance  # false for NaN
    reciprocal, guess = _reciprocal(tl.where(clear, pivot, 1.0))
    next_pivot = tl.fma(-coupling * reciprocal, coupling, tl.sum(next_column * next_unit, axis=0))
    clear = clear & (next_pivot > tolerance)
    next_reciprocal, next_guess = _reciprocal(tl.where(clear, next_pivot, 1.0))
    inverses = (reciprocal, next_reciprocal)
    return (
        (unit, next_unit),
        (column, next_column),
        coupling * reciprocal,
        inverses,
        clear,
        tl.maximum(guess, next_guess),
    )


@triton.jit
def _invert(tile, tolerance, steps: tl.constexpr):
    """Inverse of a 16 x 16 positive definite tile T with diagonal <= 1; if all pivots are clear; 1 / the least pivot.

    Sweep k of the symmetric Gauss-Jordan method takes ``t_ij - c_i c_j / p`` with the column ``c = T e_k`` and the
    pivot ``p = c_k``, but ``c_i / p`` in row and column k and ``-1 / p`` where they meet. The plain rank-one update
    by ``v v' / p``, ``v = c - e_k``, does all of this at once, except that it adds 2 to the diagonal entry: after all
    sweeps T has become ``2 I - T^-1``. Nothing cancels, because p <= 1. Two columns are swept together. Only the first
    ``steps`` rows are swept; the others are rows of the identity.
    """
    regular = True
    largest = tl.full((), 1.0, tl.float32)
    for k in range(0, steps, 2):
        units, columns, share, inverses, clear, guess = _pivots(tile, k, tolerance)
        regular = regular & clear
        largest = tl.maximum(largest, guess)
        vector = columns[0] - units[0]
        next_vector = tl.fma(vector, -share, columns[1] - units[1])
        tile = tl.fma(-vector[:, None], (vector * inverses[0])[None, :], tile)
        tile = tl.fma(-next_vector[:, None], (next_vector * inverses[1])[None, :], tile)
    places = tl.arange(0, SIZE)
    twice = tl.where(places[:, None] == places[None, :], 2.0, 0.0).to(tile.dtype)
    return twice - tile, regular, largest


@triton.jit
def _eliminate(tile, tolerance, steps: tl.constexpr):
    """``F = L^-T`` and ``1 / D`` of ``T = L D L'``, a 16 x 16 tile; if all pivots are clear; 1 / the least pivot.

    Eliminating the blocks below with F loses cond(T)^(1/2) eps, where the inverse of T would lose cond(T) eps.
    """
    places = tl.arange(0, SIZE)
    root = tl.where(places[:, None] == places[None, :], 1.0, 0.0).to(tile.dtype)
    reciprocals = tl.full((SIZE,), 1.0, tile.dtype)
    regular = True
    largest = tl.full((), 1.0, tl.float32)
    for k in range(0, steps, 2):
        units, columns, share, inverses, clear, guess = _pivots(tile, k, tolerance)
        regular = regular & clear
        largest = tl.maximum(largest, guess)
        reciprocals = tl.where(places == k, inverses[0], tl.where(places == k + 1, inverses[1], reciprocals))
        next_column = tl.fma(columns[0], -share, columns[1])
        below = tl.where(places > k, columns[0] * inverses[0], 0.0)
        next_below = tl.where(places > k + 1, next_column * inverses[1], 0.0)
        image = tl.sum(root * units[0][None, :], axis=1)
        next_image = tl.fma(image, -share, tl.sum(root * units[1][None, :], axis=1))
        root = tl.fma(-image[:, None], below[None, :], root)
        root = tl.fma(-next_image[:, None], next_below[None, :], root)
        tile = tl.fma(-columns[0][:, None], below[None, :], tile)
        tile = tl.fma(-next_column[:, None], next_below[None, :], tile)
    return root, reciprocals, regular, largest


@triton.jit
def _reciprocal(value):
    """``1 / p`` for p between a tolerance and 1: a float32 guess and two Newton steps, cheaper than a division."""
    guess = 1.0 / value.to(tl.float32)
    better = guess.to(value.dtype)
    better = tl.fma(better, tl.fma(-value, better, 1.0), better)
    return tl.fma(better, tl.fma(-value, better, 1.0), better), guess


@triton.jit
def _multiply(left, right):
    """Product of two tiles in full precision."""
    return tl.dot(left, right, input_precision="ieee", out_dtype=left.dtype)


@triton.jit
def dots(tiles, vector, BLOCKS: tl.constexpr):
    """``A v`` for the columns of a chunk, block by block."""
    products = ()
    for i in tl.static_range(BLOCKS):
        products = products + (tl.sum(tiles[i] * vector[None, :], axis=1),)
    return products


@triton.jit
def combine(tiles, weights, BLOCKS: tl.constexpr):
    """``A' w`` for the columns of a chunk."""
    total = tiles[0] * weights[0][:, None]
    for i in tl.static_range(1, BLOCKS):
        total = tl.fma(tiles[i], weights[i][:, None], total)
    return tl.sum(total, axis=0)


@triton.jit
def factorize(gram, scales, tolerance, m: tl.constexpr, BLOCKS: tl.constexpr, STABLE: tl.constexpr):
    """``S G S = L D L'`` by blocks, S the scales to unit rows; whether it has full rank, and 1 / its least pivot.

    The tiles are packed by columns, ``(D_0^-1, L_10, L_20, ..., D_1^-1, L_21, ...)``: tile (i, j) is number
    ``j BLOCKS - j (j - 1) / 2 + i - j``. ``STABLE`` is for float64 numbers, whose Gram matrix has no digits to spare.
    """
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    scaled = ()
    for i in tl.static_range(BLOCKS):
        for j in tl.static_range(i + 1):
            scaled = scaled + (gram[i * (i + 1) // 2 + j] * scales[i][:, None] * scales[j][None, :],)
    tiles = ()
    regular = True
    largest = tl.full((), 1.0, tl.float32)
    for j in tl.static_range(BLOCKS):  # scaled holds blocks j, j + 1, ... less the updates of the columns before
        padding = (rows == columns) & (rows + j * SIZE >= m)
        block = tl.where(padding, 1.0, scaled[0])
        if STABLE and j < BLOCKS - 1:  # no other block depends on the last one
            column, scaled, clear, guess = _stable_column(block, scaled, tolerance, min(16, m - j * 16), BLOCKS - j)
        else:
            column, scaled, clear, guess = _column(block, scaled, tolerance, min(16, m - j * 16), BLOCKS - j)
        regular = regular & clear
        largest = tl.maximum(largest, guess)
        tiles = tiles + column
    return tiles, regular, largest


@triton.jit
def _column(block, scaled, tolerance, steps: tl.constexpr, LEFT: tl.constexpr):
    """The first block column ``(D^-1, L_1, ...)`` and the updated others, by the inverse of the diagonal block."""
    inverse, clear, largest = _invert(block, tolerance, steps)
    column = (inverse,)
    rest = ()
    for i in tl.static_range(1, LEFT):
        column = column + (_multiply(scaled[i * (i + 1) // 2], inverse),)
        for k in tl.static_range(1, i + 1):
            update = _multiply(column[i], tl.trans(scaled[k * (k + 1) // 2]))
            rest = rest + (scaled[i * (i + 1) // 2 + k] - update,)
    return column, rest, clear, largest


@triton.jit
def _stable_column(block, scaled, tolerance, steps: tl.constexpr, LEFT: tl.constexpr):
    """The same by the triangular factor of the diagonal block: ``W_i = S_i F`` is ``L_i`` times a root of the block."""
    root, reciprocals, clear, largest = _eliminate(block, tolerance, steps)
    divided = root * reciprocals[None, :]
    column = (_multiply(divided, tl.trans(root)),)
    images = (root,)  # W_0 is not needed: a placeholder
    rest = ()
    for i in tl.static_range(1, LEFT):
        images = images + (_multiply(scaled[i * (i + 1) // 2], root),)
        column = column + (_multiply(images[i] * reciprocals[None, :], tl.trans(root)),)
        for k in tl.static_range(1, i + 1):
            update = _multiply(images[i] * reciprocals[None, :], tl.trans(images[k]))
            rest = rest + (scaled[i * (i + 1) // 2 + k] - update,)
    return column, rest, clear, largest


@triton.jit
def solve(factor, scales, right, BLOCKS: tl.constexpr):
    """``S (L D L')^-1 S r``, block by block; products are accumulated entry by entry and reduced once per block."""
    half = (right[0] * scales[0],)
    for i in tl.static_range(1, BLOCKS):
        products = factor[i] * half[0][None, :]
        for j in tl.static_range(1, i):
            products = tl.fma(factor[j * BLOCKS - j * (j - 1) // 2 + i - j], half[j][None, :], products)
        half = half + (right[i] * scales[i] - tl.sum(products, axis=1),)
    solution = ()
    for i in tl.static_range(BLOCKS - 1, -1, -1):
        entry = tl.sum(factor[i * BLOCKS - i * (i - 1) // 2] * half[i][None, :], axis=1)
        if i < BLOCKS - 1:
            products = factor[i * BLOCKS - i * (i - 1) // 2 + 1] * solution[0][:, None]  # of the block below
            for below in tl.static_range(1, BLOCKS - 1 - i):
                tile = factor[i * BLOCKS - i * (i - 1) // 2 + 1 + below]
                products = tl.fma(tile, solution[below][:, None], products)
            entry -= tl.sum(products, axis=0)
        solution = (entry,) + solution
    scaled = ()
    for i in tl.static_range(BLOCKS):
        scaled = scaled + (solution[i] * scales[i],)
    return scaled


@triton.jit
def solve_refined(
    A, base, factor, scales, right,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    REFINE: tl.constexpr,
):  # fmt: skip
    """``q = (A A')^-1 r`` in two parts: the first solution, and its correction by ``REFINE`` passes over the cached A.

    The parts stay separate because ``A' q`` of a large q rounds coarsely; the correction makes up for that too.
    """
    solution = solve(factor, scales, right, BLOCKS)
    correction = add(solution, solution, -1.0, BLOCKS)
    for _ in tl.static_range(REFINE):
        residual = right
        for start in range(0, n, CHUNK):
            tiles = load_blocks(A, base, start, m, n, BLOCKS, CHUNK, COMPUTE)
            image = combine_refined(tiles, solution, correction, BLOCKS, REFINE)
            residual = add(residual, dots(tiles, image, BLOCKS), -1.0, BLOCKS)
        correction = add(correction, solve(factor, scales, residual, BLOCKS), 1.0, BLOCKS)
    return solution, correction


@triton.jit
def combine_refined(tiles, weights, correction, BLOCKS: tl.constexpr, REFINE: tl.constexpr):
    """``A' w`` for the columns of a chunk, from both parts of w."""
    total = combine(tiles, weights, BLOCKS)
    if REFINE > 0:
        total += combine(tiles, correction, BLOCKS)
    return total


# ``y = raw + A^+ s`` for up to 64 rows: one sample per program, its rows in blocks of 16, the Gram matrix on chip.
#
# A is read from memory once, for the Gram matrix; later reads of its columns hit the cache.


UNSTABLE = tl.constexpr(64 * 2.0**-52)
"""Relative residual of a solve per unit of 1 / the least pivot; the blocks of D are inverted explicitly."""


@triton.jit
def _violations(
    products, lower, upper, base, m: tl.constexpr, BLOCKS: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr
):
    """``s = relu(lower - A f) - relu(A f - upper)`` and ``A f + s`` by blocks; if all are valid; if any is violated.

    Where a row is violated, ``A f + s`` is the bound itself, without rounding.
    """
    signed = ()
    goal = ()
    faults = tl.zeros((SIZE,), tl.int32)
    moves = tl.zeros((SIZE,), tl.int32)
    for i in tl.static_range(BLOCKS):
        low = load_bound(lower, base, i, float("-inf"), LOWER, m, products[i].dtype)
        high = load_bound(upper, base, i, float("inf"), UPPER, m, products[i].dtype)
        step = tl.maximum(low - products[i], 0.0) - tl.maximum(products[i] - high, 0.0)
        sound = (low <= high) & (tl.abs(products[i]) < float("inf")) & (tl.abs(step) < float("inf"))
        faults += tl.where(sound, 0, 1)
        moves += tl.where(step != 0.0, 1, 0)
        signed = signed + (step,)
        goal = goal + (tl.where(step > 0.0, low, tl.where(step < 0.0, high, products[i])),)
    return signed, goal, tl.sum(faults, axis=0) == 0, tl.sum(moves, axis=0) != 0


@triton.jit
def _reach(signed, goal, scales, BLOCKS: tl.constexpr):
    """The largest violation over the rows scaled to unit length, and their largest value at y."""
    far = tl.abs(signed[0]) * scales[0]
    near = tl.abs(goal[0]) * scales[0]
    for i in tl.static_range(1, BLOCKS):
        far = tl.maximum(far, tl.abs(signed[i]) * scales[i])
        near = tl.maximum(near, tl.abs(goal[i]) * scales[i])
    return tl.max(far, axis=0), tl.max(near, axis=0)


@triton.jit
def _needs_more(far, near, largest, ROUNDING: tl.constexpr, REFINE: tl.constexpr):
    """Whether a solve and its corrections leave more than a rounding of y.

    This happens for a large violation, nearly dependent rows, or rows that are near 0 at y.
    """
    left = far
    for _ in tl.static_range(REFINE + 1):
        left *= UNSTABLE * largest
    return left > ROUNDING * near


@triton.jit
def _move(
    y, source, A, base, step, goal, moves, good,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, WIDE: tl.constexpr, COMPUTE: tl.constexpr,
    LOOK: tl.constexpr,
):  # fmt: skip
    """Write ``y = source + A' q``; if ``LOOK``, return ``goal - A y``, which rounds like y, ``|a|_1`` and max |y|."""
    rest = goal
    lengths = goal
    largest = tl.zeros((WIDE,), COMPUTE)
    if LOOK:
        lengths = add(goal, goal, -1.0, BLOCKS)
    for start in range(0, n, WIDE):
        columns = start + tl.arange(0, WIDE)
        f = load_chunk(source, base, start, n, WIDE, COMPUTE)
        tiles = load_blocks(A, base, start, m, n, BLOCKS, WIDE, COMPUTE)
        moved = tl.where(moves, f + combine(tiles, step, BLOCKS), f)
        store_from(y + base * n + columns, tl.where(good, moved, float("nan")), columns < n)
        if LOOK:
            rest = add(rest, dots(tiles, moved, BLOCKS), -1.0, BLOCKS)
            lengths = _grow(lengths, tiles, BLOCKS)
            largest = tl.maximum(largest, tl.abs(moved))
    tl.debug_barrier()  # y is read by other threads than those that wrote it
    return rest, lengths, tl.max(largest, axis=0)


@triton.jit
def _grow(lengths, tiles, BLOCKS: tl.constexpr):
    """The lengths of the rows plus ``|a|_1`` of the next chunk of columns."""
    grown = ()
    for i in tl.static_range(BLOCKS):
        grown = grown + (lengths[i] + tl.sum(tl.abs(tiles[i]), axis=1),)
    return grown


@triton.jit
def _reached(rest, goal, signed, lengths, largest, ROUNDING: tl.constexpr, BLOCKS: tl.constexpr):
    """Whether the violated rows reached their goal to `VERIFIED` roundings of ``|a|_1 max |y| + |goal|``."""
    faults = tl.zeros((SIZE,), tl.int32)
    for i in tl.static_range(BLOCKS):
        limit = VERIFIED * ROUNDING * (lengths[i] * (largest + ROUNDING) + tl.abs(goal[i]))
        faults += tl.where((signed[i] == 0.0) | ((tl.abs(rest[i]) <= limit) & (limit < float("inf"))), 0, 1)
    return tl.sum(faults, axis=0) == 0


@triton.jit
def _enforce(
    y, source, A, lower, upper, base, tolerance,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr,
    ROUNDING: tl.constexpr, VERIFY: tl.constexpr,
):  # fmt: skip
    """Write ``y = f + A^+ s`` for the f at the source; return if it must be repeated or, with ``VERIFY``, is lost.

    The least pivot bounds the residual of a solve; only samples for which that bound is too large are repeated.
    """
    gram, products, _ = gram_and_images(A, source, source, base, m, n, BLOCKS, CHUNK, COMPUTE, False)
    scales = row_scales(gram, m, BLOCKS)
    signed, goal, valid, moves = _violations(products, lower, upper, base, m, BLOCKS, LOWER, UPPER)
    far, near = _reach(signed, goal, scales, BLOCKS)
    factor, regular, largest = factorize(gram, scales, tolerance, m, BLOCKS, REFINE > 0)
    good = valid & regular
    step = solve(factor, scales, signed, BLOCKS)
    for _ in tl.static_range(REFINE):
        rest, _, _ = _move(y, source, A, base, step, goal, moves, True, m, n, BLOCKS, WIDE, COMPUTE, True)
        step = solve(factor, scales, rest, BLOCKS)
        source = y
    rest, lengths, size = _move(y, source, A, base, step, goal, moves, good, m, n, BLOCKS, WIDE, COMPUTE, VERIFY)
    if VERIFY:
        open_ = good & moves & (not _reached(rest, goal, signed, lengths, size, ROUNDING, BLOCKS))
    else:
        open_ = good & _needs_more(far, near, largest, ROUNDING, REFINE)
    return open_


@triton.jit(noinline=True)
def _enforce_at_y(
    y, A, lower, upper, base, tolerance,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr,
    ROUNDING: tl.constexpr,
):  # fmt: skip
    """The same starting from y, NaN where y still misses its rows; not inlined, to cost other samples no registers."""
    lost = _enforce(
        y, y, A, lower, upper, base, tolerance,
        m, n, BLOCKS, CHUNK, WIDE, COMPUTE, LOWER, UPPER, REFINE, ROUNDING, True,
    )  # fmt: skip
    if lost:
        for start in range(0, n, WIDE):
            columns = start + tl.arange(0, WIDE)
            store_from(y + base * n + columns, tl.full((WIDE,), float("nan"), COMPUTE), columns < n)


@triton.jit
def forward(
    y, raw, A, lower, upper, batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr,
    ROUNDING: tl.constexpr,
):  # fmt: skip
    """``y = raw + A^+ s``; NaN for invalid numbers, dependent rows, or a y that does not reach its bounds.

    The few samples that are not accurate enough are computed again, starting from y.
    """
    base = tl.program_id(0).to(tl.int64)
    again = _enforce(
        y, raw, A, lower, upper, base, tolerance,
        m, n, BLOCKS, CHUNK, WIDE, COMPUTE, LOWER, UPPER, REFINE, ROUNDING, False,
    )  # fmt: skip
    if again:
        _enforce_at_y(
            y, A, lower, upper, base, tolerance,
            m, n, BLOCKS, CHUNK, WIDE, COMPUTE, LOWER, UPPER, REFINE, ROUNDING,
        )  # fmt: skip


@triton.jit
def backward(
    grad_raw, grad_A, grad_lower, grad_upper, grad_y, raw, A, lower, upper, batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr,
    ROUNDING: tl.constexpr, MATRIX: tl.constexpr,
):  # fmt: skip
    """The gradients of `forward`, from its inputs alone: the formulas of `hardnet.functional.affine_formulas`."""
    base = tl.program_id(0).to(tl.int64)
    gram, products, slopes = gram_and_images(A, raw, grad_y, base, m, n, BLOCKS, CHUNK, COMPUTE, True)
    signed, _, valid, _ = _violations(products, lower, upper, base, m, BLOCKS, LOWER, UPPER)
    scales = row_scales(gram, m, BLOCKS)
    factor, regular, _ = factorize(gram, scales, tolerance, m, BLOCKS, REFINE > 0)
    w, w_extra = solve_refined(A, base, factor, scales, slopes, m, n, BLOCKS, CHUNK, COMPUTE, REFINE)
    q, q_extra = solve_refined(A, base, factor, scales, signed, m, n, BLOCKS, CHUNK, COMPUTE, REFINE)
    w_sum = w
    q_sum = q
    if REFINE > 0:
        w_sum = add(w, w_extra, 1.0, BLOCKS)
        q_sum = add(q, q_extra, 1.0, BLOCKS)
    active, below, above = split_by_side(w_sum, signed, BLOCKS)
    good = valid & regular
    for i in tl.static_range(BLOCKS):
        rows = tl.arange(0, SIZE) + i * SIZE
        store_from(grad_lower + base * m + rows, tl.where(good, below[i], float("nan")), rows < m)
        store_from(grad_upper + base * m + rows, tl.where(good, above[i], float("nan")), rows < m)
    for start in range(0, n, WIDE):
        columns = start + tl.arange(0, WIDE)
        tiles = load_blocks(A, base, start, m, n, BLOCKS, WIDE, COMPUTE)
        f = load_chunk(raw, base, start, n, WIDE, COMPUTE)
        g = load_chunk(grad_y, base, start, n, WIDE, COMPUTE)
        kept = g - combine(tiles, active, BLOCKS)
        store_from(grad_raw + base * n + columns, tl.where(good, kept, float("nan")), columns < n)
        if MATRIX:
            normal = g - combine_refined(tiles, w, w_extra, BLOCKS, REFINE)
            image = combine_refined(tiles, q, q_extra, BLOCKS, REFINE)
            for i in tl.static_range(BLOCKS):
                places = (tl.arange(0, SIZE) + i * SIZE)[:, None]
                entry = tl.fma(-w_sum[i][:, None], image[None, :], q_sum[i][:, None] * normal[None, :])
                entry = tl.where(good, tl.fma(-active[i][:, None], f[None, :], entry), float("nan"))
                inside = (places < m) & (columns < n)[None, :]
                store_from(grad_A + base * m * n + places * n + columns[None, :], entry, inside)
