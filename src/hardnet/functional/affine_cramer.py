"""HardNet-Aff for two rows in the plane: ``A⁻¹ = [[d, -b], [-c, a]] / (a d - b c)``, with the batch last.

The error grows with cond(A); one pass with the residual ``A y - clamp(A raw, lower, upper)`` takes it out of y again.
Nothing lies across the rows of a square A, which leaves two of the three terms of the gradient of A.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import (
    clamp_lanes,
    combine,
    corrections,
    dot,
    may_look,
    nan_where_negative,
    split_by_side,
)

Saved = tuple[Tensor, ...]


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + A⁻¹ s``, refined, for raw ``(B, 2)``, A ``(B, 2, 2)``, bounds ``(B, 2)`` or ``(2,)``."""
    rows, point = A.permute(1, 2, 0).contiguous(), raw.t().contiguous()
    product = dot(rows, point)
    target = clamp_lanes(product, lower, upper)
    excess = torch.sub(product, target).add_(product, alpha=0)  # NaN where raw is infinite
    inverse = invert(rows)
    y = point - dot(inverse, excess)  # a zero step is +0.0 and keeps every bit of raw
    for _ in range(corrections(A)):
        y.sub_(dot(inverse, dot(rows, y).sub_(target)))
    return y.t(), (rows, point, inverse, excess, y)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y ``(B, 2)``: see `hardnet.functional.affine_core`."""
    rows, point, inverse, excess, y = saved
    incoming = gradient.t().contiguous()
    w = combine(incoming, inverse)
    active, above, below = split_by_side(excess, w)
    grad_matrix = None
    if wants_matrix:
        grad_matrix = w.unsqueeze(1) * (point - y)
        grad_matrix = grad_matrix.addcmul_(active.unsqueeze(1), point, value=-1).permute(2, 0, 1)
    return (incoming - combine(active, rows)).t(), grad_matrix, below.t(), above.t()


def invert(rows: Tensor) -> Tensor:
    """``A⁻¹`` of rows ``(2, 2, B)``, NaN where they are dependent to rounding."""
    (a, b), (c, d) = (row.unbind() for row in rows.unbind())
    determinant = (a * d).addcmul_(b, c, value=-1)
    squared_sine = (determinant / dot(rows, rows)).prod(0)
    rounding = (8 * torch.finfo(rows.dtype).eps) ** 2
    if not may_look(rows) or not squared_sine.amin().item() > rounding:
        determinant = determinant + nan_where_negative(squared_sine - rounding)
    return torch.stack((d, b.neg(), c.neg(), a)).view_as(rows).div_(determinant)
