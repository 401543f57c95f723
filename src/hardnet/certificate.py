"""check(constraint, y, x): which rows hold, per sample, evaluated in arithmetic more precise than y's dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.errors import BoundsError, DTypeError, ShapeError, UnsupportedSetError, sentence
from hardnet.functional.relaxed import least_slack
from hardnet.layers.base import Layer
from hardnet.modes import full_precision, input_of_set, widen
from hardnet.nearest.policy import group_names
from hardnet.notebook import as_html
from hardnet.region import Kind, Region
from hardnet.sets.arguments import to_double
from hardnet.sets.base import ConstraintSet
from hardnet.sets.judgment import Allowed, Tolerance, blocks, finite_numbers, judge
from hardnet.sets.relaxed import Relaxed
from hardnet.sets.union import Union
from hardnet.shapes import require_float
from hardnet.solvers.algebra.compensated import UNIT
from hardnet.structure import BoxedRows
from hardnet.tolerances import ROUNDINGS, as_units

__all__ = ["ROUNDINGS", "Certificate", "RowReport", "SlackReport", "check"]

WORST = 5
"""Number of rows that a printed certificate names."""


class RowReport(NamedTuple):
    """Summary of one row over all samples.

    Attributes:
        violation: The largest violation.
        satisfied: The share of samples that satisfy the row, from 0 to 1.
    """

    violation: float
    satisfied: float


class SlackReport(NamedTuple):
    """Summary of one row that had to be relaxed.

    Attributes:
        slack: The largest slack, in the units of the row.
        share: The share of samples in which the row was relaxed, from 0 to 1.
        level: The level of its set.
    """

    slack: float
    share: float
    level: int = 1


SLACK_OF_UNITS = 1e-9
"""Accuracy of the least slack of a row, relative to the size of its terms."""


@dataclass(frozen=True, repr=False)
class Certificate:
    """Which rows hold for a batch of outputs, evaluated in float64 or longer, whatever the dtype of the outputs.

    ``violation`` is within ``rounding`` of the exact violation of the set's numbers, so that a satisfied row is
    violated by at most ``tolerance + rounding``; terms below 5e-324, which float64 cannot represent, count as 0.
    Outputs and numbers that are not finite are violations of inf or NaN.

    Only what differs from row to row is stored: a box that holds for every sample is a single zero, so a certificate
    without violations takes a fraction of the memory of y. `violation`, `tolerance` and `rounding` are float64, each
    twice the memory of a float32 y, and are computed when they are accessed, or where a box is violated.

    Attributes:
        parts: The violation of each row, ``(samples, rows of the part)`` float64, the rows in order.
        satisfied: Whether every row of a sample holds, ``(*batch)`` bool.
        allowed: The terms of `tolerance`, row by row.
        row_rounding: `rounding` of the rows that are not coordinates.
        names: The name of each row.
        coordinates: Rows that compare one output with its own bound, ``(rows,)`` bool.
        slack: By how much each row of a `Relaxed` set had to be relaxed, whatever y is: the least slack that the other
            members allow, ``(*batch, rows)`` float64. The bounds are relaxed by it before they are compared with y, so
            it is not part of the violation. None if the set has no relaxed rows.
        promised: What rows may miss relative to their terms, where methods promise that for the set and no more; 0
            where rows are judged to rounding, or by a tolerance of the caller. Coordinates are judged to rounding.
        levels: The level of each row of a `Relaxed` set, 0 for the others; empty if the set has none.
        piece: Of a union which piece y is in, or misses by least, ``(*batch)``; its worst row is the row of the union.
        pieces: What the pieces are called.
    """

    parts: list[Tensor]
    satisfied: Tensor
    allowed: list[Allowed]
    row_rounding: Tensor
    names: list[str]
    coordinates: Tensor
    slack: Tensor | None = None
    promised: float = 0.0
    levels: tuple[int, ...] = ()
    piece: Tensor | None = None
    pieces: tuple[str, ...] = ()

    @cached_property
    def violation(self) -> Tensor:
        """The violation of each row, ``(*batch, rows)`` float64; inf beyond the range of float64."""
        return torch.cat(self.parts, dim=-1).reshape(*self.satisfied.shape, len(self.names))

    @property
    @torch.no_grad()
    def tolerance(self) -> Tensor:
        """The violation up to which a row counts as satisfied, ``(*batch, rows)`` float64; computed at every access."""
        tolerance = torch.empty_like(self.violation)
        places = tolerance.view(-1, len(self.names)).split([part.row.shape[-1] for part in self.allowed], dim=-1)
        for part, place in zip(self.allowed, places, strict=True):
            for samples in blocks(place, place.shape[-1]):
                place[samples] = part.of(samples)
        return tolerance

    @cached_property
    def holds(self) -> Tensor:
        """Whether each row holds, ``(*batch, rows)`` bool; a row that is not finite never does."""
        return self.violation <= self.tolerance  # a tolerance is finite

    @property
    def max_violation(self) -> float:
        """The largest violation of any row of any sample; 0 for an empty batch, NaN where an output is NaN."""
        largest = [part.max() for part in self.parts if part.numel()]
        return torch.stack(largest).max().item() if largest else 0.0

    @property
    def ok(self) -> bool:
        """Whether every sample is satisfied."""
        return bool(self.satisfied.all())

    @property
    def rounding(self) -> Tensor:
        """A bound on the error of `violation`, ``(*batch, rows)`` float64.

        It is 0 for rows clearly inside; rows near their bounds are summed in twice the precision of float64; a
        coordinate of a box is a single subtraction, whose sign is exact.
        """
        rounding = UNIT * self.violation
        rounding[..., ~self.coordinates] = self.row_rounding
        return rounding

    @property
    def exact_box(self) -> Tensor:
        """Whether the outputs of a sample are exactly within their own bounds, not just to rounding: ``(*batch)``."""
        return ((self.violation == 0) | ~self.coordinates).all(dim=-1)

    def by_name(self) -> dict[str, RowReport]:
        """The largest violation of each row, and the share of samples that satisfy it."""
        rows = len(self.names)
        violation, holds = self.violation.reshape(-1, rows), self.holds.reshape(-1, rows)
        if not len(violation):
            return dict.fromkeys(self.names, RowReport(0.0, 1.0))
        pairs = zip(violation.amax(0).tolist(), (holds.sum(0) / len(holds)).tolist(), strict=True)
        return {name: RowReport(*pair) for name, pair in zip(self.names, pairs, strict=True)}

    @property
    def given_way(self) -> dict[str, SlackReport]:
        """The rows that had to be relaxed in some sample, by name: the largest slack, and the share of samples."""
        if self.slack is None or not self.slack.numel():
            return {}
        slack = self.slack.reshape(-1, len(self.names))
        found = zip(slack.amax(0).tolist(), (slack > 0).double().mean(0).tolist(), self.levels, strict=True)
        return {name: SlackReport(*own) for name, own in zip(self.names, found, strict=True) if own[0] > 0}

    def __str__(self) -> str:
        """One line; if there are violations, it names the worst rows, each with its worst sample."""
        samples, good = self.satisfied.numel(), int(self.satisfied.sum())
        text = f"{good} of {samples} samples satisfy every row; largest violation {self.max_violation:.3g}"
        gave = sorted(self.given_way.items(), key=lambda row: (row[1].level, -row[1].slack))[:WORST]
        ranks = len({level for level in self.levels if level}) > 1
        for name, report in gave:
            text += f"; {name} gave way by up to {report.slack:.3g}" + (f" (level {report.level})" if ranks else "")
        if self.promised:
            text += f"; rows are met to {self.promised:.3g} of their terms, which is what methods promise for this set"
        if self.piece is not None:
            counts = torch.bincount(self.piece.flatten(), minlength=len(self.pieces)).tolist()
            taken = [f"{count} in {name}" for name, count in zip(self.pieces, counts, strict=True) if count]
            text += f"; best piece: {', '.join(taken)}"
        return text if self.ok else f"{text}; worst: {', '.join(self._worst())}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The sentence, and for each set its rows, the largest violation and the share of samples that satisfy it."""
        sets: dict[str, list[RowReport]] = {}
        for name, row in self.by_name().items():
            sets.setdefault(name.split("[")[0], []).append(row)
        table = [
            {
                "set": name,
                "rows": len(rows),
                "largest violation": f"{max(row.violation for row in rows):.3g}",
                "satisfied": f"{min(row.satisfied for row in rows):.1%}",
            }
            for name, rows in sets.items()
        ]
        return as_html(table, str(self))

    def _worst(self) -> list[str]:
        """Text for the rows that exceed their tolerance the most; only the first few are named."""
        rows, batch = len(self.names), self.violation.shape[:-1]
        broken = (~self.holds).reshape(-1, rows).any(0).nonzero().squeeze(-1)
        violation, tolerance = (field.reshape(-1, rows)[:, broken] for field in (self.violation, self.tolerance))
        beyond = torch.where(violation <= tolerance, -torch.inf, (violation - tolerance).nan_to_num(nan=torch.inf))
        worst, sample = beyond.max(0)
        order = worst.argsort(descending=True, stable=True).tolist()
        text = []
        for place in order[:WORST]:
            row = int(broken[place])
            at = tuple(int(i) for i in torch.unravel_index(sample[place], batch)) if batch else ()
            text.append(f"{self.names[row]} of sample {at} by {self.violation[(*at, row)].item():.3g}")
        if len(order) <= WORST:
            return text
        return [
            *text,
            f"{len(order) - WORST} more rows, in all {group_names([self.names[row] for row in broken.tolist()])}",
        ]


