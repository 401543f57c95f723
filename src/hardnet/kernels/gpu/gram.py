"""Loads of one sample in 16-row blocks, and ``A A'`` on the matrix units together with ``A f`` and ``A g``.

Rows 16 i to 16 i + 15 are block i. The Gram matrix is a tuple of 16 x 16 tiles (lower triangle, packed by rows), summed
over chunks of columns.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import load_as

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
