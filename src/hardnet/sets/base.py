"""A set says what is allowed: it maps the input x to the numbers of C(x)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import CROSSED, DTypeError, ShapeError, UnsupportedSetError, sentence
from hardnet.sets.arguments import Arguments, Name, Number
from hardnet.shapes import joint_batch
from hardnet.structure import BoxedRows

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

    A set states the `record` of its numbers (or evaluates them itself, in `numbers`) and implements `residual` (how
    far each row of these numbers is violated) and `scale` (the size of the terms of each row, which rounding is
    relative to). A polyhedral set adds `rows`; a set with a projection of its own adds `project`. Numbers and points
    are plain tensors, so that a certificate can evaluate the same formulas in float64 whatever the model's dtype.
    """

    polyhedral: bool = False
    """Whether `rows` describes the whole set."""
    projectable: bool = False
    """Whether `project` is available: the set's own exact Euclidean projection."""
    weighable: bool = False
    """Whether its own algorithm takes the weights of the squared distances of the outputs: a diagonal metric."""
    curved: bool = False
    """Whether its rows are curved blocks that the projection onto intersections takes: `hardnet.sets.curved`."""
    absolute: bool = False
    """Whether its row is a sum of absolute values, which `hardnet.functional.l1_ball` joins to other sets."""
    smooth: bool = False
    """Whether `level` describes the whole set."""
    compressed: bool = False
    """Whether its rows are kept in compressed form (`SparseNumbers`), never as a dense matrix."""
    same_rows: bool = False
    """Whether its rows have one constant A for all samples, so that they may stand beside compressed ones."""
    relaxed: bool = False
    """Whether some rows may give way; `structure` then has their weights, and `project` the least slack."""
    by_functions: bool = False
    """Whether its rows are functions of y and x, given by `values`."""
    partitioned: bool = False
    """Whether it is given by two such functions, `inequality` and `equality`."""
    tolerance: float = 0.0
    """What the methods that enforce it promise, relative to the terms of a row; 0 stands for rounding alone."""
    declares_equalities: bool = False
    """Whether some row is an equality by its class (`Equality`, the total of a `Simplex`), whatever its numbers."""

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

    @abstractmethod
    def residual(self, numbers: Any, y: Tensor) -> Tensor:
        """How far y violates each row of `numbers`: ``(*batch, rows)``, zero where the row holds."""

    @abstractmethod
    def scale(self, numbers: Any, y: Tensor) -> Tensor:
        """The size of the terms that each row adds up at y: ``(*batch, rows)``; rounding is relative to it."""

    def scale_in(self, numbers: Any, y: Tensor, units: Tensor) -> Tensor:
        """The same where an output counts as at least as large as its unit, ``(n,)``."""
        return self.scale(numbers, torch.maximum(y.abs(), units))

    def rows(self, numbers: Any, like: Tensor) -> AffineRows:
        """The set as affine rows; only where `polyhedral` is True."""
        raise UnsupportedSetError(f"{type(self).__name__} has no description by affine rows")

    def level(self, numbers: Any, y: Tensor) -> Tensor:
        """The set as ``level <= 0``, ``(*batch, rows)``, twice differentiable in y; only where `smooth` is True."""
        raise UnsupportedSetError(f"{type(self).__name__} has no description by smooth functions")

    def level_rows(self, numbers: Any) -> BoxedRows | None:
        """Affine rows that follow from `level` and that every step towards it keeps; None where there are none."""
        return None

    def structure(self, numbers: Any, like: Tensor) -> BoxedRows:
        """The set as general rows beside a box, which is never written as a matrix; only where `polyhedral` is True."""
        rows = self.rows(numbers, like)
        declared = set(self.equality_rows(numbers, like))
        return BoxedRows(*rows, equality=tuple(row in declared for row in range(rows.A.shape[-2])))

    def essential(self, numbers: Any) -> Any:
        """The numbers with infinite bounds on rows that other rows imply: what solvers get, who may lose digits there.

        The rows keep their places. A certificate judges all of them.
        """
        return numbers

    def fixed_matrix(self, like: Tensor) -> Tensor | None:
        """The A of `rows` where it is constant, so that its factor can be kept (bounds may depend on x); else None."""
        return None

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """The bounds of `rows`, ``(m,)`` each, where A is fixed: infinite where absent, NaN where only x knows."""
        A = self.fixed_matrix(like)
        if A is None:
            return None
        unknown = like.new_full((A.shape[-2],), torch.nan)
        if not self.constant:
            return unknown, unknown
        _, lower, upper = self.affine(None, like)
        return _filled(lower, unknown, -torch.inf), _filled(upper, unknown, torch.inf)

    def equality_rows(self, numbers: Any, like: Tensor) -> list[int]:
        """The rows of `rows` that are equalities by their class; no number is looked at."""
        return []

    def declared_rows(self, count: int) -> list[int]:
        """The same where only the number of rows is known, as when a layer is built."""
        return []

    def factorize(self) -> Any:
        """What `project` can be given as ``factor=``, to be computed once where the numbers are constant; else None."""
        return None

    def row_count(self, numbers: Any, like: Tensor) -> int:
        """How many rows `residual` (and `rows`) have."""
        return self.residual(numbers, like).shape[-1]

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
        return [label] if count == 1 else [f"{label}[{row}]" for row in range(count)]

    def structure_names(self, numbers: Any, like: Tensor, label: str | None = None) -> tuple[list[str], list[str]]:
        """The names of the general rows of `structure`, and of the n coordinates of its box ("" where it has none)."""
        return self.row_names(numbers, like, label), [""] * like.shape[-1]

    def project(self, numbers: Any, raw: Tensor) -> Tensor:
        """The Euclidean projection of raw ``(*batch, n)``, differentiable; only where `projectable` is True."""
        raise UnsupportedSetError(f"{type(self).__name__} has no projection of its own")

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

    def _shared(self, name: str) -> bool:
        """Whether an argument is one constant for all samples."""
        value, core = self.fixed(name), self._cores.get(name)
        return value is not None and (core is None or value.dim() <= len(core))


def _filled(bound: Tensor | None, unknown: Tensor, absent: float) -> Tensor:
    """A bound with one entry per row; infinite where it is absent."""
    return torch.full_like(unknown, absent) if bound is None else bound.expand(unknown.shape)
