"""The polyhedron ``lower <= A y <= upper`` as the solvers share it: a flat batch in float64, in units of size one.

`hardnet.solvers.polyhedron.projection` chooses the units. The quality of an answer is measured by the natural residual
of its optimality conditions. Every solver of polyhedra uses this form.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import Tolerances
from hardnet.products import align, times_aligned
from hardnet.structure import bound_size

EPS = torch.finfo(torch.float64).eps
GENERAL = Tolerances(inside=10 * EPS, feasible=1e-13, solved=1e-12, strict=1e-11, certain=6 * EPS, allowed=16.0)
"""A raw that is returned unchanged where no value may be read may miss a row by what a certificate allows, less the
rounding of units and of the product; a row is corrected well below that. `feasible` is relative to ``|a| |raw| +
|bound|``, `certain` to ``sum |a_j y_j|``, and `allowed` counts roundings of the caller's dtype."""
FAR = 1e3
"""A set counts as empty if only rounding leaves room for points, and only farther away than this many sizes."""


class Problem(NamedTuple):
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, sample by sample.

    All numbers are in units of size one.

    Attributes:
        raw: ``(B, n)``.
        A: ``(m, n)`` for all samples, or ``(B, m, n)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        norm: ``|a_i|``, ``(m,)`` or ``(B, m)``; 1 for a zero row.
        product: ``A raw``, ``(B, m)``.
        slack: How far each row may be violated and still count as satisfied, ``(B, m)``, in units of ``A y``.
        size: The original m and n; on a CPU they are padded with zero rows without bounds and zero outputs, `align`.
    """

    raw: Tensor
    A: Tensor
    lower: Tensor
    upper: Tensor
    norm: Tensor
    product: Tensor
    slack: Tensor
    size: tuple[int, int]

    @property
    def shared(self) -> bool:
        """Whether all samples have the same A."""
        return self.A.dim() == 2

    @property
    def equality(self) -> Tensor:
        """``lower == upper``: ``(B, m)``."""
        return self.lower == self.upper

    def take(self, index: Tensor | slice) -> Problem:
        """The problem of some samples."""
        A, norm = (self.A, self.norm) if self.shared else (self.A[index], self.norm[index])
        lower, upper, product, slack = (part[index] for part in (self.lower, self.upper, *self[5:7]))
        return Problem(self.raw[index], A, lower, upper, norm, product, slack, self.size)

    def of_unit_rows(self) -> Problem:
        """The same samples with rows of length one, and a matrix each."""
        A, norm = self.A.expand(len(self.raw), -1, -1), self.norm.expand_as(self.lower)
        lower, upper, product, slack = (part / norm for part in (self.lower, self.upper, *self[5:7]))
        return Problem(self.raw, A / norm.unsqueeze(-1), lower, upper, torch.ones_like(norm), product, slack, self.size)

    def slack_at(self, point: Tensor) -> Tensor:
        """`slack`, for a point that may be larger than raw: ``(B, m)``."""
        length = lambda vector: torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
        return self.slack + GENERAL.feasible * self.norm * (length(point) - length(self.raw)).clamp_min(0.0)

    def violation(self, product: Tensor) -> Tensor:
        """``max(A y - upper, lower - A y)`` for the given ``A y``: positive where a row is violated."""
        return torch.maximum(product - self.upper, self.lower - product)

    def beyond(self, y: Tensor, product: Tensor) -> Tensor:
        """How far the worst row is violated beyond `certain` of its terms at y, given ``A y``: ``(B,)``; zero if none.

        A row's terms ``sum |a_j y_j|`` are at least ``|a'y|``, so they are only summed where ``|a'y|`` does not decide.
        """
        excess, worst = self.violation(product), torch.zeros_like(y[:, 0])
        sample, row = (excess > GENERAL.certain * product.abs()).nonzero(as_tuple=True)
        if len(sample) == 0:
            return worst
        if self.shared:  # one product for all samples costs less than copying each row in doubt
            terms = times_aligned(self.A.abs(), y.abs())[sample, row]
        else:
            terms = times_aligned(self.A[sample, row].abs().unsqueeze(-2), y[sample].abs()).squeeze(-1)
        left = (excess[sample, row] - GENERAL.certain * terms).clamp_min(0.0)
        return worst.scatter_reduce(0, sample, left, "amax")

    def size_at(self, y: Tensor) -> Tensor:
        """``|a|_1 max |y| + |bounds|``, to which violations are relative in a certificate: ``(B, m)``."""
        weight = self.A.abs().sum(-1)
        return weight * y.abs().amax(-1, keepdim=True) + bound_size(self.lower, self.upper, weight)

    def certified(self, y: Tensor, rounding: float, product: Tensor | None = None) -> Tensor:
        """Whether no row is violated by more than `allowed` roundings of its size at y ``(B,)``; `product`: ``A y``."""
        product = times_aligned(self.A, y) if product is None else product
        return (self.violation(product) <= GENERAL.allowed * rounding * self.size_at(y)).all(-1)


def standard_form(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Problem:
    """The problem of a batch given in units of size one, with the derived numbers that the solvers read.

    Args:
        raw: ``(B, n)``.
        A: ``(m, n)`` or ``(B, m, n)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
    """
    m, n = A.shape[-2:]
    raw, A = align(raw), align(A, 2)
    lower, upper = align(lower, absent=-torch.inf), align(upper, absent=torch.inf)
    norm = torch.linalg.vector_norm(A, dim=-1)
    norm = torch.where(norm > 0, norm, 1.0)
    return Problem(raw, A, lower, upper, norm, times_aligned(A, raw), _slack(norm, raw, lower, upper), (m, n))


def _slack(norm: Tensor, point: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """``GENERAL.feasible (|a| |point| + |bound|)`` with the smaller bound.

    The larger bound is not needed: if it is violated by an ``a'y`` on the far side of zero, the smaller bound is as
    large; otherwise ``|a'y|`` is larger.
    """
    nearest = torch.minimum(lower.abs(), upper.abs())
    size = torch.where(nearest.isfinite(), nearest, 0.0)
    return GENERAL.feasible * (norm * torch.linalg.vector_norm(point, dim=-1, keepdim=True) + size)


def kkt_residual(problem: Problem, y: Tensor, dual: Tensor, product: Tensor | None = None) -> Tensor:
    """``max(|y - raw + A'dual|, |A y - clamp(A y + dual, lower, upper)|) / max(1, |y|)`` with unit rows: ``(B,)``.

    It is zero exactly at the projection. In the sample's unit, raw and the distance to the set have size 1.
    `product` is ``A y`` if the caller has it already.
    """
    stationarity = (y - problem.raw + times_aligned(problem.A.mT, dual)).abs().amax(-1)
    product = times_aligned(problem.A, y) if product is None else product
    moved = (product + dual * problem.norm.square()).clamp(problem.lower, problem.upper)
    complementarity = ((product - moved).abs() / problem.norm).amax(-1)
    return torch.maximum(stationarity, complementarity) / y.abs().amax(-1).clamp_min(1.0)


def careful_residual(problem: Problem, y: Tensor, dual: Tensor) -> Tensor:
    """`kkt_residual` less what rounding of the multipliers alone may contribute to ``y - raw + A'dual``: ``(B,)``.

    Nearly dependent rows have multipliers far larger than y, which cancel, and each is off by its own rounding. This
    allowance does not apply to violated rows.
    """
    size, unit = times_aligned(problem.A.abs().mT, dual.abs()).amax(-1), y.abs().amax(-1).clamp_min(1.0)
    rounding = y.shape[-1] * torch.finfo(y.dtype).eps * size / unit
    product = times_aligned(problem.A, y)
    violated = (problem.violation(product) / problem.norm).amax(-1) / unit
    return torch.maximum(kkt_residual(problem, y, dual, product) - rounding, violated).clamp_min(0.0)


def harmless(valid: Tensor, raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    """The numbers with zeros and absent bounds in place of those of invalid samples, which every solver can handle."""
    row = valid.unsqueeze(-1)
    A = torch.where(valid.any(), A, 0.0) if A.dim() == 2 else torch.where(row.unsqueeze(-1), A, 0.0)
    bounds = torch.where(row, lower, -torch.inf), torch.where(row, upper, torch.inf)
    return torch.where(row, raw, 0.0), A, *bounds
