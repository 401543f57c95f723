"""The multiplier of one convex quadratic, by Newton in one dimension: ``1/2 y'Py + q'y + r = 0`` along y(mu)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.modes import may_look
from hardnet.products import power_above

STEPS, PATIENT = 32, 128
"""Newton steps at most, and where a look tells when to stop.

A ball or a half-space needs one, 10^5 random ones of every rank and distance at most 20; curvatures that differ by 1e16
and a raw 1e16 away up to 100, since far from the root a step makes the multiplier half as large again.
"""
POLISHING_ROOTS = 3
"""Steps along the gradient that undo the rounding of ``raw - mu q`` where y is much shorter than raw."""
POINT = 1e100
"""The multiplier of a set without interior, which has none: ``y(mu)`` has arrived where the value is least."""
ROUND_SPECTRUM = 1e-8
"""Curvatures above this part of the largest count as round: their squares are completed."""


class Root(NamedTuple):
    """The nearest point, its multiplier, and what is known of the set.

    Attributes:
        y: In eigencoordinates, ``(*batch, n)``; the point itself where it is inside.
        mu: ``(*batch, 1)``.
        solved: Whether the value at y is zero or negative to rounding, ``(*batch)``.
        empty: Whether the minimum of the quadratic is known to be positive, ``(*batch)``.
    """

    y: Tensor
    mu: Tensor
    solved: Tensor
    empty: Tensor


class Curve(NamedTuple):
    """The quadratic along ``y(mu) = (p - mu q) / (1 + mu values)``, in units in which its numbers are of size one."""

    p: Tensor
    q: Tensor
    r: Tensor
    values: Tensor

    def point(self, mu: Tensor) -> Tensor:
        """``y(mu)``."""
        return (self.p - mu * self.q) / (1 + mu * self.values)

    @property
    def flat(self) -> Tensor:
        """Coordinates without curvature, to the rounding of an eigendecomposition."""
        noise = self.p.shape[-1] * torch.finfo(self.p.dtype).eps
        return self.values <= noise * self.values.amax(-1, keepdim=True)


def nearest_root(p: Tensor, q: Tensor, r: Tensor, values: Tensor, *, noise: Tensor | None = None) -> Root:
    """The point ``y = (p - mu q) / (1 + mu values)`` with value zero, in eigencoordinates of P.

    Args:
        p: The point to project, ``(*batch, n)``.
        q: ``(*batch, n)``.
        r: ``(*batch)``.
        values: Eigenvalues of P, not negative, ``(*batch, n)``.
        noise: How exactly q is known, ``(*batch, n)``: it was turned into eigencoordinates.
    """
    p, q, values = torch.broadcast_tensors(p, q, values)
    r = r.unsqueeze(-1).expand(*p.shape[:-1], 1)
    length, height = _units(p, q, r, values)
    weight = length / height
    curve = Curve(p / length, q * weight, r / height, values * weight * length)
    empty, point = _minimum(curve, 0.0 if noise is None else noise * weight)
    mu = climb(curve)
    mu = torch.where(point & (mu > 0), POINT, mu)
    bottom = torch.where(curve.flat, curve.p, -curve.q / torch.where(curve.flat, 1.0, curve.values))
    z = torch.where(point, bottom, _polish(curve, mu))
    value, slack = evaluate(z, curve.q, curve.r, curve.values)
    least = torch.finfo(p.dtype).eps ** 4  # a root at zero has terms of any size: polishing leaves less than this
    solved = value.isfinite() & ((mu == 0) | (~empty & (point | (value <= 8 * slack + least))))
    y = torch.where(mu > 0, z * length, p)
    return Root(y, mu * weight * length, solved.squeeze(-1), empty.squeeze(-1))


def evaluate(y: Tensor, q: Tensor, r: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """``1/2 y'Py + q'y + r`` and two roundings of its terms, ``(*batch, 1)`` each; r is ``(*batch, 1)``."""
    bent, straight = values * y * y / 2, q * y
    value = (bent + straight).sum(-1, keepdim=True) + r
    size = (bent + straight.abs()).sum(-1, keepdim=True) + r.abs()
    return value, 2 * torch.finfo(y.dtype).eps * size


def climb(curve: Curve) -> Tensor:
    """The multiplier ``(*batch, 1)``: zero where p is inside, else the root of the value along y(mu).

    With the squares of the round coordinates completed, the value is ``g(mu) - h(mu)``: g a sum of squares that falls,
    h a concave function that rises. Both ``g - h`` (convex) and ``1/sqrt(g) - 1/sqrt(h)`` (concave, and nearly straight
    for a ball however far away) have Newton steps that stay below the root, so the longer of the two is taken. Where
    rounding made one too long, the first alone leads back and goes on.
    """
    value, slack = evaluate(curve.p, curve.q, curve.r, curve.values)
    mu, outside = torch.zeros_like(value), value > slack
    below, passed = mu, torch.zeros_like(outside)
    for step in range(PATIENT if may_look(mu) else STEPS):
        value, direct, curved, noise = _newton(curve, mu)
        moving = outside & (value.abs() > noise)
        below, passed = torch.where(value > 0, mu, below), passed | (value < 0)
        ahead = mu + torch.where(passed, direct, torch.maximum(direct, curved))
        mu = torch.where(moving, torch.maximum(ahead, below), mu)
        if step % 4 == 3 and may_look(mu) and not bool(moving.any()):
            break
    return mu


def _newton(curve: Curve, mu: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The value at y(mu), both Newton steps, and the rounding of the value, ``(*batch, 1)`` each."""
    p, q, r, values = curve
    eps, tiny = torch.finfo(p.dtype).eps, torch.finfo(p.dtype).tiny
    damping = 1 / (1 + mu * values)
    y = (p - mu * q) * damping
    value, slack = evaluate(y, q, r, values)
    slope = values * y + q
    fall = slope * slope * damping
    direct = value / fall.sum(-1, keepdim=True).clamp_min(tiny)
    noise = eps * (slope.abs() * damping * (p.abs() + mu * q.abs())).sum(-1, keepdim=True)
    bowl = values > ROUND_SPECTRUM * values.amax(-1, keepdim=True)
    divisor = 2 * torch.where(bowl, values, 1.0)
    g = torch.where(bowl, slope * slope / divisor, 0.0).sum(-1, keepdim=True)
    h = torch.where(bowl, q * q / divisor, -(values * y / 2 + q) * y).sum(-1, keepdim=True) - r
    sink, rise = (torch.where(mask, fall, 0.0).sum(-1, keepdim=True) for mask in (bowl, ~bowl))
    up = torch.where(h < 0, -h / rise.clamp_min(tiny), 0.0)  # h is concave, and not negative at the root
    usable = (g > 0) & (h > 0)
    g, h = torch.where(usable, g, 1.0), torch.where(usable, h, 1.0)
    # 1/sqrt(h) - 1/sqrt(g) without the cancellation
    gap = value / ((g * h).sqrt() * (g.sqrt() + h.sqrt()))
    curved = 2 * gap / (sink / (g * g.sqrt()) + rise / (h * h.sqrt())).clamp_min(tiny)
    return value, direct, torch.where(usable, curved, up), torch.maximum(slack, noise)


