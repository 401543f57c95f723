"""Eigendecompositions of symmetric matrices; a matrix gets the same bits at any place in a batch.

On a CPU the summation order of LAPACK depends on where a matrix starts in a cache line, so matrices are padded to start
at the same place. On a GPU ``torch.linalg.eigh`` waits for the device to check whether it failed, so a CUDA graph
cannot capture it: there cyclic Jacobi is a fixed program that reads no values.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

SWEEPS = 5
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
    for _ in range(SWEEPS + k.bit_length()):
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
