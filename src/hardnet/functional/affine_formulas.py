"""``y = raw + A⁺ s`` and its derivative as formulas on tensors: every path of the closed form is made of these lines.

With ``s = relu(lower - A raw) - relu(A raw - upper)``, ``V = diag(s != 0)``, ``w = A⁺' g``, ``step = A⁺ s`` and
``q = (A A')⁻¹ s = A⁺' step``, the gradient g of y gives

    g_raw = g - A' V w,   g_lower = w [s > 0],   g_upper = w [s < 0],   g_A = q (g - A' w)' - w step' - V w raw'.

Shapes are flat: raw ``(B, n)``, A ``(B, m, n)`` or ``(m, n)`` for all samples, bounds ``(B, m)`` or ``(m,)`` or None.
"""

from __future__ import annotations

import torch
from torch import Tensor

Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]
VERIFIED = 12
"""How many roundings of a row's size may be left at y: less than a certificate allows, more than a good answer has."""


def times(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(B, m, n)`` and v ``(B, n)``: ``(B, m)``."""
    return vector @ A.mT if A.dim() == 2 else torch.bmm(vector.unsqueeze(-2), A.mT).squeeze(-2)


def times_transposed(A: Tensor, vector: Tensor) -> Tensor:
    """``A' v`` for A ``(m, n)`` or ``(B, m, n)`` and v ``(B, m)``: ``(B, n)``."""
    return vector @ A if A.dim() == 2 else torch.bmm(vector.unsqueeze(-2), A).squeeze(-2)


def outer_sum(A: Tensor, left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
    """``sum_k l_k r_k'`` in the shape of A: per sample, or summed over the batch where A is ``(m, n)``."""
    if A.dim() == 2:
        total = left[0].mT @ right[0]
        for first, second in zip(left[1:], right[1:], strict=True):
            total = torch.addmm(total, first.mT, second)
        return total
    return torch.bmm(torch.stack(left, -1), torch.stack(right, -2))


def to_bounds(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``s = clamp(p, lower, upper) - p`` for bounds that are known to be valid."""
    return product.clamp(lower, upper) - product


def signed_violation(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``s = relu(lower - p) - relu(p - upper) = clamp(p, lower, upper) - p``, NaN for samples with invalid numbers.

    Invalid is lower > upper, lower = +inf, upper = -inf, NaN, or an infinite product.
    """
    largest = torch.finfo(product.dtype).max
    room = torch.full_like(product, largest) if lower is None or upper is None else upper - lower
    for side, sign in ((lower, -1), (upper, 1)):
        if side is not None:  # negative where a bound is infinite on the wrong side
            room = torch.minimum(room, (sign * side).clamp_max(0) + largest)
    room = torch.minimum(room, largest - product.abs())
    return to_bounds(product, lower, upper) + nan_where_negative(room.amin(-1, keepdim=True))


def nan_where_negative(number: Tensor) -> Tensor:
    """Zero where the number is >= 0, NaN elsewhere: added to an answer, it poisons bad samples without a branch.

    Cut from the graph: the derivative of the root at zero would be NaN for every sample.
    """
    return number.detach().clamp_max(0).sqrt()


def split_by_side(violation: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``w`` on the violated rows (V w), on those below their lower and above their upper bound; zero elsewhere."""
    side = violation.sign()
    active, below = w * side * side, w * side.clamp_min(0)
    return active, below, active - below


def moved(raw: Tensor, step: Tensor) -> Tensor:
    """``raw + step``, and raw itself, bit for bit, where the step is zero: ``-0.0 - (0 - 0.0)`` keeps its sign."""
    return raw - torch.rsub(step, 0)


def row_size(A: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, rounding: float) -> Tensor:
    """``|a|_1 max |y| + |bounds|``: what the rounding of a row is relative to, ``(B, m)``.

    As in a certificate, outputs count as at least one rounding of 1 where all bounds of a row are 0: then nothing else
    says what is small.
    """
    weight = A.abs().sum(-1)
    bounds = torch.zeros_like(weight)
    for side in (lower, upper):
        if side is not None:
            bounds = bounds + torch.where(side.isfinite(), side.abs(), 0)
    return weight * y.abs().amax(-1, keepdim=True) + torch.where(bounds > 0, bounds, rounding * weight)


def unverified(
    rest: Tensor, A: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, rounding: float
) -> Tensor:
    """Samples ``(B,)`` of which some row is off its bounds by more than `VERIFIED` roundings of its size at y.

    Args:
        rest: ``clamp(A y, lower, upper) - A y``, ``(B, m)``; not finite is not verified.
        A: ``(m, n)`` or ``(B, m, n)``.
        y: ``(B, n)``.
        lower: ``(m,)`` or ``(B, m)`` or None.
        upper: Like `lower`.
        rounding: Of the dtype that y is rounded to.
    """
    return ~(rest.abs() <= VERIFIED * rounding * row_size(A, y, lower, upper, rounding)).all(-1)
