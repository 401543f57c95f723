"""``y = raw + A^+ s`` for few rows (m <= 8): many samples per program, every row of A a register vector.

A program holds ``BLOCK`` samples. Row i of their matrices is one ``(BLOCK, N)`` tile, read from memory once, so the
threads of a warp share the columns of a sample and all loads and stores run along memory. The Gram matrix ``G = A A'``
and its factorisation ``G = L D L'`` are tuples of ``(BLOCK,)`` vectors, unrolled over the m rows. Dot products are
summed in ``COMPUTE``; no scaling of rows is needed because every pivot is judged against its own diagonal entry, and
``L D L'`` is otherwise indifferent to it.

Called by `hardnet.kernels.gpu.affine_launch`.
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
    load_as,
    missing,
    reached,
    solve,
    some_nonzero,
    split_by_side,
    store_from,
    violations,
)


@triton.jit
def _load_rows(A, base, columns, inside, m: tl.constexpr, n: tl.constexpr, COMPUTE: tl.constexpr):
    """Rows of A as a tuple of m tiles ``(BLOCK, N)``; columns beyond n are zero."""
    rows = ()
    for i in tl.static_range(m):
        rows = rows + (load_as(A + base + i * n + columns, inside, COMPUTE),)
    return rows


@triton.jit
def _dots(rows, vector, m: tl.constexpr):
    """``A v`` as a tuple of m ``(BLOCK,)`` vectors."""
    products = ()
    for i in tl.static_range(m):
        products = products + (tl.sum(rows[i] * vector, axis=1),)
    return products


@triton.jit
def _lengths(rows, m: tl.constexpr):
    """``|a|_1`` of every row."""
    totals = ()
    for i in tl.static_range(m):
        totals = totals + (tl.sum(tl.abs(rows[i]), axis=1),)
    return totals


@triton.jit
def _combine(rows, weights, m: tl.constexpr):
    """``A' w`` as one ``(BLOCK, N)`` tile."""
    total = rows[0] * weights[0][:, None]
    for i in tl.static_range(1, m):
        total = tl.fma(rows[i], weights[i][:, None], total)
    return total


@triton.jit
def _factor(rows, mask, tolerance, m: tl.constexpr):
    """``A A' = L D L'``, as `common.factor` returns it."""
    squares = ()
    gram = ()
    for i in tl.static_range(m):
        for j in tl.static_range(i):
            gram = gram + (tl.sum(rows[i] * rows[j], axis=1),)
        squares = squares + (tl.sum(rows[i] * rows[i], axis=1),)
    return factor(squares, gram, mask, tolerance, m)


@triton.jit
def _solve_refined(rows, lower, inverse, right, m: tl.constexpr, REFINE: tl.constexpr):
    """``(A A')^-1 r`` and ``A^+ r``, with ``REFINE`` corrections by the residual ``r - A (A^+ r)``."""
    solution = solve(lower, inverse, right, m)
    image = _combine(rows, solution, m)
    for _ in tl.static_range(REFINE):
        residual = add(right, _dots(rows, image, m), -1.0, m)
        correction = solve(lower, inverse, residual, m)
        solution = add(solution, correction, 1.0, m)
        image += _combine(rows, correction, m)  # A' q anew would round as coarsely as before
    return solution, image


@triton.jit
def _load_bound(bound, samples, mask, absent, like, ROWS: tl.constexpr, m: tl.constexpr):
    """A bound row by row, or its infinite stand-in; ``ROWS`` is absent 0, shared 1, per sample 2."""
    values = ()
    for i in tl.static_range(m):
        if ROWS > 0:
            values = values + (load_as(bound + samples * (m * (ROWS - 1)) + i, mask, like.dtype),)
        else:
            values = values + (tl.full(like.shape, absent, like.dtype),)
    return values


@triton.jit
def _corrected(point, products, signed, low, high, rows, unit, inverse, m: tl.constexpr, TIMES: tl.constexpr):
    """Moved again at y, whose rounding is that of y and not of a raw output far away."""
    for _ in tl.static_range(TIMES):
        rest = missing(products, signed, low, high, _dots(rows, point, m), m)
        point += _combine(rows, solve(unit, inverse, rest, m), m)
    return point


