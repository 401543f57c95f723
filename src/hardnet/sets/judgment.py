"""How far y violates the rows of any set, what counts as satisfied, and how far off that arithmetic can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.sets.affine import Affine, Box, Boxed
from hardnet.sets.base import ConstraintSet
from hardnet.sets.intersection import Intersection
from hardnet.sets.judge_records import Allowed, Judgment, Points, Tolerance, not_finite
from hardnet.sets.judge_rows import judge_rows
from hardnet.sets.judge_sparse import judge_sparse, sparse_size
from hardnet.sets.relaxed import loosened
from hardnet.sets.sums import Sums
from hardnet.solvers.algebra.compensated import UNIT, Excess
from hardnet.structure import BoxedRows

UNDERFLOW = 2.0**-537
"""What a norm may lose where squares underflow: the root of the smallest float64."""
SCALES_OF_ROWS = (Affine.scale, Box.scale, Sums.scale, Boxed.scale)
"""Scales that say what `judge_rows` knows by itself; another scale is asked for."""


class Curved(NamedTuple):
    """What is said of the rows of a curved member, ``(*batch, rows)`` each."""

    violation: Tensor
    tolerance: Tensor
    rounding: Tensor


def judge(
    constraint: ConstraintSet,
    numbers: Any,
    y: Tensor,
    tolerance: Tolerance,
    slack: list[Tensor | None] | None = None,
) -> tuple[Judgment, Tensor]:
    """Judge y ``(*batch, n)`` by the numbers of C(x): the flat record, and which rows are coordinates ``(rows,)``.

    Args:
        constraint: The set.
        numbers: Its numbers at x, in the dtype of the model.
        y: Outputs.
        tolerance: What counts as satisfied.
        slack: For each member by how much its bounds have given way, ``(*batch, rows)``, or None.
    """
    batch, flat = y.shape[:-1], y.reshape(-1, y.shape[-1])
    parts = list(members(constraint, numbers))
    pieces = [
        judge_curved(part, own, y, tolerance)
        if not (part.polyhedral or part.relaxed)
        else loosened(part.structure(own, y), given).map(partial(_flat, batch=batch))
        for (part, own), given in zip(parts, slack or [None] * len(parts), strict=True)
    ]
    counts = [_coordinates(piece) + _general_rows(piece) for piece in pieces]
    general = [_general_rows(piece) for piece in pieces]
    rounding = flat.new_empty(len(flat), sum(general), dtype=torch.float64)
    whole = Judgment([], rounding, flat.new_ones(len(flat), dtype=torch.bool), [])
    points = Points.of(flat)
    for (part, own), piece, own_rounding in zip(parts, pieces, rounding.split(general, -1), strict=True):
        out = whole._replace(rounding=own_rounding)
        if isinstance(piece, BoxedRows):
            judge_rows(piece, points, tolerance, out, _own_tolerance(part, own, y, tolerance))
        else:
            _copy(piece, out)
    coordinates = torch.cat([torch.arange(k) < _coordinates(piece) for k, piece in zip(counts, pieces, strict=True)])
    return whole, coordinates.to(y.device)


def members(constraint: ConstraintSet, numbers: Any) -> Iterator[tuple[ConstraintSet, Any]]:
    """The sets that an intersection is made of, each with its own numbers; any other set is its only member."""
    if isinstance(constraint, Intersection):
        yield from zip(constraint.parts, numbers, strict=True)
    else:
        yield constraint, numbers


def _copy(piece: Curved, out: Judgment) -> None:
    """Write what a curved member says into its rows of the flat record."""
    violation, tolerance, rounding = (field.reshape(len(out.satisfied), field.shape[-1]) for field in piece)
    out.parts.append(violation)
    out.rounding.copy_(rounding)
    out.satisfied.logical_and_((violation <= tolerance).all(-1))
    out.allowed.append(Allowed.exactly(tolerance))


def _own_tolerance(part: ConstraintSet, numbers: Any, y: Tensor, allowed: Tolerance) -> Tensor | None:
    """The tolerance ``(B, rows)`` of a polyhedron whose scale is not that of its rows; None where it is."""
    if type(part).scale in SCALES_OF_ROWS or part.relaxed or allowed.absolute is not None:
        return None
    finite, numbers = torch.where(y.isfinite(), y, 0).double(), to_double(numbers)
    scale = _anchored(part, numbers, finite, allowed)
    return allowed.of(scale).expand(*y.shape[:-1], -1).reshape(y.shape[:-1].numel(), scale.shape[-1])


def _flat(number: Tensor, core: int, batch: torch.Size) -> Tensor:
    """``(*core)`` for a number that all samples share, else ``(B, *core)``."""
    own = number.shape[number.dim() - core :]
    if number.shape[: number.dim() - core].numel() == 1:
        return number.reshape(own)
    return number.expand(*batch, *own).reshape(batch.numel(), *own)


def _coordinates(piece: BoxedRows | Curved) -> int:
    """How many rows compare one output with a bound of its own."""
    return piece.A.shape[-1] if isinstance(piece, BoxedRows) and piece.boxed else 0


def _general_rows(piece: BoxedRows | Curved) -> int:
    """How many other rows there are."""
    return piece.A.shape[-2] if isinstance(piece, BoxedRows) else piece.violation.shape[-1]


def judge_curved(part: ConstraintSet, numbers: Any, y: Tensor, tolerance: Tolerance) -> Curved:
    """The residual of the set in float64, which adds up and multiplies along n and the widest of its numbers.

    Its rounding is bounded by ``4 (n + that width + 8)`` times `UNIT`, relative to the size of the terms: twice what
    sums, norms and products lose, and what a backward-stable eigenvalue may. Functions whose terms are not known
    (Smooth, Cvxpy) are taken to be as careful. Sparse rows are added up as carefully as dense ones. Samples with a
    number or an output that is not finite are violated.
    """
    given, numbers = y.double(), to_double(numbers)
    leaves = list(number_leaves(numbers))
    sound = given.isfinite().all(-1)
    for name, leaf in leaves:
        sound = sound & _sound_samples(_usable(name, leaf), y.shape[:-1])
    finite = torch.where(given.isfinite(), given, 0)
    cleaned = finite_numbers(numbers)
    scale = part.scale(cleaned, finite)
    allowed = tolerance.of(_anchored(part, cleaned, finite, tolerance))
    width = y.shape[-1] + max((size for _, leaf in leaves for size in leaf.shape), default=1)
    if part.compressed:
        found = judge_sparse(cleaned, finite, allowed)
    else:
        found = Excess(part.residual(cleaned, finite), 4 * (width + 8) * (UNIT * scale + UNDERFLOW))
    violation = torch.where(sound.unsqueeze(-1), found.value, not_finite(given))
    return Curved(violation, allowed.expand_as(violation), found.rounding.expand_as(violation))


def _anchored(part: ConstraintSet, numbers: Any, y: Tensor, tolerance: Tolerance) -> Tensor:
    """The size of the terms of each row, with a rounding of 1 in y where no other number gives it a size."""
    if part.compressed:
        return sparse_size(numbers, y, tolerance)
    if tolerance.units is not None:
        return part.scale_in(numbers, y, tolerance.units)
    scale = part.scale(numbers, y)
    alone = part.scale(numbers, torch.zeros_like(y)) > 0
    return scale if bool(alone.all()) else torch.where(alone, scale, part.scale(numbers, y.abs() + tolerance.eps))


def _usable(name: str, number: Tensor) -> Tensor:
    """Which entries of a number mean something: bounds may be infinite, all others are finite."""
    return ~number.isnan() if name in ("lower", "upper") else number.isfinite()


def finite_numbers(numbers: Any) -> Any:
    """The numbers of a set with zeros in the place of what means nothing."""

    def clean(name: str, leaf: Tensor) -> Tensor:
        usable = _usable(name, leaf)
        return leaf if bool(usable.all()) else torch.where(usable, leaf, 0)

    return map_numbers(clean, numbers)


def _sound_samples(usable: Tensor, batch: torch.Size) -> Tensor:
    """Samples with usable entries alone; a number without the batch in front is every sample's."""
    own = len(batch) if usable.shape[: len(batch)] == batch else 0
    return usable.reshape(*usable.shape[:own], math.prod(usable.shape[own:])).all(-1)


