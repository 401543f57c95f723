"""Relaxed: rows that give way where they must, and only there."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import DTypeError, OptionError, ShapeError, UnsupportedSetError, sentence
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet, Name
from hardnet.structure import BoxedRows


class RelaxedNumbers(NamedTuple):
    """The numbers of the set that gives way, the weight of each of its rows, ``(m,)``, and their level."""

    wanted: Any
    weight: Tensor
    level: int = 1


class Relaxed(ConstraintSet):
    """The points of a polyhedral set, or those that miss it by the least that the sets beside it allow.

    ``hard & Relaxed(C)`` asks first for the least ``sum_i weight_i s_i^2``, where s_i is how far row i of C gives way
    in its own units, then for the nearest point with exactly that slack. It is zero wherever ``hard & C`` has a point;
    the answer is then the projection onto it, bit for bit. Several relaxed sets of one level, each with its weight, add
    up; those of a further level give way as far as the levels above need it, and move these by rounding alone. Alone,
    with rows of length one, it is the compromise of ``on_infeasible="nearest"``.

    The violation of a row is how far it is from what was wanted; `hn.check` tells what had to give way from what broke.

    Args:
        constraint: A polyhedral set: `Affine`, `Equality`, `Box`, `Simplex`, or `&` of these.
        weight: A positive number, or one for each row of `constraint`. Rounding hides a ``weight |a|^2`` that is less
            than about 1e-8 of that of rows which give way by much: such a sample is a `ConvergenceError`.
        level: 1 for the highest; rows of level 2 have the least slack that is left once those of level 1 have theirs.
        name: What errors and certificates call these rows, or a list of names, one for each row; by default the name of
            `constraint`.
    """

    kind = Kind.SOFT

    stored_as: ClassVar[dict[str, str]] = {"level": "priority"}

    def __init__(
        self, constraint: ConstraintSet, weight: Any = 1.0, level: int | None = 1, *, name: Name = None
    ) -> None:
        super().__init__(name)
        if level is not None and (not isinstance(level, int) or isinstance(level, bool) or level < 1):
            raise OptionError(sentence("level", "an integer, 1 for the highest", repr(level)))
        self.priority: int | None = None if level == 1 else level
        if not isinstance(constraint, ConstraintSet):
            raise DTypeError(sentence("constraint", "a set", type(constraint).__name__))
        if not constraint.is_made_of(Kind.ROWS):
            expected = "a set of affine rows, not relaxed itself"
            raise UnsupportedSetError(sentence("constraint", expected, type(constraint).__name__))
        if callable(weight) or getattr(weight, "requires_grad", False):
            raise DTypeError(sentence("weight", "constant positive numbers", "a function or a learned number"))
        self.constraint = constraint
        self.take("weight", weight, None, "positive")
        if self._weight.dim() > 1:
            raise ShapeError(sentence("weight", "a number, or one for each row", tuple(self._weight.shape)))

    @property
    def _weight(self) -> Tensor:
        return self.get_buffer("weight")

    @property
    def dim(self) -> int | None:
        """N, as far as the set knows it."""
        return self.constraint.dim

    @property
    def constant(self) -> bool:
        """Whether the set is constant."""
        return self.constraint.constant

    @property
    def label(self) -> str:
        """Its name, or that of the set that gives way."""
        return self.name if isinstance(self.name, str) else self.constraint.label

    def follow(self, like: Tensor) -> bool:
        """Move the written constants of both."""
        return super().follow(like) | self.constraint.follow(like)

    def numbers(self, x: Any, like: Tensor) -> RelaxedNumbers:
        """The numbers of the set, and one weight for each row."""
        wanted = self.constraint.numbers(x, like)
        count = self.constraint.row_count(wanted, like)
        weight = self._weight.to(like)
        if weight.dim() and len(weight) != count:
            raise ShapeError(sentence("weight", f"a number or shape ({count},), one for each row", tuple(weight.shape)))
        return RelaxedNumbers(wanted, weight.expand(count), self.priority or 1)

    def extra_repr(self) -> str:
        """Name, weight, and a level that is not the first."""
        return super().extra_repr() + ("" if self.priority is None else f", level={self.priority}")

    def data(self, numbers: RelaxedNumbers, like: Tensor) -> BoxedRows:
        """General rows with weights; a box that gives way is no box."""
        rows = self.constraint.region_of(numbers.wanted, like).stacked()
        level = torch.full_like(numbers.weight, numbers.level)
        return rows._replace(equality=None, weight=numbers.weight, level=level)

    def row_names(self, numbers: RelaxedNumbers, like: Tensor, label: str | None = None) -> list[str]:
        """Those of the set, under the name of this one; or its own."""
        if isinstance(self.name, tuple):
            return super().row_names(numbers, like, label)
        return self.constraint.row_names(numbers.wanted, like, self.name if label is None else label)
