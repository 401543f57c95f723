"""``A v``, ``A' w``, loads and stores, in two layouts of the samples of a program.

A vector over the n outputs of ``BLOCK`` samples is a tuple of pieces; row i of a matrix starts at piece ``i PIECES``.

- Threads, ``PIECES = n``: each piece is a vector ``(BLOCK,)``, and a sample belongs to one thread. The numbers of a
  sample are contiguous in memory; they are read as one ``(BLOCK, WIDTH)`` tile with coalesced loads, and split column
  by column. The compiler turns the splits into one exchange through shared memory; threads exchange nothing else.
- Tiles, ``PIECES = 1``: the piece is a tile ``(BLOCK, N)``, zero in the columns beyond n, and the threads of a warp
  share the columns of a sample. Loads and stores are coalesced; a sum over the outputs reduces across threads.

One number per sample is a vector ``(BLOCK,)`` in both: only loads, stores and sums over outputs depend on the layout.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import load_as, store_from, widen


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
def load_numbers(
    pointer, samples, mask, stride, count: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr
):
    """``count`` contiguous numbers of each sample, as a tuple of vectors; split before they are widened."""
    columns = tl.arange(0, WIDTH)[None, :]
    inside = mask[:, None] & (columns < count)
    tile = tl.load(pointer + samples[:, None] * stride + columns, mask=inside, other=0.0)
    parts = _unpack(tile, BLOCK, WIDTH)
    values = ()
    for i in tl.static_range(count):
        values = values + (widen(parts[i], COMPUTE),)
    return values


@triton.jit
def store_numbers(pointer, values, good, samples, mask, count: tl.constexpr, BLOCK: tl.constexpr):
    """Write ``count`` contiguous numbers of each sample from vectors; NaN for a sample that is not good.

    Two and four numbers are stored as one word per thread. Wider joins would make the compiler repeat the arithmetic
    in the layout of the store, which costs more than strided stores.
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
def places(batch, n: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """The samples of a program and which exist; the columns of a tile, which entries exist, and their offsets."""
    samples = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    columns = tl.arange(0, N)[None, :]
    mask = samples < batch
    inside = mask[:, None] & (columns < n)
    return samples, mask, columns, inside, samples[:, None] * n + columns


@triton.jit
def load_vector(
    pointer, at, n: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr, THREADS: tl.constexpr
):
    """The n numbers of each sample in pieces; `at` is from `places`."""
    samples, mask, _columns, inside, vectors = at
    if THREADS:
        vector = load_numbers(pointer, samples, mask, n, n, N, BLOCK, COMPUTE)
    else:
        vector = (load_as(pointer + vectors, inside, COMPUTE),)
    return vector


@triton.jit
def load_matrix(
    pointer, at, stride, m: tl.constexpr, n: tl.constexpr,
    MN: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """The m rows of each sample in pieces; `stride` is 0 where all share one A."""
    samples, mask, columns, inside, _vectors = at
    if THREADS:
        rows = load_numbers(pointer, samples, mask, stride, m * n, MN, BLOCK, COMPUTE)
    else:
        rows = ()
        for i in tl.static_range(m):
            rows = rows + (load_as(pointer + samples[:, None] * stride + i * n + columns, inside, COMPUTE),)
    return rows


@triton.jit
def store_vector(pointer, vector, good, at, n: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr):
    """Write the n numbers of each sample from their pieces; NaN for a sample that is not good."""
    samples, mask, _columns, inside, vectors = at
    if THREADS:
        store_numbers(pointer, vector, good, samples, mask, n, BLOCK)
    else:
        store_from(pointer + vectors, tl.where(good[:, None], vector[0], float("nan")), inside)


@triton.jit
def store_row(pointer, tile, good, at, i: tl.constexpr, m: tl.constexpr, n: tl.constexpr):
    """Write row i of m of each sample from its tile; NaN for a sample that is not good."""
    samples, _mask, columns, inside, _vectors = at
    kept = tl.where(good[:, None], tile, float("nan"))
    store_from(pointer + samples[:, None] * (m * n) + i * n + columns, kept, inside)


@triton.jit
def _load_bound(
    bound, samples, mask, absent, ROWS: tl.constexpr, m: tl.constexpr,
    M: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """A bound row by row, infinite if absent; ``ROWS`` is absent 0, shared 1, per sample 2."""
    values = ()
    if ROWS == 0:
        for _ in tl.static_range(m):
            values = values + (tl.full((BLOCK,), absent, COMPUTE),)
    elif THREADS:
        values = load_numbers(bound, samples, mask, m * (ROWS - 1), m, M, BLOCK, COMPUTE)
    else:
        for i in tl.static_range(m):
            values = values + (load_as(bound + samples * (m * (ROWS - 1)) + i, mask, COMPUTE),)
    return values


@triton.jit
def load_bounds(
    lower, upper, samples, mask, LOWER: tl.constexpr, UPPER: tl.constexpr, m: tl.constexpr,
    M: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Both bounds row by row, vectors over samples; ``LOWER`` and ``UPPER`` are absent 0, shared 1, per sample 2."""
    low = _load_bound(lower, samples, mask, float("-inf"), LOWER, m, M, BLOCK, COMPUTE, THREADS)
    high = _load_bound(upper, samples, mask, float("inf"), UPPER, m, M, BLOCK, COMPUTE, THREADS)
    return low, high


@triton.jit
def store_bounds(
    lower, upper, below, above, good, samples, mask, m: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr
):
    """Write m numbers of each sample to both bounds; NaN for a sample that is not good."""
    if THREADS:
        store_numbers(lower, below, good, samples, mask, m, BLOCK)
        store_numbers(upper, above, good, samples, mask, m, BLOCK)
    else:
        for i in tl.static_range(m):
            store_from(lower + samples * m + i, tl.where(good, below[i], float("nan")), mask)
            store_from(upper + samples * m + i, tl.where(good, above[i], float("nan")), mask)


@triton.jit
def spread(number, piece):
    """One number per sample ``(BLOCK,)``, shaped to broadcast against a piece."""
    if len(piece.shape) == 2:
        number = number[:, None]
    return number


@triton.jit
def _total(piece):
    """The sum over the outputs in a piece."""
    if len(piece.shape) == 2:
        piece = tl.sum(piece, axis=1)
    return piece


@triton.jit
def dot(first, i: tl.constexpr, second, j: tl.constexpr, PIECES: tl.constexpr):
    """``a_i . b_j``, row i of one matrix times row j of another."""
    total = first[i * PIECES] * second[j * PIECES]
    for k in tl.static_range(1, PIECES):
        total = tl.fma(first[i * PIECES + k], second[j * PIECES + k], total)
    return _total(total)


@triton.jit
def dots(rows, vector, m: tl.constexpr, PIECES: tl.constexpr):
    """``A v`` as a tuple of m vectors over samples."""
    products = ()
    for i in tl.static_range(m):
        products = products + (dot(rows, i, vector, 0, PIECES),)
    return products


@triton.jit
def combine(rows, weights, m: tl.constexpr, PIECES: tl.constexpr):
    """``A' w`` in PIECES pieces."""
    sums = ()
    for k in tl.static_range(PIECES):
        total = rows[k] * spread(weights[0], rows[k])
        for i in tl.static_range(1, m):
            total = tl.fma(rows[i * PIECES + k], spread(weights[i], rows[k]), total)
        sums = sums + (total,)
    return sums


@triton.jit
def largest(vector, PIECES: tl.constexpr):
    """``|v|_inf``."""
    size = tl.abs(vector[0])
    for k in tl.static_range(1, PIECES):
        size = tl.maximum(size, tl.abs(vector[k]))
    if len(size.shape) == 2:
        size = tl.max(size, axis=1)
    return size


@triton.jit
def lengths(rows, m: tl.constexpr, PIECES: tl.constexpr):
    """``|a|_1`` of every row."""
    totals = ()
    for i in tl.static_range(m):
        total = tl.abs(rows[i * PIECES])
        for k in tl.static_range(1, PIECES):
            total += tl.abs(rows[i * PIECES + k])
        totals = totals + (_total(total),)
    return totals
