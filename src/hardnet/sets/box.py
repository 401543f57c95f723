"""Boxes: ``lower <= y <= upper``, coordinate by coordinate."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.box import project_box
from hardnet.functional.inputs import check_bound
from hardnet.functional.samples import Policy
from hardnet.rows import BoxedRows
from hardnet.sets.affine import affine_scale, interval_residual
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
    """

    polyhedral = True
    projectable = True

    def __init__(self, lower: Number | None = None, upper: Number | None = None) -> None:
        super().__init__()
        if lower is None and upper is None:
            raise ShapeError(sentence("lower, upper", "at least one bound", "none", "pass lower=, upper= or both"))
        self._take("lower", lower)
        self._take("upper", upper)
        self._check_bounds(self.dim)

    @property
    def dim(self) -> int | None:
        """n, where a bound is a constant vector."""
        shapes = (self._shape(name) for name in ("lower", "upper"))
        return next((shape[-1] for shape in shapes if shape), None)

    def numbers(self, x: Any, like: Tensor) -> BoxNumbers:
        """``lower(x), upper(x)``, each ``(*batch, n)`` or ``(n,)`` or None."""
        n = like.shape[-1]
        bounds = (
            check_bound(name, self._number(name, x, like), like, n) if self._given(name) else None
            for name in ("lower", "upper")
        )
        return BoxNumbers(*bounds)

    def rows(self, numbers: BoxNumbers, like: Tensor) -> AffineRows:
        """The rows of the identity."""
        return AffineRows(self.fixed_matrix(like), numbers.lower, numbers.upper)

    def structure(self, numbers: BoxNumbers, like: Tensor) -> BoxedRows:
        """No general row; the bounds are the box."""
        return BoxedRows(like.new_empty(0, like.shape[-1]), None, None, *numbers)

    def fixed_matrix(self, like: Tensor) -> Tensor:
        """The identity."""
        return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)

    def residual(self, numbers: BoxNumbers, y: Tensor) -> Tensor:
        """``relu(y - upper) + relu(lower - y)``."""
        return interval_residual(y, *numbers)

    def scale(self, numbers: BoxNumbers, y: Tensor) -> Tensor:
        """``|y|_inf + |lower| + |upper|``, as for any affine row."""
        return affine_scale(self.rows(numbers, y), y)

    def project(
        self, numbers: BoxNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``clamp(raw, lower, upper)``; lower > upper is invalid."""
        return project_box(raw, *numbers, on_invalid=on_invalid)
