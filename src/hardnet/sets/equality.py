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
        name: What errors and certificates call these rows.
    """

    stored_as = {"b": "lower"}
    declares_equalities = True

    def __init__(self, A: Number, b: Number, *, name: str | None = None) -> None:
        super().__init__(A, lower=b, name=name)

    def numbers(self, x: Any, like: Tensor) -> AffineRows:
        """``A(x), b(x), b(x)``, with b evaluated once."""
        A = self.number("A", x, like)
        b = self.number("lower", x, like, m=A.shape[-2])
        return AffineRows(A, b, b)

    def equality_rows(self, numbers: AffineRows, like: Tensor) -> list[int]:
        """All of them."""
        return self.declared_rows(numbers.A.shape[-2])

    def declared_rows(self, count: int) -> list[int]:
        """All of them."""
        return list(range(count))

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """B on both sides, where it is constant."""
        bounds = super().fixed_bounds(like)
        return None if bounds is None else (bounds[0], bounds[0])
