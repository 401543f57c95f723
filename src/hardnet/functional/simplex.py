"""The simplex ``{y >= 0, sum(y) = total}``: exact projection by sorting."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.errors import NEGATIVE, NOT_FINITE, ShapeError, sentence
from hardnet.functional.inputs import check_number, require_float
from hardnet.functional.samples import Policy, keep_value, look_is_free, reject


def project_simplex(raw: Tensor, total: Tensor | float = 1.0, *, on_invalid: Policy = "raise") -> Tensor:
    """``argmin |y - raw|  s.t.  y >= 0, sum(y) = total``: ``y = relu(raw - shift)``.

    With raw sorted downwards, ``shift = max_k (raw_1 + ... + raw_k - total) / k``. Sums run in float64.

    Args:
        raw: ``(*batch, n)``.
        total: A number, or ``(*batch)``; not negative. A total of zero gives the origin.
        on_invalid: What NaN or a negative total give on a CPU in eager mode: an error, or NaN for that sample.
    """
    total = _check(raw, total)
    exact, wanted = raw.double(), total.double()
    ordered = exact.sort(dim=-1, descending=True).values
    count = torch.arange(1, raw.shape[-1] + 1, device=raw.device, dtype=torch.float64)
    shift = ((ordered.cumsum(-1) - wanted.unsqueeze(-1)) / count).amax(-1, keepdim=True)
    y = (exact - shift).clamp_min(0).to(raw.dtype)
    slack = 4 * torch.finfo(raw.dtype).eps * (exact.abs().sum(-1) + wanted.abs())
    inside = (exact >= 0).all(-1) & ((exact.sum(-1) - wanted).abs() <= slack)
    y = keep_value(y, torch.where(inside.unsqueeze(-1), raw, y))
    bad = ~((wanted >= 0) & wanted.isfinite() & raw.isfinite().all(-1))
    y = torch.where(bad.unsqueeze(-1), torch.nan, y)
    if on_invalid == "raise" and look_is_free(y):
        reject(bad & ~raw.isfinite().all(-1), NOT_FINITE, "raw")
        reject(bad, NEGATIVE, "total")
    return y


def _check(raw: Tensor, total: Tensor | float) -> Tensor:
    """Check shape, dtype and device of both arguments; return the total as a tensor."""
    require_float("raw", raw)
    if raw.dim() == 0 or raw.shape[-1] == 0:
        raise ShapeError(sentence("raw", "shape (*batch, n) with n >= 1", tuple(raw.shape)))
    return check_number("total", total, raw)
