"""The weighted L1 ball ``sum_i weights_i |y_i - center_i| <= radius``: its nearest point alone, by sorting.

Beside other sets it is worked on in `hardnet.functional.orthants`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import NEGATIVE, NOT_FINITE
from hardnet.functional.samples import Policy, reject
from hardnet.modes import may_look
from hardnet.shapes import broadcast_batch, check_bound, check_number, require_float, require_like
from hardnet.solvers.solution import Solution, Status


class L1(NamedTuple):
    """The numbers of one ball.

    Attributes:
        center: ``(n,)`` or ``(*batch, n)``.
        radius: ``()`` or ``(*batch)``.
        weights: Like `center`; None for ones.
    """

    center: Tensor
    radius: Tensor
    weights: Tensor | None

    def excess(self, y: Tensor) -> Tensor:
        """``sum_i weights_i |y_i - center_i| - radius``, ``(*batch, 1)``."""
        off = (y - self.center).abs()
        off = off if self.weights is None else off * self.weights
        return off.sum(-1, keepdim=True) - self.radius.unsqueeze(-1)

    def scale(self, y: Tensor) -> Tensor:
        """``sum_i weights_i (|y_i| + |center_i|) + |radius|``, ``(*batch, 1)``."""
        off = y.abs() + self.center.abs()
        off = off if self.weights is None else off * self.weights
        return off.sum(-1, keepdim=True) + self.radius.abs().unsqueeze(-1)

    def sound(self) -> Tensor:
        """Which samples have numbers that mean something, in the batch of these numbers."""
        sound = self.center.isfinite().all(-1) & self.radius.isfinite() & (self.radius >= 0)
        return sound if self.weights is None else sound & (self.weights.isfinite() & (self.weights >= 0)).all(-1)

    def refuse(self, raw: Tensor) -> None:
        """Raise the error that says what is wrong with the numbers of some sample, if something is."""
        reject(~raw.isfinite().all(-1), NOT_FINITE, "raw")
        reject(~self.center.isfinite().all(-1), NOT_FINITE, "center")
        reject(~(self.radius.isfinite() & (self.radius >= 0)), NEGATIVE, "radius")
        if self.weights is not None:
            reject(~(self.weights.isfinite() & (self.weights >= 0)).all(-1), NEGATIVE, "weights")


def project_l1_ball(
    raw: Tensor,
    center: Tensor,
    radius: Tensor | float,
    weights: Tensor | None = None,
    *,
    on_invalid: Policy = "raise",
) -> Tensor:
    """``argmin |y - raw|  s.t.  sum_i weights_i |y_i - center_i| <= radius``: soft thresholding.

    ``y = center + sign(v) relu(|v| - price weights)`` with ``v = raw - center``. With ``|v| / weights`` sorted in
    descending order, ``price = max_k (sum_{i<=k} weights_i |v_i| - radius) / sum_{i<=k} weights_i^2``: O(n log n). Sums
    are in float64, and the derivative is that of the formula on its support.

    Args:
        raw: ``(*batch, n)``.
        center: ``(n,)`` or ``(*batch, n)``.
        radius: A number, or ``(*batch)``; not negative. A radius of zero gives `center` itself.
        weights: ``(n,)`` or ``(*batch, n)``, not negative; None for ones. An output with weight zero stays as it is.
        on_invalid: On NaN or a negative number on a CPU in eager mode, raise an error or return NaN for that sample.
    """
    numbers = _checked(raw, center, radius, weights)
    y = _soft_threshold(raw, numbers)[0]
    sound = numbers.sound() & raw.isfinite().all(-1)
    if on_invalid == "raise" and may_look(y) and not bool(sound.all()):
        numbers.refuse(raw)
    return torch.where(sound.unsqueeze(-1), y, torch.nan)


@torch.no_grad()
def solve_l1_ball(raw: Tensor, center: Tensor, radius: Tensor, weights: Tensor | None = None) -> Solution:
    """`project_l1_ball` with its multiplier, the price of the radius ``(*batch, 1)``, status and residual."""
    numbers = _checked(raw, center, radius, weights)
    y, price = _soft_threshold(raw, numbers)
    sound = numbers.sound() & raw.isfinite().all(-1)
    y = torch.where(sound.unsqueeze(-1), y, torch.nan)
    size = numbers.scale(y)
    residual = (numbers.excess(y) / torch.where(size > 0, size, 1.0)).clamp_min(0.0).squeeze(-1)
    status = torch.where(sound, int(Status.SOLVED), int(Status.INVALID)).to(torch.int8)
    return Solution(y, price.to(y.dtype), status, torch.zeros_like(status, dtype=torch.long), residual)


def _checked(raw: Tensor, center: Tensor, radius: Tensor | float, weights: Tensor | None) -> L1:
    """The numbers as a record, of shapes that fit raw."""
    require_float("raw", raw)
    n = raw.shape[-1] if raw.dim() else 0
    for name, vector in (("center", center), ("weights", weights)):
        if vector is not None:
            require_like(name, vector, raw)
            check_bound(name, vector, raw, n)
            broadcast_batch(name, raw.shape[:-1], vector.shape[:-1])
    return L1(center, check_number("radius", radius, raw), weights)


def _soft_threshold(raw: Tensor, numbers: L1) -> tuple[Tensor, Tensor]:
    """The nearest point in the dtype of raw, and the price ``(*batch, 1)`` float64."""
    exact, center, reach = raw.double(), numbers.center.double(), numbers.radius.double().unsqueeze(-1)
    offset = exact - center
    weights = torch.ones_like(offset) if numbers.weights is None else numbers.weights.double().expand_as(offset)
    size = weights * offset.abs()
    free = (weights == 0).detach()  # outputs that the ball does not see
    with torch.no_grad():
        order = torch.where(free, -1.0, offset.abs() / torch.where(free, 1.0, weights))
        order = order.argsort(dim=-1, descending=True)
        squares = weights.square().gather(-1, order).cumsum(-1)
        prices = (size.gather(-1, order).cumsum(-1) - reach) / torch.where(squares > 0, squares, 1.0)
        price = torch.where(squares > 0, prices, -torch.inf).amax(-1, keepdim=True)
        outside = price > 0
        support = outside & ~free & (offset.abs() > price * weights)
    total = torch.where(support, weights.square(), 0.0).sum(-1, keepdim=True)
    rest = (torch.where(support, size, 0.0).sum(-1, keepdim=True) - reach) / torch.where(total > 0, total, 1.0)
    price = torch.where(total > 0, rest, price.clamp_min(0.0))
    held = outside & ~free & ~support
    y = torch.where(support, exact - offset.detach().sign() * price * weights, exact)
    return torch.where(held, center.expand_as(offset), y).to(raw.dtype), price
