"""A region: what C(x) is at one x, as data. Sets make it, layers enforce it, certificates judge it.

A part of a region is one of

    affine rows beside a box, perhaps with weights by which they give way     `BoxedRows`
    sparse rows                                                               `SparseNumbers`
    a convex block ``G(y) in K``                                              `Block`
    an L1 ball                                                                `L1`
    anything else: functions of y, a program, a projection of its own         `Own`

and each has a residual (`residual_of`), how far y misses every row, and ``scale(y)``, what rounding is relative to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from hardnet.functional.l1_ball import L1
from hardnet.products import times
from hardnet.solvers.conic.blocks import Balls, Block, Intervals, Quadratics, SecondOrder, SemiDefinite
from hardnet.structure import BoxedRows, interval_residual, interval_scale, join, join_rows


class Kind(Enum):
    """What a part of a set is, known before any x."""

    ROWS = auto()
    SOFT = auto()  # rows that give way
    SPARSE = auto()
    CURVED = auto()
    ABSOLUTE = auto()
    FUNCTIONS = auto()
    PROGRAM = auto()  # CVXPY's
    PROJECTION = auto()  # a set that brings a projection and nothing else
    OTHER = auto()


class SparseNumbers(NamedTuple):
    """A in compressed rows, ``crow (m + 1,)``, ``col`` and ``values`` ``(k,)``, and the bounds of its rows at x."""

    crow: Tensor
    col: Tensor
    values: Tensor
    lower: Tensor | None
    upper: Tensor | None

    def product(self, values: Tensor, y: Tensor) -> Tensor:
        """``A y`` ``(*batch, m)``, entry by entry, with these values in place of its own."""
        counts = self.crow.diff()
        row = torch.repeat_interleave(torch.arange(len(counts), device=y.device), counts)
        terms = values * y[..., self.col.long()]
        return y.new_zeros(*y.shape[:-1], len(counts)).index_add(-1, row, terms)

    def residual(self, y: Tensor) -> Tensor:
        """``relu(A y - upper) + relu(lower - A y)``."""
        return interval_residual(self.product(self.values, y), self.lower, self.upper)

    def scale(self, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |bounds|``, row by row."""
        weight = self.product(self.values.abs(), torch.ones_like(y[..., :1]).expand_as(y))
        return interval_scale(weight, y, self.lower, self.upper)

    @classmethod
    def of(cls, data: BoxedRows | SparseNumbers, like: Tensor) -> SparseNumbers:
        """Rows in compressed form, those of a box, which are the identity's, first."""
        if isinstance(data, SparseNumbers):
            return data
        n, present = like.shape[-1], data.A != 0
        crow = torch.nn.functional.pad(present.sum(-1).cumsum(0), (1, 0))
        general = cls(crow, present.nonzero()[:, 1], data.A[present], data.lower, data.upper)
        if not data.boxed:
            return general
        place = torch.arange(n + 1, device=like.device)
        box = cls(place, place[:-1], like.new_ones(n), data.box_lower, data.box_upper)
        return cls.joined([box, general]) if len(data.A) else box

    @classmethod
    def joined(cls, parts: list[SparseNumbers]) -> SparseNumbers:
        """The rows of all parts, one below the other."""
        starts = torch.tensor([0, *(len(part.values) for part in parts)], device=parts[0].crow.device).cumsum(0)
        crow = torch.cat([starts[:1], *(part.crow[1:] + start for part, start in zip(parts, starts, strict=False))])
        col, values = torch.cat([part.col for part in parts]), torch.cat([part.values for part in parts])
        absent = [values.new_full((len(part.crow) - 1,), torch.inf) for part in parts]
        lower = [-none if part.lower is None else part.lower for part, none in zip(parts, absent, strict=True)]
        upper = [none if part.upper is None else part.upper for part, none in zip(parts, absent, strict=True)]
        return cls(crow, col, values, join(lower), join(upper))


class Own(NamedTuple):
    """A set that is no data of the library's: functions of y, a program, or what a user wrote; and its numbers."""

    constraint: Any
    numbers: Any

    def residual(self, y: Tensor) -> Tensor:
        """What the set says."""
        return self.constraint.residual(self.numbers, y)

    def scale(self, y: Tensor) -> Tensor:
        """What the set says."""
        return self.constraint.scale(self.numbers, y)

    def scale_in(self, y: Tensor, units: Tensor) -> Tensor:
        """The same where an output counts as at least as large as its unit, ``(n,)``."""
        return self.constraint.scale_in(self.numbers, y, units)


Data = BoxedRows | SparseNumbers | Block | L1 | Own


@dataclass(frozen=True)
class Part:
    """One set at x.

    Attributes:
        kind: What it is.
        data: Its data.
        own: The set itself, where its rows do not tell what rounding is relative to; else None.
    """

    kind: Kind
    data: Data
    own: Own | None = None

    @property
    def boxed(self) -> bool:
        """Whether its first rows are bounds of single outputs."""
        return isinstance(self.data, BoxedRows) and self.data.boxed


