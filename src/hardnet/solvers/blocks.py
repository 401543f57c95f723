"""Blocks ``G(y) in K``: affine intervals, second-order cones, matrix inequalities and convex quadratics.

A convex set is a list of blocks. Each gives the value and the Jacobian of G, the projection onto K, and the
derivative of that projection in its eigenbasis; solvers and the implicit derivative know nothing else of a set.
All tensors carry one leading batch dimension, of length B or 1 (constant).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.cones import (
    Frame,
    order,
    pack,
    project_second_order,
    project_semidefinite,
    second_order_frame,
    semidefinite_frame,
)

CONVEX = 1e-6
"""How negative the smallest eigenvalue of P may be, relative to the largest: rounding of a float32 matrix."""


def _times(A: Tensor, y: Tensor) -> Tensor:
    """``A y`` with batches."""
    return (A @ y.unsqueeze(-1)).squeeze(-1)


def _positive(size: Tensor) -> Tensor:
    """A divisor: zero sizes become one."""
    return torch.where(size > 0, size, torch.ones_like(size))


def _all_finite(*fields: Tensor) -> Tensor:
    """Samples whose fields are all finite, ``(b,)``."""
    good = [field.isfinite().reshape(field.shape[0], -1).all(-1) for field in fields]
    return torch.stack(torch.broadcast_tensors(*good)).all(0)


def _identity(X: Tensor) -> Tensor:
    """The frame of a product of intervals needs no rotation."""
    return X


def _interval_delta(z: Tensor, lower: Tensor, upper: Tensor, tolerance: Tensor) -> Tensor:
    """0 where z lies outside ``[lower, upper]`` or the interval is a point, else 1."""
    tight = (z > upper + tolerance) | (z < lower - tolerance) | (lower == upper)
    return torch.where(tight, torch.zeros_like(z), torch.ones_like(z))


class Intervals(NamedTuple):
    """``lower <= A y <= upper``: A ``(b, m, n)``, bounds ``(b, m)``, infinite where absent."""

    A: Tensor
    lower: Tensor
    upper: Tensor
    cores = (2, 1, 1)

    def valid(self) -> Tensor:
        """A finite, ``lower <= upper``, and no bound infinite on the wrong side, ``(b,)``."""
        ordered = (self.lower <= self.upper) & (self.lower < torch.inf) & (self.upper > -torch.inf)
        return _all_finite(self.A) & ordered.all(-1)

    def value(self, y: Tensor) -> Tensor:
        """``A y``."""
        return _times(self.A, y)

    def jacobian(self, y: Tensor) -> Tensor:
        """``A``."""
        return self.A

    def curvature(self, dual: Tensor) -> Tensor | None:
        """None: the rows are straight."""
        return None

    def project(self, z: Tensor) -> Tensor:
        """``clamp(z, lower, upper)``."""
        return torch.minimum(torch.maximum(z, self.lower), self.upper)

    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """Coordinates are their own eigenbasis."""
        return Frame(_interval_delta(z, self.lower, self.upper, tolerance), _identity, _identity)

    def factor(self, y: Tensor) -> Tensor:
        """The norm of each row, ``(b, m)``."""
        return _positive(torch.linalg.vector_norm(self.A, dim=-1))

    def scaled(self, factor: Tensor) -> Intervals:
        """The same set with rows divided by `factor`."""
        return Intervals(self.A / factor.unsqueeze(-1), self.lower / factor, self.upper / factor)

    def size(self, y: Tensor) -> Tensor:
        """``|A| |y|`` plus the finite bounds: what rounding is relative to, ``(B, m)``."""
        bounds = [torch.where(side.isfinite(), side.abs(), 0.0) for side in (self.lower, self.upper)]
        return _times(self.A.abs(), y.abs()) + torch.maximum(*bounds)

    def tightened(self, margin: Tensor) -> Intervals:
        """Both bounds moved inwards by `margin` ``(B, m)`` where there is room for it."""
        room = self.upper - self.lower > 2 * margin
        lower, upper = self.lower + margin, self.upper - margin
        return Intervals(self.A, torch.where(room, lower, self.lower), torch.where(room, upper, self.upper))

    def pairing(self, y: Tensor, u: Tensor, weight: Tensor, dual: Tensor) -> Tensor:
        """``weight . (A y - bound) - dual . A u``, the bound picked by the sign of the multiplier."""
        middle = (self.lower + self.upper) / 2
        bound = torch.where(self.lower == self.upper, middle, torch.where(dual > 0, self.upper, self.lower))
        bound = torch.where(weight == 0, torch.zeros_like(bound), bound)
        return (weight * (self.value(y) - bound)).sum() - (dual * _times(self.A, u)).sum()


class SecondOrder(NamedTuple):
    """``|A y + b| <= c'y + d``: A ``(b, k, n)``, b ``(b, k)``, c ``(b, n)``, d ``(b,)``."""

    A: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    cores = (2, 1, 1, 0)

    def valid(self) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*self)

    def value(self, y: Tensor) -> Tensor:
        """``(A y + b, c'y + d)``, of shape ``(B, k + 1)``."""
        height = (self.c * y).sum(-1) + self.d
        return torch.cat([_times(self.A, y) + self.b, height.unsqueeze(-1)], dim=-1)

    def jacobian(self, y: Tensor) -> Tensor:
        """A stacked on c'."""
        batch = max(self.A.shape[0], self.c.shape[0])
        parts = [self.A.expand(batch, -1, -1), self.c.unsqueeze(-2).expand(batch, -1, -1)]
        return torch.cat(parts, dim=-2)

    def curvature(self, dual: Tensor) -> Tensor | None:
        """None: the map is affine; the cone's own curvature is in its frame."""
        return None

    def project(self, z: Tensor) -> Tensor:
        """Onto the second-order cone."""
        return project_second_order(z)

    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """Of the second-order cone."""
        return second_order_frame(z, tolerance)

    def factor(self, y: Tensor) -> Tensor:
        """The largest row norm of A and c, ``(b, 1)``: one number, since a cone knows only uniform scales."""
        return _positive(torch.linalg.vector_norm(self.jacobian(y), dim=-1).amax(-1, keepdim=True))

    def scaled(self, factor: Tensor) -> SecondOrder:
        """The same set with everything divided by `factor`."""
        A, d = self.A / factor.unsqueeze(-1), self.d / factor.squeeze(-1)
        return SecondOrder(A, self.b / factor, self.c / factor, d)

    def size(self, y: Tensor) -> Tensor:
        """Terms that each entry of the cone vector adds up, the largest for all: ``(B, k + 1)``."""
        flat = SecondOrder(self.A.abs(), self.b.abs(), self.c.abs(), self.d.abs()).value(y.abs())
        return torch.linalg.vector_norm(flat, dim=-1, keepdim=True).expand_as(flat)

    def tightened(self, margin: Tensor) -> SecondOrder:
        """``d - margin``."""
        return self._replace(d=self.d - margin[..., -1])

    def pairing(self, y: Tensor, u: Tensor, weight: Tensor, dual: Tensor) -> Tensor:
        """``weight . G(y) - dual . DG u``."""
        return (weight * self.value(y)).sum() - (dual * _times(self.jacobian(y), u)).sum()


