"""The simplex: ``y >= 0, sum(y) = total``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.elementary import project_simplex
from hardnet.functional.samples import Policy
from hardnet.sets.base import AffineRows, ConstraintSet, Number
from hardnet.structure import BoxedRows


class SimplexNumbers(NamedTuple):
    """``total``: ``()`` or ``(*batch)``."""

    total: Tensor


class Simplex(ConstraintSet):
    """``y >= 0, sum(y) = total(x)``: probabilities, shares, budgets.

    Args:
        dim: n.
        total: A number >= 0, or a function of x that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    polyhedral = True
    projectable = True
    same_rows = True
    declares_equalities = True

    def __init__(self, dim: int, total: Number = 1.0, *, name: str | None = None) -> None:
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

    def row_count(self, numbers: SimplexNumbers, like: Tensor) -> int:
        """N + 1."""
        return self._dim + 1

    def row_names(self, numbers: SimplexNumbers, like: Tensor, label: str | None = None) -> list[str]:
        """``name[i]`` for ``y_i >= 0``, then ``name.total``."""
        label = self.label if label is None else label
        return [*(f"{label}[{i}]" for i in range(self._dim)), f"{label}.total"]

    def structure_names(
        self, numbers: SimplexNumbers, like: Tensor, label: str | None = None
    ) -> tuple[list[str], list[str]]:
        """The total, and the coordinates."""
        names = self.row_names(numbers, like, label)
        return names[-1:], names[:-1]

    def equality_rows(self, numbers: SimplexNumbers, like: Tensor) -> list[int]:
        """The total."""
        return [self._dim]

    def declared_rows(self, count: int) -> list[int]:
        """The total, which is the last row."""
        return [count - 1]

    def extra_repr(self) -> str:
        """N and the total."""
        return f"dim={self._dim}, {super().extra_repr()}"

    def rows(self, numbers: SimplexNumbers, like: Tensor) -> AffineRows:
        """N rows ``y_i >= 0`` and one row ``sum(y) = total``."""
        total = numbers.total.unsqueeze(-1)
        zeros = total.new_zeros(*total.shape[:-1], self._dim)
        lower, upper = torch.cat([zeros, total], dim=-1), torch.cat([zeros + torch.inf, total], dim=-1)
        return AffineRows(self.fixed_matrix(like), lower, upper)

    def structure(self, numbers: SimplexNumbers, like: Tensor) -> BoxedRows:
        """One row of ones; ``y >= 0`` is the box."""
        total = numbers.total.unsqueeze(-1)
        return BoxedRows(like.new_ones(1, self._dim), total, total, like.new_zeros(self._dim), equality=(True,))

    def fixed_matrix(self, like: Tensor) -> Tensor:
        """The identity on top of a row of ones."""
        eye = torch.eye(self._dim, dtype=like.dtype, device=like.device)
        return torch.cat([eye, torch.ones_like(eye[:1])])

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """``(0, ..., 0, total)`` and ``(inf, ..., inf, total)``; NaN for a total that only x knows."""
        fixed = self.fixed("total")
        total = like.new_tensor(torch.nan) if fixed is None or fixed.dim() else fixed.to(like)
        return tuple(torch.cat([like.new_full((self._dim,), side), total[None]]) for side in (0.0, torch.inf))  # pyright: ignore[reportReturnType]

    def residual(self, numbers: SimplexNumbers, y: Tensor) -> Tensor:
        """``relu(-y)`` and ``|sum(y) - total|``."""
        gap = (y.sum(-1) - numbers.total).abs()
        return torch.cat([(-y).clamp_min(0), gap.unsqueeze(-1)], dim=-1)

    def scale(self, numbers: SimplexNumbers, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |bounds|``, as for any affine row."""
        largest = y.abs().amax(-1, keepdim=True)
        total = self._dim * largest + 2 * numbers.total.abs().unsqueeze(-1)
        return torch.cat([largest.expand_as(y), total], dim=-1)

    def project(
        self, numbers: SimplexNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``relu(raw - shift)``; a negative total is invalid, any other gives points."""
        return project_simplex(raw, numbers.total, on_invalid=on_invalid)
