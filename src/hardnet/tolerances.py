"""The rule by which a row is met: it misses its bounds by at most 16 roundings of the size of what it adds up.

The verdict of a solver and the certificate share this rule; the certificate applies it in arithmetic of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import times
from hardnet.rows import bound_size

ROUNDINGS = 16
"""How many eps of y's dtype, relative to the size of its terms, a row may be off and still be met.

Storing y in its dtype alone moves a row by up to eps/2 of its size ``|a|_1 |y|_inf``: no method can promise less. One
that corrects raw rounds the residual, the solve, the product and the sum, about one eps each, 4 in all. A factor of
four above that is for the growth of these with the number of rows and outputs, of which a random walk keeps the root.
"""


def row_size(
    A: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float, sizes: Tensor | None = None
) -> Tensor:
    """``sum_j |a_j| max(|y_j|, size_j) + |bound|``, ``(B, m)``: what rounding of a row is relative to.

    The bounds count as in `hardnet.rows.bound_size`. Where all of them are 0, outputs count as at least one rounding
    of 1: then nothing else says what is small, and what a method leaves of an exact 0 is a rounding of a rounding.

    Args:
        A: ``(m, n)`` or ``(B, m, n)``.
        y: ``(B, n)``.
        lower: ``(m,)`` or ``(B, m)``; None or -inf where absent.
        upper: The same; None or +inf where absent.
        eps: The machine epsilon of the dtype of the answer, whatever the dtype of y here.
        sizes: The size of each output, ``(n,)`` or ``(B, n)``; by default that of the largest output of the sample, as
            an output is rounded relative to the sums that it came from.
    """
    weight = A.abs().sum(-1)
    reach = y.abs()
    terms = weight * reach.amax(-1, keepdim=True) if sizes is None else times(A.abs(), torch.maximum(reach, sizes))
    bounds = torch.zeros_like(weight) if lower is None and upper is None else bound_size(lower, upper, weight)
    return terms + torch.where(bounds > 0, bounds, eps * weight)


def row_tolerance(
    A: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float, sizes: Tensor | None = None
) -> Tensor:
    """The violation up to which each row is met, ``(B, m)``: `ROUNDINGS` roundings of its `row_size`."""
    return ROUNDINGS * eps * row_size(A, y, lower, upper, eps, sizes)


def rows_met(
    A: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float, sizes: Tensor | None = None
) -> Tensor:
    """Which rows of ``lower <= A y <= upper`` are met at y, ``(B, m)``; none where a number is NaN or y is infinite."""
    product = times(A, y)
    excess = torch.zeros_like(product)
    excess = excess if upper is None else torch.maximum(excess, product - upper)
    excess = excess if lower is None else torch.maximum(excess, lower - product)
    return (excess <= row_tolerance(A, y, lower, upper, eps, sizes)) & y.isfinite().all(-1, keepdim=True)
