"""Non-negative outputs with fixed sums, ``y >= 0, A y = totals(x)`` for a constant A of zeros and ones; the simplex."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.sets.base import ConstraintSet, Name, Number
from hardnet.structure import BoxedRows


class Sums(ConstraintSet):
    """``y >= 0, A y = totals(x)``: what a simplex and a transport polytope share.

    A subclass gives A, the totals of its numbers, and the names of both.
    """

    polyhedral = True

    @abstractmethod
    def sums(self, numbers: Any, like: Tensor) -> Tensor:
        """A ``(k, n)``, which row adds up which outputs."""

    @abstractmethod
    def totals(self, numbers: Any) -> tuple[Tensor, Tensor]:
        """The least and the most that the rows add up to, ``(k,)`` or ``(*batch, k)`` each."""

    @property
    def declared(self) -> int:
        """How many of the sums are equalities by their class: the first ones."""
        return 1

    def data(self, numbers: Any, like: Tensor) -> BoxedRows:
        """The sums; ``y >= 0`` is the box."""
        A = self.sums(numbers, like)
        equality = tuple(row < self.declared for row in range(len(A)))
        return BoxedRows(A, *self.totals(numbers), like.new_zeros(like.shape[-1]), equality=equality)


class SimplexNumbers(NamedTuple):
    """``total``: ``()`` or ``(*batch)``."""

    total: Tensor


class Simplex(Sums):
    """``y >= 0, sum(y) = total(x)``: probabilities, shares, budgets.

    Args:
        dim: n.
        total: A number >= 0, or a function of x that returns ``(*batch)``.
        name: What errors and certificates call it, or a list of names, one for each row.
    """

    has_formula = True

    def __init__(self, dim: int, total: Number = 1.0, *, name: Name = None) -> None:
        super().__init__(name)
        if not isinstance(dim, int) or dim < 1:
            raise ShapeError(sentence("dim", "a positive integer", dim))
        self._dim = dim
        self._sizes["n"] = dim
        self.take("total", total, (), "size")

    @property
    def dim(self) -> int:
        """N."""
        return self._dim

    def numbers(self, x: Any, like: Tensor) -> SimplexNumbers:
        """``total(x)``."""
        if like.shape[-1] != self._dim:
            raise ShapeError(sentence("raw", f"shape (*batch, {self._dim})", tuple(like.shape)))
        return SimplexNumbers(self.number("total", x, like))

    def suffixes(self, numbers: SimplexNumbers, like: Tensor) -> list[str]:
        """``name[i]`` for ``y_i >= 0``, then ``name.total``."""
        return [*(f"[{i}]" for i in range(self._dim)), ".total"]

    def extra_repr(self) -> str:
        """N and the total."""
        return f"dim={self._dim}, {super().extra_repr()}"

    def sums(self, numbers: SimplexNumbers, like: Tensor) -> Tensor:
        """A row of ones."""
        return like.new_ones(1, self._dim)

    def totals(self, numbers: SimplexNumbers) -> tuple[Tensor, Tensor]:
        """The total alone."""
        total = numbers.total.unsqueeze(-1)
        return total, total

    def alone(self, numbers: SimplexNumbers, like: Tensor) -> SimplexNumbers:
        """The total."""
        return numbers
