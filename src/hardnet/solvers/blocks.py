"""Blocks: the numbers that a convex set is made of, each as people write it, and its image ``G(y) in K``.

Tensors may carry batch dimensions or not; the solver flattens them to one, of length B or 1 (constant).
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.cones import order, pack, unpack
from hardnet.solvers.images import Image, IntervalImage, QuadraticImage, SecondOrderImage, SemiDefiniteImage


def convex(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether these are eigenvalues of a positive semidefinite matrix, to the rounding of the dtype it is given in.

    The entries of a product ``R'R`` computed in that dtype are off by about ``eps sqrt(n) |P|``, which moves its
    eigenvalues by up to ``2 sqrt(n)`` times as much; four times that is allowed.

    Args:
        values: In float64 and ascending, ``(*batch, n)``.
        dtype: That of the matrix.

    Returns:
        ``(*batch)`` bool; False for NaN.
    """
    tolerance = 8 * values.shape[-1] * torch.finfo(dtype).eps * values.abs().amax(-1)
    return values[..., 0] >= -tolerance


def _all_finite(*fields: Tensor) -> Tensor:
    """Samples whose fields, each led by one batch dimension, are all finite: ``(b,)``."""
    good = [field.isfinite().reshape(field.shape[0], prod(field.shape[1:])).all(-1) for field in fields]
    return torch.stack(torch.broadcast_tensors(*good)).all(0)


class Intervals(NamedTuple):
    """``lower <= A y <= upper``: A ``(m, n)``, bounds ``(m,)``, infinite where absent."""

    A: Tensor
    lower: Tensor
    upper: Tensor
    cores = (2, 1, 1)

    def valid(self) -> Tensor:
        """A finite, ``lower <= upper``, and no bound infinite on the wrong side, ``(b,)``."""
        ordered = (self.lower <= self.upper) & (self.lower < torch.inf) & (self.upper > -torch.inf)
        return _all_finite(self.A) & ordered.all(-1)

    def image(self) -> Image:
        """``A y in [lower, upper]``."""
        return IntervalImage(*self)

    def residual(self, y: Tensor) -> Tensor:
        """``relu(A y - upper) + relu(lower - A y)``, ``(*batch, m)``."""
        value = self.image().value(y)
        return (value - self.upper).clamp_min(0) + (self.lower - value).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """The size of the terms of each row, ``(*batch, m)``."""
        return self.image().size(y)


class SecondOrder(NamedTuple):
    """``|A y + b| <= c'y + d``: A ``(k, n)``, b ``(k,)``, c ``(n,)``, d ``()``."""

    A: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    cores = (2, 1, 1, 0)

    def valid(self) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*self)

    def image(self) -> Image:
        """``(A y + b, c'y + d)`` in the second-order cone."""
        batch = torch.broadcast_shapes(self.A.shape[:-2], self.b.shape[:-1], self.c.shape[:-1], self.d.shape)
        rows = [self.A, self.c.unsqueeze(-2)]
        offsets = [self.b, self.d.unsqueeze(-1)]
        K = torch.cat([row.expand(*batch, *row.shape[-2:]) for row in rows], dim=-2)
        return SecondOrderImage(K, torch.cat([offset.expand(*batch, offset.shape[-1]) for offset in offsets], dim=-1))

    def excess(self, y: Tensor) -> Tensor:
        """``|A y + b| - c'y - d``, one row."""
        z = self.image().value(y)
        return torch.linalg.vector_norm(z[..., :-1], dim=-1, keepdim=True) - z[..., -1:]

    def residual(self, y: Tensor) -> Tensor:
        """``relu(|A y + b| - c'y - d)``, one row."""
        return self.excess(y).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """The norm of ``|A||y| + |b|`` and ``|c|'|y| + |d|`` together, one row."""
        return self.image().size(y)[..., :1]


class SemiDefinite(NamedTuple):
    """``F0 + sum_i y_i F_i`` positive semidefinite: F0 ``(k, k)``, F ``(n, k, k)``; only symmetric parts count."""

    F0: Tensor
    F: Tensor
    cores = (2, 3)

    def valid(self) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*self)

    def image(self) -> Image:
        """The packed matrix in the semidefinite cone."""
        return SemiDefiniteImage(pack(self.F).mT, pack(self.F0))

    def excess(self, y: Tensor) -> Tensor:
        """``-lambda_min``, one row; NaN where y is."""
        packed = self.image().value(y)
        finite = packed.isfinite().all(-1, keepdim=True)  # LAPACK refuses a whole batch for one NaN
        matrix = unpack(torch.where(finite, packed, 0.0), order(packed.shape[-1]))
        return torch.where(finite, -torch.linalg.eigvalsh(matrix)[..., :1], torch.nan)

    def residual(self, y: Tensor) -> Tensor:
        """``relu(-lambda_min)``, one row; NaN where y is."""
        return self.excess(y).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """The norm of ``|F0| + sum_i |y_i| |F_i|``, one row."""
        return self.image().size(y)[..., :1]


class Quadratics(NamedTuple):
    """``1/2 y'Py + q'y + r <= 0``: P ``(n, n)`` positive semidefinite, q ``(n,)``, r ``()``."""

    P: Tensor
    q: Tensor
    r: Tensor
    cores = (2, 1, 0)

    def valid(self) -> Tensor:
        """All finite and P positive semidefinite, ``(b,)``."""
        P = self.P.detach().double()
        spectrum = torch.linalg.eigvalsh(torch.where(_all_finite(P)[:, None, None], P + P.mT, 0.0))
        return _all_finite(*self) & convex(spectrum, self.P.dtype)

    def image(self) -> Image:
        """The value in ``(-inf, 0]``."""
        return QuadraticImage((self.P + self.P.mT) / 2, self.q, self.r)

    def excess(self, y: Tensor) -> Tensor:
        """``1/2 y'Py + q'y + r``, one row."""
        return self.image().value(y)

    def residual(self, y: Tensor) -> Tensor:
        """``relu(1/2 y'Py + q'y + r)``, one row."""
        return self.excess(y).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """The same sum over absolute values, one row."""
        return self.image().size(y)


Block = Intervals | SecondOrder | SemiDefinite | Quadratics
"""What a convex set is made of."""
