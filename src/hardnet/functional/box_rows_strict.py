"""A box and rows in exact arithmetic: y is moved inward by a few roundings, inside the box, until its rows are certain.

See `hardnet.functional.strict` for what certain means; here the correction is the projection itself, onto the box and
the tightened rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.box_rows_gradient import Inputs
from hardnet.functional.strict import MARGINS, product_error
from hardnet.solvers.box_rows import solve


def tighten(y: Tensor, flat: Inputs, dtype: torch.dtype) -> Tensor:
    """Y ``(B, n)``, to be returned as `dtype`, with its wide rows certain; NaN where no margin made them so."""
    with torch.no_grad():
        numbers = tuple(part.detach() for part in flat[1:])
        rounded = y.detach().to(dtype).double()
        for margin in MARGINS:
            moved = _inward(rounded, numbers, dtype, margin).to(dtype).double()
            rounded = torch.where(_uncertain(rounded, numbers, dtype, margin), moved, rounded)
        failed = _uncertain(rounded, numbers, dtype, MARGINS[-1])
        rounded = torch.where(failed, torch.nan, rounded)
    return rounded + (y - y.detach())


def _times(A: Tensor, y: Tensor) -> Tensor:
    """``A y`` for A ``(1 or B, k, n)``: ``(B, k)``."""
    return (A * y.unsqueeze(-2)).sum(-1)


def _inset(y: Tensor, A: Tensor, dtype: torch.dtype, margin: float) -> Tensor:
    """`margin` roundings of each row at y in the output dtype, ``(B, k)``."""
    size = _times(A.abs(), y.abs())
    return margin * torch.finfo(dtype).eps * size + 4 * product_error(size, A.shape[-1])


def _inward(y: Tensor, numbers: tuple[Tensor, ...], dtype: torch.dtype, margin: float) -> Tensor:
    """Y projected onto the box and the rows tightened by the margin; a row without room keeps its middle."""
    A, lower, upper, low, high = numbers
    inset = _inset(y, A, dtype, margin)
    narrow, middle = upper - lower < 2 * inset, lower / 2 + upper / 2
    lower, upper = torch.where(narrow, middle, lower + inset), torch.where(narrow, middle, upper - inset)
    harmless = torch.where(y.isfinite(), y, 0.0)
    return solve(harmless, A, lower, upper, low, high, rounding=torch.finfo(torch.float64).eps).y


def _uncertain(y: Tensor, numbers: tuple[Tensor, ...], dtype: torch.dtype, margin: float) -> Tensor:
    """Whether a row has room for the margin and is not certain to hold, ``(B, 1)``; true for NaN."""
    A, lower, upper = numbers[:3]
    product = _times(A, y)
    error = 3 * product_error(_times(A.abs(), y.abs()), A.shape[-1])
    certain = (product + error <= upper) & (product - error >= lower)
    return (~certain & (upper - lower >= 2 * _inset(y, A, dtype, margin))).any(-1, keepdim=True)
