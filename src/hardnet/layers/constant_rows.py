"""Affine rows whose matrix A is constant, and layers that prepare tables from them once, in float64."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.layers.base import Layer, not_affine
from hardnet.layers.equality_rows import known_equalities
from hardnet.modes import working
from hardnet.sets.base import ConstraintSet


class ConstantRows(NamedTuple):
    """What is known of ``lower(x) <= A y <= upper(x)`` at construction, on the CPU in float64.

    Attributes:
        A: ``(m, n)``.
        lower: ``(m,)``; -inf where absent, NaN where it depends on x.
        upper: ``(m,)``; inf where absent, NaN where it depends on x.
        equality: ``(m,)`` bool: the rows whose two bounds are known to be equal.
    """

    A: Tensor
    lower: Tensor
    upper: Tensor
    equality: Tensor


def constant_rows(constraint: ConstraintSet) -> ConstantRows | None:
    """The rows of a polyhedral set whose A is constant; None for any other set."""
    like = constraint.origin() if constraint.polyhedral else None
    A = None if like is None else constraint.fixed_matrix(like)
    if like is None or A is None or any(number.is_meta for number in constraint.buffers()):
        return None
    lower, upper = (_double(bound) for bound in constraint.fixed_bounds(like) or ())
    equality = torch.zeros(len(A), dtype=torch.bool)
    equality[known_equalities(constraint) or []] = True
    return ConstantRows(_double(A), lower, upper, equality)


def refuse_other_sets(constraint: ConstraintSet) -> str | None:
    """Why a set has no `constant_rows`, and what to use instead; None where it has them."""
    instead = "use method='projection'"
    if not constraint.polyhedral:
        return not_affine(constraint)
    if constraint.origin() is None:
        return f"nothing in it tells the number of outputs when it is built; {instead}"
    if any(number.is_meta for number in constraint.buffers()):
        return f"its numbers are on the meta device, and this method prepares tables from them; {instead}"
    if constant_rows(constraint) is None:
        return f"A depends on x or is learned, and this method prepares a constant A once; {instead}"
    return None


class TableLayer(Layer):
    """A layer that prepares tables from its constant rows once.

    The tables are kept in float64 and rounded to the dtype of the set (float32 for half types): rounding A first could
    make dependent rows independent and change the tables' shapes. They are rebuilt only when the numbers of the set
    change.
    """

    keeps_double: ClassVar[bool] = False
    """Whether the tables stay in float64 for any dtype of the set, for a layer that computes in float64."""

    _source: ConstantRows | None = None
    _exact: dict[str, Tensor]

    @abstractmethod
    def prepare_tables(self, rows: ConstantRows) -> dict[str, Tensor]:
        """Do the offline work: tables by name on the CPU, float64 or integer; each becomes a buffer of that name."""

    def refactor(self) -> None:
        """Prepare the tables if the rows have changed, and convert them to the dtype and device of the set."""
        rows, like = constant_rows(self.constraint), self.constraint.origin()
        if rows is None or like is None:
            return
        if self._source is None or not _equal_when_rounded(self._source, rows, like.dtype):
            self._source, self._exact = rows, self.prepare_tables(rows)
        for name, table in self._exact.items():
            dtype = working(like.dtype) if table.is_floating_point() and not self.keeps_double else table.dtype
            self.register_buffer(name, table.to(device=like.device, dtype=dtype), persistent=False)


def _double(tensor: Tensor) -> Tensor:
    """A copy on the CPU in float64."""
    return tensor.detach().to(device="cpu", dtype=torch.float64, copy=True)


def _equal_when_rounded(kept: ConstantRows, now: ConstantRows, dtype: torch.dtype) -> bool:
    """Whether `kept` and `now` agree after rounding to a dtype."""
    return all(
        old.shape == new.shape and torch.equal(old.to(dtype).nan_to_num(7.0), new.to(dtype).nan_to_num(7.0))
        for old, new in zip(kept, now, strict=True)
    )
