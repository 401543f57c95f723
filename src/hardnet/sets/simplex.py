"""The simplex: ``y >= 0, sum(y) = total``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import BoundsError, ShapeError, sentence
from hardnet.functional.inputs import broadcast_batch, require_like
from hardnet.functional.samples import Policy
from hardnet.functional.simplex import project_simplex
from hardnet.rows import BoxedRows
from hardnet.sets.affine import affine_residual, affine_scale
from hardnet.sets.base import AffineRows, ConstraintSet, Number


class SimplexNumbers(NamedTuple):
    """``total``: ``()`` or ``(*batch)``."""

    total: Tensor


class Simplex(ConstraintSet):
    """``y >= 0, sum(y) = total(x)``: probabilities, shares, budgets.

    Args:
        dim: n.
        total: A number >= 0, or a function of x that returns ``(*batch)``.
    """

    polyhedral = True
    projectable = True

    def __init__(self, dim: int, total: Number = 1.0) -> None:
        super().__init__()
        if not isinstance(dim, int) or dim < 1:
            raise ShapeError(sentence("dim", "a positive integer", dim))
        self._dim = dim
        self._take("total", total)
        shape, fixed = self._shape("total"), self._fixed("total")
        if shape is not None and len(shape) > 0:
            raise ShapeError(sentence("total", "one number", f"shape {tuple(shape)}", "a function of x gives (*batch)"))
        if fixed is not None and not (fixed.isfinite() and fixed >= 0):
            raise BoundsError(sentence("total", "a finite number >= 0", fixed.item()))

    @property
    def dim(self) -> int:
        """N."""
        return self._dim

    def numbers(self, x: Any, like: Tensor) -> SimplexNumbers:
        """``total(x)``."""
        total = self._number("total", x, like)
        require_like("total", total, like)
        if like.shape[-1] != self._dim:
            raise ShapeError(sentence("raw", f"shape (*batch, {self._dim})", tuple(like.shape)))
        broadcast_batch("total", like.shape[:-1], total.shape)
        return SimplexNumbers(total)

    def rows(self, numbers: SimplexNumbers, like: Tensor) -> AffineRows:
        """N rows ``y_i >= 0`` and one row ``sum(y) = total``."""
        total = numbers.total.unsqueeze(-1)
        zeros = total.new_zeros(*total.shape[:-1], self._dim)
        lower, upper = torch.cat([zeros, total], dim=-1), torch.cat([zeros + torch.inf, total], dim=-1)
        return AffineRows(self.fixed_matrix(like), lower, upper)

    def structure(self, numbers: SimplexNumbers, like: Tensor) -> BoxedRows:
        """One row of ones; ``y >= 0`` is the box."""
        total = numbers.total.unsqueeze(-1)
        return BoxedRows(like.new_ones(1, self._dim), total, total, like.new_zeros(self._dim))

    def fixed_matrix(self, like: Tensor) -> Tensor:
        """The identity on top of a row of ones."""
        eye = torch.eye(self._dim, dtype=like.dtype, device=like.device)
        return torch.cat([eye, torch.ones_like(eye[:1])])

    def residual(self, numbers: SimplexNumbers, y: Tensor) -> Tensor:
        """``relu(-y)`` and ``|sum(y) - total|``."""
        return affine_residual(self.rows(numbers, y), y)

    def scale(self, numbers: SimplexNumbers, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |lower| + |upper|``, as for any affine row."""
        return affine_scale(self.rows(numbers, y), y)

    def project(
        self, numbers: SimplexNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``relu(raw - shift)``; a negative total is invalid, any other gives points."""
        return project_simplex(raw, numbers.total, on_invalid=on_invalid)
