"""Affine rows: ``lower <= A y <= upper``, and equalities as the case ``lower == upper``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.completion import matvec
from hardnet.functional.inputs import check_affine
from hardnet.sets.base import AffineRows, ConstraintSet, Number


def affine_residual(rows: AffineRows, y: Tensor) -> Tensor:
    """``relu(A y - upper) + relu(lower - A y)``, row by row: ``(*batch, m)``."""
    return interval_residual(matvec(rows.A, y), rows.lower, rows.upper)


def interval_residual(value: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``relu(v - upper) + relu(lower - v)``, entry by entry; an absent bound is infinite."""
    total = torch.zeros_like(value)
    if upper is not None:
        total = total + (value - upper).clamp_min(0)
    if lower is not None:
        total = total + (lower - value).clamp_min(0)
    return total


def affine_scale(rows: AffineRows, y: Tensor) -> Tensor:
    """``|a|_1 |y|_inf + |lower| + |upper|`` over the finite bounds, row by row: ``(*batch, m)``.

    Measured by the largest output, not output by output: an output is rounded relative to the sums it came from, so a
    coordinate that lands on the bound 0 among outputs of size 1 may be off by a rounding of 1, not of 0.
    """
    size = rows.A.abs().sum(-1) * y.abs().amax(-1, keepdim=True)
    for side in (rows.lower, rows.upper):
        if side is not None:
            size = size + torch.where(side.isfinite(), side.abs(), 0)
    return size


class Affine(ConstraintSet):
    """``lower(x) <= A(x) y <= upper(x)``.

    An absent bound is infinite; ``lower == upper`` is an equality. Every argument is a tensor (constant), a
    function of x, or a module of x (learned).

    Args:
        A: ``(m, n)``, or a function of x that returns ``(*batch, m, n)``.
        lower: ``(m,)`` or a number for all rows, or a function that returns ``(*batch, m)``.
        upper: Like `lower`.
    """

    polyhedral = True

    def __init__(self, A: Number, lower: Number | None = None, upper: Number | None = None) -> None:
        super().__init__()
        if lower is None and upper is None:
            raise ShapeError(sentence("lower, upper", "at least one bound", "none", "pass lower=, upper= or both"))
        self._take("A", A)
        self._take("lower", lower)
        self._take("upper", upper)
        shape = self._shape("A")
        if shape is not None and len(shape) < 2:
            raise ShapeError(sentence("A", "shape (m, n) or (*batch, m, n)", tuple(shape)))
        self._check_bounds(None if shape is None else shape[-2])

    @property
    def dim(self) -> int | None:
        """n, where A is constant."""
        shape = self._shape("A")
        return None if shape is None else shape[-1]

    def numbers(self, x: Any, like: Tensor) -> AffineRows:
        """``A(x), lower(x), upper(x)``."""
        bounds = (self._number(name, x, like) if self._given(name) else None for name in ("lower", "upper"))
        return AffineRows(self._number("A", x, like), *bounds)

    def rows(self, numbers: AffineRows, like: Tensor) -> AffineRows:
        """The numbers themselves, checked against the output, with bounds of one entry per row."""
        _, lower, upper = check_affine(like, numbers.A, numbers.lower, numbers.upper)
        return AffineRows(numbers.A, lower, upper)

    def fixed_matrix(self, like: Tensor) -> Tensor | None:
        """A, where it is one constant matrix for all samples."""
        A = self._fixed("A")
        return None if A is None or A.dim() != 2 else A

    def residual(self, numbers: AffineRows, y: Tensor) -> Tensor:
        """``relu(A y - upper) + relu(lower - A y)``."""
        return affine_residual(self.rows(numbers, y), y)

    def scale(self, numbers: AffineRows, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |lower| + |upper|``, row by row."""
        return affine_scale(self.rows(numbers, y), y)
