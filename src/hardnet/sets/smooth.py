"""Smooth constraints given by functions: ``inequality(y, x) <= 0`` and ``equality(y, x) = 0``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.sets.base import ConstraintSet
from hardnet.shapes import fit

SmoothFunction = Callable[[Tensor, Any], Tensor]
"""(y, x) -> values, for one sample ``(n,)`` and for batches ``(*batch, n)`` alike."""


def fit_rows(name: str, value: Tensor, y: Tensor) -> Tensor:
    """The values of a function as ``(*batch, rows)`` for the batch of y ``(*batch, n)``, or a `ShapeError`."""
    return fit(name, value, y, ("rows",), moving=True).expand(*y.shape[:-1], -1)


class SmoothNumbers(NamedTuple):
    """The input x itself: functions have no other numbers."""

    x: Any


class Smooth(ConstraintSet):
    """``inequality(y, x) <= 0``, ``equality(y, x) = 0``, convex or not.

    Args:
        dim: n.
        inequality: ``(y, x) -> (*batch, q)``, differentiable; None for none.
        equality: ``(y, x) -> (*batch, e)``, differentiable; None for none.
        name: What errors and certificates call these rows.
    """

    def __init__(
        self,
        dim: int,
        inequality: SmoothFunction | None = None,
        equality: SmoothFunction | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if inequality is None and equality is None:
            raise ShapeError(sentence("inequality, equality", "at least one function", "none"))
        self._sizes["n"], self.inequality, self.equality = dim, inequality, equality

    @property
    def dim(self) -> int:
        """The number of outputs n."""
        return self._sizes["n"]

    @property
    def constant(self) -> bool:
        """Never: functions may depend on x."""
        return False

    def numbers(self, x: Any, like: Tensor) -> SmoothNumbers:
        """The input."""
        return SmoothNumbers(x)

    def residual(self, numbers: SmoothNumbers, y: Tensor) -> Tensor:
        """``relu(inequality)`` and ``|equality|``."""
        rows = []
        if self.inequality is not None:
            rows.append(fit_rows("inequality", self.inequality(y, numbers.x), y).clamp_min(0))
        if self.equality is not None:
            rows.append(fit_rows("equality", self.equality(y, numbers.x), y).abs())
        return torch.cat(rows, dim=-1)

    def scale(self, numbers: SmoothNumbers, y: Tensor) -> Tensor:
        """``1 + max |y|`` for every row: the terms inside a function are not known."""
        return (1 + y.abs().amax(dim=-1, keepdim=True)).expand_as(self.residual(numbers, y))