def check(
    constraint: ConstraintSet | nn.Module,
    y: Tensor,
    x: Any = None,
    *,
    tolerance: float | None = None,
    units: Any = None,
) -> Certificate:
    """Check ``y in C(x)`` row by row, and bound the rounding error of the check itself.

    The numbers of C(x) are those that the model itself uses, in its dtype. Affine rows are summed in float64 and, where
    its rounding leaves the result open, in twice its precision; curved sets are evaluated in float64. The least slack
    of `Relaxed` rows is computed again, in float64, and is accurate to `SLACK_OF_UNITS` times the size of their terms.

    A row counts as satisfied up to `ROUNDINGS` roundings of y's dtype, relative to the size of the terms that it adds
    up, ``sum_j |a_j| max(|y_j|, size_j) + |bound|``. size_j is the unit of output j; without units it is the largest
    output that the row reads, and the largest of the sample where all bounds of the row are 0. A set that methods
    enforce to a tolerance (nonlinear rows, `Cvxpy`) is judged by that tolerance, relative to the same size, and the
    certificate says so; coordinates of a box are not.

    Args:
        constraint: The set; or a model or a layer, which is judged by the `tol` and the units that it was given.
        y: Outputs, ``(*batch, n)``.
        x: The input that the set depends on, as passed to the model; None for a constant set. Check outputs of a model
            that ran on half-precision inputs under autocast either under autocast or with x in float32, as its layer
            received it.
        tolerance: Absolute tolerance for every row, in place of the relative one.
        units: The size of each output, ``(n,)``, where outputs of one sample have different units: a row that reads
            small ones is then judged by these.
    """
    layer = getattr(constraint, "layer", constraint)
    given: dict[str, Any] = {}
    if isinstance(layer, Layer):
        given, layer = {name: getattr(layer.options, name, None) for name in ("tol", "units")}, layer.constraint
    if not isinstance(layer, ConstraintSet):
        remedy = "hn.check(constraint, y, x)"
        raise DTypeError(sentence("constraint", "a set, or a model", type(constraint).__name__, remedy))
    require_float("y", y)
    if layer.dim is not None and y.shape[-1:] != (layer.dim,):
        raise ShapeError(sentence("y", f"shape (*batch, {layer.dim})", tuple(y.shape)))
    if tolerance is not None and not tolerance >= 0:
        raise BoundsError(sentence("tolerance", "a number >= 0, or None", tolerance))
    sizes = as_units(given.get("units") if units is None else units, y.shape[-1])
    eps = torch.finfo(y.dtype).eps
    promised = layer.tolerance if given.get("tol") is None else given["tol"]
    relative = max(ROUNDINGS * eps, promised)
    allowed = Tolerance(tolerance, relative, eps, None if sizes is None else sizes.to(y.device))
    found = _judged(y.detach(), layer, input_of_set(x, y), allowed)
    return found if tolerance is not None else replace(found, promised=promised if promised == relative else 0.0)


