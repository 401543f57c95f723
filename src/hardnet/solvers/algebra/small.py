"""Products and solves with many small symmetric matrices; a sample gets the same bits in every batch.

Compiled code eliminates one sample at a time (`kernels.cpu.definite`, `kernels.gpu.definite`). Without it, elimination
of up to `SMALL` rows runs column by column over all samples at once, which is faster than a routine called for each
sample; larger matrices use torch's Cholesky factorization, padded by `align`.
"""

from __future__ import annotations

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.cpu.ready import ready
from hardnet.kernels.limits import MOST_ELIMINATED, MOST_SYSTEM_COLUMNS
from hardnet.modes import plain
from hardnet.products import align, times_aligned

SMALL = 10
"""Largest number of rows that are eliminated column by column."""

FEW = 32
"""Largest number of multiplications of a matrix product that is computed as a broadcast product and sum."""


def compiles(A: Tensor, kernel: str, most: int = MOST_ELIMINATED) -> bool:
    """Whether a compiled kernel accepts these matrices ``(b, m, n)``: float64 in plain CPU memory, with few rows."""
    fits = HAS_NUMBA and A.is_cpu and A.shape[-2] <= most and A.numel() > 0
    return fits and A.dtype == torch.float64 and plain(A) and ready(kernel)


def product(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for each sample: ``(b, m, n), (b, n) -> (b, m)``."""
    if max(A.shape[-2:]) <= SMALL:
        return (A * vector.unsqueeze(-2)).sum(-1)
    return times_aligned(align(A, 2), align(vector))[:, : A.shape[-2]]


def products(A: Tensor, B: Tensor) -> Tensor:
    """``A B`` for each sample: ``(b, m, n), (b, n, k) -> (b, m, k)``."""
    m, k = A.shape[-2], B.shape[-1]
    if m * k * A.shape[-1] <= FEW:
        return (A.unsqueeze(-1) * B.unsqueeze(-3)).sum(-2)
    return torch.bmm(align(A, 2), align(B, 2))[:, :m, :k]


def solve_definite(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """``matrix^-1 right`` for symmetric matrices ``(b, n, n)`` and ``(b, n, k)``; the least pivot of each, ``(b,)``.

    Where a pivot is not positive, the matrix is not positive definite and the solution is meaningless.
    """
    if compiles(matrix, "definite"):
        from hardnet.kernels.cpu.definite import solve

        return solve(matrix, right)
    if _fits_registers(matrix, right):
        from hardnet.kernels.gpu.definite import solve

        return solve(matrix, right)
    if matrix.shape[-1] <= SMALL:
        return _eliminate(matrix, right)
    n, k = right.shape[-2:]
    whole = align(matrix, 2)
    if whole.shape[-1] > n:
        whole = whole.clone() if whole is matrix else whole
        whole.diagonal(dim1=-2, dim2=-1)[:, n:] = 1.0
    factor, info = torch.linalg.cholesky_ex(whole)
    pivot = factor.diagonal(dim1=-2, dim2=-1)[:, :n].square().amin(-1)
    # two triangular solves: on a GPU batched `cholesky_solve` allocates outside of torch, which a graph cannot capture
    half = torch.linalg.solve_triangular(factor, align(right, 2), upper=False)
    solved = torch.linalg.solve_triangular(factor.mT, half, upper=True)[:, :n, :k]
    return solved, torch.where(info == 0, pivot, -1.0)


def _fits_registers(matrix: Tensor, right: Tensor) -> bool:
    """Whether a GPU solves a whole system ``(b, n, n)``, ``(b, n, k)`` in the registers of one program."""
    (n, k), device = right.shape[-2:], matrix.device
    if device.type != "cuda" or matrix.dtype != torch.float64 or matrix.numel() == 0 or k == 0:
        return False
    return n <= MOST_ELIMINATED and n + k <= MOST_SYSTEM_COLUMNS and gpu.supported(device) and plain(matrix)


def _eliminate(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Gaussian elimination without pivoting on ``[matrix, right]``, then back substitution."""
    n = matrix.shape[-1]
    work = torch.cat([matrix, right], dim=-1)
    pivots = []
    for column in range(n):
        pivot = work[:, column, column]
        pivots.append(pivot)
        if column + 1 < n:
            share = work[:, column + 1 :, column] / pivot.unsqueeze(-1)
            work[:, column + 1 :, column + 1 :] -= share.unsqueeze(-1) * work[:, column, None, column + 1 :]
    solved = work[:, :, n:]
    for column in range(n - 1, -1, -1):
        solved[:, column] /= pivots[column].unsqueeze(-1)
        if column:
            solved[:, :column] -= work[:, :column, column, None] * solved[:, None, column]
    return solved, torch.stack(pivots, dim=-1).amin(-1)
