"""Boxes: ``lower <= y <= upper``, coordinate by coordinate.

Called by users, `hardnet.integrations.gymnasium`, `hardnet.problems.suites.acopf` and others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.box import project_box
from hardnet.functional.samples import Policy
from hardnet.rows import BoxedRows
from hardnet.sets.affine import interval_residual, interval_scale, known_bounds
from hardnet.sets.base import AffineRows, ConstraintSet, Number


class BoxNumbers(NamedTuple):
    """``lower <= y <= upper``; an absent bound is infinite."""

    lower: Tensor | None
    upper: Tensor | None


class Box(ConstraintSet):
    """``lower(x) <= y <= upper(x)``.

    Args:
        lower: ``(n,)`` or a number for all coordinates, or a function that returns ``(*batch, n)``.
        upper: Like `lower`; an absent bound is infinite.
        name: What errors and certificates call these coordinates.
    """

    polyhedral = True
    projectable = True
    same_rows = True

    def __init__(self, lower: Number | None = None, upper: Number | None = None, *, name: str | None = None) -> None:
        super().__init__(name)
        if lower is None and upper is None:
            raise ShapeError(sentence("lower, upper", "at least one bound", "none", "pass lower=, upper= or both"))
        self.take("lower", lower, ("n",), "lower")
        self.take("upper", upper, ("n",), "upper")
        self._check_bounds()

    def numbers(self, x: Any, like: Tensor) -> BoxNumbers:
        """``lower(x), upper(x)``, each ``(*batch, n)`` or ``(n,)`` or None."""
        return BoxNumbers(*(self.number(name, x, like) if self.has(name) else None for name in ("lower", "upper")))

    def row_count(self, numbers: BoxNumbers, like: Tensor) -> int:
        """N."""
        return like.shape[-1]

    def structure_names(
        self, numbers: BoxNumbers, like: Tensor, label: str | None = None
    ) -> tuple[list[str], list[str]]:
        """No general row, and a name for each coordinate."""
        return [], self.row_names(numbers, like, label)

    def rows(self, numbers: BoxNumbers, like: Tensor) -> AffineRows:
        """The rows of the identity."""
        return AffineRows(self.fixed_matrix(like), numbers.lower, numbers.upper)

    def structure(self, numbers: BoxNumbers, like: Tensor) -> BoxedRows:
        """No general row; the bounds are the box."""
        return BoxedRows(like.new_empty(0, like.shape[-1]), None, None, *numbers, equality=())

    def fixed_matrix(self, like: Tensor) -> Tensor:
        """The identity."""
        return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Each side where it is constant or absent; NaN where only x knows."""
        return known_bounds(self, like.new_empty(like.shape[-1]))

    def residual(self, numbers: BoxNumbers, y: Tensor) -> Tensor:
        """``relu(y - upper) + relu(lower - y)``."""
        return interval_residual(y, *numbers)

    def scale(self, numbers: BoxNumbers, y: Tensor) -> Tensor:
        """``|y|_inf + |lower| + |upper|``, as for any affine row."""
        return interval_scale(y.abs().amax(-1, keepdim=True).expand_as(y), *numbers)

    def project(
        self, numbers: BoxNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``clamp(raw, lower, upper)``; lower > upper is invalid."""
        return project_box(raw, *numbers, on_invalid=on_invalid)