@full_precision
@torch.no_grad()
def _judged(y: Tensor, constraint: ConstraintSet, x: Any, allowed: Tolerance) -> Certificate:
    """The certificate of y, evaluated without autocast."""
    if isinstance(constraint, Union):
        return _best_of([_judged(y, piece, x, allowed) for piece in constraint.pieces], constraint)
    numbers = constraint.numbers(x, widen(y))  # a half-precision y may come with float32 constants
    region = constraint.region_of(numbers, widen(y))
    gave = _least_slack(region, y) if Kind.SOFT in constraint.kinds else None
    judgment, coordinates = judge(region, y, allowed, gave)
    names = constraint.row_names(finite_numbers(numbers), y.new_zeros(()).expand_as(y))
    rounding = judgment.rounding.reshape(*y.shape[:-1], judgment.rounding.shape[-1])
    satisfied = judgment.satisfied.reshape(y.shape[:-1])
    certificate = Certificate(judgment.parts, satisfied, judgment.allowed, rounding, names, coordinates)
    if gave is None:
        return certificate
    counts = [boxed + general for boxed, general in region.counts(y)]
    slack = _slack_of_rows(gave, counts, certificate.violation)
    ranks = [(part.priority or 1) if isinstance(part, Relaxed) else 0 for part in constraint.parts]
    levels = tuple(rank for rank, count in zip(ranks, counts, strict=True) for _ in range(count))
    certificate = replace(certificate, levels=levels)
    if allowed.absolute is not None:
        return replace(certificate, slack=slack)
    scale = constraint.scale(to_double(finite_numbers(numbers)), torch.where(y.isfinite(), y, 0).double())
    return _with_slack(certificate, slack, scale)


