"""Affine rows ``lower <= A y <= upper``, equalities (``lower == upper``), and boxes ``lower <= y <= upper``."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import EMPTY, InfeasibleError, ShapeError, name_samples, sentence
from hardnet.sets.base import AffineRows, ConstraintSet, Name, Number
from hardnet.structure import BoxedRows


class Affine(ConstraintSet):
    """``lower(x) <= A(x) y <= upper(x)``.

    An absent bound is infinite; ``lower == upper`` is an equality. Every argument is a tensor (constant), a
    function of x, or a module of x (learned). A constant A in compressed rows (``A.to_sparse_csr()``) makes a
    `SparseAffine`, which never writes it densely.

    Args:
        A: ``(m, n)``, or a function of x that returns ``(*batch, m, n)``.
        lower: ``(m,)`` or a number for all rows, or a function that returns ``(*batch, m)``.
        upper: Like `lower`.
        name: What errors and certificates call these rows, or a list of names, one for each row.
    """

    polyhedral = True
    record = AffineRows

    def __new__(cls, A: Any = None, *rest: Any, **named: Any) -> Any:
        """A set of its own for a sparse A; copies and pickles come without arguments."""
        if isinstance(A, Tensor) and A.layout is not torch.strided:
            from hardnet.sets.sparse import sparse_set

            return sparse_set(cls, A, *rest, **named)
        return super().__new__(cls)

    def __init__(
        self, A: Number, *, lower: Number | None = None, upper: Number | None = None, name: Name = None
    ) -> None:
        super().__init__(name)
        if lower is None and upper is None:
            raise ShapeError(sentence("lower, upper", "at least one bound", "none", "pass lower=, upper= or both"))
        self.take("A", A, ("m", "n"), "finite")
        self.take("lower", lower, ("m",), "lower")
        self.take("upper", upper, ("m",), "upper")
        self._check_bounds()
        self._check_zero_rows()

    def data(self, numbers: AffineRows, like: Tensor) -> BoxedRows:
        """The same rows, and no box."""
        return BoxedRows(*numbers, equality=(self.all_equal,) * numbers.A.shape[-2])

    def _check_zero_rows(self) -> None:
        """Refuse a constant row of zeros whose constant bounds exclude ``0 y = 0``: no point satisfies it."""
        A = self.fixed("A")
        if A is None or A.dim() != 2 or A.is_meta:
            return
        empty = torch.zeros(len(A), dtype=torch.bool, device=A.device)
        for side, excludes in (("lower", torch.gt), ("upper", torch.lt)):
            bound = self.fixed(self.repeated.get(side, side))
            if bound is not None and bound.dim() < 2 and not bound.is_meta:
                empty |= (A == 0).all(-1) & excludes(bound, 0)
        if bool(empty.any()):
            rows = empty.nonzero().flatten().tolist()
            got = f"row(s) {name_samples(rows)} of zeros, whose bounds exclude 0"
            names = [f"{self.label}[{row}]" for row in rows]
            raise InfeasibleError(sentence("A", EMPTY.expected, got, "drop them"), (), [rows], [names])


class Equality(Affine):
    """``A(x) y = b(x)``: affine rows whose two bounds are the same number.

    Args:
        A: ``(m, n)``, or a function of x that returns ``(*batch, m, n)``.
        b: ``(m,)`` or a number for all rows, or a function that returns ``(*batch, m)``.
        name: What errors and certificates call these rows, or a list of names, one for each row.
    """

    stored_as: ClassVar[dict[str, str]] = {"b": "lower"}
    repeated: ClassVar[dict[str, str]] = {"upper": "lower"}
    all_equal = True

    def __init__(self, A: Number, b: Number, *, name: Name = None) -> None:
        super().__init__(A, lower=b, name=name)


class BoxNumbers(NamedTuple):
    """``lower <= y <= upper``; an absent bound is infinite."""

    lower: Tensor | None
    upper: Tensor | None


class Box(ConstraintSet):
    """``lower(x) <= y <= upper(x)``.

    Args:
        lower: ``(n,)`` or a number for all coordinates, or a function that returns ``(*batch, n)``.
        upper: Like `lower`; an absent bound is infinite.
        name: What errors and certificates call these coordinates, or a list of names, one for each row.
    """

    polyhedral = True
    has_formula = True
    record = BoxNumbers

    def __init__(self, lower: Number | None = None, upper: Number | None = None, *, name: Name = None) -> None:
        super().__init__(name)
        if lower is None and upper is None:
            raise ShapeError(sentence("lower, upper", "at least one bound", "none", "pass lower=, upper= or both"))
        self.take("lower", lower, ("n",), "lower")
        self.take("upper", upper, ("n",), "upper")
        self._check_bounds()

    def data(self, numbers: BoxNumbers, like: Tensor) -> BoxedRows:
        """No general row; the bounds are the box."""
        return BoxedRows(like.new_empty(0, like.shape[-1]), None, None, *numbers, equality=())
