"""Feasibility in exact arithmetic: rows that hold for the very floating-point numbers that are returned.

A product ``a'y`` of n terms computed in float64 is off by at most ``(n + 2) eps |a|'|y|``. A row is certain where the
computed product keeps that distance from its bounds. Samples with an uncertain row are moved inward by a few
roundings of the output dtype, by the closed form itself on the tightened bounds, until they are certain. A row
narrower than that (an equality) has no room: it is set to its middle, and `rounding_bound` says how exact it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_factors import by_qr
from hardnet.functional.affine_formulas import signed_violation, times
from hardnet.functional.affine_formulas import times_transposed as times_t
from hardnet.functional.inputs import check_affine

MARGINS = (2.0, 8.0, 64.0, 1024.0)
"""Distance to the bound tried in turn, in roundings of the row."""


def rounding_bound(
    A: Tensor, y: Tensor, lower: Tensor | float | None = None, upper: Tensor | float | None = None
) -> Tensor:
    """How far each row of ``lower <= A y <= upper`` can be violated in exact arithmetic: ``(*batch, m)`` in float64.

    Zero means that the row holds for these very numbers; for an equality row it bounds ``|a'y - b|``.

    Args:
        A: ``(m, n)`` or ``(*batch, m, n)``.
        y: ``(*batch, n)``.
        lower: ``(m,)``, ``(*batch, m)``, a number, or None.
        upper: Like `lower`.
    """
    _, lower, upper = check_affine(y, A, lower, upper)
    A, y = A.detach().double(), y.detach().double()
    product = (A @ y.unsqueeze(-1)).squeeze(-1)
    error = product_error((A.abs() @ y.abs().unsqueeze(-1)).squeeze(-1), A.shape[-1])
    over = torch.zeros_like(product) if upper is None else (product + error - upper).clamp_min(0)
    under = torch.zeros_like(product) if lower is None else (lower - product + error).clamp_min(0)
    return torch.maximum(over, under)


def product_error(size: Tensor, n: int) -> Tensor:
    """A bound on the rounding of ``a'y`` in float64 and of its comparison, from the size ``|a|'|y|`` of its terms."""
    limits = torch.finfo(torch.float64)
    return torch.where(size > 0, (n + 4) * limits.eps * size + limits.tiny, 0)


def tighten(y: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """Y ``(B, n)`` with its wide rows certain; NaN for a sample where none of the margins made them so.

    The correction is a few roundings long and is left out of the derivative. A certain sample keeps its bits.
    """
    with torch.no_grad():
        rows = A.detach().double()
        low, high = (None if bound is None else bound.detach().double() for bound in (lower, upper))
        P = by_qr(rows, rows.dtype)
        exact = y.detach()
        for margin in MARGINS:
            exact = _inward(exact, rows, low, high, P, margin)
        open_ = uncertain(exact, rows, low, high, MARGINS[-1]).any(-1, keepdim=True)
        exact = torch.where(open_, torch.nan, exact)
    return y + (exact - y.detach()) if y.requires_grad else exact


def _inward(y: Tensor, A: Tensor, low: Tensor | None, high: Tensor | None, P: Tensor, margin: float) -> Tensor:
    """One correction of the samples that have an uncertain row, onto bounds tightened by `margin` roundings."""
    wide = y.double()
    target = tightened(low, high, inset(wide, A, y.dtype, margin))
    step = times_t(P, signed_violation(times(A, wide), *target))
    open_ = uncertain(y, A, low, high, margin).any(-1, keepdim=True)
    return torch.where(open_, (wide + step).to(y.dtype), y)


def inset(wide: Tensor, A: Tensor, dtype: torch.dtype, margin: float) -> Tensor:
    """`margin` roundings of each row at y in the output dtype, ``(B, m)``: above the error of the product itself."""
    size = times(A.abs(), wide.abs())
    return margin * torch.finfo(dtype).eps * size + 4 * product_error(size, A.shape[-1])


def tightened(low: Tensor | None, high: Tensor | None, inset: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The bounds moved inward by `inset`; both the middle where there is no room between them."""
    if low is None or high is None:
        return None if low is None else low + inset, None if high is None else high - inset
    narrow, middle = high - low < 2 * inset, low / 2 + high / 2
    return torch.where(narrow, middle, low + inset), torch.where(narrow, middle, high - inset)


def uncertain(y: Tensor, A: Tensor, low: Tensor | None, high: Tensor | None, margin: float) -> Tensor:
    """Rows ``(B, m)`` that have room for the margin and are not certain to hold."""
    wide = y.double()
    # three times the error: certain also to whoever sums in another order
    product, error = times(A, wide), 3 * product_error(times(A.abs(), wide.abs()), A.shape[-1])
    over = torch.zeros_like(product, dtype=torch.bool) if high is None else product + error > high
    under = torch.zeros_like(over) if low is None else product - error < low
    if low is None or high is None:
        return over | under
    return (over | under) & (high - low >= 2 * inset(wide, A, y.dtype, margin))
