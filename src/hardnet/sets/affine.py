"""Affine rows ``lower <= A y <= upper``, equalities (``lower == upper``), and boxes ``lower <= y <= upper``."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import EMPTY, InfeasibleError, ShapeError, name_samples, sentence
from hardnet.functional.elementary import project_box
from hardnet.functional.samples import Policy
from hardnet.products import times
from hardnet.rows import bound_size
from hardnet.sets.base import AffineRows, ConstraintSet, Name, Number
from hardnet.structure import BoxedRows, join, join_rows


def affine_residual(rows: AffineRows, y: Tensor) -> Tensor:
    """``relu(A y - upper) + relu(lower - A y)``, row by row: ``(*batch, m)``."""
    return interval_residual(times(rows.A, y), rows.lower, rows.upper)


def interval_residual(value: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``relu(v - upper) + relu(lower - v)``, entry by entry; an absent bound is infinite."""
    total = torch.zeros_like(value)
    if upper is not None:
        total = total + (value - upper).clamp_min(0)
    if lower is not None:
        total = total + (lower - value).clamp_min(0)
    return total


def affine_scale(rows: AffineRows, y: Tensor) -> Tensor:
    """``|a|_1 |y|_inf + |bounds|``, row by row: ``(*batch, m)``.

    Measured by the largest output, not output by output: an output is rounded relative to the sums it came from, so a
    coordinate that lands on the bound 0 among outputs of size 1 may be off by a rounding of 1, not of 0.
    """
    return interval_scale(rows.A.abs().sum(-1), y, rows.lower, rows.upper)


