"""The multiplier of one convex quadratic, by Newton in one dimension: ``1/2 y'Py + q'y + r = 0`` along y(mu)."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 80
"""Newton multiplies ``1 + mu`` by at least 1.5 far from the root: enough for any finite distance."""


def nearest_root(p: Tensor, q: Tensor, r: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The point ``y = (p - mu q) / (1 + mu values)`` with value zero, and its mu, in eigencoordinates of P.

    The value is convex and decreasing in mu, so Newton from zero climbs to the root without a safeguard. A point
    inside stays, with mu = 0; a sample with no root (an empty set) ends NaN.

    Args:
        p: The point to project, ``(*batch, n)``.
        q: ``(*batch, n)``.
        r: ``(*batch)``.
        values: Eigenvalues of P, not negative, ``(*batch, n)``.
    """
    p, q, values = torch.broadcast_tensors(p, q, values)
    mu, slack = torch.zeros_like(p[..., :1]), torch.zeros_like(p[..., :1])
    for step in range(STEPS):
        damping = 1 / (1 + mu * values)
        y = (p - mu * q) * damping
        value, slack = evaluate(y, q, r, values)
        slope = values * y + q
        fall = (slope * slope * damping).sum(-1, keepdim=True)
        up = value > slack
        mu = torch.where(up, mu + value / fall.clamp_min(torch.finfo(p.dtype).tiny), mu)
        if step % 8 == 7 and not bool(up.any()):
            break
    y = (p - mu * q) / (1 + mu * values)
    value, slack = evaluate(y, q, r, values)
    _, first = evaluate(p, q, r, values)
    enough = torch.maximum(1e3 * slack, 1e-9 * first)  # the latter where C is one point
    return torch.where(value <= enough, y, torch.nan), mu


def evaluate(y: Tensor, q: Tensor, r: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """``1/2 y'Py + q'y + r`` and two roundings of its terms, ``(*batch, 1)`` each."""
    bent, straight = values * y * y / 2, q * y
    value = (bent + straight).sum(-1, keepdim=True) + r.unsqueeze(-1)
    size = (bent + straight.abs()).sum(-1, keepdim=True) + r.abs().unsqueeze(-1)
    return value, 2 * torch.finfo(y.dtype).eps * size
