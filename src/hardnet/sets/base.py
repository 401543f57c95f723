"""A set says what is allowed: it maps the input x to the numbers of C(x)."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import CROSSED, DTypeError, ShapeError, UnsupportedSetError, sentence
from hardnet.region import Data, Kind, Own, Part, Region, count_of, residual_of
from hardnet.sets.arguments import Arguments, Name, Number, Unknown, UnknownError
from hardnet.shapes import joint_batch
from hardnet.structure import BoxedRows, join_rows

__all__ = ["AffineRows", "ConstraintSet", "Name", "Number"]


class AffineRows(NamedTuple):
    """The polyhedron ``lower <= A y <= upper`` as numbers; an absent bound is infinite.

    Attributes:
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)`` or ``(*batch, m)`` or None.
        upper: ``(m,)`` or ``(*batch, m)`` or None.
    """

    A: Tensor
    lower: Tensor | None
    upper: Tensor | None


class ConstraintSet(Arguments):
    """C(x), a subset of R^n whose numbers may depend on the input x.

    A set of the library states the `record` of its numbers, its `kind`, and in `data` what these numbers describe:
    rows beside a box, a block, ... (`hardnet.region`), which say how far a point misses them. A set of your own
    evaluates its `numbers`, and says in `residual` how far each row is violated and in `scale` what rounding of it is
    relative to; with `polyhedral` it has `rows`, with `projectable` a `project`. Numbers and points are plain tensors,
    so that a certificate can evaluate the same formulas in float64 whatever the model's dtype.
    """

    polyhedral: bool = False
    """Of a set of your own: whether `rows` describes the whole set."""
    projectable: bool = False
    """Of a set of your own: whether `project` is available, its exact Euclidean projection."""
    tolerance: float = 0.0
    """What the methods that enforce it promise, relative to the terms of a row; 0 stands for rounding alone."""
    has_formula: bool = False
    """Whether the nearest point of a polyhedron alone has a formula."""
    all_equal: bool = False
    """Whether all rows are equalities by the class of the set, whatever its numbers."""

    kind: ClassVar[Kind | None] = None
    """What a set of the library is, unless it is a polyhedron, which `polyhedral` says."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """What the set is made of: all that a method needs to know of it before any x."""
        own = Kind.ROWS if self.polyhedral else Kind.PROJECTION if self.projectable else Kind.OTHER
        return frozenset([self.kind or own])

    @property
    def written_outside(self) -> bool:
        """Whether it says itself what its rows are: a set of your own."""
        return type(self).data is ConstraintSet.data and type(self).pairs is ConstraintSet.pairs

    def is_made_of(self, *kinds: Kind) -> bool:
        """Whether it has parts of these kinds alone."""
        return self.kinds <= frozenset(kinds)

    @property
    def parts(self) -> list[ConstraintSet]:
        """The sets that this one is the intersection of: itself, unless it is an `Intersection`."""
        return [self]

    @property
    def pieces(self) -> list[ConstraintSet]:
        """The sets that this one is the union of: itself, unless it is a `Union`."""
        return [self]

    @property
    def label(self) -> str:
        """The name of the set, or its class."""
        return self.name if isinstance(self.name, str) else type(self).__name__

    def origin(self) -> Tensor | None:
        """The zero point ``(n,)`` in the dtype and device of the set's tensors; None where n is not known."""
        if self.dim is None:
            return None
        parts = [part for part in self.modules() if isinstance(part, Arguments)]
        given = [part._buffers[name] for part in parts for name in part._constants if name not in part._written]
        given += [learned for part in parts for learned in part._parameters.values()]
        written = [part._buffers[name] for part in parts for name in part._written]
        known = sorted((value for value in given + written if value is not None), key=lambda value: value.dim() == 0)
        if not known:
            return torch.zeros(self.dim, dtype=torch.float64, device="cpu")
        return known[0].new_zeros(self.dim)

    def origin_at(self, x: Any) -> Tensor | None:
        """The zero points ``(*batch, n)`` of the samples of x, as the functions of x tell; None where n is not known.

        Without an x, that of a set without functions of x: `origin`.
        """
        parts = [part for part in self.modules() if isinstance(part, Arguments)]
        if x is None and any(part.moving for part in parts):
            return None
        moved = [value for part in parts for value in part.moved(x)]
        sizes = [value.shape[core.index("n") - len(core)] for core, value in moved if "n" in core]
        if not moved or (self.dim is None and not sizes):
            return self.origin()
        batch = joint_batch(*(value.shape[: value.dim() - len(core)] for core, value in moved))
        return moved[0][1].new_zeros(*batch, self.dim or sizes[0])

    @property
    def constant(self) -> bool:
        """Whether no number depends on x, on the sample or on training, so that factors may be kept."""
        learned = self._functions or list(self.parameters(recurse=False)) or list(self.children())
        return not learned and all(self._shared(name) for name in self._constants)

    def data(self, numbers: Any, like: Tensor) -> Data:
        """What the numbers describe."""
        return self.structure(numbers, like) if self.polyhedral else Own(self, numbers)

    def alone(self, numbers: Any, like: Tensor) -> Any:
        """What else the numbers describe, where the set stands alone: something with a formula; None for nothing."""
        return None

    def pairs(self, numbers: Any) -> list[tuple[ConstraintSet, Any]]:
        """The sets that this one is the intersection of, each with its numbers."""
        return [(self, numbers)]

    def region(self, x: Any, like: Tensor) -> Region:
        """C(x) as data."""
        return self.region_of(self.numbers(x, like), like)

    def region_of(self, numbers: Any, like: Tensor) -> Region:
        """The same from its numbers."""
        parts = tuple([part._part(own, like) for part, own in self.pairs(numbers)])
        return Region(parts, lambda: self.row_names(numbers, like))

    def _part(self, numbers: Any, like: Tensor) -> Part:
        """A set that is no intersection as a part of a region."""
        (kind,) = self.kinds
        rows_of_its_own = kind is Kind.ROWS and type(self).scale is not ConstraintSet.scale
        return Part(kind, self.data(numbers, like), Own(self, numbers) if rows_of_its_own else None)

    def essential(self, numbers: Any) -> Any:
        """The numbers with infinite bounds on rows that other rows imply: what solvers get, who may lose digits there.

        The rows keep their places. A certificate judges all of them.
        """
        return numbers

    def residual(self, numbers: Any, y: Tensor) -> Tensor:
        """How far y violates each row of `numbers`: ``(*batch, rows)``, zero where the row holds."""
        return residual_of(self.data(numbers, y), y)

    def scale(self, numbers: Any, y: Tensor) -> Tensor:
        """The size of the terms that each row adds up at y: ``(*batch, rows)``; rounding is relative to it."""
        return self.data(numbers, y).scale(y)

    def scale_in(self, numbers: Any, y: Tensor, units: Tensor) -> Tensor:
        """The same where an output counts as at least as large as its unit, ``(n,)``."""
        return self.scale(numbers, torch.maximum(y.abs(), units))

    def rows(self, numbers: Any, like: Tensor) -> AffineRows:
        """The set as affine rows, the coordinates of a box first; only where it is a polyhedron."""
        if self.written_outside or not self.is_made_of(Kind.ROWS, Kind.SOFT):
            raise UnsupportedSetError(f"{type(self).__name__} has no description by affine rows")
        return AffineRows(*self.region_of(numbers, like).stacked()[:3])

    def structure(self, numbers: Any, like: Tensor) -> BoxedRows:
        """The set as general rows beside a box, which is never written as a matrix; only where it is a polyhedron."""
        if not self.written_outside:
            return self.region_of(numbers, like).rows(like)
        rows = self.rows(numbers, like)
        declared = set(self.equality_rows(numbers, like))
        return BoxedRows(*rows, equality=tuple(row in declared for row in range(rows.A.shape[-2])))

    def known(self, like: Tensor, *, learned: bool = False) -> BoxedRows | None:
        """The affine rows as far as construction knows them, boxes first: NaN for a bound that only x knows.

        None where x or training tells A, where a size is not known, and for a set that is no polyhedron.

        Args:
            like: ``(n,)``.
            learned: Whether a matrix that is learned counts, as it is now.
        """
        found = [part._known(like, learned) for part in self.parts]
        rows = [own for own in found if own is not None]
        return join_rows(rows) if len(rows) == len(found) else None

    def _known(self, like: Tensor, learned: bool) -> BoxedRows | None:
        """The same of a set that is no intersection."""
        if not self.is_made_of(Kind.ROWS):
            return None
        if self.written_outside:
            A = self.fixed_matrix(like)
            return None if A is None else BoxedRows(A, *(self.fixed_bounds(like) or (None, None)))
        try:
            data = self.data(self.numbers(Unknown(learned), like), like)
        except (UnknownError, TypeError):  # numbers that are computed from x itself
            return None
        return None if not isinstance(data, BoxedRows) else data.stacked()

    def fixed_matrix(self, like: Tensor) -> Tensor | None:
        """The A of `rows` where it is constant, so that its factor can be kept (bounds may depend on x); else None."""
        rows = None if self.written_outside else self.known(like)
        return None if rows is None else rows.A

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """The bounds of `rows`, ``(m,)`` each, where A is fixed: infinite where absent, NaN where only x knows."""
        rows = None if self.written_outside else self.known(like)
        if rows is None:
            return None
        absent = rows.A.new_full((len(rows.A),), torch.inf)
        return -absent if rows.lower is None else rows.lower, absent if rows.upper is None else rows.upper

    def equality_rows(self, numbers: Any, like: Tensor) -> list[int]:
        """The rows of `rows` that are equalities by their class; no number is looked at."""
        if self.written_outside:
            return []
        declared = self.region_of(numbers, like).stacked().equality
        return [row for row, own in enumerate(declared or ()) if own]

    def row_count(self, numbers: Any, like: Tensor) -> int:
        """How many rows `residual` (and `rows`) have."""
        data = self.data(numbers, like)
        return self.residual(numbers, like).shape[-1] if isinstance(data, Own) else count_of(data, like)

    def row_names(self, numbers: Any, like: Tensor, label: str | None = None) -> list[str]:
        """A readable name for each row of `residual` and of `rows`: ``limits[3]``, or ``budget`` for a single row.

        Rows with names of their own have these, behind a label.
        """
        count = self.row_count(numbers, like)
        if isinstance(self.name, tuple):
            if len(self.name) != count:
                raise ShapeError(sentence("name", f"a name for each of {count} rows", f"{len(self.name)} names"))
            return [f"{label or ''}{own}" for own in self.name]
        label = self.label if label is None else label
        own = self.suffixes(numbers, like)
        if own is not None:
            return [label + name for name in own]
        return [label] if count == 1 else [f"{label}[{row}]" for row in range(count)]

    def suffixes(self, numbers: Any, like: Tensor) -> list[str] | None:
        """What stands behind the label in the name of each row; None where rows are numbered."""
        return None

    def structure_names(self, numbers: Any, like: Tensor) -> tuple[list[str], list[str]]:
        """The names of the general rows of `structure`, and of the n coordinates of its box ("" where it has none)."""
        names = [name for _, name in self.region_of(numbers, like).names(like)]
        k = self.structure(numbers, like).A.shape[-2]
        return names[:k], names[k:] or [""] * like.shape[-1]

    def project(self, numbers: Any, raw: Tensor, **policies: Any) -> Tensor:
        """The Euclidean projection of raw ``(*batch, n)``, differentiable: of a set of your own with `projectable`.

        For sets of the library it is the old spelling of ``hn.layers.HardNetCvx(constraint)(raw, x)``.
        """
        if self.written_outside:
            raise UnsupportedSetError(f"{type(self).__name__} has no projection of its own")
        return _old_spelling("project", self, numbers, raw, **policies)

    def solve(self, raw: Tensor, x: Any = None, **options: Any) -> Any:
        """The old spelling of ``hn.layers.HardNetCvx(constraint).solve(raw, x)``."""
        return _old_spelling("solve", self, self.numbers(x, raw), raw, **options)

    def affine(self, x: Any, like: Tensor) -> AffineRows:
        """`numbers` and `rows` in one step: the affine rows of C(x)."""
        return self.rows(self.numbers(x, like), like)

    def violation(self, y: Tensor, x: Any = None) -> Tensor:
        """How far y violates each row of C(x): ``(*batch, rows)``, in the dtype of y."""
        return self.residual(self.numbers(x, y), y)

    def forward(self, y: Tensor, x: Any = None) -> Tensor:
        """The same as `violation`, so that a set can be called like any module."""
        return self.violation(y, x)

    def __and__(self, other: ConstraintSet) -> ConstraintSet:
        """The intersection of two sets; that of unions is the union of the intersections of their pieces."""
        from hardnet.sets.intersection import Intersection
        from hardnet.sets.union import Union

        if not isinstance(other, ConstraintSet):
            raise DTypeError(sentence("other", "a set after &", type(other).__name__))
        products = [Intersection([mine, theirs]) for mine in self.pieces for theirs in other.pieces]
        return products[0] if len(products) == 1 else Union(products)

    def __or__(self, other: ConstraintSet) -> ConstraintSet:
        """The union of two sets."""
        from hardnet.sets.union import Union

        if not isinstance(other, ConstraintSet):
            raise DTypeError(sentence("other", "a set after |", type(other).__name__))
        return Union([self, other])

    def _check_bounds(self, least: str = "lower", most: str = "upper") -> None:
        """Refuse constant bounds with lower > upper."""
        lower, upper = self.fixed(least), self.fixed(most)
        if lower is None or upper is None or lower.is_meta or upper.is_meta:
            return
        excess = (lower.double() - upper.double()).max().item() if lower.numel() and upper.numel() else 0.0
        if excess > 0:
            raise CROSSED.of(f"{least}, {most}", f"lower > upper by up to {excess:.3g}")


def _old_spelling(name: str, constraint: ConstraintSet, *given: Any, **options: Any) -> Any:
    """What a method of a layer gives under the name that a set had for it in version 0.2."""
    layer = "hn.layers.HardNetCvx(constraint)" + (".solve" if name == "solve" else "")
    warnings.warn(f"constraint.{name} is deprecated: use {layer}(raw, x)", DeprecationWarning, stacklevel=3)
    return getattr(import_module("hardnet.layers.nearest"), name)(constraint, *given, **options)
