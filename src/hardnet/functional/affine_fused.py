"""HardNet-Aff for an A that all samples share, in one kernel each way that reads its factor ``P = A⁺'``.

The formulas are those of `hardnet.functional.affine_pinv`; only the gradient of a learned A is left to plain products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.functional.affine_bounds import times
from hardnet.functional.affine_pinv import matrix_gradient, pseudo_inverse
from hardnet.kernels.gpu.shared_launch import launch_backward, launch_forward

Saved = tuple[Any, ...]


def forward(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None = None
) -> tuple[Tensor, Saved]:
    """``y = raw + P' s`` for raw ``(B, n)``, A and the factor P ``(m, n)``; P is made if not given.

    The gradient of a learned A reads y and its P; else nothing is kept but the inputs.
    """
    P = make_factor(A) if factor is None else factor
    y = launch_forward(raw, A, P, lower, upper)
    return y, (lower, upper, y if A.requires_grad else None, P if factor is None else None)


def make_factor(A: Tensor) -> Tensor:
    """``A⁺'`` without a look at a value; NaN where the rows are dependent.

    In float32 row i is ``A⁺ e_i``, the closed form for raw = 0 and the equality ``A y = e_i``: one launch of the fused
    kernel, whose Gram matrix in float64 loses nothing. For float64 it would, and QR takes its place.
    """
    if A.dtype == torch.float64:
        return pseudo_inverse(A)
    unit = torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
    return gpu.forward(torch.zeros_like(A), A.expand(A.shape[0], *A.shape), unit, unit)[0]


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool, factor: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y ``(B, n)``: see `hardnet.functional.affine_core`."""
    lower, upper, y, made = saved
    P = made if factor is None else factor
    grad_raw, below, above = launch_backward(gradient, raw, A, P, lower, upper)
    if not wants_matrix:
        return grad_raw, None, below, above
    y = launch_forward(raw, A, P, lower, upper) if y is None else y
    active = below + above  # a row is violated on one side at most
    return grad_raw, matrix_gradient(gradient, raw, A, P, y, times(P, gradient), active), below, above
