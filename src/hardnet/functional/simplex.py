"""The simplex ``{y >= 0, sum(y) = total}``: exact projection by sorting.

Called by `hardnet.sets.simplex`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.errors import NEGATIVE, NOT_FINITE, ShapeError, sentence
from hardnet.functional.box_rows import solve_eagerly
from hardnet.functional.derivatives import keep_value
from hardnet.functional.samples import Policy, reject
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.modes import may_look, plain
from hardnet.shapes import check_number, require_float


def project_simplex(raw: Tensor, total: Tensor | float = 1.0, *, on_invalid: Policy = "raise") -> Tensor:
    """``argmin |y - raw|  s.t.  y >= 0, sum(y) = total``: ``y = relu(raw - shift)``.

    With raw sorted downwards, ``shift = max_k (raw_1 + ... + raw_k - total) / k``. Sums run in float64. On a CPU in
    eager mode it is the code for a box and one row, which does not sort.

    Args:
        raw: ``(*batch, n)``.
        total: A number, or ``(*batch)``; not negative. A total of zero gives the origin.
        on_invalid: What NaN or a negative total give on a CPU in eager mode: an error, or NaN for that sample.
    """
    total = _check(raw, total)
    exact, wanted = raw.double(), total.double()
    compiled = plain(raw, total) and raw.is_cpu and HAS_NUMBA
    y = (_by_compiled_code(raw, wanted) if compiled else _by_sorting(raw, exact, wanted)).to(raw.dtype)
    bad = ~((wanted >= 0) & wanted.isfinite() & raw.isfinite().all(-1))
    y = torch.where(bad.unsqueeze(-1), torch.nan, y)
    if on_invalid == "raise" and may_look(y) and bool(bad.any()):
        reject(bad & ~raw.isfinite().all(-1), NOT_FINITE, "raw")
        reject(bad, NEGATIVE, "total")
    return y


def _by_compiled_code(raw: Tensor, wanted: Tensor) -> Tensor:
    """The box ``[0, inf)`` and a row of ones, in O(n)."""
    n, aim = raw.shape[-1], wanted.unsqueeze(-1)
    box = raw.new_zeros(n), raw.new_full((n,), torch.inf)
    return solve_eagerly(raw, raw.new_ones(1, n), aim, aim, *box)


def _by_sorting(raw: Tensor, exact: Tensor, wanted: Tensor) -> Tensor:
    """``raw - mean(raw over the support) + total / |support|`` on the support, which sorting finds.

    Raw is taken from its largest entry, so that a common offset costs no digits. An entry at zero without a multiplier
    is in the support.
    """
    aim = wanted.unsqueeze(-1)
    away = exact - exact.detach().amax(-1, keepdim=True)
    ordered = away.detach().sort(dim=-1, descending=True).values
    count = torch.arange(1, raw.shape[-1] + 1, device=raw.device, dtype=torch.float64)
    shift = ((ordered.cumsum(-1) - aim.detach()) / count).amax(-1, keepdim=True)
    support = away.detach() >= shift
    mean = (torch.where(support, away, 0.0).sum(-1, keepdim=True) - aim) / support.sum(-1, keepdim=True).clamp_min(1)
    y = torch.where(support, away - mean, 0.0)
    slack = 4 * torch.finfo(raw.dtype).eps * (exact.abs().sum(-1) + wanted.abs())
    inside = (exact >= 0).all(-1) & ((exact.sum(-1) - wanted).abs() <= slack)
    return keep_value(y, torch.where(inside.unsqueeze(-1), exact, y.clamp_min(0.0)))


def _check(raw: Tensor, total: Tensor | float) -> Tensor:
    """Check shape, dtype and device of both arguments; return the total as a tensor."""
    require_float("raw", raw)
    if raw.dim() == 0 or raw.shape[-1] == 0:
        raise ShapeError(sentence("raw", "shape (*batch, n) with n >= 1", tuple(raw.shape)))
    return check_number("total", total, raw)
