"""HardNet-Aff for one row: ``y = raw + a s / |a|²``, elementwise.

A zero row needs no test: ``s / 0`` is NaN or infinite, and times the zero row NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import moved, signed_violation, split_by_side

Saved = tuple[Tensor, ...]


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + a s / |a|²`` for raw ``(B, n)``, A ``(B, 1, n)``, bounds ``(B, 1)`` or ``(1,)``."""
    row = A.squeeze(-2)
    product = _dot(row, raw)
    violation = signed_violation(product, lower, upper).add_(product, alpha=0)  # NaN where raw is infinite
    square = _dot(row, row)
    q = violation / square
    return moved(raw, q * row), (violation, square, q)


def correct(rest: Tensor, A: Tensor, saved: Saved) -> Tensor:
    """``A⁺ r = a r / |a|²``."""
    return rest / saved[1] * A.squeeze(-2)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y; that of A is ``q g - 2 q w a - V w raw``."""
    violation, square, q = saved
    row = A.squeeze(-2)
    w = _dot(row, gradient).div_(square)
    active, below, above = split_by_side(violation, w)
    grad_matrix = None
    if wants_matrix:
        grad_matrix = (q * gradient).addcmul_(q * w, row, value=-2).addcmul_(active, raw, value=-1).unsqueeze(-2)
    return torch.addcmul(gradient, active, row, value=-1), grad_matrix, below, above


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """``l'r`` of each sample, ``(B, 1)``."""
    product = left * right
    return product if product.shape[-1] == 1 else product.sum(-1, keepdim=True)
