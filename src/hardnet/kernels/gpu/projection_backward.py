"""The derivative of the projection onto a small polyhedron in one launch, one sample per program.

With J the active rows, U their unit rows ``S A_J``, and g the cotangent of y,

    v = (U U')^-1 U g,   u = g - U'v,   w = S v:     raw receives u,  A  -dual u' - w y',  the active bounds w.

Everything is computed on chip in float64. A sample whose active rows are nearly dependent, or whose set is empty while
the gradient of A is wanted, is flagged for the general path of `hardnet.nearest.derivative`.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hardnet.kernels.gpu.common import load_as, store_from
from hardnet.kernels.gpu.launch import Launcher
from hardnet.kernels.limits import padded
from hardnet.rows import dense

COMPUTE = tl.constexpr(tl.float64)
WARPS = {256: 1, 512: 1, 1024: 2}
"""By the size of the padded A: the fewest warps whose registers hold A and its Gram matrix on sm_90."""
TINY = torch.finfo(torch.float64).tiny


class Saved(NamedTuple):
    """Results of the forward on a flat batch: y ``(B, n)``, dual and side ``(B, m)``, status ``(B,)``."""

    y: Tensor
    dual: Tensor
    side: Tensor
    status: Tensor


class Rules(NamedTuple):
    """The smallest trusted pivot of unit rows; the status of samples with zero gradients; the status of open ones."""

    tolerance: float
    invalid: int
    refused: int


class Found(NamedTuple):
    """The gradients of each sample, of A only if wanted, and 1 for the samples left open."""

    raw: Tensor
    matrix: Tensor | None
    lower: Tensor
    upper: Tensor
    open: Tensor


@triton.jit
def _load_bound(bound, sample, row, m, KIND: tl.constexpr):
    """A bound of one sample; ``KIND`` is shared 1, per sample 2."""
    return load_as(bound + (sample * m if KIND == 2 else 0) + row, row < m, COMPUTE)


@triton.jit
def _invert(tile, active, tolerance, M: tl.constexpr):
    """The inverse of a Gram matrix of unit rows, the identity off the active ones; and if all pivots are clear.

    Symmetric Gauss-Jordan sweeps as rank-one updates, which leave ``2 I - T^-1``: see `hardnet.kernels.gpu.blocks`.
    Inactive rows need no sweep. The pivots are the squares of those of the Cholesky factor.
    """
    row = tl.arange(0, M)
    regular = True
    k = tl.min(tl.where(active, row, M), axis=0)
    while k < M:
        unit = tl.where(row == k, 1.0, 0.0).to(COMPUTE)
        column = tl.sum(tile * unit[None, :], axis=1)
        pivot = tl.sum(column * unit, axis=0)
        clear = pivot > tolerance  # false for NaN
        regular = regular & clear
        vector = column - unit
        tile = tl.fma(-vector[:, None], (vector / tl.where(clear, pivot, 1.0))[None, :], tile)
        k = tl.min(tl.where(active & (row > k), row, M), axis=0)
    return tl.where(row[:, None] == row[None, :], 2.0, 0.0) - tile, regular


@triton.jit
def _split(vector, rows, active, inverse):
    """``u = g - U'v`` and ``v = (U U')^-1 U g``; inactive rows are masked, as zero times an infinite g is NaN."""
    product = tl.where(active, tl.sum(rows * vector[None, :], axis=1), 0.0)
    multiplier = tl.sum(inverse * product[None, :], axis=1)
    return vector - tl.sum(rows * multiplier[:, None], axis=0), multiplier


@triton.jit
def _backward(
    grad, A, lower, upper, y, dual, side, status, grad_raw, grad_A, grad_lower, grad_upper, open_flag, m, n, tolerance,
    EACH: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, MATRIX: tl.constexpr, INVALID: tl.constexpr,
    REFUSED: tl.constexpr, TINY: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One sample; A is per sample or shared, bounds are absent (0), shared (1) or per sample (2)."""
    sample = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, M), tl.arange(0, N)
    exists = row < m
    state = tl.load(status + sample)
    sound = state != INVALID
    sides = tl.load(side + sample * m + row, mask=exists, other=0)
    tight = row < 0  # none: an absent bound equals no other
    if LOWER and UPPER:
        tight = exists & (_load_bound(lower, sample, row, m, LOWER) == _load_bound(upper, sample, row, m, UPPER))
    active = ((sides != 0) | tight) & sound

    start = sample * m * n
    places, inside = row[:, None] * n + column[None, :], exists[:, None] & (column < n)[None, :]
    rows = load_as(A + (start if EACH else 0) + places, inside, COMPUTE)
    # scaled after the product: Triton cannot feed a float64 product from values selected by narrow integers like `side`
    gram = tl.dot(rows, tl.trans(rows), input_precision="ieee", out_dtype=COMPUTE)
    rows = tl.where(active[:, None], rows, 0.0)  # an inactive row may contain anything, even NaN
    scale = tl.where(active, 1.0 / tl.sqrt(tl.maximum(tl.sum(rows * rows, axis=1), TINY)), 0.0)
    rows = rows * scale[:, None]
    identity = tl.where(row[:, None] == row[None, :], 1.0, 0.0).to(COMPUTE)
    gram = tl.where(active[:, None] & active[None, :], gram * scale[:, None] * scale[None, :], identity)
    inverse, regular = _invert(gram, active, tolerance, M)

    vector = load_as(grad + sample * n + column, column < n, COMPUTE)
    vector = tl.where(sound & (vector == vector), vector, 0.0)
    u, v = _split(vector, rows, active, inverse)
    u, rest = _split(u, rows, active, inverse)  # remove what rounding left of the active rows in u
    w = (v + rest) * scale
    store_from(grad_raw + sample * n + column, u, column < n)
    store_from(grad_lower + sample * m + row, w * tl.where(tight, 0.5, tl.where(sides < 0, 1.0, 0.0)), exists)
    store_from(grad_upper + sample * m + row, w * tl.where(tight, 0.5, tl.where(sides > 0, 1.0, 0.0)), exists)
    if MATRIX:
        at = load_as(y + sample * n + column, (column < n) & sound, COMPUTE)
        weight = load_as(dual + sample * m + row, exists & sound, COMPUTE)
        change = -weight[:, None] * u[None, :] - w[:, None] * at[None, :]
        store_from(grad_A + start + places, change, inside)
    tl.store(open_flag + sample, ((not regular) | (state == REFUSED)).to(tl.int8))