def interval_scale(weight: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``weight |y|_inf + |bounds|``, entry by entry: `hardnet.rows.bound_size`."""
    size = weight * y.abs().amax(-1, keepdim=True)
    return size if lower is None and upper is None else size + bound_size(lower, upper, weight)


def known_bounds(constraint: ConstraintSet, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Its arguments lower and upper as far as construction knows them, shaped like `rows` ``(m,)``; NaN elsewhere."""
    found = []
    for side, absent in (("lower", -torch.inf), ("upper", torch.inf)):
        bound = constraint.fixed(side) if constraint.has(side) else rows.new_full((), absent)
        known = rows.new_full((), torch.nan) if bound is None or bound.dim() > 1 else bound.to(rows)
        found.append(known.expand(rows.shape))
    return found[0], found[1]


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

    @property
    def same_rows(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether A is one constant matrix."""
        A = self.fixed("A")
        return A is not None and A.dim() == 2

    def rows(self, numbers: AffineRows, like: Tensor) -> AffineRows:
        """The numbers themselves."""
        return numbers

    def structure(self, numbers: AffineRows, like: Tensor) -> BoxedRows:
        """The same rows, and no box."""
        return BoxedRows(*numbers, equality=(self.declares_equalities,) * numbers.A.shape[-2])

    def row_count(self, numbers: AffineRows, like: Tensor) -> int:
        """M."""
        return numbers.A.shape[-2]

    def fixed_matrix(self, like: Tensor) -> Tensor | None:
        """A, where it is one constant matrix for all samples."""
        return self.fixed("A") if self.same_rows else None

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Each side where it is constant or absent; NaN where only x knows."""
        A = self.fixed_matrix(like)
        return None if A is None else known_bounds(self, A.new_empty(len(A)))

    def _check_zero_rows(self) -> None:
        """Refuse a constant row of zeros whose constant bounds exclude ``0 y = 0``: no point satisfies it."""
        A = self.fixed("A")
        if A is None or A.dim() != 2 or A.is_meta:
            return
        bounds = self.fixed_bounds(A)
        if bounds is None or bounds[0].is_meta:
            return
        empty = (A == 0).all(-1) & ((bounds[0] > 0) | (bounds[1] < 0))
        if bool(empty.any()):
            rows = empty.nonzero().flatten().tolist()
            got = f"row(s) {name_samples(rows)} of zeros, whose bounds exclude 0"
            names = [f"{self.label}[{row}]" for row in rows]
            raise InfeasibleError(sentence("A", EMPTY.expected, got, "drop them"), (), [rows], [names])

    def residual(self, numbers: AffineRows, y: Tensor) -> Tensor:
        """``relu(A y - upper) + relu(lower - A y)``."""
        return affine_residual(numbers, y)

    def scale(self, numbers: AffineRows, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |bounds|``, row by row."""
        return affine_scale(numbers, y)


class Equality(Affine):
    """``A(x) y = b(x)``: affine rows whose two bounds are the same number.

    Args:
        A: ``(m, n)``, or a function of x that returns ``(*batch, m, n)``.
        b: ``(m,)`` or a number for all rows, or a function that returns ``(*batch, m)``.
        name: What errors and certificates call these rows, or a list of names, one for each row.
    """

    stored_as: ClassVar[dict[str, str]] = {"b": "lower"}
    repeated: ClassVar[dict[str, str]] = {"upper": "lower"}
    declares_equalities = True

    def __init__(self, A: Number, b: Number, *, name: Name = None) -> None:
        super().__init__(A, lower=b, name=name)

    def equality_rows(self, numbers: AffineRows, like: Tensor) -> list[int]:
        """All of them."""
        return self.declared_rows(numbers.A.shape[-2])

    def declared_rows(self, count: int) -> list[int]:
        """All of them."""
        return list(range(count))

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """B on both sides, where it is constant."""
        bounds = super().fixed_bounds(like)
        return None if bounds is None else (bounds[0], bounds[0])


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
    projectable = True
    same_rows = True
    record = BoxNumbers

    def __init__(self, lower: Number | None = None, upper: Number | None = None, *, name: Name = None) -> None:
        super().__init__(name)
        if lower is None and upper is None:
            raise ShapeError(sentence("lower, upper", "at least one bound", "none", "pass lower=, upper= or both"))
        self.take("lower", lower, ("n",), "lower")
        self.take("upper", upper, ("n",), "upper")
        self._check_bounds()

    def row_count(self, numbers: BoxNumbers, like: Tensor) -> int:
        """N."""
        return like.shape[-1]

    def structure_names(
        self, numbers: BoxNumbers, like: Tensor, label: str | None = None
    ) -> tuple[list[str], list[str]]:
        """No general row, and a name for each coordinate."""
        return [], self.row_names(numbers, like, label)

    def rows(self, numbers: BoxNumbers, like: Tensor) -> AffineRows:
        """The rows of the identity."""
        return AffineRows(self.fixed_matrix(like), numbers.lower, numbers.upper)

    def structure(self, numbers: BoxNumbers, like: Tensor) -> BoxedRows:
        """No general row; the bounds are the box."""
        return BoxedRows(like.new_empty(0, like.shape[-1]), None, None, *numbers, equality=())

    def fixed_matrix(self, like: Tensor) -> Tensor:
        """The identity."""
        return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Each side where it is constant or absent; NaN where only x knows."""
        return known_bounds(self, like.new_empty(like.shape[-1]))

    def residual(self, numbers: BoxNumbers, y: Tensor) -> Tensor:
        """``relu(y - upper) + relu(lower - y)``."""
        return interval_residual(y, *numbers)

    def scale(self, numbers: BoxNumbers, y: Tensor) -> Tensor:
        """``|y|_inf + |bounds|``, as for any affine row."""
        return interval_scale(torch.ones_like(y), y, *numbers)

    def project(
        self, numbers: BoxNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``clamp(raw, lower, upper)``; lower > upper is invalid."""
        return project_box(raw, *numbers, on_invalid=on_invalid)


class Boxed(ConstraintSet):
    """A polyhedron that `structure` describes whole: its rows are the coordinates of the box, then the general rows."""

    polyhedral = True

    def rows(self, numbers: Any, like: Tensor) -> AffineRows:
        """The rows of the identity where there is a box, above the general rows."""
        found = self.structure(numbers, like)
        if not found.boxed:
            return AffineRows(*found[:3])
        eye = torch.eye(like.shape[-1], dtype=found.A.dtype, device=found.A.device)
        return AffineRows(*join_rows([BoxedRows(eye, *found[3:5]), BoxedRows(*found[:3])])[:3])

    def row_count(self, numbers: Any, like: Tensor) -> int:
        """The coordinates of a box, and the general rows."""
        found = self.structure(numbers, like)
        return found.A.shape[-2] + (like.shape[-1] if found.boxed else 0)

    def residual(self, numbers: Any, y: Tensor) -> Tensor:
        """How far each coordinate leaves its bounds, then each general row."""
        found = self.structure(numbers, y)
        general = affine_residual(AffineRows(*found[:3]), y)
        return join([interval_residual(y, *found[3:5]), general]) if found.boxed else general

    def scale(self, numbers: Any, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |bounds|``, as for any affine row."""
        found = self.structure(numbers, y)
        general = affine_scale(AffineRows(*found[:3]), y)
        return join([interval_scale(torch.ones_like(y), y, *found[3:5]), general]) if found.boxed else general
