"""The closed form on a GPU: few rows per sample, or more rows that all samples share, and the launch of each shape."""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false, reportAssignmentType=false

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hardnet.kernels.gpu import affine_blocks
from hardnet.kernels.gpu.affine_blocks import multiply_add
from hardnet.kernels.gpu.common import (
    CORRECTIONS,
    VERIFIED,
    add,
    doubtful,
    factor,
    load_as,
    missing,
    reached,
    solve,
    some_nonzero,
    split_by_side,
    store_from,
    violations,
    widen,
)
from hardnet.kernels.gpu.launch import Launcher
from hardnet.kernels.gpu.layouts import (
    combine,
    dot,
    dots,
    largest,
    lengths,
    load_bounds,
    load_matrix,
    load_vector,
    places,
    spread,
    store_bounds,
    store_numbers,
    store_row,
    store_vector,
)
from hardnet.kernels.limits import padded
from hardnet.rows import dense

# ``y = raw + A^+ s`` for few rows (m <= 8): many samples per program, every A read once and kept in registers.
#
# A program holds ``BLOCK`` samples in one of the two layouts of `hardnet.kernels.gpu.layouts`: a tiny sample belongs to
# one thread; for larger ones, row i of all samples is one tile. The code is the same for both. The Gram matrix
# ``G = A A'`` and its factorization ``G = L D L'`` are tuples of ``(BLOCK,)`` vectors, unrolled over the m rows. Dot
# products are summed in ``COMPUTE``. Rows need no scaling, because every pivot is compared with its own diagonal entry
# and ``L D L'`` does not otherwise depend on the scale.


