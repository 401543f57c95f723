"""The polyhedron ``lower <= A y <= upper`` in the form the solvers share: one flat batch of float64 numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FEASIBLE = 1e-13
"""A row is satisfied when it is violated by no more than this part of ``|a| |raw| + |bound|``."""


class Problem(NamedTuple):
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, sample by sample.

    Attributes:
        raw: ``(B, n)``, divided by the sample's unit.
        A: ``(m, n)`` for all samples, or ``(B, m, n)``.
        lower: ``(B, m)``, divided by the unit.
        upper: ``(B, m)``, divided by the unit.
        norm: ``|a_i|``, ``(m,)`` or ``(B, m)``; 1 for a zero row.
        unit: ``(B,)``, a power of two, so that dividing by it is exact and every sample has numbers of size 1.
        product: ``A raw``, ``(B, m)``.
        slack: How far each row may be violated and still count as satisfied, ``(B, m)``, in units of ``A y``.
    """

    raw: Tensor
    A: Tensor
    lower: Tensor
    upper: Tensor
    norm: Tensor
    unit: Tensor
    product: Tensor
    slack: Tensor

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
        lower, upper, unit, product, slack = (part[index] for part in (self.lower, self.upper, *self[5:]))
        return Problem(self.raw[index], A, lower, upper, norm, unit, product, slack)

    def violation(self, product: Tensor) -> Tensor:
        """``max(A y - upper, lower - A y)`` for the given ``A y``: positive where a row is violated."""
        return torch.maximum(product - self.upper, self.lower - product)


def multiply(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for each sample, with the same bits whatever the number of samples on a CPU."""
    if A.dim() == 2 and A.device.type != "cpu":
        return vector @ A.mT
    batch = vector.shape[0]
    if batch == 1:  # a batch of one takes another routine, which adds up in another order
        return multiply(A.expand(2, *A.shape[-2:]), vector.expand(2, -1))[:1]
    return torch.bmm(A.expand(batch, *A.shape[-2:]), vector.unsqueeze(-1)).squeeze(-1)


def standard_form(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, norm: Tensor) -> Problem:
    """Divide every sample by its unit: the power of two above ``max(|raw|, distance to the furthest row)``.

    Args:
        raw: ``(B, n)``.
        A: ``(m, n)`` or ``(B, m, n)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        norm: ``|a_i|``, ``(m,)`` or ``(B, m)``.
    """
    norm = torch.where(norm > 0, norm, 1.0)
    product = multiply(A, raw)
    distance = torch.maximum(product - upper, lower - product) / norm
    size = torch.maximum(raw.abs().amax(-1), distance.amax(-1)) if norm.shape[-1] else raw.abs().amax(-1)
    largest = torch.maximum(_finite_size(lower), _finite_size(upper))
    slack = FEASIBLE * (norm * torch.linalg.vector_norm(raw, dim=-1, keepdim=True) + largest)
    unit = torch.ldexp(torch.ones_like(size), torch.frexp(torch.where(size > 0, size, 1.0)).exponent)
    column = unit.unsqueeze(-1)
    return Problem(raw / column, A, lower / column, upper / column, norm, unit, product / column, slack / column)


def _finite_size(bound: Tensor) -> Tensor:
    return torch.where(bound.isfinite(), bound.abs(), 0.0)
