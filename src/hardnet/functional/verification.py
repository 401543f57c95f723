"""A last look at the rows themselves: whether y satisfies them to rounding, whatever their conditioning did to it."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.completion import matvec

ROUNDINGS = 8
"""Roundings, relative to the size of its terms, that a row may be off: half of what the certificate allows, since a sum
of n terms in float64 is itself off by about the root of n roundings."""


def beyond_rounding(y: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float) -> Tensor:
    """Whether some row of ``lower <= A y <= upper`` is off by more than rounding, ``(*batch)``; False for inf or NaN.

    Args:
        y: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)`` or ``(*batch, m)``, or None.
        upper: Like `lower`.
        eps: The rounding of y's dtype, or of coarser numbers that the rows are given in.
    """
    with torch.no_grad():
        wide, A = y.double(), A.double()
        product, size, unit = matvec(A, wide), matvec(A.abs(), wide.abs()), eps * A.abs().sum(dim=-1)
        holds = torch.ones(product.shape[:-1], dtype=torch.bool, device=y.device)
        for bound, sign in ((upper, 1), (lower, -1)):
            if bound is not None:
                excess = sign * (product - bound.double())
                known = torch.where(bound.isfinite(), bound.double().abs(), 0)
                # relative to a bound of 0 nothing is small, so that an output counts as one rounding of 1 at least
                terms = torch.maximum(size, torch.where(bound == 0, unit, known))
                holds = holds & (excess <= ROUNDINGS * eps * terms).all(dim=-1)
        return ~holds & y.isfinite().all(dim=-1)