class SemiDefinite(NamedTuple):
    """``F0 + sum_i y_i F_i`` positive semidefinite: F0 ``(b, k, k)``, F ``(b, n, k, k)``; G is packed."""

    F0: Tensor
    F: Tensor
    cores = (2, 3)

    def valid(self) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*self)

    def value(self, y: Tensor) -> Tensor:
        """``pack(F0 + sum_i y_i F_i)``, of shape ``(B, k (k + 1) / 2)``."""
        return _times(self.jacobian(y), y) + pack(self.F0)

    def jacobian(self, y: Tensor) -> Tensor:
        """``pack(F_i)`` as columns."""
        return pack(self.F).mT

    def curvature(self, dual: Tensor) -> Tensor | None:
        """None: the map is affine; the cone's own curvature is in its frame."""
        return None

    def project(self, z: Tensor) -> Tensor:
        """Onto the semidefinite cone."""
        return project_semidefinite(z)

    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """Of the semidefinite cone."""
        return semidefinite_frame(z, tolerance)

    def factor(self, y: Tensor) -> Tensor:
        """The largest norm of an F_i, ``(b, 1)``."""
        return _positive(torch.linalg.vector_norm(pack(self.F), dim=-1).amax(-1, keepdim=True))

    def scaled(self, factor: Tensor) -> SemiDefinite:
        """The same set with everything divided by `factor`."""
        factor = factor.unsqueeze(-1)
        return SemiDefinite(self.F0 / factor, self.F / factor.unsqueeze(-1))

    def size(self, y: Tensor) -> Tensor:
        """The norm of the terms that the matrix adds up, for every entry: ``(B, k (k + 1) / 2)``."""
        flat = SemiDefinite(self.F0.abs(), self.F.abs()).value(y.abs())
        return torch.linalg.vector_norm(flat, dim=-1, keepdim=True).expand_as(flat)

    def tightened(self, margin: Tensor) -> SemiDefinite:
        """``F0 - margin I``."""
        k = order(margin.shape[-1])
        return self._replace(F0=self.F0 - margin[..., :1, None] * torch.eye(k).to(margin))

    def pairing(self, y: Tensor, u: Tensor, weight: Tensor, dual: Tensor) -> Tensor:
        """``weight . G(y) - dual . DG u``."""
        return (weight * self.value(y)).sum() - (dual * _times(self.jacobian(y), u)).sum()


