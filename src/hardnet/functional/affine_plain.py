"""HardNet-Aff and its gradients written in differentiable operations alone: the reference, and the second derivative.

Any order of derivative and any function transform goes through these lines; the fast paths must agree with them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import nan_where_negative, outer_sum, signed_violation, split_by_side, times
from hardnet.functional.affine_bounds import times_transposed as times_t

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


def differentiable_pinv(A: Tensor) -> Tensor:
    """``A⁺' = R⁻¹ Q'`` with ``A' = Q R``, for A ``(*batch, m, n)``; NaN where the rows are dependent."""
    Q, R = torch.linalg.qr(A.mT)
    rounding = 4 * A.shape[-1] * torch.finfo(A.dtype).eps * torch.linalg.vector_norm(A.detach(), dim=-1)
    left = (R.detach().diagonal(dim1=-2, dim2=-1).abs() - rounding).amin(-1, keepdim=True).unsqueeze(-1)
    return torch.linalg.solve_triangular(R, Q.mT, upper=True) + nan_where_negative(left)


def enforce(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``y = raw + A⁺ (relu(lower - A raw) - relu(A raw - upper))``."""
    return raw + times_t(differentiable_pinv(A), signed_violation(times(A, raw), lower, upper))


def gradients(gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Gradients:
    """The vector-Jacobian products of `enforce` from the closed formulas, themselves differentiable.

    With ``s`` the signed violation, ``V = diag(s != 0)``, ``w = A⁺' g``, ``step = A⁺ s`` and ``q = (A A')⁻¹ s``:

        g_raw = g - A' V w,   g_lower = w [s > 0],   g_upper = w [s < 0],
        g_A = q (g - A⁺ A g)' - w step' - V w raw'.
    """
    P = differentiable_pinv(A)
    violation = signed_violation(times(A, raw), lower, upper)
    w = times(P, gradient)
    active, below, above = split_by_side(violation, w)
    step = times_t(P, violation)
    grad_matrix = outer_sum(A, (times(P, step), -w, -active), (gradient - times_t(A, w), step, raw))
    return gradient - times_t(A, active), grad_matrix, below, above
