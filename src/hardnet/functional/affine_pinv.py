"""HardNet-Aff with the pseudo-inverse at hand: a constant A, factorised once and applied often.

The factor is ``P = A⁺'`` ``(m, n)``: forward ``y = raw + P' s``, backward ``w = P g`` and ``(A A')⁻¹ s = P P' s``:
two products each, and nothing else that grows with n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import bound_gradients, moved, outer_sum, signed_violation, times
from hardnet.functional.affine_bounds import times_transposed as times_t

Saved = tuple[Tensor, ...]


def pseudo_inverse(A: Tensor) -> Tensor:
    """``A⁺'`` for A ``(*batch, m, n)`` by QR of the row-scaled A' in float64; NaN where the rows are dependent."""
    wide = A if A.device.type == "mps" else A.double()
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).reciprocal()
    Q, R = torch.linalg.qr((wide * scale).mT)
    inverse = torch.linalg.solve_triangular(R, torch.eye(R.shape[-1], dtype=R.dtype, device=R.device), upper=True)
    # 1 / |R⁻¹| bounds the smallest singular value of the scaled rows from below, within sqrt(m)
    smallest = torch.linalg.vector_norm(inverse, dim=(-2, -1), keepdim=True).reciprocal()
    independent = smallest > 4 * A.shape[-1] * torch.finfo(A.dtype).eps
    return (torch.where(independent, inverse, torch.nan) @ Q.mT).mul(scale).to(A.dtype)


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor) -> tuple[Tensor, Saved]:
    """``y = raw + P' s`` for raw ``(B, n)``, A and factor ``(m, n)`` or ``(B, m, n)``."""
    violation = signed_violation(times(A, raw), lower, upper)
    step = times_t(factor, violation)
    return moved(raw, step), (factor, violation, step)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y ``(B, n)``: see `hardnet.functional.affine_core`."""
    factor, violation, step = saved
    w = times(factor, gradient)
    active = torch.where(violation == 0, 0, w)
    grad_matrix = None
    if wants_matrix:
        across = gradient - times_t(A, w)
        grad_matrix = outer_sum(A, (times(factor, step), -w, -active), (across, step, raw))
    return gradient - times_t(A, active), grad_matrix, *bound_gradients(violation, w)
