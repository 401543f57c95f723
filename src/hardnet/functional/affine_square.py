"""HardNet-Aff where A is square: one pivoted LU, since ``A⁺ = A⁻¹``.

No Gram matrix is formed, so the error grows with cond(A). It is A' that is factorised: its columns are the rows of A,
and the size of a column changes no pivot, so rows of any size stand together without scaling. No component of the
gradient lies across the rows: ``g - A⁺ A g = 0`` leaves two of the three terms of the gradient of A.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import (
    moved,
    nan_where_negative,
    outer_sum,
    signed_violation,
    split_by_side,
    times,
)
from hardnet.functional.affine_bounds import times_transposed as times_t

Saved = tuple[Tensor, ...]


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + A⁻¹ s`` for raw ``(B, n)``, A ``(B, n, n)``, bounds ``(B, n)`` or ``(n,)``."""
    LU, pivots, _ = torch.linalg.lu_factor_ex(A.mT)
    limits = torch.finfo(A.dtype)
    rounding = torch.linalg.vector_norm(A, dim=-1).mul_(4 * A.shape[-1] * limits.eps).add_(limits.tiny)
    left = LU.diagonal(dim1=-2, dim2=-1).abs().sub_(rounding).amin(-1, keepdim=True)
    violation = signed_violation(times(A, raw), lower, upper).add_(nan_where_negative(left))
    step = correct(violation, A, (LU, pivots))
    return moved(raw, step), (LU, pivots, violation, step)


def correct(rest: Tensor, A: Tensor, saved: Saved) -> Tensor:
    """``A⁻¹ r`` for r ``(B, n)``."""
    return torch.linalg.lu_solve(saved[0], saved[1], rest.unsqueeze(-1), adjoint=True).squeeze(-1)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y ``(B, n)``: see `hardnet.functional.affine_core`."""
    LU, pivots, violation, step = saved
    w = torch.linalg.lu_solve(LU, pivots, gradient.unsqueeze(-1)).squeeze(-1)
    active, below, above = split_by_side(violation, w)
    grad_matrix = outer_sum(A, (-w, -active), (step, raw)) if wants_matrix else None
    return gradient - times_t(A, active), grad_matrix, below, above
