"""Which rows of a polyhedral set are equalities, as its construction tells; shared by the completing layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.sets.base import ConstraintSet
from hardnet.sets.equality import Equality
from hardnet.sets.intersection import Intersection


def members(constraint: ConstraintSet) -> list[ConstraintSet]:
    """The parts of an intersection, or the set itself."""
    return constraint.parts if isinstance(constraint, Intersection) else [constraint]


def known_equalities(constraint: ConstraintSet) -> list[int] | None:
    """The equality rows among the stacked rows; None where the number of rows is only known at x.

    Every row of an `Equality` counts, and so does every row of a constant set whose two bounds agree. Bounds that
    are functions of x and happen to agree do not: their equality would have to be looked up sample by sample.
    """
    like = constraint.origin()
    if like is None:
        return None
    index: list[int] = []
    offset = 0
    for part in members(constraint):
        count = row_count(part, like)
        if count is None:
            return None
        index += [offset + row for row in _own_equalities(part, count, like)]
        offset += count
    return index


def equalities_at(constraint: ConstraintSet, x: Any, like: Tensor) -> list[int]:
    """The equality rows among the stacked rows, with the number of rows taken from the set evaluated at x."""
    index: list[int] = []
    offset = 0
    for part in members(constraint):
        count = part.affine(x, like).A.shape[-2]
        index += [offset + row for row in _own_equalities(part, count, like)]
        offset += count
    return index


def known_matrix(constraint: ConstraintSet) -> Tensor | None:
    """The stacked A where its value at construction is one matrix, constant or learned; else None."""
    like = constraint.origin()
    pieces = [None if like is None else _matrix(part, like) for part in members(constraint)]
    known = [piece.detach() for piece in pieces if piece is not None]
    return torch.cat(known) if len(known) == len(pieces) else None


def row_count(part: ConstraintSet, like: Tensor) -> int | None:
    """How many rows a polyhedral set has, where its constants tell."""
    A = _matrix(part, like)
    return None if A is None else A.shape[-2]


def _matrix(part: ConstraintSet, like: Tensor) -> Tensor | None:
    """A ``(m, n)`` as it is at construction: constant, or a parameter."""
    fixed = part.fixed_matrix(like)
    if fixed is not None:
        return fixed
    learned = getattr(part, "A", None)
    return learned if isinstance(learned, Tensor) and learned.dim() == 2 else None


def _own_equalities(part: ConstraintSet, count: int, like: Tensor) -> list[int]:
    """The equality rows of one set."""
    if isinstance(part, Equality):
        return list(range(count))
    if not part.constant:
        return []
    _, lower, upper = part.affine(None, like)
    if lower is None or upper is None:
        return []
    return torch.nonzero((lower == upper).expand(count)).flatten().tolist()
