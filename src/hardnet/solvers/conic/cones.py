"""Images in cones, and the second-order cone: projection, and its derivative in an eigenbasis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Self

import torch
from torch import Tensor

from hardnet.products import length, times_tiled
from hardnet.solvers.conic.images import Foot, Frame, Image, positive


def project_second_order(z: Tensor) -> Tensor:
    """``argmin |w - z|  s.t.  |w_u| <= w_t`` for ``z = (u, t)`` of shape ``(..., k + 1)``."""
    u, t = z[..., :-1], z[..., -1:]
    size = length(u)
    height = (size + t) / 2
    onto = torch.cat([u * (height / size.clamp_min(torch.finfo(z.dtype).tiny)), height], dim=-1)
    return torch.where(size <= t, z, torch.where(size <= -t, torch.zeros_like(z), onto))


def second_order_frame(z: Tensor, tolerance: Tensor) -> Frame:
    """The derivative of `project_second_order` at z ``(B, k + 1)``; within `tolerance` a boundary counts as free.

    On the curved side, with ``e = u / |u|``: delta is 1 along ``(e, 1)``, 0 along ``(e, -1)`` and
    ``(1 + t / |u|) / 2`` across. A Householder reflection completes e to a basis.
    """
    u, t = z[..., :-1], z[..., -1:]
    size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)  # in the unit of the problem
    first = torch.zeros_like(u)
    first[..., 0] = 1
    e = torch.where(size > 0, u / size.clamp_min(torch.finfo(z.dtype).tiny), first)
    across = ((1 + t / size.clamp_min(torch.finfo(z.dtype).tiny)) / 2).expand_as(u[..., 1:])
    curved = torch.cat([torch.ones_like(t), torch.zeros_like(t), across], dim=-1)
    apex = torch.where(size + t <= tolerance, torch.zeros_like(z), curved)
    delta = torch.where(size - t <= tolerance, torch.ones_like(z), apex)
    mirror = e + torch.where(e[..., :1] < 0, -first, first)
    mirror = mirror / torch.linalg.vector_norm(mirror, dim=-1, keepdim=True)
    return Frame(delta, lambda X: _cone_rotate(X, e, mirror), lambda X: _cone_restore(X, e, mirror))


def _reflect(X: Tensor, mirror: Tensor) -> Tensor:
    """``(I - 2 m m') X``."""
    return X - 2 * mirror.unsqueeze(-1) * (mirror.unsqueeze(-2) @ X)


def _cone_rotate(X: Tensor, e: Tensor, mirror: Tensor) -> Tensor:
    """Coordinates along (e, 1), (e, -1) and the directions across, which are the last rows of the reflection."""
    along, t = e.unsqueeze(-2) @ X[..., :-1, :], X[..., -1:, :]
    return torch.cat([(along + t) / sqrt(2), (along - t) / sqrt(2), _reflect(X[..., :-1, :], mirror)[..., 1:, :]], -2)


def _cone_restore(X: Tensor, e: Tensor, mirror: Tensor) -> Tensor:
    """The inverse of `_cone_rotate`."""
    along, t = (X[..., :1, :] + X[..., 1:2, :]) / sqrt(2), (X[..., :1, :] - X[..., 1:2, :]) / sqrt(2)
    across = _reflect(torch.cat([torch.zeros_like(along), X[..., 2:, :]], dim=-2), mirror)
    return torch.cat([e.unsqueeze(-1) * along + across, t], dim=-2)


@dataclass(frozen=True)
class ConeImage(Image):
    """``K_i y + k_i`` in a cone, which knows only uniform scales: K ``(b, g, r, n)``, k ``(b, g, r)``."""

    K: Tensor
    k: Tensor

    @property
    def rows(self) -> int:
        """All rows of all cones."""
        return self.K.shape[-3] * self.K.shape[-2]

    def value(self, y: Tensor) -> Tensor:
        """``K y + k``, one cone after the other."""
        return times_tiled(self.jacobian(y), y) + self.k.flatten(-2)

    def jacobian(self, y: Tensor) -> Tensor:
        """``K``."""
        return self.K.flatten(-3, -2)

    def each(self, z: Tensor) -> Tensor:
        """``(B, g r)`` as ``(B, g, r)``."""
        return z.unflatten(-1, self.K.shape[-3:-1])

    def factor(self, y: Tensor) -> Tensor:
        """The largest norm of a column of K_i: how far G_i moves with one coordinate of y."""
        size = positive(length(self.K.mT).amax(-2))
        return size.expand(self.K.shape[:-1]).flatten(-2)

    def scaled(self, factor: Tensor, unit: Tensor) -> Self:
        """K and k divided."""
        factor = self.each(factor)
        return type(self)(self.K / factor.unsqueeze(-1), self.k / (factor * unit.unsqueeze(-1)))

    def size(self, y: Tensor) -> Tensor:
        """The norm of ``|K_i| |y| + |k_i|``, for every row."""
        terms = self.each(times_tiled(self.jacobian(y).abs(), y.abs())) + self.k.abs()
        return length(terms).expand_as(terms).flatten(-2)

    def outside(self, excess: Tensor) -> Tensor:
        """The norm over the cone: of a matrix at least ``-lambda_min``, and ``|u| - t`` is at most its sqrt(2) fold."""
        parts = self.each(excess)
        return (sqrt(2) * length(parts)).expand_as(parts).flatten(-2)

    def _grouped(self, frame: Callable[[Tensor], Frame], tolerance: Tensor) -> Frame:
        """The frames of all cones as one, on rows that follow one another."""
        found, shape = frame(tolerance.unsqueeze(-1)), self.K.shape[-3:-1]
        rotate = lambda X: found.rotate(X.unflatten(-2, shape)).flatten(-3, -2)
        restore = lambda X: found.restore(X.unflatten(-2, shape)).flatten(-3, -2)
        return Frame(found.delta.flatten(-2), rotate, restore)


class SecondOrderImage(ConeImage):
    """In second-order cones, the height last."""

    def foot(self, z: Tensor) -> Foot:
        """On the second-order cones."""
        points = self.each(z)
        onto = project_second_order(points)
        frame = partial(self._grouped, partial(second_order_frame, points))
        return Foot(onto.flatten(-2), (points - onto).flatten(-2), frame)

    def tightened(self, margin: Tensor) -> SecondOrderImage:
        """The heights lowered."""
        margin = self.each(margin)
        flat, height = self.k[..., :-1].expand_as(margin[..., 1:]), self.k[..., -1:] - margin[..., -1:]
        return SecondOrderImage(self.K, torch.cat([flat, height], -1))
