"""Powers of two that give every row and every sample numbers of size one: exact to divide by, and nothing overflows.

Row i is divided by ``2^r_i``, the power above its largest entry, a sample by ``2^s``: the power above its largest raw
output and above the distance that a bound on the far side of zero asks for (``lower > 0`` or ``upper < 0``). Every
projection is invariant: ``y = 2^s y_scaled``, ``dual = 2^(s - r) dual_scaled``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = 1000
"""Most that an exponent is changed by: twice a power of this size is still a number."""


class Units(NamedTuple):
    """Exponents of rows ``(m,)`` or ``(B, m)`` and of samples ``(B, 1)``, as int32."""

    row: Tensor
    sample: Tensor


def measure(raw: Tensor, size: Tensor, lower: Tensor, upper: Tensor) -> Units:
    """The units of raw ``(B, n)``, bounds ``(B, m)`` and rows with largest entries `size`, ``(m,)`` or ``(B, m)``."""
    row = exponent(size)
    asked = torch.maximum(lower, -upper)
    asked = torch.where((asked > 0) & asked.isfinite(), exponent(asked) - row, -LARGEST)
    largest = raw.abs().amax(-1, keepdim=True)
    sample = torch.where(largest > 0, exponent(largest), -LARGEST)
    sample = torch.maximum(sample, asked.amax(-1, keepdim=True)) if asked.shape[-1] else sample
    return Units(row, sample.clamp(-LARGEST, LARGEST))


def exponent(size: Tensor) -> Tensor:
    """The e of ``size = f 2^e`` with f in [1/2, 1), kept within the range of `LARGEST`; 0 for zero."""
    return torch.frexp(size).exponent.clamp(-LARGEST, LARGEST)


def shift(tensor: Tensor, exponent: Tensor) -> Tensor:
    """``tensor 2^exponent`` for exponents up to twice `LARGEST`, in two factors that cannot overflow on the way."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    return tensor * power(half) * power(exponent - half)


def shift_rows(A: Tensor, row: Tensor) -> Tensor:
    """``A_i / 2^r_i``."""
    return A * power(-row).unsqueeze(-1)


def power(exponent: Tensor) -> Tensor:
    """``2^exponent`` in float64, from its bits: exact on every device."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)
