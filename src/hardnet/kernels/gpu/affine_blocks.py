"""``y = raw + A^+ s`` for up to 64 rows: one sample per program, its rows in blocks of 16, the Gram matrix on chip.

A is read from memory once, for the Gram matrix; later reads of its columns hit the cache.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.blocks import combine, combine_refined, dots, factorize, solve, solve_refined
from hardnet.kernels.gpu.common import VERIFIED, add, split_by_side, store_from
from hardnet.kernels.gpu.gram import SIZE, gram_and_images, load_blocks, load_bound, load_chunk, row_scales

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
    """The gradients of `forward`, from its inputs alone: the formulas of `affine_reference.backward`."""
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
