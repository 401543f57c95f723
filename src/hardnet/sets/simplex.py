"""Non-negative outputs with fixed sums, ``y >= 0, A y = totals(x)`` for a constant A of zeros and ones; the simplex."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.elementary import project_simplex
from hardnet.functional.samples import Policy
from hardnet.sets.affine import interval_residual, interval_scale
from hardnet.sets.base import AffineRows, ConstraintSet, Name, Number
from hardnet.structure import BoxedRows


class Sums(ConstraintSet):
    """``y >= 0, A y = totals(x)``: what a simplex and a transport polytope share.

    A subclass gives A, the totals of its numbers, and the names of both.
    """

    polyhedral = True
    same_rows = True
    declares_equalities = True

    @abstractmethod
    def sums(self, like: Tensor) -> Tensor | None:
        """A ``(k, n)``, which row adds up which outputs; None where no constant tells its shape."""

    @abstractmethod
    def totals(self, numbers: Any) -> tuple[Tensor, Tensor]:
        """The least and the most that the rows add up to, ``(k,)`` or ``(*batch, k)`` each."""

    @abstractmethod
    def known_totals(self, like: Tensor) -> Tensor:
        """The same ``(k,)`` as far as construction knows it; NaN elsewhere."""

    @abstractmethod
    def _names(self, numbers: Any, like: Tensor) -> tuple[list[str], list[str]]:
        """What stands behind the name of the set for each output, and for each sum."""

    def row_names(self, numbers: Any, like: Tensor, label: str | None = None) -> list[str]:
        """Those of the outputs, then those of the sums."""
        sums, outputs = self.structure_names(numbers, like, label)
        return outputs + sums

    def structure_names(self, numbers: Any, like: Tensor, label: str | None = None) -> tuple[list[str], list[str]]:
        """The sums, and the outputs."""
        if isinstance(self.name, tuple):
            rows = super().row_names(numbers, like, label)
            return rows[like.shape[-1] :], rows[: like.shape[-1]]
        label = self.label if label is None else label
        outputs, sums = self._names(numbers, like)
        return [label + name for name in sums], [label + name for name in outputs]

    def row_count(self, numbers: Any, like: Tensor) -> int:
        """N + k."""
        return like.shape[-1] + self.totals(numbers)[0].shape[-1]

    def equality_rows(self, numbers: Any, like: Tensor) -> list[int]:
        """Those of the last rows, the sums, that are declared equalities."""
        return self.declared_rows(self.row_count(numbers, like))

    def rows(self, numbers: Any, like: Tensor) -> AffineRows:
        """N rows ``y_i >= 0`` above the sums."""
        least, most = self.totals(numbers)
        zeros = least.new_zeros(*least.shape[:-1], like.shape[-1])
        lower, upper = torch.cat([zeros, least], dim=-1), torch.cat([zeros + torch.inf, most], dim=-1)
        eye = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
        return AffineRows(torch.cat([eye, self._sums_at(numbers, like)]), lower, upper)

    def structure(self, numbers: Any, like: Tensor) -> BoxedRows:
        """The sums; ``y >= 0`` is the box."""
        A, declared = self._sums_at(numbers, like), set(self.declared_rows(self.row_count(numbers, like)))
        equality = tuple(like.shape[-1] + row in declared for row in range(len(A)))
        return BoxedRows(A, *self.totals(numbers), like.new_zeros(like.shape[-1]), equality=equality)

    def _sums_at(self, numbers: Any, like: Tensor) -> Tensor:
        """A, whose shape the numbers tell where no constant does."""
        A = self.sums(like)
        assert A is not None
        return A

    def fixed_matrix(self, like: Tensor) -> Tensor | None:
        """The identity on top of A."""
        A = self.sums(like)
        return None if A is None else torch.cat([torch.eye(A.shape[-1], dtype=like.dtype, device=like.device), A])

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """``(0, ..., 0, totals)`` and ``(inf, ..., inf, totals)``; NaN for a total that only x knows."""
        A = self.sums(like)
        if A is None:
            return None
        known = self.known_totals(like)
        return tuple(torch.cat([like.new_full(A.shape[-1:], side), known]) for side in (0.0, torch.inf))  # pyright: ignore[reportReturnType]

    def residual(self, numbers: Any, y: Tensor) -> Tensor:
        """``relu(-y)``, and how far the sums are from their totals."""
        sums = interval_residual(y @ self._sums_at(numbers, y).mT, *self.totals(numbers))
        return torch.cat([(-y).clamp_min(0), sums], dim=-1)

    def scale(self, numbers: Any, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |bounds|``, as for any affine row."""
        largest = y.abs().amax(-1, keepdim=True)
        A, totals = self._sums_at(numbers, y), self.totals(numbers)
        sums = interval_scale(A.sum(-1), y, *totals)
        return torch.cat([largest.expand_as(y), sums], dim=-1)


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
