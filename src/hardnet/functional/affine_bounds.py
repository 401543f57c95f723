"""The signed violation of ``lower <= p <= upper`` and the products that every path of the closed form shares."""

from __future__ import annotations

import torch
from torch import Tensor


def signed_violation(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``s = relu(lower - p) - relu(p - upper) = clamp(p, lower, upper) - p``, NaN where the bounds are invalid.

    Invalid is lower > upper, lower = +inf, upper = -inf or NaN; infinite bounds on the open side give s = 0.
    """
    if lower is not None and upper is not None:
        valid = (lower <= upper).logical_and_(lower < torch.inf).logical_and_(upper > -torch.inf)
    elif upper is not None:
        valid = upper > -torch.inf
    elif lower is not None:
        valid = lower < torch.inf
    else:
        return product - product
    return torch.where(valid, product.clamp(lower, upper).sub_(product), torch.nan)


def bound_gradients(violation: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """``w`` where s > 0 (the gradient of lower) and where s < 0 (that of upper); zero elsewhere."""
    return torch.where(violation > 0, w, 0), torch.where(violation < 0, w, 0)


def moved(raw: Tensor, step: Tensor) -> Tensor:
    """``raw + step``, and raw itself, bit for bit (the sign of zero included), where the step is zero."""
    return torch.where(step == 0, raw, raw + step)


def times(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(B, m, n)`` and v ``(B, n)``: ``(B, m)``."""
    return vector @ A.mT if A.dim() == 2 else torch.bmm(A, vector.unsqueeze(-1)).squeeze(-1)


def times_transposed(A: Tensor, vector: Tensor) -> Tensor:
    """``A' v`` for A ``(m, n)`` or ``(B, m, n)`` and v ``(B, m)``: ``(B, n)``."""
    return vector @ A if A.dim() == 2 else torch.bmm(vector.unsqueeze(-2), A).squeeze(-2)


def outer_sum(A: Tensor, left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
    """``sum_k l_k r_k'`` in the shape of A: per sample, or summed over the batch where A is ``(m, n)``."""
    if A.dim() == 2:
        return torch.cat(left).mT @ torch.cat(right)
    return torch.bmm(torch.stack(left, -1), torch.stack(right, -2))