@dataclass(frozen=True)
class Region:
    """C(x): the points that lie in every part.

    Attributes:
        parts: The sets at x, in order.
        name_rows: The names of all rows, asked for only where something is worded.
    """

    parts: tuple[Part, ...]
    name_rows: Callable[[], list[str]]

    def rows(self, like: Tensor) -> BoxedRows:
        """The affine rows of all parts, one below the other, and their boxes clipped to each other."""
        found = [part.data for part in self.parts if isinstance(part.data, BoxedRows)]
        return join_rows(found) if found else BoxedRows(like.new_empty(0, like.shape[-1]), None, None, equality=())

    def stacked(self) -> BoxedRows:
        """The same with every box as rows, in the order of the names."""
        return join_rows([part.data.stacked() for part in self.parts if isinstance(part.data, BoxedRows)])

    def blocks(self, like: Tensor) -> list[Block]:
        """Curved parts and rows as the solver of curved sets takes them, in order."""
        return [block_of(part.data, like) for part in self.parts]

    def curved(self) -> list[Block]:
        """The curved parts alone."""
        return [part.data for part in self.parts if part.kind is Kind.CURVED]  # pyright: ignore[reportReturnType]

    def counts(self, like: Tensor) -> list[tuple[int, int]]:
        """For each part how many of its rows are coordinates of a box, and how many are not."""
        boxed = [like.shape[-1] if part.boxed else 0 for part in self.parts]
        return [(own, count_of(part.data, like) - own) for own, part in zip(boxed, self.parts, strict=True)]

    def places(self, like: Tensor) -> tuple[list[int], list[tuple[int, ...]]]:
        """Where the general rows stand among all rows; and for each output its bounds, in every box."""
        general, boxes, start = [], [], 0
        for boxed, count in self.counts(like):
            if boxed:
                boxes.append(range(start, start + boxed))
            general += range(start + boxed, start + boxed + count)
            start += boxed + count
        return general, list(zip(*boxes, strict=True))

    def names(self, like: Tensor) -> list[tuple[int, str]]:
        """For each general row, then for each output with bounds, its row in the set and its name."""
        names, (general, box) = self.name_rows(), self.places(like)
        bounds = [(min(own), " & ".join(names[row] for row in own)) for own in box]
        return [(row, names[row]) for row in general] + bounds

    def box_last(self, dual: Tensor, like: Tensor) -> Tensor:
        """Multipliers of `stacked` in the order of `rows`: those of an output's bounds added up, and last."""
        general, box = self.places(like)
        bounds = [dual[..., list(own)] for own in zip(*box, strict=True)]
        return torch.cat([dual[..., general], torch.stack(bounds).sum(0)], dim=-1) if bounds else dual[..., general]


def residual_of(data: Any, y: Tensor) -> Tensor:
    """How far y misses every row of a part, ``(*batch, rows)``: of a block the positive part of its excess."""
    return data.excess(y).clamp_min(0) if isinstance(data, get_args(Block)) else data.residual(y)


def count_of(data: Data, like: Tensor) -> int:
    """How many rows a part has."""
    if isinstance(data, BoxedRows):
        return data.total
    if isinstance(data, SparseNumbers):
        return len(data.crow) - 1
    return data.constraint.row_count(data.numbers, like) if isinstance(data, Own) else 1


def block_of(data: Any, like: Tensor) -> Block:
    """The block of a curved set or of rows; absent bounds become infinite."""
    if not isinstance(data, BoxedRows):
        return data
    A, lower, upper = data.A, data.lower, data.upper
    if data.boxed and not A.shape[-2]:
        A = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
        lower, upper = data.box_lower, data.box_upper
    elif data.boxed:
        A, lower, upper = data.stacked()[:3]
    absent = A.new_full(A.shape[-2:-1], torch.inf) if lower is None or upper is None else A
    return Intervals(A, -absent if lower is None else lower, absent if upper is None else upper)


def in_units(data: Any, mean: Tensor, std: Tensor) -> Any:
    """The data of all z with ``mean + std z`` in what is given; general rows and blocks keep the units of y."""
    if isinstance(data, BoxedRows):
        shift = times(data.A, mean)
        lower, upper = (None if side is None else side - shift for side in (data.lower, data.upper))
        low, high = (None if side is None else (side - mean) / std for side in (data.box_lower, data.box_upper))
        A = data.A * std.unsqueeze(-2)
        return data._replace(A=A, lower=lower, upper=upper, box_lower=low, box_upper=high)
    if isinstance(data, L1):
        weights = std if data.weights is None else data.weights * std
        return L1((data.center - mean) / std, data.radius, weights)
    if isinstance(data, Quadratics):
        P = (data.P + data.P.mT) / 2
        slope = times(P, mean) + data.q
        value = ((slope + data.q) * mean).sum(-1) / 2 + data.r
        return Quadratics(std.unsqueeze(-1) * P * std.unsqueeze(-2), std * slope, value)
    if isinstance(data, Balls):
        data = data.cone()  # an ellipsoid
    if isinstance(data, SecondOrder):
        offset = (data.c * mean).sum(-1) + data.d
        return SecondOrder(data.A * std.unsqueeze(-2), data.b + times(data.A, mean), data.c * std, offset)
    assert isinstance(data, SemiDefinite)
    F0 = data.F0 + (data.F * mean[..., None, None]).sum(-3)
    return SemiDefinite(F0, data.F * std[..., None, None])