def _polish(curve: Curve, mu: Tensor) -> Tensor:
    """``y(mu)`` moved onto the boundary as a change of mu would: ``p - mu q`` rounds like p, the move like y itself."""
    damping, y = 1 / (1 + mu * curve.values), curve.point(mu)
    for _ in range(POLISHING_ROOTS):
        value, slack = evaluate(y, curve.q, curve.r, curve.values)
        slope = curve.values * y + curve.q
        fall = (slope * slope * damping).sum(-1, keepdim=True)
        moving = (mu > 0) & (value.abs() > slack) & (fall > 0)
        y = y - torch.where(moving, value / torch.where(moving, fall, 1.0), 0.0) * slope * damping
    return y


def _minimum(curve: Curve, noise: Tensor | float) -> tuple[Tensor, Tensor]:
    """Whether the minimum is positive, and whether it is zero to rounding: one point or a flat, ``(*batch, 1)`` each.

    Where q leaves the range of P there is no minimum: a paraboloid is never empty.
    """
    flat, eps, n = curve.flat, torch.finfo(curve.p.dtype).eps, curve.p.shape[-1]
    bounded = ~(flat & (curve.q.abs() > noise)).any(-1, keepdim=True)
    depth = torch.where(flat, 0.0, curve.q * curve.q / (2 * torch.where(flat, 1.0, curve.values)))
    depth = depth.sum(-1, keepdim=True)
    lowest, rounding = curve.r - depth, 8 * n * eps * (depth + curve.r.abs())
    return bounded & (lowest > rounding), bounded & (lowest.abs() <= rounding)


def _units(p: Tensor, q: Tensor, r: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Powers of two for lengths and for values, ``(*batch, 1)`` each: dividing by them is exact."""
    largest, slope = values.amax(-1, keepdim=True), q.abs().amax(-1, keepdim=True)
    tiny = torch.finfo(p.dtype).tiny
    reach = torch.minimum(r.abs() / slope.clamp_min(tiny), (r.abs() / largest.clamp_min(tiny)).sqrt())
    length = power_above(torch.maximum(p.abs().amax(-1, keepdim=True), torch.where(reach.isfinite(), reach, 0.0)))
    terms = torch.maximum(torch.maximum(largest * length * length, slope * length), r.abs())
    return length, power_above(terms)
