"""Products and solves with many small symmetric matrices; a sample gets the same bits in every batch.

Compiled code eliminates one sample at a time (`kernels.cpu.nonlinear_step`, `kernels.gpu.definite`). Without it,
elimination of up to `ELIMINATED_ROWS` rows runs column by column over all samples at once, which is faster than a
routine called for each sample; larger matrices use torch's Cholesky factorization, padded by `align`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

import hardnet.kernels.gpu.affine as gpu
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.cpu.ready import ready
from hardnet.kernels.limits import MOST_ELIMINATED, MOST_SYSTEM_COLUMNS
from hardnet.modes import mode, plain
from hardnet.products import align, times_aligned, times_each

ELIMINATED_ROWS = 10
"""Largest number of rows that are eliminated column by column."""

KERNEL = "nonlinear_step"
"""The compiled code of these systems."""
FEW = 32
"""Largest number of multiplications of a matrix product that is computed as a broadcast product and sum."""


def compiles(A: Tensor, kernel: str, most: int = MOST_ELIMINATED) -> bool:
    """Whether a compiled kernel accepts these matrices ``(b, m, n)``: float64 in plain CPU memory, with few rows."""
    fits = HAS_NUMBA and A.is_cpu and A.shape[-2] <= most and A.numel() > 0
    return fits and A.dtype == torch.float64 and plain(A) and ready(kernel)


def product(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for each sample: ``(b, m, n), (b, n) -> (b, m)``."""
    if max(A.shape[-2:]) <= ELIMINATED_ROWS:
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
    if compiles(matrix, KERNEL):
        from hardnet.kernels.cpu.nonlinear_step import solve_definite as solve

        return solve(matrix, right)
    if _fits_registers(matrix, right):
        from hardnet.kernels.gpu.definite import solve

        return solve(matrix, right)
    if matrix.shape[-1] <= ELIMINATED_ROWS:
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


# ``A^-1 v`` for each sample, differentiable under every transform.


def solve_square(matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` for matrix ``(*batch, n, n)`` and right ``(*batch, n)``; not finite where it is singular.

    Forward-mode differentiation uses the inverse, refined twice: torch 2.13 assigns the forward derivatives of
    `linalg.solve` to the wrong samples under nested maps, as in ``vmap(jacfwd(f))`` and ``vmap(hessian(f))``.
    """
    if mode() != "forward":
        return torch.linalg.solve_ex(matrix, right.unsqueeze(-1)).result.squeeze(-1)
    return refined(torch.linalg.inv_ex(matrix).inverse, matrix, right)


def refined(inverse: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` by a computed inverse, whose error two corrections remove."""
    found = times_each(inverse, right)
    for _ in range(2):
        found = found + times_each(inverse, right - times_each(matrix, found))
    return found


# Eigendecompositions of symmetric matrices; a matrix gets the same bits at any place in a batch.
#
# On a CPU the summation order of LAPACK depends on where a matrix starts in a cache line, so matrices are padded to
# start at the same place. On a GPU ``torch.linalg.eigh`` waits for the device to check whether it failed, so a CUDA
# graph cannot capture it: there cyclic Jacobi is a fixed program that reads no values.


JACOBI_SWEEPS = 5
"""Sweeps over all pairs, in addition to one per doubling of the order: Jacobi finally converges quadratically."""

MULTIPLE = 4
"""Float64 matrices whose order is a multiple of this fill whole cache lines of 64 bytes."""


def eigh(X: Tensor) -> tuple[Tensor, Tensor]:
    """``X = V diag(values) V'`` for symmetric X ``(..., k, k)``; on a CPU by LAPACK, elsewhere by `jacobi`."""
    return ascending(X) if X.device.type == "cpu" else jacobi(X)


def ascending(X: Tensor) -> tuple[Tensor, Tensor]:
    """The same by `torch.linalg.eigh`, values in ascending order.

    On a CPU X is padded to ``diag(X, 2|X|, ...)``, whose first k eigenvalues are those of X: the matrix is block
    diagonal, and no eigenvalue of X exceeds its norm.
    """
    k, missing = X.shape[-1], -X.shape[-1] % MULTIPLE
    if missing == 0 or X.device.type != "cpu":
        return torch.linalg.eigh(X)
    norm = X.abs().sum(-1).amax(-1, keepdim=True)
    above = torch.where(norm > 0, 2 * norm, 1.0).expand(*norm.shape[:-1], missing)
    values, V = torch.linalg.eigh(pad(X, (0, missing, 0, missing)) + torch.diag_embed(pad(above, (k, 0))))
    return values[..., :k], V[..., :k, :k]


def jacobi(X: Tensor) -> tuple[Tensor, Tensor]:
    """The same by rotations of ``k / 2`` disjoint pairs at a time; values in no particular order."""
    k = X.shape[-1]
    eye = torch.eye(k, dtype=X.dtype, device=X.device)
    V = eye.expand_as(X)
    if k == 1:
        return X.squeeze(-1), V
    rounds = _rounds(k, X.device)
    for _ in range(JACOBI_SWEEPS + k.bit_length()):
        for first, second in rounds:
            turn = _rotation(X, first, second, eye)
            X = turn.mT @ X @ turn
            V = V @ turn
    return X.diagonal(dim1=-2, dim2=-1), V


def _rotation(X: Tensor, first: Tensor, second: Tensor, eye: Tensor) -> Tensor:
    """The rotation ``(..., k, k)`` that makes ``X_pq`` zero for the pairs (p, q), by the smaller of two angles."""
    flat, k = X.flatten(-2), X.shape[-1]
    p, q, off = (flat.index_select(-1, index) for index in (first * k + first, second * k + second, first * k + second))
    tiny = torch.finfo(X.dtype).tiny
    half = (q - p) / 2
    sign = torch.where(half < 0, -1.0, 1.0)
    tangent = sign * off / (half.abs() + (half * half + off * off).sqrt()).clamp_min(tiny)
    cosine = 1 / (1 + tangent * tangent).sqrt()
    sine = tangent * cosine
    turn = eye.expand_as(X).flatten(-2)
    places = torch.cat([first * k + first, second * k + second, first * k + second, second * k + first])
    return turn.index_copy(-1, places, torch.cat([cosine, cosine, sine, -sine], -1)).unflatten(-1, (k, k))


@lru_cache(maxsize=64)
def _rounds(k: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """All pairs of ``range(k)`` in rounds of disjoint pairs, as in a round-robin tournament; cached for each size."""
    players = list(range(k)) + ([-1] if k % 2 else [])
    found, half = [], len(players) // 2
    with torch.inference_mode(False):
        for _ in range(len(players) - 1):
            drawn = [(a, b) for a, b in zip(players[:half], reversed(players[half:]), strict=True) if min(a, b) >= 0]
            pairs = torch.tensor([sorted(pair) for pair in drawn], device=device)
            found.append((pairs[:, 0], pairs[:, 1]))
            players = [players[0], players[-1], *players[1:-1]]
    return found
