"""Intersections: ``y in C_1(x) and y in C_2(x) and ...``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from hardnet.errors import DTypeError, ShapeError, UnsupportedSetError, sentence
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet, Name
from hardnet.structure import join
from hardnet.tolerances import ALTERNATING


class Intersection(ConstraintSet):
    """The points that lie in every member; nested intersections are flattened.

    Args:
        members: Two or more sets of the same output dimension.
        name: What errors and certificates put in front of the members' names.
    """

    def __init__(self, members: Sequence[ConstraintSet], *, name: Name = None) -> None:
        super().__init__(name)
        if isinstance(self.name, tuple):
            raise DTypeError(sentence("name", "a string", "a list", "the members name their rows"))
        flat = [part for member in members for part in member.parts]
        if any(len(part.pieces) > 1 for part in flat):
            raise UnsupportedSetError(sentence("members", "sets that are no unions", "Union", "join them by a & b"))
        known = {part.dim for part in flat if part.dim is not None}
        if len(known) > 1:
            raise ShapeError(sentence("members", "sets of one output dimension", f"dimensions {sorted(known)}"))
        self.members: nn.ModuleList = nn.ModuleList(flat)

    @property
    def parts(self) -> list[ConstraintSet]:
        """The members as a typed list."""
        return [cast(ConstraintSet, member) for member in self.members]

    @property
    def kinds(self) -> frozenset[Kind]:
        """Those of all members."""
        return frozenset().union(*(part.kinds for part in self.parts))

    @property
    def polyhedral(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every member is a polyhedron, so that their rows can be stacked."""
        return self.is_made_of(Kind.ROWS)

    @property
    def all_equal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all rows of every member are equalities by its class."""
        return all(part.all_equal for part in self.parts)

    @property
    def constant(self) -> bool:
        """Whether every member is constant."""
        return all(part.constant for part in self.parts)

    @property
    def alternating(self) -> bool:
        """Whether some member brings nothing but a projection: then projections are taken in turns."""
        return Kind.PROJECTION in self.kinds and not self.kinds & {Kind.SPARSE, Kind.SOFT}

    @property
    def tolerance(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The largest that a member has: one method enforces them all."""
        return max([part.tolerance for part in self.parts] + [ALTERNATING] * self.alternating)

    def extra_repr(self) -> str:
        """The name, and the tolerance where members bring nothing but a projection."""
        said = f"alternating projections, to tolerance {ALTERNATING:g}" if self.alternating else ""
        return ", ".join(filter(None, [super().extra_repr(), said]))

    @property
    def dim(self) -> int | None:
        """The first output dimension that a member knows."""
        return next((part.dim for part in self.parts if part.dim is not None), None)

    def follow(self, like: Tensor) -> bool:
        """Move the written constants of all members."""
        return sum(part.follow(like) for part in self.parts) > 0  # `any` would stop at the first

    def numbers(self, x: Any, like: Tensor) -> tuple[Any, ...]:
        """The numbers of each member."""
        return tuple([part.numbers(x, like) for part in self.parts])

    def pairs(self, numbers: tuple[Any, ...]) -> list[tuple[ConstraintSet, Any]]:
        """The members with theirs."""
        return list(zip(self.parts, numbers, strict=True))

    def essential(self, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of all members."""
        return tuple([part.essential(own) for part, own in self.pairs(numbers)])

    def residual(self, numbers: tuple[Any, ...], y: Tensor) -> Tensor:
        """The rows of all members, in order."""
        return join([part.residual(own, y) for part, own in self.pairs(numbers)])

    def scale(self, numbers: tuple[Any, ...], y: Tensor) -> Tensor:
        """The scales of all members, in order."""
        return join([part.scale(own, y) for part, own in self.pairs(numbers)])

    def row_count(self, numbers: tuple[Any, ...], like: Tensor) -> int:
        """The rows of all members."""
        return sum(part.row_count(own, like) for part, own in self.pairs(numbers))

    def row_names(self, numbers: tuple[Any, ...], like: Tensor, label: str | None = None) -> list[str]:
        """The names of all members' rows, in order; unnamed members of one class are numbered."""
        front = f"{label or self.name}." if label or self.name else ""
        unnamed = Counter(part.label for part in self.parts if part.name is None)
        seen: Counter[str] = Counter()
        names = []
        for part, own in self.pairs(numbers):
            called = "" if isinstance(part.name, tuple) else part.label
            if part.name is None and unnamed[called] > 1:
                seen[part.label] += 1
                called = f"{called}#{seen[part.label] - 1}"
            names += part.row_names(own, like, front + called)
        return names
