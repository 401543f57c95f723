"""The structure of a polyhedron: general rows beside a box, joined where sets are intersected.

`BoxedRows` is what polyhedral sets return; only `dense` writes the n rows of its box as a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

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
