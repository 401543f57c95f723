"""The box ``lower <= y <= upper``: exact projection by a clamp.

Called by `hardnet.functional.box_rows`, `hardnet.functional.solve` and `hardnet.sets.box`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.samples import Policy, find_invalid
from hardnet.modes import may_look
from hardnet.shapes import broadcast_batch, check_bound, require_float


def project_box(
    raw: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    on_invalid: Policy = "raise",
) -> Tensor:
    """``clamp(raw, lower, upper)``, coordinate by coordinate; an absent bound is infinite.

    Args:
        raw: ``(*batch, n)``.
        lower: ``(n,)``, ``(*batch, n)`` or a number for all coordinates.
        upper: Like `lower`.
        on_invalid: What NaN or lower > upper give on a CPU in eager mode: an error, or NaN for that sample.
    """
    require_float("raw", raw)
    n = raw.shape[-1] if raw.dim() else 0
    bounds = [check_bound(name, side, raw, n) for name, side in (("lower", lower), ("upper", upper))]
    low = raw.new_full((n,), -torch.inf) if bounds[0] is None else bounds[0]
    high = raw.new_full((n,), torch.inf) if bounds[1] is None else bounds[1]
    broadcast_batch("upper", broadcast_batch("lower", raw.shape[:-1], low.shape[:-1]), high.shape[:-1])
    y = torch.minimum(torch.maximum(raw, low), high)
    number = (raw.isfinite() & ~low.isnan() & ~high.isnan()).all(-1)
    ordered = ((low <= high) & (low < torch.inf) & (high > -torch.inf)).all(-1)
    y = torch.where((number & ordered).unsqueeze(-1), y, torch.nan)
    if on_invalid == "raise" and may_look(y) and not bool((number & ordered).all()):
        for finding in find_invalid(raw, None, *bounds):
            raise finding.error()
    return y
