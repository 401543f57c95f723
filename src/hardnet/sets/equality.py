"""Equalities: ``A y = b``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hardnet.sets.affine import Affine
from hardnet.sets.base import AffineRows, Number


class Equality(Affine):
    """``A(x) y = b(x)``: affine rows whose two bounds are the same number.

    Args:
        A: ``(m, n)``, or a function of x that returns ``(*batch, m, n)``.
        b: ``(m,)`` or a number for all rows, or a function that returns ``(*batch, m)``.
    """

    stored_as = {"b": "lower"}

    def __init__(self, A: Number, b: Number) -> None:
        super().__init__(A, lower=b)

    def numbers(self, x: Any, like: Tensor) -> AffineRows:
        """``A(x), b(x), b(x)``, with b evaluated once."""
        b = self._number("lower", x, like)
        return AffineRows(self._number("A", x, like), b, b)
