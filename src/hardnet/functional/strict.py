"""Rows checked at the exact numbers that are returned: to rounding, or in exact arithmetic (``strict=True``).

A product ``a'y`` of n terms computed in float64 is off by at most ``(n + 2) eps |a|'|y|``. A row is certain to hold if
the computed product keeps at least that distance from its bounds. Samples with an uncertain row are moved inward by a
few roundings of the output dtype, by projecting them onto tightened bounds, until all rows are certain. A row without
room for that is moved to the middle of its bounds. An equality stays there, and `rounding_bound` says how exact it is;
an inequality that is not certain even there has no answer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hardnet.errors import ConvergenceError, OptionError, sentence
from hardnet.functional.derivatives import keep_value
from hardnet.functional.samples import refuse
from hardnet.nearest.policy import NO_ROOM
from hardnet.products import times
from hardnet.rows import REALS, Batch
from hardnet.shapes import check_affine

MARGINS = (2.0, 8.0, 64.0, 1024.0)
"""Distances to the bound that are tried in turn, in roundings of the row."""
INSETS = (*MARGINS, 8192.0, 65536.0)
"""The same for a projection; the last two exceed the tolerance of its solver."""
STRICT_ROUNDINGS = 8
"""How far a row may miss its bounds, in roundings of the size of its terms: half of what the certificate allows, since
a sum of n terms in float64 is itself off by about sqrt(n) roundings."""

Bound = Tensor | None
Project = Callable[[Batch], Tensor]
"""A function from a record of rows to its nearest points ``(B, n)``."""


def rounding_bound(
    A: Tensor, y: Tensor, lower: Tensor | float | None = None, upper: Tensor | float | None = None
) -> Tensor:
    """How far each row of ``lower <= A y <= upper`` can be violated in exact arithmetic: ``(*batch, m)`` in float64.

    Zero means that the row holds for exactly these numbers; for an equality row the result bounds ``|a'y - b|``.

    Args:
        A: ``(m, n)`` or ``(*batch, m, n)``.
        y: ``(*batch, n)``.
        lower: ``(m,)``, ``(*batch, m)``, a number, or None.
        upper: Like `lower`.
    """
    _, lower, upper = check_affine(y, A, lower, upper)
    A, y = A.detach().double(), y.detach().double()
    product, error = times(A, y), product_error(times(A.abs(), y.abs()), A.shape[-1])
    over = torch.zeros_like(product) if upper is None else (product + error - upper).clamp_min(0)
    under = torch.zeros_like(product) if lower is None else (lower - product + error).clamp_min(0)
    return torch.maximum(over, under)


def product_error(size: Tensor, n: int) -> Tensor:
    """A bound on the rounding of ``a'y`` and of its comparison in float64, from the size ``|a|'|y|`` of its terms."""
    limits = torch.finfo(torch.float64)
    return torch.where(size > 0, (n + 4) * limits.eps * size + limits.tiny, 0)


def tighten(
    y: Tensor,
    rows: Batch,
    project: Callable[[Tensor, Bound, Bound], Tensor],
    dtype: torch.dtype,
    margins: tuple[float, ...] = MARGINS,
) -> Tensor:
    """Y ``(B, n)`` in `dtype` with all inequalities certain; NaN for a sample if no margin achieves that.

    The correction is a few roundings long and is ignored by the derivative. A sample that is certain keeps its bits.

    Args:
        y: ``(B, n)``.
        rows: The record of the call.
        project: ``(point, lower, upper) -> point`` in float64, onto these rows with other bounds.
        dtype: The dtype of the answer.
        margins: Distances to the bounds, in roundings of a row, tried in turn.
    """
    with torch.no_grad():
        A = rows.A.detach().double()
        low, high = (None if part is None else part.detach().double() for part in (rows.lower, rows.upper))
        exact = y.detach().to(dtype)
        for margin in margins:
            open_ = uncertain(exact, A, low, high).any(-1, keepdim=True)
            if rows.look and not bool(open_.any()):
                break
            wide = exact.double()
            moved = project(wide, *tightened(low, high, inset(wide, A, dtype, margin))).to(dtype)
            exact = torch.where(open_ & moved.isfinite(), moved, exact)
        lost = uncertain(exact, A, low, high).any(-1, keepdim=True)
        exact = torch.where(lost, torch.nan, exact)
    # in forward mode a tensor carries its derivative without requires_grad
    return keep_value(y, exact) if y.requires_grad or rows.transformed else exact


def inset(wide: Tensor, A: Tensor, dtype: torch.dtype, margin: float) -> Tensor:
    """`margin` roundings of each row at y in the output dtype, plus 4 times the error of the product, ``(B, m)``."""
    size = times(A.abs(), wide.abs())
    return margin * torch.finfo(dtype).eps * size + 4 * product_error(size, A.shape[-1])


def tightened(low: Bound, high: Bound, inset: Tensor) -> tuple[Bound, Bound]:
    """The bounds moved inward by `inset`; where there is no room for that, both become the middle."""
    if low is None or high is None:
        return None if low is None else low + inset, None if high is None else high - inset
    narrow, middle = high - low < 2 * inset, low / 2 + high / 2
    return torch.where(narrow, middle, low + inset), torch.where(narrow, middle, high - inset)


def uncertain(y: Tensor, A: Tensor, low: Bound, high: Bound) -> Tensor:
    """Inequalities ``(B, m)``, however narrow, that are not certain to hold at y."""
    wide = y.double()
    # three times the error, so that the row holds for any order of summation
    product, error = times(A, wide), 3 * product_error(times(A.abs(), wide.abs()), A.shape[-1])
    over = torch.zeros_like(product, dtype=torch.bool) if high is None else product + error > high
    under = torch.zeros_like(over) if low is None else product - error < low
    if low is None or high is None:
        return over | under
    return (over | under) & (low < high)


def refuse_without_room(y: Tensor, exact: Tensor, rows: Batch, on_invalid: str) -> None:
    """Raise for the samples of y ``(B, n)`` whose `exact` answer is NaN, if wanted and values may be read."""
    if on_invalid == "raise" and rows.look:
        refuse(rows.as_given((exact.isnan() & ~y.isnan()).any(-1)), ConvergenceError, f"{NO_ROOM}; relax the bounds")


def beyond_rounding(y: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float) -> Tensor:
    """Whether a row of ``lower <= A y <= upper`` is violated beyond rounding, ``(*batch)``; False if y is not finite.

    Args:
        y: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)`` or ``(*batch, m)``, or None.
        upper: Like `lower`.
        eps: The machine epsilon of y's dtype, or of a coarser dtype in which the rows are given.
    """
    return ~(relative_violation(y, A, lower, upper, eps) <= STRICT_ROUNDINGS * eps) & y.isfinite().all(dim=-1)


@torch.no_grad()
def relative_violation(y: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, eps: float) -> Tensor:
    """``max_i (violation of row i) / (size of its terms)``, ``(*batch)``; arguments as in `beyond_rounding`."""
    wide, A = y.double(), A.double()
    product, size, unit = times(A, wide), times(A.abs(), wide.abs()), eps * A.abs().sum(dim=-1)
    worst = torch.zeros_like(product)
    for bound, sign in ((upper, 1), (lower, -1)):
        if bound is not None:
            excess = (sign * (product - bound.double())).clamp_min(0)
            known = torch.where(bound.isfinite(), bound.double().abs(), 0)
            # a bound of 0 defines no scale, so the size is at least one rounding of an output of size 1
            terms = torch.maximum(size, torch.where(bound == 0, unit, known))
            worst = torch.maximum(worst, excess / terms.clamp_min(torch.finfo(torch.float64).tiny))
    return worst.amax(dim=-1)


def hold_exactly(y: Tensor, rows: Batch, project: Project) -> Tensor:
    """Y ``(B, n)`` whose inequalities hold in exact arithmetic for the numbers returned, by tightened bounds.

    The correction is a few roundings long and is ignored by the derivative; an equality keeps its rounding. A sample
    whose rows leave no room is NaN.
    """
    fixed = rows._replace(A=rows.A.detach().double())
    onto = lambda point, low, high: project(fixed._replace(raw=point, lower=low, upper=high))
    return tighten(y, rows, onto, y.dtype, INSETS)


def refuse_half_precision(dtype: torch.dtype) -> None:
    """Refuse ``strict`` for half precision, to which y would be rounded afterwards."""
    if dtype not in REALS:
        raise OptionError(sentence("strict", "float64 or float32 outputs", dtype, "leave strict out, or call .float()"))
