"""How far y violates the rows of any set, what counts as satisfied, and how far off that arithmetic can be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.products import times
from hardnet.region import Own, Part, Region, SparseNumbers, residual_of
from hardnet.sets.arguments import map_numbers, number_leaves, to_double
from hardnet.solvers.algebra.compensated import (
    UNIT,
    WIDEST_SUM,
    Excess,
    SlicedRows,
    excess_of_sums,
    largest,
    long_excess,
    plain_excess,
    slice_count,
    slice_rows,
    sliced_excess,
)
from hardnet.structure import BoxedRows, bound_size
from hardnet.tolerances import ROUNDINGS, Reads, largest_read, terms

# The records that a certificate is made from: what is allowed, what was found, and the outputs with their sizes.
#
# `judge_rows` fills them for polyhedra, `judge` for all other sets.


class Allowed(NamedTuple):
    """What counts as satisfied for some rows, as a sum that is written out only where somebody asks for it.

    Attributes:
        row: What each row allows, ``(rows,)`` or ``(B, rows)`` float64.
        sample: What each sample allows beside it, ``(B, 1)`` float64.
        outputs: Outputs of which every coordinate allows a part of its own size in place of `sample`, ``(B, rows)``.
        share: That part.
        grants: Which rows allow `sample` even so, ``(rows,)`` or ``(B, rows)``.
    """

    row: Tensor
    sample: Tensor
    outputs: Tensor | None = None
    share: float = 0.0
    grants: Tensor | None = None

    @classmethod
    def exactly(cls, tolerance: Tensor) -> Allowed:
        """The tolerance ``(B, rows)`` itself."""
        return cls(tolerance, tolerance.new_zeros(()).expand(len(tolerance), 1))

    def of(self, samples: slice) -> Tensor:
        """The tolerance of some samples, ``(b, rows)``."""
        row, grants = (
            part[samples] if part is not None and part.dim() > 1 else part for part in (self.row, self.grants)
        )
        assert row is not None
        if self.outputs is None:
            return self.sample[samples] + row
        own = self.outputs[samples].double().abs()
        own = torch.where(own.isfinite(), own, 0).mul_(self.share)
        if self.grants is not None:
            grants = self.grants[samples] if self.grants.dim() > 1 else self.grants
            own = torch.where(grants, self.sample[samples], own)
        return own.add_(row)


class Judgment(NamedTuple):
    """What a certificate says of the rows of a set.

    Attributes:
        parts: How far each row is violated, float64, as parts ``(B, rows of the part)`` in order. A box that holds for
            every sample is one zero, spread out.
        rounding: A bound on the error of `parts`, ``(B, rows that are no coordinates)`` float64. A coordinate is
            one subtraction, which is off by `UNIT` of its result.
        satisfied: Whether all rows of a sample hold, ``(B,)`` bool.
        allowed: What counts as satisfied, for the rows in order.
    """

    parts: list[Tensor]
    rounding: Tensor
    satisfied: Tensor
    allowed: list[Allowed]


class Tolerance(NamedTuple):
    """What counts as satisfied, by the rule of `hardnet.tolerances`.

    Attributes:
        absolute: The same number for every row; None for the relative one.
        relative: In units of the size of the terms of a row.
        eps: The machine epsilon of y's dtype.
        units: The size of each output, ``(n,)`` float64; None where the outputs themselves tell.
    """

    absolute: float | None
    relative: float
    eps: float
    units: Tensor | None = None

    def of(self, scale: Tensor) -> Tensor:
        """The tolerance of rows whose terms have the size `scale`; terms beyond float64 count as its largest number."""
        greatest = torch.finfo(torch.float64).max
        if self.absolute is not None:
            return torch.full_like(scale, min(self.absolute, greatest))
        return self.relative * scale.clamp_max(greatest)

    @property
    def of_coordinates(self) -> Tolerance:
        """That of a box, which every method holds to rounding."""
        return self._replace(relative=ROUNDINGS * self.eps)


class Points(NamedTuple):
    """Outputs with their sizes, which count what is finite.

    Attributes:
        given: The outputs, ``(B, n)`` of any floating dtype.
        size: ``|y|_inf``, ``(B, 1)`` float64.
        finite: Whether all outputs of a sample are finite, ``(B, 1)``; None where that is so for all samples.
        ends: The smallest and the largest of all outputs; None where some are not finite, or where there is none.
    """

    given: Tensor
    size: Tensor
    finite: Tensor | None
    ends: tuple[float, float] | None = None

    @classmethod
    def of(cls, given: Tensor) -> Points:
        """Measure the outputs."""
        low, high = given.amin(-1, keepdim=True), given.amax(-1, keepdim=True)
        size = torch.maximum(high, -low).double()
        finite = size.isfinite()
        if bool(finite.all()):
            return cls(given, size, None, (low.min().item(), high.max().item()) if given.numel() else None)
        bad = ~finite.squeeze(-1)
        size[bad] = largest(_cleaned(given[bad])).unsqueeze(-1).double()
        return cls(given, size, finite)

    def beside(self, size: Tensor | None) -> Points:
        """The outputs as sums of numbers of another size too, ``(B, 1)``."""
        return self if size is None else self._replace(size=torch.maximum(self.size, size))

    def block(self, samples: slice) -> Points:
        """Some samples in float64."""
        finite = None if self.finite is None else self.finite[samples]
        finite = None if finite is None or bool(finite.all()) else finite
        return Points(self.given[samples].double(), self.size[samples], finite)

    @property
    def y(self) -> Tensor:
        """The outputs with zeros in the place of what is not finite."""
        return self.given if self.finite is None else _cleaned(self.given)


def not_finite(y: Tensor) -> Tensor:
    """The violation where something is not finite: NaN where an output is, else infinite; ``(*batch, 1)``."""
    return y.abs().amax(-1, keepdim=True) + torch.inf


def _cleaned(y: Tensor) -> Tensor:
    """Zeros in the place of what is not finite."""
    return torch.where(y.isfinite(), y, 0)


# How far y violates a polyhedron ``lower <= A y <= upper, box_lower <= y <= box_upper``: block by block of samples.
#
# A block stays in the cache, so that a certificate costs little more than reading y and writing the answer, and never
# needs a matrix for a box. `judgment.py` calls it for every member of a set that is a polyhedron.


TILE_OF_JUDGMENT = 1 << 16
"""Entries of y that fit into the cache of a CPU: a box is judged in such blocks."""
BLOCK = 1 << 19
"""Entries of y (and of its own A) whose general rows are judged at a time on a CPU: many for each operation."""
DEVICE = 1 << 24
"""Both on other devices."""


def judge_rows(
    rows: BoxedRows, points: Points, tolerance: Tolerance, out: Judgment, given: Tensor | None = None
) -> None:
    """Write what holds for y ``(B, n)`` into `out`: the coordinates of a box first, then general rows.

    Args:
        rows: Numbers in any floating dtype, without batch dimensions or with one of length B.
        points: The outputs.
        tolerance: What counts as satisfied.
        out: The record of these rows; its list of what is allowed grows.
        given: The tolerance ``(B, rows)`` itself, where the set has a scale of its own.
    """
    boxed = points.given.shape[-1] if rows.boxed else 0
    if boxed:
        _judge_coordinates(rows, points, tolerance, out, None if given is None else given[:, :boxed])
    if rows.A.shape[-2]:
        _judge_general(rows, points, tolerance, out, None if given is None else given[:, boxed:])


def _judge_coordinates(
    rows: BoxedRows, points: Points, tolerance: Tolerance, out: Judgment, given: Tensor | None
) -> None:
    """The box, block by block; violations are written out only where there are any."""
    box = _box_tolerance(rows, points, tolerance.of_coordinates) if given is None else Allowed.exactly(given)
    out.allowed.append(box)
    none = points.size.new_zeros(()).expand(points.given.shape)
    violation = none
    for samples in blocks(points.given, none.shape[-1], TILE_OF_JUDGMENT) if not _far_inside(rows, points) else ():
        found = _judge_box(rows.map(partial(_block, samples=samples)), points.block(samples))
        if found is not None:
            violation = none.clone() if violation is none else violation
            violation[samples] = found
            out.satisfied[samples] &= (found <= box.of(samples)).all(-1)
    out.parts.append(violation)


def _judge_general(rows: BoxedRows, points: Points, tolerance: Tolerance, out: Judgment, given: Tensor | None) -> None:
    """The other rows, block by block; what all samples share is prepared once."""
    (count, n), m = points.given.shape, rows.A.shape[-2]
    allowed = points.size.new_empty(count, m) if given is None else given
    violation = points.size.new_empty(count, m)
    out.allowed.append(Allowed.exactly(allowed))
    out.parts.append(violation)
    shared = _Matrix(rows.A.double(), count) if rows.A.dim() == 2 else None
    for samples in blocks(points.given, shared.entries if shared else n * m, BLOCK):
        block, own = rows.map(partial(_block, samples=samples)), points.block(samples)
        matrix = shared or _Matrix(block.A, 1)
        if given is None:
            allowed[samples] = _general_tolerance(block, matrix, own, tolerance)
        found = _judge_block(block, matrix, own, allowed[samples])
        violation[samples], out.rounding[samples] = found
        out.satisfied[samples] &= (found.value <= allowed[samples]).all(-1)


def blocks(y: Tensor, entries: int, most: int = TILE_OF_JUDGMENT) -> Iterator[slice]:
    """The samples of y, as many at a time as have `most` entries together."""
    step = max(1, (most if y.device.type == "cpu" else DEVICE) // max(entries, 1))
    for start in range(0, len(y), step):
        yield slice(start, min(start + step, len(y)))


def _block(number: Tensor, core: int, samples: slice) -> Tensor:
    """Some samples of a number in float64; all of a number that has no batch dimension."""
    return (number[samples] if number.dim() > core else number).double()


class _Matrix:
    """General rows ``(m, n)`` or ``(b, m, n)`` in float64: what can be said of them without y.

    Attributes:
        A: With zeros in rows that are not finite.
        sound: Which rows are finite, ``(m,)`` or ``(b, m)``; None where all are.
        weight: ``|a|_1``, ``(m,)`` or ``(b, m)``.
    """

    def __init__(self, A: Tensor, samples: int) -> None:
        sound = largest(A).isfinite()
        self.sound = None if bool(sound.all()) else sound
        self.A = A if self.sound is None else torch.where(sound.unsqueeze(-1), A, 0)
        self.weight = self.A.abs().sum(-1)
        self._samples = samples

    def largest_read(self, points: Points) -> Tensor:
        """The largest output that each row reads, ``(b, m)`` or ``(b, 1)``."""
        if self.A.dim() == 3:
            return largest_read(self.A, points.y.abs())
        return points.size if self._reads is None else self._reads.largest(points.y.abs())

    @property
    def entries(self) -> int:
        """The most numbers of a sample that an operation on shared rows makes."""
        return max(self.A.shape[-1], 0 if self._reads is None else self._reads.places.numel())

    @cached_property
    def _reads(self) -> Reads | None:
        """Which outputs rows read that all samples share."""
        return Reads.of(self.A)

    @cached_property
    def sliced(self) -> SlicedRows | None:
        """The rows in slices, where that takes no more memory than the samples that share them; else None."""
        m, n = self.A.shape[-2:]
        shared = self.A.dim() == 2 and n <= WIDEST_SUM and self._samples >= slice_count(n) * m
        return slice_rows(self.A) if shared else None


def _box_tolerance(rows: BoxedRows, points: Points, tolerance: Tolerance) -> Allowed:
    """``|y_j| + |bounds|`` relative, or ``|y|_inf`` where both bounds are 0 or absent."""
    n, size = rows.A.shape[-1], points.size
    if tolerance.absolute is not None:
        return Allowed(size.new_zeros(n), tolerance.of(size))
    bounds = _of_bounds(rows.box_lower, rows.box_upper, size.new_ones(()))
    if tolerance.units is not None:
        widest = torch.maximum(points.y.double().abs(), tolerance.units)
        return Allowed.exactly(tolerance.of(widest + bounds))
    anchor = tolerance.of(torch.where(bounds > 0, bounds, tolerance.eps)).expand(*bounds.shape[:-1], n)
    return Allowed(anchor, tolerance.of(size), points.given, tolerance.relative, bounds == 0)


def _general_tolerance(rows: BoxedRows, matrix: _Matrix, points: Points, tolerance: Tolerance) -> Tensor:
    """``sum_j |a_j| max(|y_j|, size_j) + |bounds|`` relative, ``(b, m)``."""
    bounds = _of_bounds(rows.lower, rows.upper, matrix.weight)
    if tolerance.units is not None:
        widest = torch.maximum(points.y.abs(), tolerance.units)
        return tolerance.of(times(matrix.A.abs(), widest) + bounds)
    return tolerance.of(terms(matrix.weight, matrix.largest_read(points), points.size, bounds, tolerance.eps))


def _far_inside(rows: BoxedRows, points: Points) -> bool:
    """Whether all outputs are between the largest lower and the smallest upper bound, where all samples share them."""
    lower, upper = rows.box_lower, rows.box_upper
    if points.ends is None or any(side is not None and side.dim() > 1 for side in (lower, upper)):
        return False
    low, high = points.ends
    return (lower is None or lower.max().item() <= low) and (upper is None or high <= upper.min().item())


def _judge_box(rows: BoxedRows, points: Points) -> Tensor | None:
    """``max(y - upper, lower - y, 0)``: one subtraction, whose sign is exact; only a finite output is inside.

    None where all outputs are inside, as those that a layer enforced are: then nothing is subtracted.
    """
    y, lower, upper = points.given, rows.box_lower, rows.box_upper
    if points.finite is None and torch.equal(torch.clamp(y, lower, upper), y) and not _crossed(lower, upper):
        return None
    sides = [] if upper is None else [y - upper]
    sides += [] if lower is None else [lower - y]
    violation = (sides[0] if len(sides) == 1 else torch.maximum(*sides)).clamp_min_(0)
    return violation if points.finite is None else torch.where(y.isfinite(), violation, y.abs())


def _crossed(lower: Tensor | None, upper: Tensor | None) -> bool:
    """Whether some lower bound is above its upper bound, so that `clamp` says nothing of the lower one."""
    return lower is not None and upper is not None and bool((lower > upper).any())


def _judge_block(rows: BoxedRows, matrix: _Matrix, points: Points, allowed: Tensor) -> Excess:
    """``max(A y - upper, lower - A y, 0)`` and its rounding, in long arithmetic where the plain one leaves it open.

    Open are the rows that are neither inside nor violated by more than the rounding of the plain sum. A row is violated
    where a number or an output that it reads is not finite.
    """
    absent = matrix.A.new_full(matrix.A.shape[-2:-1], torch.inf)
    bounds = -absent if rows.lower is None else rows.lower, absent if rows.upper is None else rows.upper
    y = points.y
    excess, rounding = plain_excess(matrix.A, *bounds, y, matrix.weight * points.size)
    inside = excess < -rounding
    rounding.masked_fill_(inside, 0)
    left = ~(inside | (excess > allowed + rounding))
    if bool(left.any()):
        rest = bounds, points._replace(given=y), Excess(excess, rounding)
        if matrix.sliced is None:
            _sum_pairs_again(left, matrix.A, *rest)
        else:
            _sum_shared_again(left, matrix.sliced, *rest)
    excess.clamp_min_(0)
    if points.finite is None and matrix.sound is None:
        return Excess(excess, rounding)
    readable = [part for part in (points.finite, matrix.sound) if part is not None]
    sound = readable[0] if len(readable) == 1 else readable[0] & readable[1]
    return Excess(torch.where(sound, excess, not_finite(points.given)), rounding)


def _sum_shared_again(
    left: Tensor, sliced: SlicedRows, bounds: tuple[Tensor, Tensor], points: Points, found: Excess
) -> None:
    """Write excess and rounding of the rows `left` ``(b, m)`` anew, where all samples share them."""
    rows, samples = left.any(0).nonzero().squeeze(-1), left.any(1).nonzero().squeeze(-1)
    whole = len(samples) == len(left)
    y, size = (points.given, points.size) if whole else (points.given[samples], points.size[samples])
    place = samples.unsqueeze(-1), rows
    lower, upper = (side[rows] if side.dim() == 1 else side[place] for side in bounds)
    for field, value in zip(found, sliced_excess(sliced.some(rows), lower, upper, y, size), strict=True):
        field[place] = torch.where(left[place], value, field[place])


def _sum_pairs_again(left: Tensor, A: Tensor, bounds: tuple[Tensor, Tensor], points: Points, found: Excess) -> None:
    """The same pair by pair of a row and a sample; samples of a shared row go together."""
    step = max(1, TILE_OF_JUDGMENT // A.shape[-1])
    if A.dim() == 3:
        sample, row = left.nonzero(as_tuple=True)
        pieces = ((s, r, A[s, r]) for s, r in zip(sample.split(step), row.split(step), strict=True))
    else:
        rows = left.any(0).nonzero().squeeze(-1).tolist()
        pieces = ((left[:, k].nonzero().squeeze(-1), k, A[k : k + 1]) for k in rows)
    for sample, row, a in pieces:
        low, high = (side[row].expand(len(sample)) if side.dim() == 1 else side[sample, row] for side in bounds)
        for field, value in zip(found, long_excess(a, low, high, points.given[sample]), strict=True):
            field[sample, row] = value


def _of_bounds(lower: Tensor | None, upper: Tensor | None, weight: Tensor) -> Tensor:
    """`hardnet.structure.bound_size` in float64."""
    lower, upper = (None if side is None else side.double() for side in (lower, upper))
    return bound_size(lower, upper, weight)


# How far y violates sparse rows: summed over their entries, and again in twice the precision where that decides.


PAIRS = 1 << 18
"""Entries of rows that are added up again at a time."""


def judge_sparse(numbers: SparseNumbers, y: Tensor, allowed: Tensor) -> Excess:
    """``max(A y - upper, lower - A y, 0)`` ``(*batch, m)`` and a bound on its error.

    Args:
        numbers: Finite entries and bounds in float64; absent bounds are infinite or None.
        y: ``(*batch, n)`` float64, finite.
        allowed: What counts as satisfied, ``(*batch, m)``: a row violated by clearly more is not added up again.
    """
    counts, flat = numbers.crow.diff(), y.reshape(-1, y.shape[-1])
    absent = y.new_full((len(counts),), torch.inf)
    lower = (-absent if numbers.lower is None else numbers.lower).expand(allowed.shape).reshape(-1, len(counts))
    upper = (absent if numbers.upper is None else numbers.upper).expand(allowed.shape).reshape(-1, len(counts))
    size = numbers.product(numbers.values.abs(), torch.ones_like(flat[:1])) * flat.abs().amax(-1, keepdim=True)
    found = excess_of_sums(numbers.product(numbers.values, flat), lower, upper, size, counts)
    inside = found.value < -found.rounding
    left = ~(inside | (found.value > allowed.reshape(-1, len(counts)) + found.rounding))
    found.rounding.masked_fill_(inside, 0)
    for sample, row in _pieces(left, counts):
        a, place = _entries(numbers, row)
        points = flat[sample.unsqueeze(-1), place]
        again = long_excess(a, lower[sample, row], upper[sample, row], points)
        for field, value in zip(found, again, strict=True):
            field[sample, row] = value
    return Excess(*(field.reshape(allowed.shape) for field in (found.value.clamp_min(0), found.rounding)))


def sparse_size(numbers: SparseNumbers, y: Tensor, tolerance: Tolerance) -> Tensor:
    """``sum_j |a_j| max(|y_j|, size_j) + |bound|``, ``(*batch, m)``, by the rule of `hardnet.tolerances`."""
    reach, size = y.abs(), numbers.values.abs()
    weight = numbers.product(size, torch.ones_like(y[..., :1]).expand_as(y))
    bounds = torch.zeros_like(weight)
    if numbers.lower is not None or numbers.upper is not None:
        bounds = bound_size(numbers.lower, numbers.upper, weight)
    if tolerance.units is not None:
        return numbers.product(size, torch.maximum(reach, tolerance.units)) + bounds
    read, largest = torch.zeros_like(weight), reach.amax(-1, keepdim=True)
    row = torch.repeat_interleave(torch.arange(read.shape[-1], device=y.device), numbers.crow.diff())
    for place in range(0, len(row), PAIRS):  # the entries of one sample at a time may be many
        own = slice(place, place + PAIRS)
        found = torch.where(size[own] > 0, reach[..., numbers.col[own].long()], 0)
        read.scatter_reduce_(-1, row[own].expand(found.shape), found, "amax")
    return terms(weight, read, largest, bounds, tolerance.eps)


def _pieces(left: Tensor, counts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs of a sample and a row that the mask ``(B, m)`` names, the shortest rows first, a piece at a time."""
    sample, row = left.nonzero(as_tuple=True)
    order = counts[row].argsort(stable=True)
    longest = int(counts.max()) if len(counts) else 0
    step = max(1, PAIRS // max(longest, 1))
    yield from zip(sample[order].split(step), row[order].split(step), strict=True)


def _entries(numbers: SparseNumbers, row: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of K rows and the outputs they multiply, filled up with zeros: ``(K, most entries)`` each."""
    start, end = numbers.crow[row].unsqueeze(-1), numbers.crow[row + 1].unsqueeze(-1)
    place = start + torch.arange(max(int((end - start).max()), 1), device=row.device) if len(row) else start
    there = place < end
    if not bool(there.any()):
        return numbers.values.new_zeros(place.shape), torch.zeros_like(place, dtype=torch.long)
    place = torch.where(there, place, 0)
    return torch.where(there, numbers.values[place], 0), numbers.col[place].long()


UNDERFLOW = 2.0**-537
"""What a norm may lose where squares underflow: the root of the smallest float64."""


class Curved(NamedTuple):
    """What is said of the rows of a curved member, ``(*batch, rows)`` each."""

    violation: Tensor
    tolerance: Tensor
    rounding: Tensor


def judge(
    region: Region, y: Tensor, tolerance: Tolerance, slack: list[Tensor | None] | None = None
) -> tuple[Judgment, Tensor]:
    """Judge y ``(*batch, n)`` by a region: the flat record, and which rows are coordinates ``(rows,)``.

    Args:
        region: C(x), in the dtype of the model.
        y: Outputs.
        tolerance: What counts as satisfied.
        slack: For each part by how much its bounds have given way, ``(*batch, rows)``, or None.
    """
    batch, flat = y.shape[:-1], y.reshape(-1, y.shape[-1])
    pieces = [
        _loosened(part.data, gave).map(partial(_flat, batch=batch))
        if isinstance(part.data, BoxedRows)
        else judge_curved(part.data, y, tolerance)
        for part, gave in zip(region.parts, slack or [None] * len(region.parts), strict=True)
    ]
    general = [piece.A.shape[-2] if isinstance(piece, BoxedRows) else piece.violation.shape[-1] for piece in pieces]
    rounding = flat.new_empty(len(flat), sum(general), dtype=torch.float64)
    whole = Judgment([], rounding, flat.new_ones(len(flat), dtype=torch.bool), [])
    points = Points.of(flat).beside(_given_way(pieces, slack or []))
    for part, piece, own_rounding in zip(region.parts, pieces, rounding.split(general, -1), strict=True):
        out = whole._replace(rounding=own_rounding)
        if isinstance(piece, BoxedRows):
            judge_rows(piece, points, tolerance, out, _own_tolerance(part, y, tolerance))
        else:
            _copy(piece, out)
    boxed = [y.shape[-1] if part.boxed else 0 for part in region.parts]
    coordinates = [torch.arange(own + k) < own for own, k in zip(boxed, general, strict=True)]
    return whole, torch.cat(coordinates).to(y.device)


def _given_way(pieces: list[Any], slack: list[Tensor | None]) -> Tensor | None:
    """How far rows have given way in outputs, ``(B, 1)``; None where none may.

    What they leave is a compromise of numbers of that size, to whose rounding the outputs are known where they cancel.
    """
    reach = None
    for piece, given in zip(pieces, slack, strict=False):
        if given is not None and given.shape[-1]:
            weight = piece.A.abs().sum(-1).double()
            own = torch.where(weight > 0, given.reshape(-1, given.shape[-1]).abs() / weight, 0)
            own = own.amax(-1, keepdim=True)
            reach = own if reach is None else torch.maximum(reach, own)
    return reach


def _loosened(rows: BoxedRows, slack: Tensor | None) -> BoxedRows:
    """The rows with bounds that have given way by `slack` ``(*batch, m)``, in float64; None changes nothing."""
    if slack is None:
        return rows
    lower = None if rows.lower is None else rows.lower.double() - slack.clamp_min(0)
    upper = None if rows.upper is None else rows.upper.double() + (-slack).clamp_min(0)
    return rows._replace(lower=lower, upper=upper, A=rows.A.double())


def _copy(piece: Curved, out: Judgment) -> None:
    """Write what a curved member says into its rows of the flat record."""
    violation, tolerance, rounding = (field.reshape(len(out.satisfied), field.shape[-1]) for field in piece)
    out.parts.append(violation)
    out.rounding.copy_(rounding)
    out.satisfied.logical_and_((violation <= tolerance).all(-1))
    out.allowed.append(Allowed.exactly(tolerance))


def _own_tolerance(part: Part, y: Tensor, allowed: Tolerance) -> Tensor | None:
    """The tolerance ``(B, rows)`` of a polyhedron whose scale is not that of its rows; None where it is."""
    if part.own is None or allowed.absolute is not None:
        return None
    finite = torch.where(y.isfinite(), y, 0).double()
    scale = _anchored(_in_double(part.own), finite, allowed)
    return allowed.of(scale).expand(*y.shape[:-1], -1).reshape(y.shape[:-1].numel(), scale.shape[-1])


def _in_double(data: Any) -> Any:
    """The numbers of a part in float64."""
    return data._replace(numbers=to_double(data.numbers)) if isinstance(data, Own) else to_double(data)


def _flat(number: Tensor, core: int, batch: torch.Size) -> Tensor:
    """``(*core)`` for a number that all samples share, else ``(B, *core)``."""
    own = number.shape[number.dim() - core :]
    if number.shape[: number.dim() - core].numel() == 1:
        return number.reshape(own)
    return number.expand(*batch, *own).reshape(batch.numel(), *own)


def judge_curved(data: Any, y: Tensor, tolerance: Tolerance) -> Curved:
    """The residual of a part in float64, which adds up and multiplies along n and the widest of its numbers.

    Its rounding is bounded by ``4 (n + that width + 8)`` times `UNIT`, relative to the size of the terms: twice what
    sums, norms and products lose, and what a backward-stable eigenvalue may. Functions whose terms are not known
    (Smooth, Cvxpy) are taken to be as careful. Sparse rows are added up as carefully as dense ones. Samples with a
    number or an output that is not finite are violated.
    """
    given, data = y.double(), _in_double(data)
    leaves = list(number_leaves(data))
    sound = given.isfinite().all(-1)
    for name, leaf in leaves:
        sound = sound & _sound_samples(_usable(name, leaf), y.shape[:-1])
    finite = torch.where(given.isfinite(), given, 0)
    cleaned = finite_numbers(data)
    scale = cleaned.scale(finite)
    allowed = tolerance.of(_anchored(cleaned, finite, tolerance))
    width = y.shape[-1] + max((size for _, leaf in leaves for size in leaf.shape), default=1)
    if isinstance(cleaned, SparseNumbers):
        found = judge_sparse(cleaned, finite, allowed)
    else:
        found = Excess(residual_of(cleaned, finite), 4 * (width + 8) * (UNIT * scale + UNDERFLOW))
    violation = torch.where(sound.unsqueeze(-1), found.value, not_finite(given))
    return Curved(violation, allowed.expand_as(violation), found.rounding.expand_as(violation))


def _anchored(data: Any, y: Tensor, tolerance: Tolerance) -> Tensor:
    """The size of the terms of each row, with a rounding of 1 in y where no other number gives it a size."""
    if isinstance(data, SparseNumbers):
        return sparse_size(data, y, tolerance)
    if tolerance.units is not None:
        own = isinstance(data, Own)
        return data.scale_in(y, tolerance.units) if own else data.scale(torch.maximum(y.abs(), tolerance.units))
    scale = data.scale(y)
    alone = data.scale(torch.zeros_like(y)) > 0
    return scale if bool(alone.all()) else torch.where(alone, scale, data.scale(y.abs() + tolerance.eps))


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
