"""Dense algebra of one sample in the 16-row blocks of `hardnet.kernels.gpu.gram`: the factor of ``A A'`` and solves.

The Gram matrix is scaled to a unit diagonal and factorized by blocks, ``S G S = L D L'``, with the diagonal blocks of D
inverted by symmetric Gauss-Jordan sweeps; the unit diagonal of L is not stored.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import add
from hardnet.kernels.gpu.gram import SIZE, load_blocks


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
