"""Smooth constraints given by two functions: ``inequality(y, x) <= 0`` and ``equality(y, x) = 0``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.nonlinear import call
from hardnet.sets.nonlinear import Nonlinear, NonlinearFunction, NonlinearNumbers, fit_rows


class Smooth(Nonlinear):
    """`Nonlinear` with the rows of ``inequality(y, x) <= 0`` above those of ``equality(y, x) = 0``.

    Args:
        dim: n.
        inequality: ``(y, x) -> (*batch, q)``, differentiable; None for none.
        equality: ``(y, x) -> (*batch, e)``, differentiable; None for none.
        name: What errors and certificates call these rows.
    """

    partitioned = True
    inequality: NonlinearFunction | None
    equality: NonlinearFunction | None

    def __init__(
        self,
        dim: int,
        inequality: NonlinearFunction | None = None,
        equality: NonlinearFunction | None = None,
        *,
        name: str | None = None,
    ) -> None:
        if inequality is None and equality is None:
            raise ShapeError(sentence("inequality, equality", "at least one function", "none"))
        super().__init__(inequality or equality, dim=dim, upper=0.0, name=name)  # pyright: ignore[reportArgumentType]
        self.inequality, self.equality = inequality, equality

    @property
    def tight(self) -> bool:
        """Whether there are equalities alone."""
        return self.inequality is None

    def values(self, y: Tensor, x: Any) -> Tensor:
        """Both functions, one beside the other."""
        named = (("inequality", self.inequality), ("equality", self.equality))
        return torch.cat([fit_rows(name, call(own, y, x), y) for name, own in named if own is not None], dim=-1)

    def numbers(self, x: Any, like: Tensor) -> NonlinearNumbers:
        """Upper bounds of 0, and lower bounds of 0 for the equalities alone."""
        m = self._count(x, like)
        if "q" not in self._sizes:
            with torch.no_grad():
                own = None if self.inequality is None else call(self.inequality, torch.zeros_like(like), x)
            self._sizes["q"] = 0 if own is None else own.shape[-1]
        lower = like.new_zeros(m)
        lower[: self._sizes["q"]] = -torch.inf
        return NonlinearNumbers(x, lower, like.new_zeros(m))
