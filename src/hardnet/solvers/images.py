"""Images ``G(y) in K`` of one batch: all that solvers and the implicit derivative know of a set.

Several sets of one kind and size are one image with a group dimension g, so that a hundred quadratics cost a few
operations. Constants lead with 1 and are never copied over the batch. Intervals and cones stand here, quadratics in
`quadratic_image`. Made by `blocks`; read by `stack` and `barriers`.

Called by `hardnet.solvers.blocks`, `hardnet.solvers.barrier_cones` and others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
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


def pull_back(J: Tensor, v: Tensor) -> Tensor:
    """``J'v`` for ``(b, r, n)`` and ``(B, r)``."""
    return times_tiled(J.mT, v)


def positive(size: Tensor) -> Tensor:
    """A divisor: zero sizes become one."""
    return torch.where(size > 0, size, torch.ones_like(size))


def same(X: Tensor) -> Tensor:
    """The rotation of a frame whose eigenbasis are the coordinates."""
    return X


class Image(ABC):
    """A map G and a closed convex K; a frozen dataclass of tensors that lead with the same batch (or with 1)."""

    @abstractmethod
    def value(self, y: Tensor) -> Tensor:
        """``G(y)``, ``(*batch, r)``."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """r, how many rows G has."""

    @abstractmethod
    def jacobian(self, y: Tensor) -> Tensor:
        """``DG(y)``, ``(*batch, r, n)``."""

    @abstractmethod
    def look(self, z: Tensor) -> ConeLook:
        """How far z ``(B, r)`` is outside of K, and the derivative of the projection onto K there."""

    @abstractmethod
    def factor(self, y: Tensor) -> Tensor:
        """What to divide G by so that its rows have unit size near y, ``(b, r)``; b is 1 where y does not matter."""

    @abstractmethod
    def scaled(self, factor: Tensor, unit: Tensor) -> Self:
        """The same set in lengths of `unit` ``(B, 1)``: ``G(unit y) / (unit factor)``."""

    @abstractmethod
    def size(self, y: Tensor) -> Tensor:
        """The size of the terms that each row adds up at y, ``(B, r)``: what rounding is relative to."""

    @abstractmethod
    def tightened(self, margin: Tensor) -> Self:
        """The set with every inequality moved inwards by `margin` ``(B, r)``."""

    def curvature(self, dual: Tensor) -> Tensor | None:
        """``sum_i dual_i D2G_i``, ``(B, n, n)``; None for an affine G."""
        return None

    def nearby(self, y: Tensor) -> Tensor:
        """A point nearer to the set, where G is so bent that Newton would come from y slowly; else y."""
        return y

    def height(self, y: Tensor, dual: Tensor) -> Tensor:
        """``dual . G(y)``, ``(B,)``: not positive where y is inside and dual points out of K."""
        return (dual * self.value(y)).sum(-1)

    def clamped(self, y: Tensor) -> Tensor:
        """Y with every coordinate that has bounds of its own exactly inside them."""
        return y

    def pairing(self, y: Tensor, u: Tensor, weight: Tensor, dual: Tensor) -> Tensor:
        """``weight . G(y) - dual . DG(y) u``: its gradient to the numbers of the set is their cotangent."""
        return (weight * self.value(y)).sum() - (dual * times_tiled(self.jacobian(y), u)).sum()

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The image with `function` applied to each tensor."""
        return type(self)(*(function(getattr(self, field.name)) for field in fields(self)))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class IntervalImage(Image):
    """``A y in [lower, upper]``."""

    A: Tensor
    lower: Tensor
    upper: Tensor

    @property
    def rows(self) -> int:
        """One for each row of A."""
        return self.A.shape[-2]

    def value(self, y: Tensor) -> Tensor:
        """``A y``."""
        return times_tiled(self.A, y)

    def jacobian(self, y: Tensor) -> Tensor:
        """``A``."""
        return self.A

    def look(self, z: Tensor) -> ConeLook:
        """``z - clamp(z, lower, upper)``; tight where z lies outside or the interval is a point."""
        onto = torch.minimum(torch.maximum(z, self.lower), self.upper)
        excess = z - onto

        def frame(tolerance: Tensor) -> Frame:
            tight = (excess.abs() > tolerance) | (self.lower == self.upper)
            return Frame((~tight).to(z), same, same)

        return ConeLook(onto, excess, frame)

    def factor(self, y: Tensor) -> Tensor:
        """The norm of each row."""
        return positive(torch.linalg.vector_norm(self.A, dim=-1))

    def scaled(self, factor: Tensor, unit: Tensor) -> IntervalImage:
        """Rows and bounds divided."""
        divisor = factor * unit
        return IntervalImage(self.A / factor.unsqueeze(-1), self.lower / divisor, self.upper / divisor)

    def size(self, y: Tensor) -> Tensor:
        """``|A| |y|`` plus the larger finite bound."""
        bounds = [torch.where(side.isfinite(), side.abs(), 0.0) for side in (self.lower, self.upper)]
        return times_tiled(self.A.abs(), y.abs()) + torch.maximum(*bounds)

    def clamped(self, y: Tensor) -> Tensor:
        """The rows ``y_j`` and ``-y_j`` as bounds of their coordinate."""
        alone = (self.A != 0).sum(-1, keepdim=True) == 1
        up, down = alone & (self.A == 1), alone & (self.A == -1)
        lower, upper = self.lower.unsqueeze(-1), self.upper.unsqueeze(-1)
        least = torch.where(up, lower, torch.where(down, -upper, -torch.inf)).amax(-2)
        most = torch.where(up, upper, torch.where(down, -lower, torch.inf)).amin(-2)
        return torch.minimum(torch.maximum(y, least), most)

    def height(self, y: Tensor, dual: Tensor) -> Tensor:
        """``dual . (A y - bound)``, the bound picked by the sign of the multiplier."""
        bound = torch.where(dual > 0, self.upper, self.lower)
        bound = torch.where((dual == 0) | ~bound.isfinite(), 0.0, bound)
        return (dual * (self.value(y) - bound)).sum(-1)

    def tightened(self, margin: Tensor) -> IntervalImage:
        """Both bounds moved inwards where there is room for it."""
        room = self.upper - self.lower > 2 * margin
        lower, upper = self.lower + margin, self.upper - margin
        return IntervalImage(self.A, torch.where(room, lower, self.lower), torch.where(room, upper, self.upper))

    def pairing(self, y: Tensor, u: Tensor, weight: Tensor, dual: Tensor) -> Tensor:
        """``weight . (A y - bound) - dual . A u``, the bound picked by the sign of the multiplier."""
        middle = (self.lower + self.upper) / 2
        bound = torch.where(self.lower == self.upper, middle, torch.where(dual > 0, self.upper, self.lower))
        bound = torch.where(weight == 0, torch.zeros_like(bound), bound)
        return (weight * (self.value(y) - bound)).sum() - (dual * times_tiled(self.A, u)).sum()


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
