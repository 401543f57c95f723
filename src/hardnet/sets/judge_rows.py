"""How far y violates a polyhedron ``lower <= A y <= upper, box_lower <= y <= box_upper``: block by block of samples.

A block stays in the cache, so that a certificate costs little more than reading y and writing the answer, and never
needs a matrix for a box.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.rows import BoxedRows
from hardnet.solvers.compensated import largest, long_excess, plain_excess

BLOCK = 1 << 16
"""Entries of y (and of its own A) that are judged at a time on a CPU; a GPU takes all."""


class Judgement(NamedTuple):
    """What a certificate says of the rows of a set.

    Attributes:
        violation: How far each row is violated, ``(*batch, rows)`` float64.
        tolerance: What counts as satisfied, ``(*batch, rows)`` float64.
        rounding: A bound on the error of `violation`, ``(*batch, rows that are no coordinates)`` float64. A coordinate
            is one subtraction, which is off by `UNIT` of its result.
    """

    violation: Tensor
    tolerance: Tensor
    rounding: Tensor


class Tolerance(NamedTuple):
    """What counts as satisfied.

    Attributes:
        absolute: The same number for every row; None for the relative one.
        relative: In units of the size of the terms of a row.
        floor: What is added to the size of every output where all bounds of a row are 0: then nothing else says
            what is small, and what a method leaves of an exact 0 is a rounding of a rounding.
    """

    absolute: float | None
    relative: float
    floor: float

    def of(self, scale: Tensor) -> Tensor:
        """The tolerance of rows whose terms have the size `scale`; terms beyond float64 count as its largest number."""
        greatest = torch.finfo(torch.float64).max
        if self.absolute is not None:
            return torch.full_like(scale, min(self.absolute, greatest))
        return self.relative * scale.clamp_max(greatest)


def judge_rows(rows: BoxedRows, y: Tensor, tolerance: Tolerance, out: Judgement) -> None:
    """Write what holds for y ``(B, n)`` into `out` ``(B, rows)``: the coordinates of a box first, then general rows.

    Args:
        rows: Numbers in any floating dtype, without batch dimensions or with one of length B.
        y: Outputs in any floating dtype.
        tolerance: What counts as satisfied.
        out: A flat record in float64.
    """
    count, n = y.shape
    m = rows.A.shape[-2]
    own = n * (m if rows.A.dim() == 3 else 1)
    step = max(1, BLOCK // max(own, 1)) if y.device.type == "cpu" else max(count, 1)
    for start in range(0, count, step):
        samples = slice(start, min(start + step, count))
        block = rows.map(partial(_block, samples=samples))
        points = _Points.of(y[samples].double())
        boxed = n if rows.boxed else 0
        violation, allowed, rounding = (field[samples] for field in out)
        if boxed:
            _judge_box(block, points, tolerance, violation[:, :n], allowed[:, :n])
        if m:
            _judge_general(block, points, tolerance, Judgement(violation[:, boxed:], allowed[:, boxed:], rounding))


def _block(number: Tensor, core: int, samples: slice) -> Tensor:
    """Some samples of a number in float64; all of a number that has no batch dimension."""
    return (number[samples] if number.dim() > core else number).double()


class _Points(NamedTuple):
    """Outputs of a block, with zeros in the place of what is not finite.

    Attributes:
        given: The outputs themselves, ``(b, n)``.
        y: Finite outputs, ``(b, n)``.
        size: ``|y|_inf``, ``(b, 1)``.
        finite: Whether all outputs of a sample are finite, ``(b, 1)``; None where that is so for all samples.
    """

    given: Tensor
    y: Tensor
    size: Tensor
    finite: Tensor | None

    @classmethod
    def of(cls, given: Tensor) -> _Points:
        """Clean the outputs."""
        size = largest(given).unsqueeze(-1)
        finite = size.isfinite()
        if bool(finite.all()):
            return cls(given, given, size, None)
        y = torch.where(given.isfinite(), given, 0)
        return cls(given, y, largest(y).unsqueeze(-1), finite)


def _judge_box(rows: BoxedRows, points: _Points, tolerance: Tolerance, violation: Tensor, allowed: Tensor) -> None:
    """``max(y - upper, lower - y, 0)``: one subtraction, whose sign is exact; only a finite output is inside."""
    y = points.given
    sides = [] if rows.box_upper is None else [y - rows.box_upper]
    sides += [] if rows.box_lower is None else [rows.box_lower - y]
    torch.clamp_min(sides[0] if len(sides) == 1 else torch.maximum(*sides), 0, out=violation)
    if points.finite is not None:
        violation.copy_(torch.where(y.isfinite(), violation, y.abs()))
    if tolerance.absolute is not None:
        allowed.copy_(tolerance.of(points.size))
    else:  # the sum of two tolerances, so that no temporary of the size of y is needed
        bounds = _bound_sizes(rows.box_lower, rows.box_upper)
        anchor = torch.where(bounds > 0, bounds, tolerance.floor)
        torch.add(tolerance.of(points.size), tolerance.of(anchor), out=allowed)


def _judge_general(rows: BoxedRows, points: _Points, tolerance: Tolerance, out: Judgement) -> None:
    """``max(A y - upper, lower - A y, 0)``, in long arithmetic where the plain one leaves it open.

    Open are the rows that are neither inside nor violated by more than the rounding of the plain sum. A row is violated
    where a number or an output that it reads is not finite.
    """
    sound = rows.A.abs().amax(-1).isfinite()
    A = rows.A if bool(sound.all()) else torch.where(sound.unsqueeze(-1), rows.A, 0)
    absent = A.new_full(A.shape[-2:-1], torch.inf)
    lower = -absent if rows.lower is None else rows.lower
    upper = absent if rows.upper is None else rows.upper
    weight, bounds = A.abs().sum(-1), _bound_sizes(rows.lower, rows.upper)
    anchor = torch.where(bounds > 0, bounds, tolerance.floor * weight)
    out.tolerance.copy_(tolerance.of(weight * points.size + anchor))
    excess, rounding = plain_excess(A, lower, upper, points.y)
    inside = excess < -rounding
    rounding.masked_fill_(inside, 0)
    _sum_again(~(inside | (excess > out.tolerance + rounding)), A, lower, upper, points.y, (excess, rounding))
    torch.clamp_min(excess, 0, out=out.violation)
    out.rounding.copy_(rounding)
    if points.finite is not None or A is not rows.A:
        readable = sound if points.finite is None else sound & points.finite
        out.violation.copy_(torch.where(readable, out.violation, not_finite(points.given)))


def _sum_again(left: Tensor, A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, found: tuple[Tensor, Tensor]) -> None:
    """Write excess and rounding of the rows `left` ``(b, m)`` anew; samples of a shared row go together."""
    if A.dim() == 3:
        sample, row = left.nonzero(as_tuple=True)
        pieces = [(sample, row, A[sample, row])] if len(sample) else []
    else:
        rows = left.any(0).nonzero().squeeze(-1).tolist()
        pieces = [(left[:, k].nonzero().squeeze(-1), k, A[k : k + 1]) for k in rows]
    for sample, row, a in pieces:
        low, high = (side[row].expand(len(sample)) if side.dim() == 1 else side[sample, row] for side in (lower, upper))
        for field, value in zip(found, long_excess(a, low, high, y[sample]), strict=True):
            field[sample, row] = value


def _bound_sizes(lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``|lower| + |upper|`` over the finite bounds; one of them is given."""
    sides = [torch.where(side.isfinite(), side.abs(), 0) for side in (lower, upper) if side is not None]
    return sum(sides[1:], sides[0])


def not_finite(y: Tensor) -> Tensor:
    """The violation where something is not finite: NaN where an output is, else infinite; ``(*batch, 1)``."""
    return y.abs().amax(-1, keepdim=True) + torch.inf
