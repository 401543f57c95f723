"""The second-order cone and the positive semidefinite cone: projection, and its derivative in an eigenbasis.

The derivative D of the projection onto a closed convex cone is symmetric with eigenvalues in [0, 1]. Everything
that solvers and gradients need of it is its eigenbasis Q and its eigenvalues delta: 0 along directions in which
the constraint is tight, 1 along directions in which it is free, and in between where the boundary is curved.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor


class Frame(NamedTuple):
    """``D = Q diag(delta) Q'``, the derivative of a projection at one point of each sample.

    Attributes:
        delta: Eigenvalues, ``(B, r)``.
        rotate: ``X -> Q' X`` for ``X`` of shape ``(B, r, columns)``.
        restore: ``X -> Q X``, the inverse of `rotate`.
    """

    delta: Tensor
    rotate: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]


class ConeLook(NamedTuple):
    """One look at a point z: how far outside of the cone it is, and the derivative of the projection there.

    Attributes:
        onto: ``P_K(z)``, ``(B, r)``.
        excess: ``z - P_K(z)``, ``(B, r)``; exactly zero inside.
        frame: The frame at z; within its argument, a tolerance ``(B, 1)``, a point counts as inside.
    """

    onto: Tensor
    excess: Tensor
    frame: Callable[[Tensor], Frame]


def project_second_order(z: Tensor) -> Tensor:
    """``argmin |w - z|  s.t.  |w_u| <= w_t`` for ``z = (u, t)`` of shape ``(..., k + 1)``."""
    u, t = z[..., :-1], z[..., -1:]
    size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    height = (size + t) / 2
    onto = torch.cat([u * (height / size.clamp_min(torch.finfo(z.dtype).tiny)), height], dim=-1)
    return torch.where(size <= t, z, torch.where(size <= -t, torch.zeros_like(z), onto))


def second_order_frame(z: Tensor, tolerance: Tensor) -> Frame:
    """The derivative of `project_second_order` at z ``(B, k + 1)``; within `tolerance` a boundary counts as free.

    On the curved side, with ``e = u / |u|``: delta is 1 along ``(e, 1)``, 0 along ``(e, -1)`` and
    ``(1 + t / |u|) / 2`` across. A Householder reflection completes e to a basis.
    """
    u, t = z[..., :-1], z[..., -1:]
    size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    first = torch.zeros_like(u)
    first[..., 0] = 1
    e = torch.where(size > 0, u / size.clamp_min(torch.finfo(z.dtype).tiny), first)
    across = ((1 + t / size.clamp_min(torch.finfo(z.dtype).tiny)) / 2).expand_as(u[..., 1:])
    curved = torch.cat([torch.ones_like(t), torch.zeros_like(t), across], dim=-1)
    apex = torch.where(size + t <= tolerance, torch.zeros_like(z), curved)
    delta = torch.where(size - t <= tolerance, torch.ones_like(z), apex)
    mirror = e + torch.where(e[..., :1] < 0, -first, first)
    mirror = mirror / torch.linalg.vector_norm(mirror, dim=-1, keepdim=True)
    return Frame(delta, lambda X: _cone_rotate(X, e, mirror), lambda X: _cone_restore(X, e, mirror))


def _reflect(X: Tensor, mirror: Tensor) -> Tensor:
    """``(I - 2 m m') X``."""
    return X - 2 * mirror.unsqueeze(-1) * (mirror.unsqueeze(-2) @ X)


def _cone_rotate(X: Tensor, e: Tensor, mirror: Tensor) -> Tensor:
    """Coordinates along (e, 1), (e, -1) and the directions across, which are the last rows of the reflection."""
    along, t = e.unsqueeze(-2) @ X[..., :-1, :], X[..., -1:, :]
    return torch.cat([(along + t) / sqrt(2), (along - t) / sqrt(2), _reflect(X[..., :-1, :], mirror)[..., 1:, :]], -2)


def _cone_restore(X: Tensor, e: Tensor, mirror: Tensor) -> Tensor:
    """The inverse of `_cone_rotate`."""
    along, t = (X[..., :1, :] + X[..., 1:2, :]) / sqrt(2), (X[..., :1, :] - X[..., 1:2, :]) / sqrt(2)
    across = _reflect(torch.cat([torch.zeros_like(along), X[..., 2:, :]], dim=-2), mirror)
    return torch.cat([e.unsqueeze(-1) * along + across, t], dim=-2)


def pack(X: Tensor) -> Tensor:
    """Symmetric ``(..., k, k)`` to ``(..., k (k + 1) / 2)``, off-diagonals times sqrt(2): norms are kept."""
    i, j = torch.tril_indices(X.shape[-1], X.shape[-1], device=X.device)
    packed = (X[..., i, j] + X[..., j, i]) / 2
    return packed * _weights(i, j, X)


def unpack(packed: Tensor, k: int) -> Tensor:
    """The inverse of `pack`."""
    i, j = torch.tril_indices(k, k, device=packed.device)
    entries = packed / _weights(i, j, packed)
    X = packed.new_zeros(*packed.shape[:-1], k, k)
    X[..., i, j] = entries
    X[..., j, i] = entries
    return X


def _weights(i: Tensor, j: Tensor, like: Tensor) -> Tensor:
    """1 on the diagonal, sqrt(2) off it."""
    return (1 + (i != j).to(like)).sqrt()


def order(packed_size: int) -> int:
    """The k of a packed symmetric matrix of ``k (k + 1) / 2`` entries."""
    return (int(sqrt(8 * packed_size + 1)) - 1) // 2


def project_semidefinite(X: Tensor) -> Tensor:
    """``V relu(Lambda) V'`` for symmetric X ``(..., k, k)``; X itself where no eigenvalue is negative."""
    values, V = torch.linalg.eigh(X)
    onto = (V * values.clamp_min(0).unsqueeze(-2)) @ V.mT
    return torch.where((values[..., :1] >= 0).unsqueeze(-1), X, onto)


def negative_part(values: Tensor, V: Tensor) -> Tensor:
    """``V min(Lambda, 0) V'``, packed ``(..., k (k + 1) / 2)``: exactly zero where no eigenvalue is negative."""
    return pack((V * values.clamp_max(0).unsqueeze(-2)) @ V.mT)


def semidefinite_frame(values: Tensor, V: Tensor, tolerance: Tensor) -> Frame:
    """The derivative of `project_semidefinite` at ``V diag(values) V'``: pairs of eigenvectors, and their ratios.

    For eigenvalues a, b: delta is 1 if both are >= 0, 0 if both are < 0, else ``a / (a - b)`` with a the positive
    one. Repeated eigenvalues need no care: only differences across the sign enter.
    """
    k = values.shape[-1]
    i, j = torch.tril_indices(k, k, device=V.device)
    negative = values < -tolerance
    plus = torch.where(negative, torch.zeros_like(values), values.clamp_min(0))
    minus = torch.where(negative, -values, torch.zeros_like(values))
    above = torch.maximum(plus[..., i], plus[..., j])
    below = torch.maximum(minus[..., i], minus[..., j])
    ratio = above / (above + below).clamp_min(torch.finfo(V.dtype).tiny)
    both = negative[..., i] & negative[..., j]
    neither = ~negative[..., i] & ~negative[..., j]
    delta = torch.where(neither, 1.0, torch.where(both, 0.0, ratio))
    return Frame(delta, lambda X: _congruence(X, V), lambda X: _congruence(X, V.mT))


def _congruence(X: Tensor, V: Tensor) -> Tensor:
    """``V' X V`` on each packed column of X ``(B, r, columns)``."""
    matrices = unpack(X.mT, V.shape[-1])
    V = V.unsqueeze(-3)
    return pack(V.mT @ matrices @ V).mT