@triton.jit
def forward(
    y, raw, A, lower, upper, batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr,
    LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr, EACH: tl.constexpr,
    ROUNDING: tl.constexpr,
):  # fmt: skip
    """``y = raw + A^+ s``; NaN for a sample whose numbers are invalid, or whose y does not reach its rows.

    ``EACH`` is 1 where every sample has its own A, and 0 where all share one.
    """
    samples = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    columns = tl.arange(0, N)[None, :]
    mask = samples < batch
    inside = mask[:, None] & (columns < n)
    vectors = samples[:, None] * n + columns
    rows = _load_rows(A, samples[:, None] * (m * n * EACH), columns, inside, m, n, COMPUTE)
    f = load_as(raw + vectors, inside, COMPUTE)
    products = _dots(rows, f, m)
    low = _load_bound(lower, samples, mask, float("-inf"), products[0], LOWER, m)
    high = _load_bound(upper, samples, mask, float("inf"), products[0], UPPER, m)
    signed, valid = violations(products, low, high, mask, m)
    unit, inverse, regular, least = _factor(rows, mask, tolerance, m)
    point = f + _combine(rows, solve(unit, inverse, signed, m), m)
    point = _corrected(point, products, signed, low, high, rows, unit, inverse, m, REFINE)
    moves = some_nonzero(signed, m)[:, None]
    moved = tl.where(moves, point, f)
    good = valid & regular
    store_from(y + vectors, tl.where(good[:, None], moved, float("nan")), inside)
    if doubtful(least, tl.max(tl.abs(f), axis=1), tl.max(tl.abs(moved), axis=1)):
        closer = _corrected(point, products, signed, low, high, rows, unit, inverse, m, CORRECTIONS - REFINE)
        again = tl.where(moves, closer, f)
        size = tl.max(tl.abs(again), axis=1)
        verified = reached(_dots(rows, again, m), low, high, _lengths(rows, m), size, ROUNDING, m)
        store_from(y + vectors, tl.where((good & verified)[:, None], again, float("nan")), inside)


@triton.jit
def backward(
    grad_raw, grad_A, grad_lower, grad_upper, grad_y, raw, A, lower, upper,
    batch, tolerance,
    m: tl.constexpr, n: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr,
    LOWER: tl.constexpr, UPPER: tl.constexpr, REFINE: tl.constexpr, EACH: tl.constexpr,
    ROUNDING: tl.constexpr, MATRIX: tl.constexpr,
):  # fmt: skip
    """The gradients of `forward`, from its inputs alone.

    With ``w = A^+' g``, ``q = (A A')^-1 s`` and V the mask of violated rows::

        g_raw = g - A' V w,   g_lower = w [s > 0],   g_upper = w [s < 0],   g_A = -w (A'q)' + q (g - A'w)' - V w raw'
    """
    samples = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    columns = tl.arange(0, N)[None, :]
    mask = samples < batch
    inside = mask[:, None] & (columns < n)
    vectors = samples[:, None] * n + columns
    matrices = samples[:, None] * (m * n)
    rows = _load_rows(A, matrices * EACH, columns, inside, m, n, COMPUTE)
    f = load_as(raw + vectors, inside, COMPUTE)
    g = load_as(grad_y + vectors, inside, COMPUTE)
    products = _dots(rows, f, m)
    low = _load_bound(lower, samples, mask, float("-inf"), products[0], LOWER, m)
    high = _load_bound(upper, samples, mask, float("inf"), products[0], UPPER, m)
    signed, valid = violations(products, low, high, mask, m)
    unit, inverse, regular, _ = _factor(rows, mask, tolerance, m)
    w, tangent = _solve_refined(rows, unit, inverse, _dots(rows, g, m), m, REFINE)
    good = valid & regular
    active, below, above = split_by_side(w, signed, m)
    kept = tl.where(good[:, None], g - _combine(rows, active, m), float("nan"))
    store_from(grad_raw + vectors, kept, inside)
    for i in tl.static_range(m):
        store_from(grad_lower + samples * m + i, tl.where(good, below[i], float("nan")), mask)
        store_from(grad_upper + samples * m + i, tl.where(good, above[i], float("nan")), mask)
    if MATRIX:
        q, image = _solve_refined(rows, unit, inverse, signed, m, REFINE)
        normal = g - tangent
        for i in tl.static_range(m):
            entry = tl.fma(-active[i][:, None], f, tl.fma(-w[i][:, None], image, q[i][:, None] * normal))
            entry = tl.where(good[:, None], entry, float("nan"))
            store_from(grad_A + matrices + i * n + columns, entry, inside)
