"""Intersections: ``y in C_1(x) and y in C_2(x) and ...``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from hardnet.errors import DTypeError, InfeasibleError, ShapeError, UnsupportedSetError, sentence
from hardnet.functional.alternating import project_alternating, solve_alternating
from hardnet.functional.conic import project_intersection, solve_intersection
from hardnet.functional.l1_ball import Region, project_with_balls, solve_with_balls
from hardnet.functional.nearest import project_rows
from hardnet.functional.relaxed import project_relaxed
from hardnet.nearest.policy import OnInfeasible, OnInvalid
from hardnet.nearest.policy import Policy as NearestPolicy
from hardnet.sets.affine import BoxNumbers
from hardnet.sets.arguments import to_double
from hardnet.sets.base import AffineRows, ConstraintSet, Name
from hardnet.sets.l1_ball import AbsoluteSet
from hardnet.sets.sparse import Factors, project_compressed, solve_compressed
from hardnet.solvers.conic.blocks import Block, Intervals
from hardnet.solvers.solution import Solution
from hardnet.structure import BoxedRows, join, join_rows
from hardnet.tolerances import ALTERNATING

BLOCKS: tuple[Any, ...] = get_args(Block)
"""The numbers of a set that states one of these as its record are its block."""


POLICIES = ("on_infeasible", "on_unsolved", "on_invalid")
"""What sparse rows are asked; all of their answers are proved, so that there is nothing to warn of."""


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
        flat: list[ConstraintSet] = []
        for member in members:
            flat.extend(member.parts if isinstance(member, Intersection) else [member])
        if any(len(member.pieces) > 1 for member in flat):
            raise UnsupportedSetError(sentence("members", "sets that are no unions", "Union", "join them by a & b"))
        known = {member.dim for member in flat if member.dim is not None}
        if len(known) > 1:
            raise ShapeError(sentence("members", "sets of one output dimension", f"dimensions {sorted(known)}"))
        self.members: nn.ModuleList = nn.ModuleList(flat)
        self._factors = Factors()

    @property
    def parts(self) -> list[ConstraintSet]:
        """The members as a typed list."""
        return [cast(ConstraintSet, member) for member in self.members]

    @property
    def constant(self) -> bool:
        """Whether every member is constant."""
        return all(part.constant for part in self.parts)

    @property
    def polyhedral(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every member is polyhedral, so that their rows can be stacked."""
        return all(part.polyhedral for part in self.parts)

    @property
    def projectable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether some member is curved or an L1 ball, and the others are too or are polyhedra; or some rows give way.

        Beside rows that give way no member is curved. So are sparse rows beside others that are constant. Polyhedra
        are left to the projection of their rows. Own sets may bring nothing but a projection.
        """
        if self.compressed:
            return self.same_rows
        if self.relaxed:
            return all(part.polyhedral or part.relaxed for part in self.parts)
        known = (part.curved or part.polyhedral or part.absolute or _brings_projection(part) for part in self.parts)
        return not self.polyhedral and all(known)

    @property
    def alternating(self) -> bool:
        """Whether some member brings nothing but a projection: then the cycles of `project_alternating` solve it."""
        return any(_brings_projection(part) for part in self.parts) and not (self.compressed or self.relaxed)

    @property
    def compressed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether some member keeps its rows sparse."""
        return any(part.compressed for part in self.parts)

    @property
    def same_rows(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the rows of all members are constant."""
        return all(part.same_rows for part in self.parts)

    @property
    def relaxed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the rows of some member may give way."""
        return any(part.relaxed for part in self.parts)

    @property
    def absolute(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether some member is an L1 ball."""
        return any(part.absolute for part in self.parts)

    @property
    def declares_equalities(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether some member has equalities by its class."""
        return any(part.declares_equalities for part in self.parts)

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

    def numbers(self, x: Any, like: Tensor) -> tuple[Any, ...]:
        """The numbers of each member."""
        return tuple(part.numbers(x, like) for part in self.parts)

    def residual(self, numbers: tuple[Any, ...], y: Tensor) -> Tensor:
        """The rows of all members, in order."""
        return join([part.residual(own, y) for part, own in zip(self.parts, numbers, strict=True)])

    def scale(self, numbers: tuple[Any, ...], y: Tensor) -> Tensor:
        """The scales of all members, in order."""
        return join([part.scale(own, y) for part, own in zip(self.parts, numbers, strict=True)])

    def scale_in(self, numbers: tuple[Any, ...], y: Tensor, units: Tensor) -> Tensor:
        """The same with units, in order."""
        return join([part.scale_in(own, y, units) for part, own in zip(self.parts, numbers, strict=True)])

    def rows(self, numbers: tuple[Any, ...], like: Tensor) -> AffineRows:
        """The affine rows of all members, stacked."""
        return stack_rows([part.rows(own, like) for part, own in zip(self.parts, numbers, strict=True)])

    def structure(self, numbers: tuple[Any, ...], like: Tensor) -> BoxedRows:
        """The general rows of all members, one below the other, and their boxes clipped to each other."""
        return join_rows([part.structure(own, like) for part, own in zip(self.parts, numbers, strict=True)])

    def essential(self, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of all members."""
        return tuple(part.essential(own) for part, own in zip(self.parts, numbers, strict=True))

    def row_count(self, numbers: tuple[Any, ...], like: Tensor) -> int:
        """The rows of all members."""
        return sum(part.row_count(own, like) for part, own in zip(self.parts, numbers, strict=True))

    def row_names(self, numbers: tuple[Any, ...], like: Tensor, label: str | None = None) -> list[str]:
        """The names of all members' rows, in order."""
        members = zip(self.parts, numbers, self._labels(label), strict=True)
        return [row for part, own, member in members for row in part.row_names(own, like, member)]

    def structure_names(
        self, numbers: tuple[Any, ...], like: Tensor, label: str | None = None
    ) -> tuple[list[str], list[str]]:
        """The names of the general rows of all members, and for each coordinate those of all boxes that bound it."""
        members = zip(self.parts, numbers, self._labels(label), strict=True)
        names = [part.structure_names(own, like, member) for part, own, member in members]
        box = [" & ".join(filter(None, coordinate)) for coordinate in zip(*(box for _, box in names), strict=True)]
        return [row for rows, _ in names for row in rows], box

    def equality_rows(self, numbers: tuple[Any, ...], like: Tensor) -> list[int]:
        """Those of all members, among the stacked rows."""
        found: list[int] = []
        offset = 0
        for part, own in zip(self.parts, numbers, strict=True):
            found += [offset + row for row in part.equality_rows(own, like)]
            offset += part.row_count(own, like)
        return found

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """The bounds of all members, in order, where every matrix is constant."""
        known = [part.fixed_bounds(like) for part in self.parts]
        if any(bounds is None for bounds in known):
            return None
        lower, upper = zip(*(bounds for bounds in known if bounds is not None), strict=True)
        return torch.cat(lower), torch.cat(upper)

    def _labels(self, label: str | None) -> list[str]:
        """The name of each member; unnamed members of one class are numbered."""
        kinds = [part.label for part in self.parts if part.name is None]
        seen: Counter[str] = Counter()
        front = f"{label or self.name}." if label or self.name else ""
        labels = []
        for part in self.parts:
            own = part.label
            if part.name is None and kinds.count(own) > 1:
                own = f"{own}#{seen[own]}"
                seen[part.label] += 1
            labels.append(front if isinstance(part.name, tuple) else front + own)
        return labels

    def follow(self, like: Tensor) -> bool:
        """Move the written constants of all members."""
        return sum(part.follow(like) for part in self.parts) > 0  # `any` would stop at the first

    def blocks(self, numbers: tuple[Any, ...], like: Tensor) -> list[Block]:
        """The blocks of all members, in order."""
        return [block_of(part, own, like) for part, own in zip(self.parts, numbers, strict=True)]

    def project(self, numbers: tuple[Any, ...], raw: Tensor, **policies: Any) -> Tensor:
        """The exact projection onto the intersection, to a scale-free KKT residual of 1e-9, or `tolerance`."""
        if self.alternating:
            ends = policies.get("on_infeasible", "raise"), policies.get("on_invalid", "raise")
            known = self._nearest_of_others(numbers, raw, *ends)
            return project_alternating(raw, self._projections(numbers), NearestPolicy(**policies), known)
        if self.relaxed:
            return self._give_way(numbers, raw, policies)
        if self.compressed:
            return self._sparsely(numbers, raw, policies)
        if self.absolute:
            return project_with_balls(raw, self._region(numbers, raw), **policies)
        return project_intersection(raw, self.blocks(numbers, raw), **policies)

    def _nearest_of_others(
        self, numbers: tuple[Any, ...], raw: Tensor, on_infeasible: OnInfeasible = "nan", on_invalid: OnInvalid = "nan"
    ) -> Tensor:
        """The nearest point of the members that the library solves together."""
        own = [pair for pair in zip(self.parts, numbers, strict=True) if not _brings_projection(pair[0])]
        if not own:
            return raw
        parts, given = [part for part, _ in own], tuple(number for _, number in own)
        joined: Any = Intersection(parts) if len(parts) > 1 else parts[0]
        mine = given if len(parts) > 1 else given[0]
        if joined.polyhedral:
            rows = joined.structure(joined.essential(mine), raw)
            return project_rows(raw, rows, on_infeasible=on_infeasible, on_unsolved="nan", on_invalid=on_invalid)
        return joined.project(mine, raw, on_infeasible=on_infeasible, on_invalid=on_invalid)

    def _projections(self, numbers: tuple[Any, ...]) -> list[Callable[[Tensor], Tensor]]:
        """In float64: the projections that members bring, then that of all others together, where there are some."""
        exact = to_double(numbers)
        own = [(part, given) for part, given in zip(self.parts, exact, strict=True) if _brings_projection(part)]
        projections: list[Callable[[Tensor], Tensor]] = [partial(part.project, given) for part, given in own]
        return projections if len(own) == len(self.parts) else [*projections, partial(self._nearest_of_others, exact)]

    def _region(self, numbers: tuple[Any, ...], like: Tensor) -> Region:
        """The members by kind: rows beside a box, curved blocks, and L1 balls."""
        members = list(zip(self.parts, numbers, strict=True))
        none = BoxedRows(like.new_empty(0, like.shape[-1]), None, None, equality=())
        rows = [part.structure(own, like) for part, own in members if part.polyhedral]
        blocks = [block_of(part, own, like) for part, own in members if part.curved]
        balls = [part.ball(own) for part, own in members if isinstance(part, AbsoluteSet)]
        return Region(join_rows(rows or [none]), blocks, balls)

    def _give_way(self, numbers: tuple[Any, ...], raw: Tensor, policies: dict[str, Any]) -> Tensor:
        """The nearest point with the least slack; hard rows that contradict each other are named."""
        rows = self.structure(numbers, raw)
        try:
            return project_relaxed(raw, rows, **policies)
        except InfeasibleError as error:
            general, box = self.structure_names(numbers, raw)
            raise error.named([*general, *box]) from None

    def _sparsely(self, numbers: tuple[Any, ...], raw: Tensor, policies: dict[str, Any]) -> Tensor:
        """The nearest point by sparse factors; rows that contradict each other are named."""
        policies = {name: policies[name] for name in POLICIES if name in policies}
        try:
            return project_compressed(self.parts, numbers, raw, self._factors, **policies)
        except InfeasibleError as error:
            raise error.named(self.row_names(numbers, raw)) from None

    def solve(self, raw: Tensor, x: Any = None, *, tolerance: float = 1e-9) -> Solution:
        """The projection with its `Solution`: status, residual, iterations and multipliers of each sample."""
        numbers = self.numbers(x, raw)
        if self.alternating:
            return solve_alternating(raw, self._projections(numbers))
        if self.compressed:
            return solve_compressed(self.parts, numbers, raw, self._factors)
        if self.absolute:
            return solve_with_balls(raw, self._region(numbers, raw))
        return solve_intersection(raw, self.blocks(numbers, raw), tolerance=tolerance)

    def fixed_matrix(self, like: Tensor) -> Tensor | None:
        """The matrices of all members, stacked, where every one is constant."""
        stack = [part.fixed_matrix(like) for part in self.parts]
        fixed = [A for A in stack if A is not None]
        return join(fixed, dim=-2) if len(fixed) == len(stack) else None


def _brings_projection(part: ConstraintSet) -> bool:
    """Whether a set brings a projection and nothing else that could be joined; CVXPY's are not exact enough."""
    other = part.polyhedral or part.curved or part.absolute or part.compressed or part.relaxed
    return part.projectable and not other and part.tolerance == 0


def stack_rows(stack: list[AffineRows]) -> AffineRows:
    """The rows of several polyhedra, one below the other."""
    return AffineRows(*join_rows([BoxedRows(*rows) for rows in stack])[:3])


def block_of(part: ConstraintSet, numbers: Any, like: Tensor) -> Block:
    """The block of any curved or polyhedral set; absent bounds become infinite."""
    stated = type(numbers) is part.record
    if part.curved:
        return numbers if stated and part.record in BLOCKS else part.block(numbers)  # pyright: ignore[reportCallIssue]
    if stated and part.record is BoxNumbers:
        A, (lower, upper) = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device), numbers
    else:
        A, lower, upper = numbers if stated and part.record is AffineRows else part.rows(numbers, like)
    absent = A.new_full(A.shape[-2:-1], torch.inf) if lower is None or upper is None else A
    return Intervals(A, -absent if lower is None else lower, absent if upper is None else upper)
