"""HardNet-Aff with the pseudo-inverse at hand: a constant A, factorised once and applied often.

The factor is ``P = A⁺'`` ``(m, n)``: forward ``y = raw + P' s``, backward ``w = P g`` and ``(A A')⁻¹ s = P P' s``:
two products each, and nothing else that grows with n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import (
    clamp_valid,
    may_look,
    minus_times_transposed,
    outer_sum,
    split_by_side,
    times,
)
from hardnet.functional.affine_bounds import times_transposed as times_t
from hardnet.kernels.cpu.affine_factor import SHRUNK, SMALL_ENTRY

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


def forward(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None = None
) -> tuple[Tensor, Saved]:
    """``y = raw + P' s`` for raw ``(B, n)``, A and the factor P ``(m, n)`` or ``(B, m, n)``; P is made if not given."""
    P = pseudo_inverse(A) if factor is None else factor
    product = times(A, raw)
    excess = product.sub_(clamp_valid(product, lower, upper))
    y = minus_times_transposed(raw, P, excess)
    chosen = inexact(raw, A, y)
    if chosen is not False:
        product = times(A, y)
        rest = product.sub_(product.clamp(lower, upper))
        y = minus_times_transposed(y, P, rest if chosen is True else torch.where(chosen, rest, 0))
    return y, (excess, y) if factor is not None else (excess, y, P)


def inexact(raw: Tensor, A: Tensor, y: Tensor) -> Tensor | bool:
    """Which samples need the closed form again, at y: ``(B, 1)``, or all of them, or none.

    The first pass leaves rounding relative to the terms ``|a||raw|`` of a row, and a certificate holds y to ``|a||y|``.
    Where every row feels every output, that matters only for outputs that shrank.
    """
    if not may_look(A) or A.dim() == 3:
        return True
    least, most = A.abs().aminmax()
    if not (least > SMALL_ENTRY * most).item():
        return True
    length, before = (torch.linalg.vector_norm(point, dim=-1, keepdim=True) for point in (y, raw))
    shrunk = length < SHRUNK * before
    return shrunk if shrunk.any().item() else False


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool, factor: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y ``(B, n)``: see `hardnet.functional.affine_core`."""
    excess, y = saved[:2]
    P = saved[2] if factor is None else factor
    w = times(P, gradient)
    active, above, below = split_by_side(excess, w)
    grad_matrix = matrix_gradient(gradient, raw, A, P, y, w, active) if wants_matrix else None
    return gradient - times_t(A, active), grad_matrix, below, above


def matrix_gradient(
    gradient: Tensor, raw: Tensor, A: Tensor, P: Tensor, y: Tensor, w: Tensor, active: Tensor
) -> Tensor:
    """``g_A = P step (g - A' w)' - w step' - V w raw'`` with ``step = y - raw``, ``w = P g`` and ``active = V w``."""
    across, step = gradient - times_t(A, w), y - raw
    return outer_sum(A, (times(P, step), -w, -active), (across, step, raw))