class Quadratics(NamedTuple):
    """``1/2 y'Py + q'y + r <= 0``: P ``(b, n, n)`` positive semidefinite, q ``(b, n)``, r ``(b,)``."""

    P: Tensor
    q: Tensor
    r: Tensor
    cores = (2, 1, 0)

    def valid(self) -> Tensor:
        """All finite and P positive semidefinite up to `CONVEX` of its size, ``(b,)``."""
        finite = _all_finite(self.P)
        spectrum = torch.linalg.eigvalsh(torch.where(finite[:, None, None], self.P + self.P.mT, 0.0))
        return _all_finite(*self) & (spectrum[..., 0] >= -CONVEX * spectrum.abs().amax(-1))

    def value(self, y: Tensor) -> Tensor:
        """``1/2 y'Py + q'y + r``, of shape ``(B, 1)``."""
        return ((_times(self.P, y) / 2 + self.q) * y).sum(-1, keepdim=True) + self.r.unsqueeze(-1)

    def jacobian(self, y: Tensor) -> Tensor:
        """``(P y + q)'``."""
        return ((_times(self.P, y) + _times(self.P.mT, y)) / 2 + self.q).unsqueeze(-2)

    def curvature(self, dual: Tensor) -> Tensor | None:
        """``dual P``; a multiplier of the wrong sign, which an iterate may have, bends nothing."""
        return dual.clamp_min(0).unsqueeze(-1) * (self.P + self.P.mT) / 2

    def project(self, z: Tensor) -> Tensor:
        """``min(z, 0)``."""
        return z.clamp_max(0)

    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """One coordinate: tight where positive."""
        return Frame(torch.where(z > tolerance, torch.zeros_like(z), torch.ones_like(z)), _identity, _identity)

    def factor(self, y: Tensor) -> Tensor:
        """The size of the gradient near y, ``(B, 1)``, so that the scaled value is a length."""
        slope = torch.linalg.vector_norm(self.jacobian(y), dim=-1)
        bend = torch.linalg.matrix_norm(self.P).unsqueeze(-1)
        return _positive(slope + (self.value(y).abs() * bend).sqrt())

    def scaled(self, factor: Tensor) -> Quadratics:
        """The same set with everything divided by `factor`."""
        return Quadratics(self.P / factor.unsqueeze(-1), self.q / factor, self.r / factor.squeeze(-1))

    def size(self, y: Tensor) -> Tensor:
        """The sum of the absolute terms, ``(B, 1)``."""
        return Quadratics(self.P.abs(), self.q.abs(), self.r.abs()).value(y.abs())

    def tightened(self, margin: Tensor) -> Quadratics:
        """``r + margin``."""
        return self._replace(r=self.r + margin[..., 0])

    def pairing(self, y: Tensor, u: Tensor, weight: Tensor, dual: Tensor) -> Tensor:
        """``weight G(y) - dual DG u``."""
        return (weight * self.value(y)).sum() - (dual * _times(self.jacobian(y), u)).sum()


Block = Intervals | SecondOrder | SemiDefinite | Quadratics
"""What a convex set is made of."""
