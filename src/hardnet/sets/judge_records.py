"""The records that a certificate is made from: what is allowed, what was found, and the outputs with their sizes.

`judge_rows.py` fills them for polyhedra, `judgment.py` for all other sets.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.algebra.compensated import largest
from hardnet.tolerances import ROUNDINGS


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
