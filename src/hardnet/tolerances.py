"""The rule by which a row is met: it misses its bounds by at most 16 roundings of the size of what it adds up.

The verdict of a solver and the certificate share this rule; the certificate applies it in arithmetic of its own.

``sum_j |a_j| max(|y_j|, size_j) + |bound|`` is that size, where size_j is the `units` of an output. Without them it is
the largest output that the row reads, as an output is rounded relative to the sums that it came from; a coefficient of
0 grants nothing. Where all bounds of a row are 0, or no larger than what the largest output of the sample rounds to (as
a sum leaves that cancels; outputs beyond ``eps^-1/4`` excuse no more), nothing of its own says what is small: then that
largest output counts, and at least one rounding of 1, since what a method leaves of an exact 0 is a rounding of a
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import BoundsError, ShapeError, sentence
from hardnet.products import times
from hardnet.structure import bound_size

ROUNDINGS = 16
"""How many eps of y's dtype, relative to the size of its terms, a row may be off and still be met.

Storing y in its dtype alone moves a row by up to eps/2 of its size ``|a|_1 |y|_inf``: no method can promise less. One
that corrects raw rounds the residual, the solve, the product and the sum, about one eps each, 4 in all. A factor of
four above that is for the growth of these with the number of rows and outputs, of which a random walk keeps the root.
"""


NONLINEAR = 1e-10
"""What nonlinear rows may miss, relative to their terms, unless the layer was given another `tol`."""
PROGRAMS = 1e-7
"""The same for a program that CVXPY's solvers have solved; what misses more is not solved."""
ALTERNATING = 1e-10
"""What sets that bring nothing but a projection may miss beside others, relative to the largest output."""


class Reads(NamedTuple):
    """Which outputs the rows of a shared matrix read: rows that read the same ones are looked at together.

    Attributes:
        places: The outputs of each pattern, ``(patterns, most outputs)``; n where there are no more.
        pattern: The pattern of each row, ``(m,)``.
    """

    places: Tensor
    pattern: Tensor

    @classmethod
    def of(cls, A: Tensor) -> Reads | None:
        """Those of A ``(m, n)``, whose values are read; None where each row reads all outputs."""
        reads = A != 0
        if bool(reads.all()):
            return None
        patterns, pattern = torch.unique(reads, dim=0, return_inverse=True)
        counts = patterns.sum(-1, keepdim=True)
        places = (~patterns).to(torch.int8).argsort(dim=-1, stable=True)[:, : int(counts.max())]
        there = torch.arange(places.shape[-1], device=A.device) < counts
        return cls(torch.where(there, places, A.shape[-1]), pattern)

    def largest(self, size: Tensor) -> Tensor:
        """The largest of the sizes ``(B, n)`` that each row reads, ``(B, m)``; 0 for a row of zeros."""
        padded = torch.nn.functional.pad(size, (0, 1))
        flat = padded.index_select(-1, self.places.flatten())
        return _most(flat.reshape(*size.shape[:-1], *self.places.shape)).index_select(-1, self.pattern)


def largest_read(A: Tensor, size: Tensor) -> Tensor:
    """The largest of the sizes ``(B, n)`` that each row of A ``(m, n)`` or ``(B, m, n)`` reads, ``(B, m)``."""
    return _most(torch.where(A != 0, size.unsqueeze(-2), 0))


def _most(size: Tensor) -> Tensor:
    """The largest of the last dimension, which may have no entries: 0 then."""
    return size.amax(-1) if size.shape[-1] else size.new_zeros(size.shape[:-1])


def terms(weight: Tensor, read: Tensor, largest: Tensor, bounds: Tensor, eps: float) -> Tensor:
    """The size of what each row adds up, ``(B, m)``, where outputs have no units.

    Args:
        weight: ``|a|_1``, ``(m,)`` or ``(B, m)``.
        read: The largest output that each row reads, ``(B, m)`` or ``(B, 1)``.
        largest: The largest output of the sample, ``(B, 1)``.
        bounds: `hardnet.structure.bound_size`, in the shape of weight.
        eps: The machine epsilon of the dtype of the answer.
    """
    most = largest.clamp_max(eps**-0.25) if eps > 0 else largest
    own = bounds > ROUNDINGS * eps * weight * most
    return torch.where(own, weight * read + bounds, weight * (largest + eps))


def row_size(
    A: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float, units: Tensor | None = None
) -> Tensor:
    """``sum_j |a_j| max(|y_j|, size_j) + |bound|``, ``(B, m)``: what rounding of a row is relative to.

    The bounds count as in `hardnet.structure.bound_size`.

    Args:
        A: ``(m, n)`` or ``(B, m, n)``.
        y: ``(B, n)``.
        lower: ``(m,)`` or ``(B, m)``; None or -inf where absent.
        upper: The same; None or +inf where absent.
        eps: The machine epsilon of the dtype of the answer, whatever the dtype of y here.
        units: The size of each output, ``(n,)`` or ``(B, n)``, where the user gives it.
    """
    weight, reach = A.abs().sum(-1), y.abs()
    bounds = torch.zeros_like(weight) if lower is None and upper is None else bound_size(lower, upper, weight)
    if units is not None:
        return times(A.abs(), torch.maximum(reach, units)) + bounds
    return terms(weight, largest_read(A, reach), reach.amax(-1, keepdim=True), bounds, eps)


def row_tolerance(
    A: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float, units: Tensor | None = None
) -> Tensor:
    """The violation up to which each row is met, ``(B, m)``: `ROUNDINGS` roundings of its `row_size`."""
    return ROUNDINGS * eps * row_size(A, y, lower, upper, eps, units)


def rows_met(
    A: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float, units: Tensor | None = None
) -> Tensor:
    """Which rows of ``lower <= A y <= upper`` are met at y, ``(B, m)``; none where a number is NaN or y is infinite."""
    product = times(A, y)
    excess = torch.zeros_like(product)
    excess = excess if upper is None else torch.maximum(excess, product - upper)
    excess = excess if lower is None else torch.maximum(excess, lower - product)
    return (excess <= row_tolerance(A, y, lower, upper, eps, units)) & y.isfinite().all(-1, keepdim=True)


def as_units(units: Any, dim: int | None) -> Tensor | None:
    """The units of the outputs as a float64 tensor ``(n,)``; None stays None, and others are refused."""
    if units is None:
        return None
    numbers = isinstance(units, Sequence | Tensor) or hasattr(units, "__array__")
    found = torch.as_tensor(units).detach().double() if numbers else None
    if found is None or found.dim() != 1 or (dim is not None and len(found) != dim):
        got = type(units).__name__ if found is None else tuple(found.shape)
        raise ShapeError(sentence("units", f"({'n' if dim is None else dim},) numbers, one for each output", got))
    if not all(isfinite(value) and value > 0 for value in found.tolist()):
        raise BoundsError(sentence("units", "finite positive numbers, the size of each output", found.tolist()))
    return found
