"""``y = raw + A^+ s`` for few rows (m <= 8): many samples per program, every A read once and kept in registers.

A program holds ``BLOCK`` samples in one of the two layouts of `hardnet.kernels.gpu.layouts`: a tiny sample belongs to
one thread; for larger ones, row i of all samples is one tile. The code is the same for both. The Gram matrix
``G = A A'`` and its factorization ``G = L D L'`` are tuples of ``(BLOCK,)`` vectors, unrolled over the m rows. Dot
products are summed in ``COMPUTE``. Rows need no scaling, because every pivot is compared with its own diagonal entry
and ``L D L'`` does not otherwise depend on the scale.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false, reportAssignmentType=false

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
    violations,
)
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
def forward(
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
def backward(
    grad_raw, grad_A, grad_lower, grad_upper, grad_y, raw, A, lower, upper,
    batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MN: tl.constexpr, BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr, EACH: tl.constexpr,
    ROUNDING: tl.constexpr, THREADS: tl.constexpr, MATRIX: tl.constexpr,
):  # fmt: skip
    """The gradients of `forward`, computed from its inputs alone.

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