def _least_slack(region: Region, y: Tensor) -> list[Tensor | None]:
    """The least slack of each part, ``(*batch, its rows)`` float64 with the sign of `least_slack`; None for none.

    A curved part is refused: no method enforces it beside relaxed rows.
    """
    if not all(isinstance(part.data, BoxedRows) for part in region.parts):
        raise UnsupportedSetError(sentence("constraint", "affine rows beside rows that give way", "a curved set"))
    general = [part.data.A.shape[-2] for part in region.parts if isinstance(part.data, BoxedRows)]
    pieces = least_slack(widen(y), region.rows(widen(y))).split(general, dim=-1)
    return [own if part.kind is Kind.SOFT else None for own, part in zip(pieces, region.parts, strict=True)]


def _best_of(found: list[Certificate], constraint: Union) -> Certificate:
    """The certificate of a union: in every sample the worst row of the first piece that holds, or of the nearest."""
    worst, sizes = [], []
    for own in found:
        beyond = (own.violation - own.tolerance).nan_to_num(nan=torch.inf, posinf=torch.inf)
        row = beyond.argmax(-1, keepdim=True)
        kept = [field.gather(-1, row) for field in (own.violation, own.tolerance, own.rounding)]
        sizes.append(torch.where(own.satisfied, -torch.inf, beyond.amax(-1)))
        worst.append(torch.cat(kept, dim=-1))
    piece = torch.stack(sizes, dim=-1).argmin(-1)
    index = piece[..., None, None].expand(*piece.shape, 1, 3)
    best = torch.stack(worst, dim=-2).gather(-2, index).reshape(-1, 3)
    satisfied = torch.stack([own.satisfied for own in found], dim=-1).any(-1)
    no_coordinate = torch.zeros(1, dtype=torch.bool, device=piece.device)
    return Certificate(
        [best[:, :1]],
        satisfied,
        [Allowed.exactly(best[:, 1:2])],
        best[:, 2:].reshape(*piece.shape, 1),
        [constraint.label],
        no_coordinate,
        piece=piece,
        pieces=tuple(constraint.piece_labels),
    )


def _slack_of_rows(given: list[Tensor | None], counts: list[int], like: Tensor) -> Tensor:
    """The absolute slack of every row, ``(*batch, rows)``; 0 for rows that may not be relaxed."""
    zeros = [like.new_zeros(*like.shape[:-1], count) for count in counts]
    return torch.cat([zero if own is None else own.abs() for own, zero in zip(given, zeros, strict=True)], dim=-1)


def _with_slack(certificate: Certificate, slack: Tensor, scale: Tensor) -> Certificate:
    """The certificate with the slack of its rows, which is accurate to `SLACK_OF_UNITS` times their `scale`."""
    tolerance = certificate.tolerance + torch.where(slack > 0, SLACK_OF_UNITS * scale, 0)
    allowed = [Allowed.exactly(tolerance.reshape(-1, len(certificate.names)))]
    satisfied = (certificate.violation <= tolerance).all(dim=-1)
    return replace(certificate, satisfied=satisfied, allowed=allowed, slack=slack)
