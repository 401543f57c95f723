"""The structure of a polyhedron: general rows beside a box, joined where sets are intersected.

`BoxedRows` is what polyhedral sets return; only `dense` writes the n rows of its box as a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times
from hardnet.shapes import joint_batch

MOST_FEW_ROWS = 4
"""The most rows in the fixed program for the nearest point; each further row doubles its size."""
MOST_BOX_ROWS = 8
"""The most rows beside a box that are solved in their multipliers where no kernel solves any number of them."""
WIDE = 160
"""From this many outputs on, so are more rows where values may be read: the box as rows would take longer."""


class BoxedRows(NamedTuple):
    """``lower <= A y <= upper`` and ``box_lower <= y <= box_upper``; an absent bound is None.

    Attributes:
        A: ``(m, n)`` or ``(*batch, m, n)``; m may be 0.
        lower: ``(m,)`` or ``(*batch, m)`` or None.
        upper: Like `lower`; ``lower == upper`` is an equality.
        box_lower: ``(n,)`` or ``(*batch, n)`` or None.
        box_upper: Like `box_lower`.
        equality: For each general row whether it was declared an equality, whatever its numbers; None if not known.
        weight: The cost of a unit of slack for each general row that may be relaxed, 0 for the others, ``(m,)``; None
            if no row may be relaxed.
        level: The level of each of these rows, 1 the highest, 0 for the others, ``(m,)``; None as for the weights.
    """

    A: Tensor
    lower: Tensor | None
    upper: Tensor | None
    box_lower: Tensor | None = None
    box_upper: Tensor | None = None
    equality: tuple[bool, ...] | None = None
    weight: Tensor | None = None
    level: Tensor | None = None

    @property
    def boxed(self) -> bool:
        """Whether there are bounds on single coordinates."""
        return self.box_lower is not None or self.box_upper is not None

    @property
    def total(self) -> int:
        """How many rows a certificate has: the coordinates of a box, and the general rows."""
        return self.A.shape[-2] + (self.A.shape[-1] if self.boxed else 0)

    def residual(self, y: Tensor) -> Tensor:
        """How far y leaves each bound of the box, then each general row: ``(*batch, total)``."""
        general = interval_residual(times(self.A, y), self.lower, self.upper)
        return join([interval_residual(y, self.box_lower, self.box_upper), general]) if self.boxed else general

    def scale(self, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |bounds|``, row by row in the same order."""
        general = interval_scale(self.A.abs().sum(-1), y, self.lower, self.upper)
        if not self.boxed:
            return general
        return join([interval_scale(torch.ones_like(y), y, self.box_lower, self.box_upper), general])

    def stacked(self) -> BoxedRows:
        """The same without a box: its coordinates are the first rows."""
        if not self.boxed:
            return self
        eye = torch.eye(self.A.shape[-1], dtype=self.A.dtype, device=self.A.device)
        none = (False,) * len(eye)
        box = BoxedRows(eye, self.box_lower, self.box_upper, equality=none)
        return join_rows([box, self._replace(box_lower=None, box_upper=None)])

    def dense(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """``A, lower, upper`` with the box appended below, as the n rows of the identity."""
        if not self.boxed:
            return self.A, self.lower, self.upper
        eye = torch.eye(self.A.shape[-1], dtype=self.A.dtype, device=self.A.device)
        return join_rows([self._replace(box_lower=None, box_upper=None), BoxedRows(eye, *self[3:5])])[:3]

    def map(self, function: Callable[[Tensor, int], Tensor]) -> BoxedRows:
        """Apply ``function(number, core)`` to every tensor, where core counts its dimensions after the batch."""
        names = ("lower", "upper", "box_lower", "box_upper")
        given = {name: number for name in names if (number := getattr(self, name)) is not None}
        return self._replace(A=function(self.A, 2), **{name: function(number, 1) for name, number in given.items()})


def finite_size(bound: Tensor) -> Tensor:
    """``|bound|``, zero where it is infinite; by a comparison, since ONNX calls numbers beyond float32 infinite."""
    size = bound.abs()
    return torch.where(size < torch.inf, size, 0.0)


def bound_size(lower: Tensor | None, upper: Tensor | None, weight: Tensor) -> Tensor:
    """``|lower| + |upper|`` of the finite bounds, capped at ``2 min(|lower|, |upper|) + weight``.

    Rounding of a row is measured relative to this, beside ``|a|_1 |y|``. The cap is there because the farther bound
    only matters for an ``|a'y|`` beyond it: a 1e20 that stands for infinity must not loosen the tolerance of the other
    bound. `weight` is ``|a|_1``, so that a bound of zero has the size that outputs of size 1 would give it. At least
    one of the two bounds must be given.
    """
    sides = [side for side in (lower, upper) if side is not None]
    total = reduce(torch.add, [finite_size(side) for side in sides])
    most = 2 * reduce(torch.minimum, [side.abs() for side in sides]) + weight
    return torch.where(most < total, most, total)


def interval_residual(value: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``relu(v - upper) + relu(lower - v)``, entry by entry; an absent bound is infinite."""
    total = torch.zeros_like(value)
    if upper is not None:
        total = total + (value - upper).clamp_min(0)
    if lower is not None:
        total = total + (lower - value).clamp_min(0)
    return total


def interval_scale(weight: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``weight |y|_inf + |bounds|``, entry by entry: `bound_size`.

    Measured by the largest output, not output by output: an output is rounded relative to the sums it came from, so a
    coordinate that lands on the bound 0 among outputs of size 1 may be off by a rounding of 1, not of 0.
    """
    size = weight * y.abs().amax(-1, keepdim=True)
    return size if lower is None and upper is None else size + bound_size(lower, upper, weight)


def join_rows(parts: list[BoxedRows]) -> BoxedRows:
    """The intersection of the parts: general rows stacked, boxes intersected."""
    A = join([part.A for part in parts], dim=-2)
    lower = _join_bounds(parts, "lower", -torch.inf)
    upper = _join_bounds(parts, "upper", torch.inf)
    box_lower = _tightest([part.box_lower for part in parts], torch.maximum)
    box_upper = _tightest([part.box_upper for part in parts], torch.minimum)
    declared = [part.equality for part in parts]
    equality = None if None in declared else tuple(row for rows in declared if rows is not None for row in rows)
    return BoxedRows(
        A, lower, upper, box_lower, box_upper, equality, _join_soft(parts, "weight"), _join_soft(parts, "level")
    )


def _join_soft(parts: list[BoxedRows], field: str) -> Tensor | None:
    """The weights or levels of all parts' rows, 0 for rows that may not be relaxed; None if no part has any."""
    given = [getattr(part, field) for part in parts]
    if all(own is None for own in given):
        return None
    rows = zip(parts, given, strict=True)
    return torch.cat([part.A.new_zeros(part.A.shape[-2]) if own is None else own for part, own in rows])


def join(pieces: list[Tensor], dim: int = -1) -> Tensor:
    """Concatenate along `dim` (-1 or -2) after broadcasting the batch dimensions, which constants lack.

    An unbatched piece without rows, such as the matrix of a box, is skipped.
    """
    core = -dim
    pieces = [piece for piece in pieces if piece.shape[dim] or len(piece.shape) > core] or pieces[:1]
    if len(pieces) == 1:
        return pieces[0]
    batch = joint_batch(*(piece.shape[:-core] for piece in pieces))
    return torch.cat([piece.expand(*batch, *piece.shape[-core:]) for piece in pieces], dim=dim)


def _join_bounds(parts: list[BoxedRows], side: str, absent: float) -> Tensor | None:
    """The bounds of all parts on one side; None if no part has any."""
    bounds = [getattr(part, side) for part in parts]
    if all(bound is None for bound in bounds):
        return None
    full = [
        part.A.new_full((part.A.shape[-2],), absent) if bound is None else bound
        for part, bound in zip(parts, bounds, strict=True)
    ]
    return join(full)


def _tightest(bounds: list[Tensor | None], pick: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """The tightest of several bounds on the coordinates; None if there is none."""
    given = [bound for bound in bounds if bound is not None]
    return reduce(pick, given) if given else None
