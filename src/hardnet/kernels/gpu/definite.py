"""Many small symmetric systems on a GPU: Gauss-Jordan elimination in one launch, one sample per program.

``matrix^-1 right`` and the least pivot. `hardnet.solvers.algebra.small` calls it, and does the same in plain torch,
where every column takes a handful of launches; here the whole system stays in registers.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from hardnet.kernels.gpu.launch import Launcher

NUMBERS_OF_A_WARP = 512
"""Numbers of a system that one warp holds in its registers."""


@triton.jit
def _solve(matrix, right, solved, pivots, k, n: tl.constexpr, N: tl.constexpr, C: tl.constexpr):
    """``[matrix, right] -> [identity, matrix^-1 right]``, column by column, without pivoting."""
    sample = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, N), tl.arange(0, C)
    own = (row < n)[:, None] & (column < n)[None, :]
    beside = (row < n)[:, None] & (column >= n)[None, :] & (column < n + k)[None, :]
    places = sample * n * k + row[:, None] * k + column[None, :] - n
    work = tl.load(matrix + sample * n * n + row[:, None] * n + column[None, :], mask=own, other=0.0)
    work += tl.load(right + places, mask=beside, other=0.0)
    least = tl.full([], float("inf"), tl.float64)
    for at in range(n):
        here = row == at
        line = tl.sum(tl.where(here[:, None], work, 0.0), 0)
        share = tl.sum(tl.where((column == at)[None, :], work, 0.0), 1)
        pivot = tl.sum(tl.where(column == at, line, 0.0), 0)
        least = tl.where((pivot < least) | (pivot != pivot), pivot, least)
        line = line / pivot
        work = tl.where(here[:, None], line[None, :], work - share[:, None] * line[None, :])
    tl.store(solved + places, work, mask=beside)
    tl.store(pivots + sample, least)


@cache
def _launcher(n: int, columns: int) -> Launcher:
    """The kernel for systems of n rows; `columns` holds the matrix and its right-hand sides, padded."""
    N = 1 << (n - 1).bit_length()
    warps = max(1, N * columns // NUMBERS_OF_A_WARP)
    return Launcher(_solve, {"n": n, "N": N, "C": columns, "num_warps": warps})


def solve(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """``matrix^-1 right`` ``(b, n, k)`` and the least pivot of each sample ``(b,)``, NaN if any pivot is.

    Args:
        matrix: Symmetric, ``(b, n, n)`` in float64.
        right: ``(b, n, k)``.
    """
    batch, n, k = right.shape
    matrix, right = matrix.contiguous(), right.contiguous()
    solved, pivots = torch.empty_like(right), right.new_empty(batch)
    columns = 1 << (n + k - 1).bit_length()
    _launcher(n, columns).launch((batch, 1, 1), (matrix, right, solved, pivots), (k,))
    return solved, pivots