@cache
def _launcher(m: int, n: int, each: bool, lower: int, upper: int, matrix: bool, invalid: int, refused: int) -> Launcher:
    """The kernel for samples of this shape; sizes are powers of two, at least 16."""
    height, width = padded(m), padded(n)
    kinds = {"EACH": each, "LOWER": lower, "UPPER": upper, "MATRIX": matrix}
    states = {"INVALID": invalid, "REFUSED": refused, "TINY": TINY}
    sizes = {"M": height, "N": width, "num_warps": WARPS[height * width]}
    return Launcher(_backward, kinds | states | sizes)


def launch(
    grad: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    saved: Saved,
    rules: Rules,
    dtypes: Sequence[torch.dtype | None],
) -> Found:
    """The gradients of a flat batch in one launch, without reading a value on the host.

    Args:
        grad: Cotangent of y, ``(B, n)``; NaN counts as 0.
        A: ``(m, n)`` or ``(B, m, n)``, with m and n up to 32.
        lower: ``(m,)``, ``(B, m)`` or None.
        upper: Like `lower`.
        saved: What the forward found.
        rules: Which samples have zero gradients or are left open.
        dtypes: Dtypes of the gradients of raw, A (None: not wanted), lower and upper.
    """
    (batch, n), m = grad.shape, A.shape[-2]
    shapes = ((batch, n), (batch, m, n), (batch, m), (batch, m))
    parts = [
        None if dtype is None else grad.new_empty(shape, dtype=dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    found = Found(*parts, grad.new_empty(batch, dtype=torch.int8))
    low, high = (0 if bound is None else bound.dim() for bound in (lower, upper))
    kernel = _launcher(m, n, A.dim() == 3, low, high, found.matrix is not None, rules.invalid, rules.refused)
    inputs = tuple(dense(part, grad) for part in (grad, A, lower, upper, *saved))
    outputs = tuple(found.raw if part is None else part for part in found)
    kernel.launch((batch, 1, 1), (*inputs, *outputs), (m, n, rules.tolerance))
    return found
