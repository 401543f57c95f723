"""The second-order cone and the positive semidefinite cone: exact projections with safe derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hardnet.errors import ShapeError, sentence
from hardnet.functional.inputs import require_float
from hardnet.solvers.cones import (
    Frame,
    pack,
    project_second_order,
    project_semidefinite,
    second_order_frame,
    semidefinite_frame,
    unpack,
)


def project_second_order_cone(z: Tensor) -> Tensor:
    """``argmin |w - z|  s.t.  |w_u| <= w_t`` for ``z = (u, t)``, with the height t last.

    Inside: z itself. ``|u| <= -t``: the apex. Else ``a (u / |u|, 1)`` with ``a = (|u| + t) / 2``.

    Args:
        z: ``(*batch, k + 1)``.
    """
    require_float("z", z)
    if z.dim() == 0 or z.shape[-1] < 2:
        raise ShapeError(sentence("z", "shape (*batch, k + 1) with k >= 1, the height last", tuple(z.shape)))
    return _SecondOrder.apply(z)  # pyright: ignore[reportReturnType]


def project_psd(X: Tensor) -> Tensor:
    """``V relu(Lambda) V'`` of the symmetric part of X: the nearest positive semidefinite matrix.

    The derivative needs no gap between eigenvalues: only differences across the sign enter.

    Args:
        X: ``(*batch, k, k)``; its antisymmetric part is dropped.
    """
    require_float("X", X)
    if X.dim() < 2 or X.shape[-1] != X.shape[-2]:
        raise ShapeError(sentence("X", "shape (*batch, k, k)", tuple(X.shape)))
    return _SemiDefinite.apply(X)  # pyright: ignore[reportReturnType]


def _apply_frame(frame: Frame, vector: Tensor) -> Tensor:
    """``Q diag(delta) Q' v``: the derivative of a projection is symmetric, so this is its transpose too."""
    return frame.restore(frame.delta.unsqueeze(-1) * frame.rotate(vector.unsqueeze(-1))).squeeze(-1)


class _SecondOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return project_second_order(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (z,) = ctx.saved_tensors
        return _apply_frame(second_order_frame(z, torch.zeros_like(z[..., :1])), grad)


class _SemiDefinite(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor) -> Tensor:
        finite = X.isfinite().all(-1).all(-1)[..., None, None]  # LAPACK refuses a whole batch for one NaN
        symmetric = torch.where(finite, (X + X.mT) / 2, 0.0)
        ctx.save_for_backward(symmetric)
        return torch.where(finite, project_semidefinite(symmetric), torch.nan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        values, V = torch.linalg.eigh(*ctx.saved_tensors)
        frame = semidefinite_frame(values, V, torch.zeros_like(values[..., :1]))
        return unpack(_apply_frame(frame, pack(grad)), grad.shape[-1])
