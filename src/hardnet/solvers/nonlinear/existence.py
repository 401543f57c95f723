"""The Newton-Kantorovich theorem: an exact solution of ``lower <= g(y) <= upper`` within a known distance of y.

For the rows held at a bound, with residual r, Jacobian J, ``beta = |J^+|`` and ``|J(a) - J(b)| <= L |a - b|``:

    h = beta L (beta |r|) <= 1/2   proves a zero within   2 beta |r| / (1 + sqrt(1 - 2 h)),

since g restricted to ``y + range(J')`` has the derivative J there, whose inverse has norm beta. Every other row must
hold in the whole ball: its distance to each bound must be at least ``|J_i| radius + L_i radius^2 / 2``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROUNDINGS = 16
"""Roundings of float64, relative to the row's scale, by which a value of g may be wrong."""
HELD = 1e-8
"""A row is held at a bound if it is within this part of its scale from the bound."""


class Existence(NamedTuple):
    """What is proven for each sample, ``(*batch,)`` each.

    Attributes:
        proven: Whether an exact solution is proven to exist within `radius` of y.
        radius: That distance; infinite where nothing is proven.
        h: ``beta L beta |r|``, at most 1/2 where the theorem applies.
    """

    proven: Tensor
    radius: Tensor
    h: Tensor


def prove_existence(
    value: Tensor, jacobian: Tensor, lower: Tensor, upper: Tensor, scale: Tensor, curvature: Tensor
) -> Existence:
    """Apply the theorem to each sample in float64, with rounding errors counted against it.

    Args:
        value: g at y, ``(*batch, m)``.
        jacobian: ``(*batch, m, n)``.
        lower: ``(*batch, m)``.
        upper: ``(*batch, m)``.
        scale: The scale of each row, to which its rounding error is relative, ``(*batch, m)``.
        curvature: A bound on the largest absolute eigenvalue of each row's Hessian around y, ``(m,)`` or
            ``(*batch, m)``.
    """
    unit = torch.finfo(value.dtype).eps
    noise = ROUNDINGS * unit * scale
    nearest = torch.minimum((value - lower).abs(), (upper - value).abs())
    outside = torch.maximum(value - upper, lower - value) > 0
    held = (lower == upper) | outside | (nearest <= HELD * scale)
    residual = torch.where(held, nearest + noise, 0.0)
    size = torch.linalg.matrix_norm(jacobian).unsqueeze(-1)
    other = torch.diag_embed(torch.where(held, 0.0, size))  # so that rows not held do not give the least singular value
    rows = torch.cat([torch.where(held.unsqueeze(-1), jacobian, 0.0), other], dim=-1)
    finite = rows.isfinite().flatten(-2).all(-1) & residual.isfinite().all(-1)
    singular = torch.linalg.svdvals(torch.where(finite[..., None, None], rows, 0.0)).amin(-1)
    wrong = ROUNDINGS * max(rows.shape[-2:]) * unit * size.squeeze(-1)
    beta = 1 / (singular - wrong)
    slope = torch.linalg.vector_norm(torch.where(held, curvature, 0.0), dim=-1)
    step = beta * torch.linalg.vector_norm(residual, dim=-1)
    h = beta * slope * step
    radius = 2 * step / (1 + (1 - 2 * h).clamp_min(0.0).sqrt()) * (1 + ROUNDINGS * unit)
    reach = torch.linalg.vector_norm(jacobian, dim=-1) * radius.unsqueeze(-1)
    reach = (reach + curvature * radius.unsqueeze(-1).square() / 2) * (1 + ROUNDINGS * unit) + noise
    inside = (value - reach >= lower) & (value + reach <= upper)
    proven = finite & (beta > 0) & (h <= 0.5) & (held | inside).all(-1) & (lower <= upper).all(-1)
    return Existence(proven, torch.where(proven, radius, torch.inf), h)
