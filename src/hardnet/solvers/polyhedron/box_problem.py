"""A box and a few rows in the form that the solvers share: one flat batch of float64 numbers, with rows of size 1."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import largest_power, times_columnwise, times_rowwise
from hardnet.rows import bound_size

EPS = torch.finfo(torch.float64).eps
VERIFIED = 11.0
"""How far a row may miss its bounds at an answer, in roundings of its size: rounding y to its dtype adds half of one,
and the certificate allows 16."""


class BoxProblem(NamedTuple):
    """``argmin |y - raw|  subject to  lower <= A y <= upper,  low <= y <= high``, sample by sample.

    Attributes:
        raw: ``(B, n)``.
        A: ``(B, k, n)``, or ``(1, k, n)`` for all samples; each row divided by a power of two near its largest entry.
        lower: ``(B, k)`` or ``(1, k)``, divided likewise.
        upper: Like `lower`.
        low: ``(B, n)`` or ``(1, n)``.
        high: Like `low`.
    """

    raw: Tensor
    A: Tensor
    lower: Tensor
    upper: Tensor
    low: Tensor
    high: Tensor

    @property
    def equality(self) -> Tensor:
        """``lower == upper``."""
        return self.lower == self.upper

    @property
    def fixed(self) -> Tensor:
        """``low == high``."""
        return self.low == self.high

    def clamp(self, point: Tensor) -> Tensor:
        """The nearest point of the box."""
        return torch.minimum(torch.maximum(point, self.low), self.high)

    def times(self, y: Tensor) -> Tensor:
        """``A y``, ``(B, k)``."""
        return times_rowwise(self.A, y)

    def transposed(self, dual: Tensor) -> Tensor:
        """``A' dual``, ``(B, n)``."""
        return times_columnwise(self.A, dual)

    def size(self, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |bounds|``, ``(B, k)``, to which a row's rounding is relative."""
        weight = self.A.abs().sum(-1)
        return weight * y.abs().amax(-1, keepdim=True) + bound_size(self.lower, self.upper, weight)

    def excess(self, product: Tensor) -> Tensor:
        """``A y - clamp(A y, lower, upper)``, ``(B, k)``."""
        return (product - self.upper).clamp_min(0.0) - (self.lower - product).clamp_min(0.0)

    def holds(self, y: Tensor, rounding: float) -> Tensor:
        """Whether every row is within `VERIFIED` roundings of its size at y, ``(B,)``; false for NaN.

        Where both bounds of a row are zero, the size is at least one rounding of ``|a|_1``, as in a certificate.
        """
        size = self.size(y)
        floor = torch.where(self.size(torch.zeros_like(y)) > 0, 0.0, rounding * self.A.abs().sum(-1))
        return ((self.excess(self.times(y)).abs() <= VERIFIED * rounding * (size + floor)) & size.isfinite()).all(-1)


def power_near(size: Tensor) -> Tensor:
    """A power of two near a size, 1 for zero, so that dividing by it is exact; uses operations that every graph has."""
    exponent = torch.log2(torch.where(size > 0, size, 1.0)).round()
    return torch.exp2(exponent.clamp_max(largest_power(size.dtype)))