@triton.jit
def _measured(
    rows, f, lower, upper, samples, mask, LOWER: tl.constexpr, UPPER: tl.constexpr, m: tl.constexpr, M: tl.constexpr,
    PIECES: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """``A f`` and both bounds; tiles compute the sums before loading the bounds, threads load everything first."""
    if THREADS:
        low, high = load_bounds(lower, upper, samples, mask, LOWER, UPPER, m, M, BLOCK, COMPUTE, THREADS)
        products = dots(rows, f, m, PIECES)
    else:
        products = dots(rows, f, m, PIECES)
        low, high = load_bounds(lower, upper, samples, mask, LOWER, UPPER, m, M, BLOCK, COMPUTE, THREADS)
    return products, low, high


@triton.jit
def _factor(rows, mask, tolerance, m: tl.constexpr, PIECES: tl.constexpr):
    """``A A' = L D L'``, as `common.factor` returns it."""
    squares = ()
    gram = ()
    for i in tl.static_range(m):
        for j in tl.static_range(i):
            gram = gram + (dot(rows, i, rows, j, PIECES),)
        squares = squares + (dot(rows, i, rows, i, PIECES),)
    return factor(squares, gram, mask, tolerance, m)


@triton.jit
def _solve_refined(rows, unit, inverse, right, m: tl.constexpr, PIECES: tl.constexpr, REFINE: tl.constexpr):
    """``(A A')^-1 r`` and ``A^+ r``, with ``REFINE`` corrections by the residual ``r - A (A^+ r)``."""
    solution = solve(unit, inverse, right, m)
    image = combine(rows, solution, m, PIECES)
    for _ in tl.static_range(REFINE):
        residual = add(right, dots(rows, image, m, PIECES), -1.0, m)
        correction = solve(unit, inverse, residual, m)
        solution = add(solution, correction, 1.0, m)
        image = add(
            image, combine(rows, correction, m, PIECES), 1.0, PIECES
        )  # recomputing A' q would round as coarsely as before
    return solution, image


@triton.jit
def _corrected(
    point, products, signed, low, high, rows, unit, inverse, m: tl.constexpr, PIECES: tl.constexpr, TIMES: tl.constexpr
):
    """The point corrected by its residual, which rounds relative to y and not to a raw that may be far away."""
    for _ in tl.static_range(TIMES):
        rest = missing(products, signed, low, high, dots(rows, point, m, PIECES), m)
        point = add(point, combine(rows, solve(unit, inverse, rest, m), m, PIECES), 1.0, PIECES)
    return point


@triton.jit
def _where_moved(moves, point, f, PIECES: tl.constexpr):
    """The point for samples that move, raw itself for the others."""
    moved = ()
    for k in tl.static_range(PIECES):
        moved = moved + (tl.where(spread(moves, f[k]), point[k], f[k]),)
    return moved


@triton.jit
def _store_slopes(
    grad_A, f, image, normal, active, w, q, good, at,
    m: tl.constexpr, n: tl.constexpr, PIECES: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Write ``-w (A'q)' + q (g - A'w)' - V w raw'``, one tile at a time or all numbers of a thread together."""
    slopes = ()
    for i in tl.static_range(m):
        for k in tl.static_range(PIECES):
            held, weight, step = spread(active[i], f[k]), spread(w[i], f[k]), spread(q[i], f[k])
            slope = tl.fma(-held, f[k], tl.fma(-weight, image[k], step * normal[k]))
            if THREADS:
                slopes = slopes + (slope,)
            else:
                store_row(grad_A, slope, good, at, i, m, n)
    if THREADS:
        store_numbers(grad_A, slopes, good, at[0], at[1], m * n, BLOCK)


@triton.jit
def few_forward(
    y, raw, A, lower, upper, batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MN: tl.constexpr, BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr, EACH: tl.constexpr,
    ROUNDING: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """``y = raw + A^+ s``; NaN for a sample whose numbers are invalid, or whose y does not reach its bounds.

    ``EACH`` is 1 where every sample has its own A, and 0 where all share one; ``THREADS`` chooses the layout.
    """
    PIECES: tl.constexpr = n if THREADS else 1
    at = places(batch, n, N, BLOCK)
    samples, mask = at[0], at[1]
    rows = load_matrix(A, at, m * n * EACH, m, n, MN, BLOCK, COMPUTE, THREADS)
    f = load_vector(raw, at, n, N, BLOCK, COMPUTE, THREADS)
    products, low, high = _measured(
        rows, f, lower, upper, samples, mask, LOWER, UPPER, m, M, PIECES, BLOCK, COMPUTE, THREADS
    )
    signed, valid = violations(products, low, high, mask, m)
    unit, inverse, regular, least = _factor(rows, mask, tolerance, m, PIECES)
    point = add(f, combine(rows, solve(unit, inverse, signed, m), m, PIECES), 1.0, PIECES)
    point = _corrected(point, products, signed, low, high, rows, unit, inverse, m, PIECES, REFINE)
    moves = some_nonzero(signed, m)
    moved = _where_moved(moves, point, f, PIECES)
    good = valid & regular
    store_vector(y, moved, good, at, n, BLOCK, THREADS)
    if doubtful(least, largest(f, PIECES), largest(moved, PIECES)):
        closer = _corrected(point, products, signed, low, high, rows, unit, inverse, m, PIECES, CORRECTIONS - REFINE)
        again = _where_moved(moves, closer, f, PIECES)
        size = largest(again, PIECES)
        verified = reached(dots(rows, again, m, PIECES), low, high, lengths(rows, m, PIECES), size, ROUNDING, m)
        store_vector(y, again, good & verified, at, n, BLOCK, THREADS)


@triton.jit
def few_backward(
    grad_raw, grad_A, grad_lower, grad_upper, grad_y, raw, A, lower, upper,
    batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MN: tl.constexpr, BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr, EACH: tl.constexpr,
    ROUNDING: tl.constexpr, THREADS: tl.constexpr, MATRIX: tl.constexpr,
):  # fmt: skip
    """The gradients of `few_forward`, computed from its inputs alone.

    With ``w = A^+' g``, ``q = (A A')^-1 s`` and V the mask of violated rows::

        g_raw = g - A' V w,   g_lower = w [s > 0],   g_upper = w [s < 0],   g_A = -w (A'q)' + q (g - A'w)' - V w raw'
    """
    PIECES: tl.constexpr = n if THREADS else 1
    at = places(batch, n, N, BLOCK)
    samples, mask = at[0], at[1]
    rows = load_matrix(A, at, m * n * EACH, m, n, MN, BLOCK, COMPUTE, THREADS)
    f = load_vector(raw, at, n, N, BLOCK, COMPUTE, THREADS)
    g = load_vector(grad_y, at, n, N, BLOCK, COMPUTE, THREADS)
    products, low, high = _measured(
        rows, f, lower, upper, samples, mask, LOWER, UPPER, m, M, PIECES, BLOCK, COMPUTE, THREADS
    )
    signed, valid = violations(products, low, high, mask, m)
    unit, inverse, regular, _ = _factor(rows, mask, tolerance, m, PIECES)
    w, tangent = _solve_refined(rows, unit, inverse, dots(rows, g, m, PIECES), m, PIECES, REFINE)
    good = valid & regular
    active, below, above = split_by_side(w, signed, m)
    kept = add(g, combine(rows, active, m, PIECES), -1.0, PIECES)
    store_vector(grad_raw, kept, good, at, n, BLOCK, THREADS)
    store_bounds(grad_lower, grad_upper, below, above, good, samples, mask, m, BLOCK, THREADS)
    if MATRIX:
        q, image = _solve_refined(rows, unit, inverse, signed, m, PIECES, REFINE)
        normal = add(g, tangent, -1.0, PIECES)
        _store_slopes(grad_A, f, image, normal, active, w, q, good, at, m, n, PIECES, BLOCK, THREADS)


# ``y = raw + s P`` for one A of 9 to 64 rows that all samples share, given its factor ``P = A^+'``.
#
# A program takes several samples as the rows of a tile. The products with A' and with P run on the float64 matrix
# units, over chunks of columns: A is read for ``A raw``, then A and P for y and ``A y`` together. P is rounded to its
# dtype, so a sample that ends farther from its bounds than the rounding of y explains is corrected with P again,
# starting from y.


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
def shared_forward(
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
def shared_backward(
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


# Launch the fused closed form: choose the kernel and its tiles for each shape. One launch per direction.
#
# Rows per sample and few shared rows are summed in float64 whatever their dtype: the kernels are memory-bound, an H200
# adds doubles at half the rate of floats, and the Gram matrix of float32 rows then costs no accuracy. More shared rows
# come with their factor. Every choice depends on the shape of one sample alone, never on the batch, so that a sample
# gets the same result in any batch.


FEW_ROWS = 8
"""The most rows that are unrolled; more are processed in blocks of 16."""
TINY, TINY_BACKWARD = 64, 16
"""The most numbers of A (rounded up to a power of two) that one thread holds, forward and backward."""
TINY_COLUMNS = 16
"""The most columns that one thread holds: a 1 x 64 A takes one thread three times as long as a 2 x 64 A takes the
threads of a warp."""
REFINEMENTS = 2
"""Corrections by the residual for float64 numbers, whose Gram matrix is rounded; each reduces the error by the factor
cond(A)^2 eps."""
FREE_REGISTERS = 128
"""Registers per thread that leave room for enough samples to hide latencies, for up to 32 rows of float32."""
LARGEST_PART = 1 << 26
"""The most numbers in the per-sample gradients of a shared A that are held at a time."""

Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


class Tiles(NamedTuple):
    """Samples of one program, columns it processes at a time, its warps, and its pipeline stages."""

    samples: int
    columns: int
    warps: int
    stages: int


TILES = {
    (16, False): Tiles(16, 32, 1, 2),
    (16, True): Tiles(16, 32, 1, 2),
    (32, False): Tiles(16, 64, 2, 2),
    (32, True): Tiles(16, 32, 2, 2),
    (64, False): Tiles(32, 32, 4, 3),
    (64, True): Tiles(32, 32, 4, 3),
}
"""By the rows of A, rounded up to a power of two, and whether backward: the fastest of those tried on an H200."""
SHARED_CORRECTIONS = 3
"""The most corrections of a sample that the rounded factor leaves off its bounds."""


class Plan(NamedTuple):
    """The kernels of a shape, the samples of one program, the compile-time arguments, and the rank tolerance."""

    forward: Any
    backward: Any
    samples: int
    constants: dict[str, Any]
    tolerance: float


@cache
def plan(m: int, n: int, dtype: torch.dtype, backward: bool, each: bool = True) -> Plan:
    """The plan for samples of this shape in one direction, with an A per sample (`each`) or one for all."""
    constants: dict[str, Any] = {
        "m": m,
        "n": n,
        "COMPUTE": tl.float64,
        "REFINE": REFINEMENTS if dtype == torch.float64 else 0,
        "ROUNDING": torch.finfo(dtype).eps,
    }
    tiny = _power(m * n) <= (TINY_BACKWARD if backward else TINY) and n <= TINY_COLUMNS
    if m > FEW_ROWS and not tiny:
        light = not backward and dtype != torch.float64
        constants |= {"BLOCKS": -(-m // 16), "CHUNK": 16, "WIDE": min(64, _power(n)) if light else 16, "num_warps": 1}
        if m <= 32 and dtype != torch.float64:
            constants["maxnreg"] = FREE_REGISTERS
        return Plan(affine_blocks.forward, affine_blocks.backward, 1, constants, rank_tolerance(m, n, dtype))
    samples, layout = _threads(m, n) if tiny else _tiles(n, dtype)
    constants |= layout | {"M": _power(m), "N": _power(n), "MN": _power(m * n), "BLOCK": samples, "EACH": int(each)}
    return Plan(few_forward, few_backward, samples, constants, rank_tolerance(m, n, dtype))


def _threads(m: int, n: int) -> tuple[int, dict[str, Any]]:
    """The samples of one program and its constants where each thread holds one sample."""
    warps = 4 if m * n <= 16 else 1
    # the kernel says itself where a product is fused; in the other layouts this option would cost 2-5 %
    return 32 * warps, {"THREADS": True, "num_warps": warps, "enable_fp_fusion": False}


def _tiles(n: int, dtype: torch.dtype) -> tuple[int, dict[str, Any]]:
    """The samples of one program and its constants where the threads of a warp share the columns of a sample."""
    vector = math.gcd(n, 16 // dtype.itemsize)  # numbers that a thread can load at once
    return max(1, 32 * vector // _power(n)), {"THREADS": False, "num_warps": 1}


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def rank_tolerance(m: int, n: int, dtype: torch.dtype) -> float:
    """Smallest squared distance of a unit row from the span of the rows before it that is more than rounding.

    ``(max(m, n) eps)^2``, with the eps of float32 for narrower dtypes, but no less than a float64 Gram matrix can
    resolve.
    """
    coarse = max(m, n) * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    return max(coarse**2, 8 * m * torch.finfo(torch.float64).eps)


@cache
def launcher(
    m: int, n: int, dtype: torch.dtype, backward: bool, each: bool, lower: int, upper: int, matrix: bool
) -> tuple[Launcher, int, float]:
    """The kernel for this shape and these kinds of bounds, the samples of one program, and the rank tolerance.

    `matrix` says whether a backward kernel computes the gradient of A; a forward kernel ignores it.
    """
    how = plan(m, n, dtype, backward, each)
    constants = how.constants | {"LOWER": lower, "UPPER": upper} | ({"MATRIX": matrix} if backward else {})
    return Launcher(how.backward if backward else how.forward, constants), how.samples, how.tolerance


def launch_forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``y = raw + A^+ s`` in one launch, for A ``(B, m, n)`` or few shared rows ``(m, n)``."""
    raw, A = dense(raw, raw), dense(A, raw)
    y = torch.empty_like(raw)
    _launch((y, raw, A), lower, upper, False, False)
    return y


def launch_backward(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, wants_matrix: bool
) -> Gradients:
    """The gradients of `launch_forward` in one launch, with the gradient of A only if it is wanted.

    The gradient of a shared A is summed over the samples, in parts of the batch that fit into memory.
    """
    gradient, raw, A = dense(gradient, raw), dense(raw, raw), dense(A, raw)
    grad_raw, grad_lower = torch.empty_like(raw), raw.new_empty(raw.shape[0], A.shape[-2])
    grad_upper = torch.empty_like(grad_lower)
    outputs = (grad_raw, grad_lower, grad_upper)
    if A.dim() == 3 or not wants_matrix:
        grad_A = torch.empty_like(A) if wants_matrix else None
        _launch_backward(outputs, grad_A, gradient, raw, A, lower, upper)
        return grad_raw, grad_A, grad_lower, grad_upper
    total, part = torch.zeros_like(A), max(1, LARGEST_PART // A.numel())
    for start in range(0, raw.shape[0], part):
        here = slice(start, start + part)
        asked = A.new_empty(raw[here].shape[0], *A.shape)
        low, high = (side if side is None or side.dim() == 1 else side[here] for side in (lower, upper))
        _launch_backward(tuple(side[here] for side in outputs), asked, gradient[here], raw[here], A, low, high)
        total += asked.sum(0)
    return grad_raw, total, grad_lower, grad_upper


def _launch_backward(
    outputs: tuple[Tensor, ...],
    grad_A: Tensor | None,
    gradient: Tensor,
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
) -> None:
    """Write the gradients of raw, lower and upper, and the gradient of A per sample unless `grad_A` is None."""
    grad_raw, grad_lower, grad_upper = outputs
    written = (grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper)
    _launch((*written, gradient, raw, A), lower, upper, True, grad_A is not None)


def _launch(
    tensors: tuple[Tensor, ...], lower: Tensor | None, upper: Tensor | None, backward: bool, matrix: bool
) -> None:
    """One launch over all samples; the bounds are absent (0), shared (1) or per sample (2)."""
    raw, shape = tensors[-2], tensors[-1].shape
    (low, low_kind), (high, high_kind) = _bound(lower, raw), _bound(upper, raw)
    kernel, samples, tolerance = launcher(
        shape[-2], shape[-1], raw.dtype, backward, len(shape) == 3, low_kind, high_kind, matrix
    )
    batch = raw.shape[0]
    kernel.launch((-(-batch // samples), 1, 1), (*tensors, low, high), (batch, tolerance))


def _bound(bound: Tensor | None, raw: Tensor) -> tuple[Tensor, int]:
    """A bound's numbers (raw as a placeholder for an absent one) and its kind: absent 0, shared 1, per sample 2."""
    if bound is None:
        return raw, 0
    return dense(bound, raw), 1 if bound.dim() == 1 or bound.shape[0] == 1 else 2


@cache
def plan_shared(m: int, n: int, dtype: torch.dtype, backward: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel for an A of this shape and dtype; sizes are powers of two, at least 16."""
    height, width = padded(m), padded(n)
    tiles = TILES[height, backward]
    sizes = {"m": m, "n": n, "S": tiles.samples, "M": height, "K": min(tiles.columns, width)}
    limits = {} if backward else {"ROUNDING": torch.finfo(dtype).eps, "CORRECTIONS": SHARED_CORRECTIONS}
    return sizes | limits | {"num_warps": tiles.warps, "num_stages": tiles.stages}


@cache
def _shared_launcher(m: int, n: int, dtype: torch.dtype, backward: bool, lower: int, upper: int) -> tuple[Any, int]:
    """The kernel for an A of this shape and dtype and bounds of these kinds, and the samples of one program."""
    constants = plan_shared(m, n, dtype, backward) | {"LOWER": lower, "UPPER": upper}
    return Launcher(shared_backward if backward else shared_forward, constants), constants["S"]


def launch_shared_forward(raw: Tensor, A: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``y = raw + s P`` for raw ``(B, n)``, A and its factor ``P = A^+'`` ``(m, n)``, bounds ``(B, m)`` or ``(m,)``."""
    raw = dense(raw, raw)
    y = torch.empty_like(raw)
    _launch_shared((y,), (raw, dense(A, raw), dense(P, raw)), lower, upper, False)
    return y


def launch_shared_backward(
    gradient: Tensor, raw: Tensor, A: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of raw ``(B, n)``, lower and upper ``(B, m)``, from the gradient of y ``(B, n)``."""
    raw = dense(raw, raw)
    grad_raw, grad_lower = torch.empty_like(raw), raw.new_empty(raw.shape[0], A.shape[0])
    outputs = grad_raw, grad_lower, torch.empty_like(grad_lower)
    _launch_shared((*outputs, dense(gradient, raw)), (raw, dense(A, raw), dense(P, raw)), lower, upper, True)
    return outputs


def _launch_shared(
    first: tuple[Tensor, ...],
    inputs: tuple[Tensor, Tensor, Tensor],
    lower: Tensor | None,
    upper: Tensor | None,
    backward: bool,
) -> None:
    """One launch over all samples; the bounds are absent (0), shared (1) or per sample (2)."""
    raw, A, _ = inputs
    (low, low_kind), (high, high_kind) = _bound(lower, raw), _bound(upper, raw)
    kernel, samples = _shared_launcher(*A.shape, A.dtype, backward, low_kind, high_kind)
    kernel.launch((-(-raw.shape[0] // samples), 1, 1), (*first, *inputs, low, high), (raw.shape[0],))
