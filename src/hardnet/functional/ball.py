"""The ball ``|y - center| <= radius``: exact projection in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.errors import NEGATIVE, NOT_FINITE, ShapeError, sentence
from hardnet.functional.inputs import broadcast_batch, check_number, require_float, require_like
from hardnet.functional.samples import Policy, keep_value, look_is_free, reject


def project_ball(raw: Tensor, center: Tensor, radius: Tensor | float, *, on_invalid: Policy = "raise") -> Tensor:
    """``center + (raw - center) min(1, radius / |raw - center|)``.

    Args:
        raw: ``(*batch, n)``.
        center: ``(n,)`` or ``(*batch, n)``.
        radius: A number, or ``(*batch)``; not negative. A radius of zero gives the center.
        on_invalid: What NaN or a negative radius give on a CPU in eager mode: an error, or NaN for that sample.
    """
    radius = _check(raw, center, radius)
    reach = radius.unsqueeze(-1)
    offset = raw - center
    outside = _length(offset.detach()) > reach
    # the norm is taken of a harmless vector where it is not used: at zero its gradient is NaN
    distance = _length(torch.where(outside, offset, 1.0))
    y = torch.where(outside, _drawn_in(center + offset * (reach / distance), center, reach), raw)
    bad = ~((reach >= 0) & reach.isfinite()).squeeze(-1) | ~offset.isfinite().all(-1)
    y = torch.where(bad.unsqueeze(-1), torch.nan, y)
    if on_invalid == "raise" and look_is_free(y):
        reject(bad & ~offset.isfinite().all(-1), NOT_FINITE, "raw, center")
        reject(bad, NEGATIVE, "radius")
    return y


def _length(v: Tensor) -> Tensor:
    """``|v|``, ``(*batch, 1)``, without overflow of the squares."""
    size = v.detach().abs().amax(-1, keepdim=True)
    size = torch.where((size > 0) & size.isfinite(), size, 1.0)
    return size * torch.linalg.vector_norm(v / size, dim=-1, keepdim=True)


def _drawn_in(y: Tensor, center: Tensor, reach: Tensor) -> Tensor:
    """Undo the rounding that may leave y outside by an ulp or two: shrink the offset by that much."""
    offset = (y - center).detach()
    shrunk = center.detach() + offset * (1 - 2 * torch.finfo(y.dtype).eps)
    return keep_value(y, torch.where(_length(offset) > reach, shrunk, y))


def _check(raw: Tensor, center: Tensor, radius: Tensor | float) -> Tensor:
    """Check shape, dtype and device of all arguments; return the radius as a tensor."""
    require_float("raw", raw)
    require_like("center", center, raw)
    if raw.dim() == 0 or center.dim() == 0 or center.shape[-1] != raw.shape[-1]:
        expected = f"shape (n,) or (*batch, n) with the n of raw, {tuple(raw.shape)}"
        raise ShapeError(sentence("center", expected, tuple(center.shape)))
    broadcast_batch("center", raw.shape[:-1], center.shape[:-1])
    return check_number("radius", radius, raw)
