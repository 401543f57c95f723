"""``L^-1`` of ``K = L L'`` for many small matrices in one launch: one program per matrix, all of it in registers.

Gauss on ``[K, I]`` makes K upper triangular, with the squared diagonal d of L, and of the identity a unit lower
triangular E with ``L^-1 = diag(d)^-1/2 E``. What it makes zero in K is where E is written.

Called by `hardnet.solvers.shared_blocks`.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hardnet.kernels.limits import padded


@triton.jit
def _invert(inverse, matrix, batch_stride, row_stride, out_batch_stride, out_row_stride, w, W: tl.constexpr):
    """One matrix, its lower half; rows and columns beyond w are those of the identity."""
    sample = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, W)[:, None], tl.arange(0, W)[None, :]
    inside, one = (row < w) & (column < w), tl.where(row == column, 1.0, 0.0).to(tl.float64)
    T = tl.load(matrix + sample * batch_stride + row * row_stride + column, mask=inside, other=0.0)
    T = tl.where(inside, T, one)
    for k in range(W):
        top = tl.sum(tl.where(row == k, T, 0.0), 0)[None, :]
        pivot = tl.sum(tl.where(column == k, top, 0.0), 1)[:, None]
        share = tl.where(row > k, tl.sum(tl.where(column == k, T, 0.0), 1)[:, None] / pivot, 0.0)
        T = tl.where((row > k) & (column == k), -share, T - share * top)
    d = tl.sum(tl.where(row == column, T, 0.0), 1)[:, None]
    E = tl.where(row > column, T, one)
    tl.store(inverse + sample * out_batch_stride + row * out_row_stride + column, E / tl.sqrt(d), mask=inside)


def invert_factor(matrix: Tensor, inverse: Tensor) -> None:
    """Write ``L^-1`` of each symmetric positive definite matrix; NaN where one is not.

    Args:
        matrix: ``(B, w, w)`` in float64, entries of a row next to each other.
        inverse: Like `matrix`: where ``L^-1`` goes, zero above its diagonal.
    """
    width = padded(matrix.shape[-1])
    strides = (*matrix.stride()[:2], *inverse.stride()[:2])
    with torch.cuda.device_of(matrix):  # Triton launches on the current device
        _invert[(len(matrix),)](  # pyright: ignore[reportCallIssue]
            inverse, matrix, *strides, matrix.shape[-1], W=width, num_warps={16: 1, 32: 2, 64: 8}[width]
        )
