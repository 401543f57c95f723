"""HardNet-Aff for one row: ``y = raw + a s / |a|²``, elementwise, and once more with what is left at y.

A zero row needs no test: ``s / 0`` is NaN or infinite, and times the zero row NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import clamp_valid, split_by_side

Saved = tuple[Tensor, ...]


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + a s / |a|²``, refined, for raw ``(B, n)``, A ``(B, 1, n)``, bounds ``(B, 1)`` or ``(1,)``."""
    row = A.squeeze(-2)
    product = _dot(row, raw)
    target = clamp_valid(product, lower, upper)
    excess = torch.sub(product, target).add_(product, alpha=0)  # NaN where raw is infinite
    square = _dot(row, row)
    q = excess / square
    y = raw - (q * row).add_(0)  # a zero step is +0.0 and keeps every bit of raw
    rest = _dot(row, y).sub_(target).div_(square)
    return y.sub_((rest * row).add_(0)), (excess, square, q)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y; that of A is ``q g - 2 q w a - V w raw``."""
    excess, square, q = saved
    row = A.squeeze(-2)
    w = _dot(row, gradient).div_(square)
    active, above, below = split_by_side(excess, w)
    grad_matrix = None
    if wants_matrix:
        grad_matrix = (
            (q * w * row).mul_(2).addcmul_(q, gradient, value=-1).addcmul_(active, raw, value=-1).unsqueeze(-2)
        )
    return torch.addcmul(gradient, active, row, value=-1), grad_matrix, below, above


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """``l'r`` of each sample, ``(B, 1)``."""
    product = left * right
    return product if product.shape[-1] == 1 else product.sum(-1, keepdim=True)
