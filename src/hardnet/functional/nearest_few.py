"""The nearest point of ``lower <= A y <= upper`` for up to four rows: a fixed program, and who computes it.

With J the active rows (those with a multiplier, and every equality) and g the cotangent of y,

    w = (A_J A_J')^-1 A_J g,   u = g - A_J' w:     raw receives u,  A_J  -dual u' - w y',  the active bounds w.

A row that touches y without a multiplier is not in J, which agrees with relu'(0) = 0; where rows depend on each other
the later ones give way, and their multiplier and w are zero. An equality gives half of w to each of its bounds.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import ShapeError, UnsupportedSetError, sentence
from hardnet.functional import nearest_compiled, nearest_plain
from hardnet.functional.inputs import check_affine
from hardnet.functional.nearest_plain import Nearest
from hardnet.functional.transforms import exporting
from hardnet.kernels.cpu import nearest_launch as cpu
from hardnet.kernels.gpu import nearest_launch as gpu
from hardnet.modes import forward_mode

MOST_ROWS = 4
"""Each further row doubles the program."""
GRADIENTS = ("exact", "tangent")


def nearest_few(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
    *,
    gradient: Literal["exact", "tangent"] = "exact",
) -> Nearest:
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` for at most 4 rows, without a look at any value.

    Rows may be dependent, parallel or redundant, of any length, one- or two-sided or equalities. A raw output that
    violates nothing comes back bit for bit, a sample does not depend on its batch mates, and bad numbers make NaN of
    their own sample alone. Sums are formed in float64 whatever the dtype.

    Args:
        raw: ``(B, n)``.
        A: ``(m, n)`` for all samples, or ``(B, m, n)``.
        lower: ``(m,)`` or ``(B, m)``; None or -inf where there is no lower bound.
        upper: Like `lower`; ``lower == upper`` is an equality.
        gradient: ``"exact"``, or ``"tangent"``: raw also receives ``w_i a_i`` of an inequality row that it violates
            where that pulls it back inside (w_i > 0 above the upper bound, w_i < 0 below the lower one).

    Returns:
        y (differentiable in all four), dual, status and residual, on the device of raw.
    """
    batch, lower, upper = check_affine(raw, A, lower, upper)
    if raw.shape[:-1] != batch or len(batch) != 1 or A.shape[-2] > MOST_ROWS:
        expected = f"raw (B, n) and at most {MOST_ROWS} rows"
        raise ShapeError(sentence("raw, A", expected, f"{tuple(raw.shape)} and {tuple(A.shape)}"))
    if gradient not in GRADIENTS:
        raise ValueError(sentence("gradient", "'exact' or 'tangent'", repr(gradient)))
    tangent = gradient == "tangent" and not exporting()
    if tangent and forward_mode():
        remedy = "use gradient='exact', or reverse mode"
        raise UnsupportedSetError(sentence("torch.func", "no forward mode for gradient='tangent'", "one", remedy))
    if lower is None and upper is None:
        upper = torch.full_like(A[..., 0].detach(), torch.inf)
    return dispatch(raw, _own(A, 3, batch), _own(lower, 2, batch), _own(upper, 2, batch), tangent)


def dispatch(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, tangent: bool) -> Nearest:
    """The same for checked arguments, at least one bound, and what is not per sample without a batch."""
    if cpu.takes(raw, A, lower, upper):
        return nearest_compiled.nearest(raw, A, lower, upper, tangent)
    if gpu.takes(raw, A, lower, upper):
        return nearest_compiled.nearest(raw, A, lower, upper, tangent, gpu)
    return nearest_plain.nearest(raw, A, lower, upper, tangent)


def _own(number: Tensor | None, dims: int, batch: torch.Size) -> Any:
    """A number per sample as one for each; what a batch of one stands for, and what has no batch, stays shared."""
    if number is None or number.dim() != dims or number.shape[0] == batch[0]:
        return number
    return number.squeeze(0)
