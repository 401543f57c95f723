"""The simplex: ``y >= 0, sum(y) = total``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.elementary import project_simplex
from hardnet.functional.samples import Policy
from hardnet.sets.base import Name, Number
from hardnet.sets.scaled import Sums


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

    projectable = True

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

    def _names(self, numbers: SimplexNumbers, like: Tensor) -> tuple[list[str], list[str]]:
        """``name[i]`` for ``y_i >= 0``, then ``name.total``."""
        return [f"[{i}]" for i in range(self._dim)], [".total"]

    def declared_rows(self, count: int) -> list[int]:
        """The total, which is the last row."""
        return [count - 1]

    def extra_repr(self) -> str:
        """N and the total."""
        return f"dim={self._dim}, {super().extra_repr()}"

    def sums(self, like: Tensor) -> Tensor:
        """A row of ones."""
        return like.new_ones(1, self._dim)

    def totals(self, numbers: SimplexNumbers) -> tuple[Tensor, Tensor]:
        """The total alone."""
        total = numbers.total.unsqueeze(-1)
        return total, total

    def known_totals(self, like: Tensor) -> Tensor:
        """The total, where it is one constant."""
        fixed = self.fixed("total")
        return like.new_full((1,), torch.nan) if fixed is None or fixed.dim() else fixed.to(like)[None]

    def project(
        self, numbers: SimplexNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``relu(raw - shift)``; a negative total is invalid, any other gives points."""
        return project_simplex(raw, numbers.total, on_invalid=on_invalid)
