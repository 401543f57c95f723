"""The cone of positive semidefinite matrices, packed: image, projection, and its derivative in an eigenbasis."""

from __future__ import annotations

from functools import lru_cache, partial
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import product_each
from hardnet.solvers.algebra.eigen import ascending, eigh
from hardnet.solvers.conic.cones import ConeImage
from hardnet.solvers.conic.images import Foot, Frame


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
    values, V = ascending(X)
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
        matrices = product_each(matrices.flatten(-3, -2), V).unflatten(-2, (-1, k)).mT
    return pack_symmetric(matrices).mT


class SemiDefiniteImage(ConeImage):
    """In cones of positive semidefinite matrices, packed."""

    def foot(self, z: Tensor) -> Foot:
        """On the semidefinite cones, with one eigendecomposition."""
        points = self.each(z)
        values, V = eigh(unpack(points, order(points.shape[-1])))
        excess = negative_part(values, V)
        frame = partial(self._grouped, partial(semidefinite_frame, values, V))
        return Foot((points - excess).flatten(-2), excess.flatten(-2), frame)

    def tightened(self, margin: Tensor) -> SemiDefiniteImage:
        """Less a multiple of the identity."""
        margin = self.each(margin)
        eye = torch.eye(order(margin.shape[-1]), dtype=margin.dtype, device=margin.device)
        return SemiDefiniteImage(self.K, self.k - margin * pack(eye))
