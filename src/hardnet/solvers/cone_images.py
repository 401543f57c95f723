"""Images in second-order and semidefinite cones, g of one size at a time: ``K_i y + k_i`` in a cone for every i.

Made by `blocks`; read by `stack` and `barriers`.

Called by `hardnet.solvers.barrier_cones`, `hardnet.solvers.barrier_matrices` and others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from hardnet.products import length, times_tiled
from hardnet.solvers.cones import (
    ConeLook,
    Frame,
    negative_part,
    order,
    pack,
    project_second_order,
    second_order_frame,
    semidefinite_frame,
    unpack,
)
from hardnet.solvers.eigen import eigh
from hardnet.solvers.images import Image, positive


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

    def _grouped(self, frame: Callable[[Tensor], Frame], tolerance: Tensor) -> Frame:
        """The frames of all cones as one, on rows that follow one another."""
        found, shape = frame(tolerance.unsqueeze(-1)), self.K.shape[-3:-1]
        rotate = lambda X: found.rotate(X.unflatten(-2, shape)).flatten(-3, -2)
        restore = lambda X: found.restore(X.unflatten(-2, shape)).flatten(-3, -2)
        return Frame(found.delta.flatten(-2), rotate, restore)


class SecondOrderImage(ConeImage):
    """In second-order cones, the height last."""

    def look(self, z: Tensor) -> ConeLook:
        """At the second-order cones."""
        points = self.each(z)
        onto = project_second_order(points)
        frame = partial(self._grouped, partial(second_order_frame, points))
        return ConeLook(onto.flatten(-2), (points - onto).flatten(-2), frame)

    def tightened(self, margin: Tensor) -> SecondOrderImage:
        """The heights lowered."""
        margin = self.each(margin)
        flat, height = self.k[..., :-1].expand_as(margin[..., 1:]), self.k[..., -1:] - margin[..., -1:]
        return SecondOrderImage(self.K, torch.cat([flat, height], -1))


class SemiDefiniteImage(ConeImage):
    """In cones of positive semidefinite matrices, packed."""

    def look(self, z: Tensor) -> ConeLook:
        """At the semidefinite cones, with one eigendecomposition."""
        points = self.each(z)
        values, V = eigh(unpack(points, order(points.shape[-1])))
        excess = negative_part(values, V)
        frame = partial(self._grouped, partial(semidefinite_frame, values, V))
        return ConeLook((points - excess).flatten(-2), excess.flatten(-2), frame)

    def tightened(self, margin: Tensor) -> SemiDefiniteImage:
        """Less a multiple of the identity."""
        margin = self.each(margin)
        eye = torch.eye(order(margin.shape[-1]), dtype=margin.dtype, device=margin.device)
        return SemiDefiniteImage(self.K, self.k - margin * pack(eye))
