"""Rows that bound one output times a power of two (``y_j <= u``, ``-2 y_j <= u``): y is clamped to meet them."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import shift_each


def clamp_coordinates(y: Tensor, A: Tensor, row: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Y ``(B, n)`` clamped to the bounds of the rows with a single entry that is a power of two.

    Args:
        y: ``(B, n)``, in the original units.
        A: Rows divided by ``2^row``: ``(m, n)`` or ``(B, m, n)`` with largest entries in [1/2, 1).
        row: Exponents of the rows, ``(m,)`` or ``(B, m)``.
        lower: ``(B, m)``, in the original units.
        upper: Like `lower`.
    """
    largest, place = A.abs().max(-1)
    alone = (largest == 0.5) & ((A != 0).sum(-1) == 1)
    positive = A.gather(-1, place.unsqueeze(-1)).squeeze(-1) > 0
    low, high = shift_each((lower, upper), 1 - row)
    low, high = torch.where(positive, low, -high), torch.where(positive, high, -low)
    place = place.expand_as(low)
    least = torch.full_like(y, -torch.inf).scatter_reduce(-1, place, torch.where(alone, low, -torch.inf), "amax")
    most = torch.full_like(y, torch.inf).scatter_reduce(-1, place, torch.where(alone, high, torch.inf), "amin")
    return torch.minimum(torch.maximum(y, least), most)
