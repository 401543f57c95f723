"""Which rows of a set are equalities, and which outputs they determine; shared by the layers that solve them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import RankError, ShapeError, sentence
from hardnet.functional.completion import Completion, Partition, choose_partition, partition_of, singular
from hardnet.layers.invalid import in_samples, sample_indices
from hardnet.sets.base import ConstraintSet


def all_equalities(part: ConstraintSet) -> bool:
    """Whether every row of a set is an equality by its class, regardless of how many rows it has."""
    return len(part.declared_rows(2)) == 2


def not_filled(constraint: ConstraintSet) -> str | None:
    """Why a method that chooses outputs by the numbers of a set cannot be built while these are on the meta device."""
    if any(number.is_meta for number in constraint.buffers()):
        return "its numbers are on the meta device, and this method chooses outputs by them; build it on the CPU"
    return None


def known_equalities(constraint: ConstraintSet) -> list[int] | None:
    """The equality rows among the stacked rows; None where the number of rows is only known at x.

    Every row of an `Equality` counts, the sum of a `Simplex`, and every row of a constant set whose bounds are equal.
    Bounds that are functions of x and happen to be equal do not: that would have to be checked for each sample.
    """
    like = constraint.origin()
    if like is None:
        return None
    index: list[int] = []
    offset = 0
    for part in constraint.parts:
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
    for part in constraint.parts:
        count = part.affine(x, like).A.shape[-2]
        index += [offset + row for row in _own_equalities(part, count, like)]
        offset += count
    return index


def known_matrix(constraint: ConstraintSet) -> Tensor | None:
    """The stacked A where it is a single matrix at construction, constant or learned; else None."""
    like = constraint.origin()
    pieces = [None if like is None else _matrix(part, like) for part in constraint.parts]
    known = [piece.detach() for piece in pieces if piece is not None]
    return torch.cat(known) if len(known) == len(pieces) else None


def only_equalities(constraint: ConstraintSet) -> bool:
    """Whether every row of a polyhedral set is known to be an equality at construction."""
    like = constraint.origin()
    index = known_equalities(constraint)
    if index is None or like is None:
        return all(all_equalities(part) for part in constraint.parts)
    return len(index) == sum(row_count(part, like) or 0 for part in constraint.parts)


def choose_columns(
    constraint: ConstraintSet, n: int | None, equalities: list[int] | None, predicted: Sequence[int] | None
) -> Partition:
    """The given predicted outputs and their complement, or the partition that pivoting finds where A is known."""
    A = known_matrix(constraint)
    if predicted is not None and n is not None:
        if len(set(predicted)) < len(predicted) or not all(0 <= column < n for column in predicted):
            raise ShapeError(sentence("predicted", f"distinct coordinates in 0..{n - 1}", list(predicted)))
        return partition_of(list(predicted), n, torch.device("cpu") if A is None else A.device)
    if A is None or equalities is None or n is None:
        remedy = "pass predicted=[...], and dim=n where A is a function of x"
        raise ShapeError(sentence("predicted", "the coordinates that the network predicts", predicted, remedy))
    return choose_partition(A[equalities])


def diagnose_singular(completion: Completion, partition: Partition) -> RankError | None:
    """The error for samples whose solved columns are singular, with the columns that pivoting would choose instead."""
    bad = singular(completion)
    samples = sample_indices(bad)
    if samples is None:
        return None
    first = tuple(bad.nonzero()[0].tolist())
    columns = torch.cat([completion.A_predicted, completion.A_completed], dim=-1)[first]
    names = torch.cat([partition.predicted, partition.completed])
    try:
        better = f"solve for {sorted(names[choose_partition(columns).completed].tolist())} instead"
    except RankError:
        better = "its rows are linearly dependent; use method='projection'"
    worst = completion.condition.nan_to_num(torch.inf).max().item()
    columns_text = f"the columns {partition.completed.tolist()} of the equalities, which are solved for, are singular"
    detail = f"{in_samples(samples)} (condition {worst:.1e}); {better}"
    return RankError(f"predicted: {columns_text}{detail}", samples)


def row_count(part: ConstraintSet, like: Tensor) -> int | None:
    """How many rows a polyhedral set has; None where this is not known at construction."""
    A = _matrix(part, like)
    return None if A is None else A.shape[-2]


def _matrix(part: ConstraintSet, like: Tensor) -> Tensor | None:
    """A ``(m, n)`` at construction: constant, or a parameter; else None."""
    fixed = part.fixed_matrix(like)
    if fixed is not None:
        return fixed
    learned = getattr(part, "A", None)
    return learned if isinstance(learned, Tensor) and learned.dim() == 2 else None


def _own_equalities(part: ConstraintSet, count: int, like: Tensor) -> list[int]:
    """The equality rows of one set."""
    bounds = part.fixed_bounds(like) if part.constant else None
    if bounds is None or part.declares_equalities:
        return part.declared_rows(count)
    return torch.nonzero(bounds[0] == bounds[1]).flatten().tolist()
