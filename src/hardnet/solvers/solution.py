"""What a solver returns: the value, how it ended, and how good it is; raising errors is left to the caller.

Also helpers for records, named tuples of tensors with a leading batch dimension: take some samples, place them back.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Record = TypeVar("Record", bound=tuple[Tensor | None, ...])


class Status(IntEnum):
    """How one sample of a batched solve ended (stored as int8 in `Solution.status`)."""

    SOLVED = 0
    INFEASIBLE = 1
    NOT_CONVERGED = 2
    INVALID = 3  # NaN or infinite data, or lower > upper
    FEASIBLE = 4  # in the set by the certificate's terms, but not proved to be the nearest point


class Solution(NamedTuple):
    """The outcome of a batched solve, sample by sample.

    Attributes:
        y: Solution, ``(*batch, n)``.
        dual: Multipliers, ``(*batch, m)``; positive at the upper bound, negative at the lower.
        status: `Status` of each sample, ``(*batch)`` int8.
        iterations: Iterations spent on each sample, ``(*batch)`` int.
        residual: Scale-free KKT residual of y and dual, ``(*batch)``.
    """

    y: Tensor
    dual: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor


class Found(NamedTuple):
    """The nearest points of a flat batch as a solver states them.

    Attributes:
        y: ``(B, n)``.
        place: +1 where an output is held at its upper bound, -1 at its lower, 0 where it is free, 2 where both are
            equal, ``(B, n)``; None without a box.
        dual: Multipliers of the rows, ``raw - y = A'dual`` and what the box holds back: ``(B, m)``.
        side: The same codes for the rows, ``(B, m)``; None is the sign of the dual.
        status: `Status`, ``(B,)`` int8.
        residual: ``(B,)``.
        iterations: ``(B,)``, or None for one program that all samples run.
    """

    y: Tensor
    place: Tensor | None
    dual: Tensor
    side: Tensor | None
    status: Tensor
    residual: Tensor
    iterations: Tensor | None = None

    @property
    def steps(self) -> Tensor:
        """`iterations`, 1 for a program that all samples run."""
        return torch.ones_like(self.status, dtype=torch.long) if self.iterations is None else self.iterations


def solved(status: Tensor) -> Tensor:
    """The samples ``(*batch)`` whose point is in the set: SOLVED, or FEASIBLE."""
    return (status == int(Status.SOLVED)) | (status == int(Status.FEASIBLE))


def verdict(status: Tensor, met: Tensor) -> Tensor:
    """The status once the rows are judged at the point returned: FEASIBLE where met, NOT_CONVERGED where not.

    Args:
        status: What the solver states, ``(*batch)``; SOLVED stays so where the rows are met.
        met: Whether all rows hold by the certificate's terms, ``(*batch)``.
    """
    status = status.long()  # ONNX Runtime has no `where` for int8
    judged = (status != int(Status.INFEASIBLE)) & (status != int(Status.INVALID))
    kept = torch.where(status == int(Status.SOLVED), int(Status.SOLVED), int(Status.FEASIBLE))
    kept = torch.where(met, kept, int(Status.NOT_CONVERGED))
    return torch.where(judged, kept, status).to(torch.int8)


def take(record: Record, index: Tensor) -> Record:
    """The samples `index` ``(k,)`` of a record; what is None stays so."""
    kind: Any = type(record)
    return kind(*(None if part is None else part[index] for part in record))


def place(record: Record, index: Tensor, part: Record) -> Record:
    """The record with the samples at `index` replaced by those of `part`."""
    kind: Any = type(record)
    pairs = zip(record, part, strict=True)
    put: Any = lambda old, new: None if old is None else old.index_copy(0, index, new.to(old.dtype))
    return kind(*(put(old, new) for old, new in pairs))


def solve_open(record: Record, left: Tensor, solve: Callable[[Tensor], Record]) -> Record:
    """The record with the samples `left` open ``(B,)`` as `solve` answers for their indices; the others stay."""
    index = left.nonzero().squeeze(-1)
    if len(index) == 0:
        return record
    part = solve(index)
    return part if len(index) == len(left) else place(record, index, part)


def choose(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new` for the samples in the mask ``(B,)``, else `old`; both may have any number of dimensions."""
    return torch.where(mask.view(-1, *(1 for _ in new.shape[1:])), new, old)
