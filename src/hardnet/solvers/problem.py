"""The polyhedron ``lower <= A y <= upper`` in the form the solvers share: one flat batch of float64 numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 8
"""Numbers in 64 bytes: matrix routines of a CPU may add up in another order where a sample starts at another place."""
FEASIBLE = 1e-13
"""A row is satisfied when it is violated by no more than this part of ``|a| |raw| + |bound|``."""


class Problem(NamedTuple):
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, sample by sample.

    All numbers are in units of size one, `hardnet.solvers.units`.

    Attributes:
        raw: ``(B, n)``.
        A: ``(m, n)`` for all samples, or ``(B, m, n)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        norm: ``|a_i|``, ``(m,)`` or ``(B, m)``; 1 for a zero row.
        product: ``A raw``, ``(B, m)``.
        slack: How far each row may be violated and still count as satisfied, ``(B, m)``, in units of ``A y``.
        size: m and n that came in: on a CPU zero rows without bounds and zero outputs follow them, `align`.
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
        return torch.maximum(self.slack, _slack(self.norm, point, self.lower, self.upper))

    def violation(self, product: Tensor) -> Tensor:
        """``max(A y - upper, lower - A y)`` for the given ``A y``: positive where a row is violated."""
        return torch.maximum(product - self.upper, self.lower - product)


def multiply(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for each sample, with the same bits whatever the number of samples on a CPU; arguments as by `align`."""
    if A.dim() == 2 and A.device.type != "cpu":
        return vector @ A.mT
    batch = vector.shape[0]
    if batch == 1:  # a batch of one takes another routine, which adds up in another order
        return multiply(A.expand(2, *A.shape[-2:]), vector.expand(2, -1))[:1]
    return torch.bmm(A.expand(batch, *A.shape[-2:]), vector.unsqueeze(-1)).squeeze(-1)


def standard_form(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Problem:
    """The numbers of a batch in units of size one, `hardnet.solvers.units`, with what the solvers read beside them.

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
    return Problem(raw, A, lower, upper, norm, multiply(A, raw), _slack(norm, raw, lower, upper), (m, n))


def align(tensor: Tensor, dims: int = 1, absent: float = 0.0) -> Tensor:
    """Fill the last `dims` dimensions up to a multiple of `ALIGNMENT` on a CPU, so that all samples start alike.

    Then a sample has the same bits at any place of a batch, whoever its mates are.
    """
    missing = [-size % ALIGNMENT for size in reversed(tensor.shape[-dims:])]
    if tensor.device.type != "cpu" or not any(missing):
        return tensor
    return torch.nn.functional.pad(tensor, [part for size in missing for part in (0, size)], value=absent)


def _slack(norm: Tensor, point: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """``FEASIBLE (|a| |point| + |bound|)`` with the smaller bound: the larger one cannot be broken without the other.

    If the larger bound is broken from the far side of zero, the smaller one is as large; else ``|a'y|`` is larger.
    """
    nearest = torch.minimum(lower.abs(), upper.abs())
    size = torch.where(nearest.isfinite(), nearest, 0.0)
    return FEASIBLE * (norm * torch.linalg.vector_norm(point, dim=-1, keepdim=True) + size)
