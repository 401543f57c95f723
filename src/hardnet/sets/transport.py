"""Transport polytopes: non-negative matrices with given sums of rows and columns."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import InfeasibleError, ShapeError, sentence
from hardnet.sets.base import Name, Number
from hardnet.sets.simplex import Sums

EQUAL = 16
"""Roundings, relative to the total, by which the totals of rows and columns may differ."""


class TransportNumbers(NamedTuple):
    """The sums ``(r,)`` or ``(*batch, r)`` of the rows, and ``(c,)`` or ``(*batch, c)`` of the columns.

    `without_last` says that the last column has no bounds where the others imply it.
    """

    row_sums: Tensor
    column_sums: Tensor
    without_last: bool | None = None


class Transport(Sums):
    """``Y >= 0, sum_j Y_ij = rows_i(x), sum_i Y_ij = columns_j(x)``: plans that carry rows to columns.

    y is Y row by row, ``(*batch, r c)``; ``y.unflatten(-1, (r, c))`` is the matrix. Rows and columns must have the same
    sum. The nearest point is Euclidean; ``metric="entropy"`` reads raw as logits, the limit of Sinkhorn's sweeps.

    Args:
        rows: Numbers >= 0, ``(r,)``, or a function of x that returns ``(*batch, r)``.
        columns: Likewise ``(c,)``.
        name: What errors and certificates call it.
    """

    record = TransportNumbers
    stored_as: ClassVar[dict[str, str]] = {"rows": "row_sums", "columns": "column_sums"}

    def __init__(self, rows: Number, columns: Number, *, name: Name = None) -> None:
        super().__init__(name)
        for own, value, letter in (("row_sums", rows, "r"), ("column_sums", columns, "c")):
            self.take(own, value, (letter,), "size")
            if self.known_shape(own) == ():
                raise ShapeError(sentence(self._spoken(own), f"shape ({letter},)", "one number", "write it as a list"))
        if self._counts() is not None:
            self._sizes["n"] = self._sizes["r"] * self._sizes["c"]
        self._check_totals()

    def numbers(self, x: Any, like: Tensor) -> TransportNumbers:
        """The sums at x."""
        numbers = super().numbers(x, like)
        self._shape(numbers, like)
        return numbers

    def sums(self, numbers: TransportNumbers, like: Tensor) -> Tensor:
        """Which entry is in which row, above which is in which column."""
        return marginals(*self._shape(numbers, like), like)

    def totals(self, numbers: TransportNumbers) -> tuple[Tensor, Tensor]:
        """The sums of the rows, then of the columns.

        The others imply the last column: where the totals differ by their rounding alone, it is an interval with both
        values, or without end where the numbers are `essential`.
        """
        batch = torch.broadcast_shapes(*(side.shape[:-1] for side in numbers[:2]))
        rows, columns = (side.expand(*batch, -1) for side in numbers[:2])
        eps, last = torch.finfo(rows.dtype).eps, columns[..., -1:]
        total, other = (side.double().sum(-1, keepdim=True) for side in (rows, columns))
        off = total - other
        agree = off.abs() <= EQUAL * eps * torch.maximum(total, other)
        slack = torch.where(agree & (off != 0), off.abs() + eps * last, 0.0)
        least, most = last - torch.where(off < 0, slack, 0.0), last + torch.where(off > 0, slack, 0.0)
        if numbers.without_last:
            least, most = torch.where(agree, -torch.inf, least), torch.where(agree, torch.inf, most)
        front = torch.cat([rows, columns[..., :-1]], dim=-1)
        return tuple(torch.cat([front, side.to(rows.dtype)], dim=-1) for side in (least, most))  # pyright: ignore[reportReturnType]

    def essential(self, numbers: TransportNumbers) -> TransportNumbers:
        """Without the bounds of the last column, unless it contradicts the others."""
        return numbers._replace(without_last=True)

    @property
    def declared(self) -> int:
        """All but the last, which the others imply; none where no constant tells how many there are."""
        shape = self._counts()
        return 0 if shape is None else sum(shape) - 1

    def suffixes(self, numbers: TransportNumbers, like: Tensor) -> list[str]:
        """``name[i,j]``, then ``name.rows[i]`` and ``name.columns[j]``."""
        r, c = self._shape(numbers, like)
        entries = [f"[{i},{j}]" for i in range(r) for j in range(c)]
        return [*entries, *(f".rows[{i}]" for i in range(r)), *(f".columns[{j}]" for j in range(c))]

    def _counts(self) -> tuple[int, int] | None:
        """``(r, c)`` where constants tell both."""
        sizes = self._sizes.get("r"), self._sizes.get("c")
        return None if None in sizes else sizes  # pyright: ignore[reportReturnType]

    def _shape(self, numbers: TransportNumbers, like: Tensor) -> tuple[int, int]:
        """``(r, c)``, which must be as many entries as raw has."""
        shape = numbers.row_sums.shape[-1], numbers.column_sums.shape[-1]
        if shape[0] * shape[1] != like.shape[-1]:
            expected = f"shape (*batch, {shape[0] * shape[1]}) for {shape[0]} rows and {shape[1]} columns"
            raise ShapeError(sentence("raw", expected, tuple(like.shape), "flatten matrices row by row"))
        return shape

    def _check_totals(self) -> None:
        """Refuse constant sums that no matrix has."""
        rows, columns = self.fixed("row_sums"), self.fixed("column_sums")
        if rows is None or columns is None or rows.is_meta or columns.is_meta:
            return
        first, second = rows.double().sum(-1), columns.double().sum(-1)
        eps = max(torch.finfo(side.dtype).eps for side in (rows, columns))
        off = (first - second).abs() > EQUAL * eps * torch.maximum(first, second)
        if bool(off.any()):
            got = f"{first.expand(off.shape)[off][0].item():.6g} and {second.expand(off.shape)[off][0].item():.6g}"
            raise InfeasibleError(sentence("rows, columns", "the same sum", got, "scale one of them"))


class DoublyStochastic(Transport):
    """``Y >= 0`` with rows and columns that sum to one: n x n matrices in the hull of the permutations (Birkhoff).

    Args:
        order: The order of the matrix, so that y has ``order * order`` entries, row by row.
        name: What errors and certificates call it.
    """

    def __init__(self, order: int, *, name: Name = None) -> None:
        if not isinstance(order, int) or isinstance(order, bool) or order < 1:
            raise ShapeError(sentence("order", "a positive integer", order))
        super().__init__([1.0] * order, [1.0] * order, name=name)
        self.order = order


def marginals(rows: int, columns: int, like: Tensor) -> Tensor:
    """``(r + c, r c)``: the sums of the rows and of the columns of a matrix that is given row by row."""
    by_row = torch.eye(rows, dtype=like.dtype, device=like.device).repeat_interleave(columns, dim=-1)
    by_column = torch.eye(columns, dtype=like.dtype, device=like.device).repeat(1, rows)
    return torch.cat([by_row, by_column])
