"""The second-order cone and the positive semidefinite cone: projection, and its derivative in an eigenbasis.

The derivative D of the projection onto a closed convex cone is symmetric with eigenvalues in [0, 1]. Everything that
solvers and gradients need of it is its eigenbasis Q and its eigenvalues delta: 0 along directions in which the
constraint is tight, 1 along directions in which it is free, and in between where the boundary is curved.

Called by `hardnet.functional.elementary`, `hardnet.solvers.barrier_matrices` and others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import length


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
    size = length(u)
    height = (size + t) / 2
    onto = torch.cat([u * (height / size.clamp_min(torch.finfo(z.dtype).tiny)), height], dim=-1)
    return torch.where(size <= t, z, torch.where(size <= -t, torch.zeros_like(z), onto))


def second_order_frame(z: Tensor, tolerance: Tensor) -> Frame:
    """The derivative of `project_second_order` at z ``(B, k + 1)``; within `tolerance` a boundary counts as free.

    On the curved side, with ``e = u / |u|``: delta is 1 along ``(e, 1)``, 0 along ``(e, -1)`` and
    ``(1 + t / |u|) / 2`` across. A Householder reflection completes e to a basis.
    """
    u, t = z[..., :-1], z[..., -1:]
    size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)  # in the unit of the problem
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


class Layout(NamedTuple):
    """How a symmetric ``k x k`` matrix is packed: entries on and below the diagonal, the others times sqrt(2).

    Attributes:
        lower: Where they stand in the flat matrix, ``(k (k + 1) / 2,)``.
        full: Which of them each entry of the flat matrix is, ``(k k,)``.
        weight: 1 on the diagonal, sqrt(2) off it, ``(k (k + 1) / 2,)``.
        share: The inverse, for each entry of the flat matrix, ``(k k,)``.
        i: Rows of the packed entries.
        j: Columns of the packed entries.
    """

    lower: Tensor
    full: Tensor
    weight: Tensor
    share: Tensor
    i: Tensor
    j: Tensor


@lru_cache(maxsize=64)
def layout(k: int, dtype: torch.dtype, device: torch.device) -> Layout:
    """The layout of order k, made once; outside of inference mode, since derivatives may keep it."""
    with torch.inference_mode(False):
        i, j = torch.tril_indices(k, k, device=device)
        full = torch.empty(k, k, dtype=torch.int64, device=device)
        full[i, j] = full[j, i] = torch.arange(len(i), device=device)
        weight = (1 + (i != j).to(dtype)).sqrt()
        return Layout(i * k + j, full.flatten(), weight, 1 / weight[full.flatten()], i, j)


def pack(X: Tensor) -> Tensor:
    """The symmetric part of ``(..., k, k)`` as ``(..., k (k + 1) / 2)``: norms are kept."""
    return pack_symmetric((X + X.mT) / 2)


def pack_symmetric(X: Tensor) -> Tensor:
    """The same for a matrix that is symmetric already, to rounding."""
    plan = layout(X.shape[-1], X.dtype, X.device)
    return X.flatten(-2).index_select(-1, plan.lower) * plan.weight


def unpack(packed: Tensor, k: int) -> Tensor:
    """The inverse of `pack`."""
    plan = layout(k, packed.dtype, packed.device)
    return (packed.index_select(-1, plan.full) * plan.share).unflatten(-1, (k, k))


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
    return pack_symmetric((V * values.clamp_max(0).unsqueeze(-2)) @ V.mT)


def semidefinite_frame(values: Tensor, V: Tensor, tolerance: Tensor) -> Frame:
    """The derivative of `project_semidefinite` at ``V diag(values) V'``: pairs of eigenvectors, and their ratios.

    For eigenvalues a, b: delta is 1 if both are >= 0, 0 if both are < 0, else ``a / (a - b)`` with a the positive
    one. Repeated eigenvalues need no care: only differences across the sign enter.
    """
    plan = layout(values.shape[-1], values.dtype, values.device)
    kept = torch.where(values < -tolerance, values, values.clamp_min(0))
    one, other = kept.index_select(-1, plan.i), kept.index_select(-1, plan.j)
    above, below = torch.maximum(one, other), torch.minimum(one, other)
    # both of one sign: free, or tight; rounding of the ratio stays in [0, 1]
    ratio = above / (above - below).clamp_min(torch.finfo(V.dtype).tiny)
    delta = torch.where(below >= 0, 1.0, ratio.clamp_min(0))
    return Frame(delta, lambda X: _congruence(X, V), lambda X: _congruence(X, V.mT))


def _congruence(X: Tensor, V: Tensor) -> Tensor:
    """``V' X V`` on each packed column of X ``(B, r, columns)``: twice ``X -> (X V)'``, one product per sample."""
    k = V.shape[-1]
    matrices = unpack(X.mT, k)
    for _ in range(2):
        matrices = (matrices.flatten(-3, -2) @ V).unflatten(-2, (-1, k)).mT
    return pack_symmetric(matrices).mT
