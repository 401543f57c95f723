"""The records that a certificate is made from: what is allowed, what was found, and the outputs with their sizes.

`judge_rows.py` fills them for polyhedra, `judgment.py` for all other sets.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.algebra.compensated import largest


class Allowed(NamedTuple):
    """What counts as satisfied for some rows, as a sum that is written out only where somebody asks for it.

    Attributes:
        sample: What each sample allows, ``(B, 1)`` float64.
        row: What each row allows, ``(rows,)`` or ``(B, rows)`` float64.
    """

    sample: Tensor
    row: Tensor

    @classmethod
    def exactly(cls, tolerance: Tensor) -> Allowed:
        """The tolerance ``(B, rows)`` itself."""
        return cls(tolerance.new_zeros(()).expand(len(tolerance), 1), tolerance)

    def of(self, samples: slice) -> Tensor:
        """The tolerance of some samples, ``(b, rows)``."""
        return self.sample[samples] + (self.row[samples] if self.row.dim() > 1 else self.row)


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
