"""How far y violates a polyhedron ``lower <= A y <= upper, box_lower <= y <= box_upper``: block by block of samples.

A block stays in the cache, so that a certificate costs little more than reading y and writing the answer, and never
needs a matrix for a box. `judgment.py` calls it for every member of a set that is a polyhedron.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

import torch
from torch import Tensor

from hardnet.products import times
from hardnet.rows import bound_size
from hardnet.sets.judge_records import Allowed, Judgment, Points, Tolerance, not_finite
from hardnet.solvers.algebra.compensated import (
    WIDEST,
    Excess,
    SlicedRows,
    largest,
    long_excess,
    plain_excess,
    slice_count,
    slice_rows,
    sliced_excess,
)
from hardnet.structure import BoxedRows
from hardnet.tolerances import Reads, largest_read, terms

CACHE = 1 << 16
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
    for samples in blocks(points.given, none.shape[-1], CACHE) if not _far_inside(rows, points) else ():
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


def blocks(y: Tensor, entries: int, most: int = CACHE) -> Iterator[slice]:
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
        shared = self.A.dim() == 2 and n <= WIDEST and self._samples >= slice_count(n) * m
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
    step = max(1, CACHE // A.shape[-1])
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
    """`hardnet.rows.bound_size` in float64."""
    lower, upper = (None if side is None else side.double() for side in (lower, upper))
    return bound_size(lower, upper, weight)