def number_leaves(numbers: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors of a set's (nested) numbers with the names of their fields; an input x is none."""
    if isinstance(numbers, Tensor) and numbers.is_floating_point() and name != "x":
        yield name, numbers
    elif isinstance(numbers, tuple):
        for own, number in zip(_fields(numbers), numbers, strict=True):
            yield from number_leaves(number, own)


def map_numbers(function: Callable[[str, Tensor], Tensor], numbers: Any, name: str = "") -> Any:
    """The numbers of a set with `function` applied to the name and value of every tensor of `number_leaves`."""
    if isinstance(numbers, Tensor) and numbers.is_floating_point() and name != "x":
        return function(name, numbers)
    if not isinstance(numbers, tuple):
        return numbers
    parts = [map_numbers(function, number, own) for own, number in zip(_fields(numbers), numbers, strict=True)]
    return type(numbers)(*parts) if hasattr(numbers, "_fields") else tuple(parts)


def _fields(numbers: tuple[Any, ...]) -> Any:
    """The names of a record's fields; empty names for a plain tuple."""
    return getattr(numbers, "_fields", [""] * len(numbers))


def to_double(numbers: Any) -> Any:
    """The numbers of a set in float64; an input x too, which functions evaluate beside y."""
    double = map_numbers(lambda _, number: number.double(), numbers)
    x = getattr(double, "x", None)
    return double._replace(x=x.double()) if isinstance(x, Tensor) and x.is_floating_point() else double
