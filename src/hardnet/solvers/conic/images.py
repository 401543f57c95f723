"""Images ``G(y) in K`` of one batch: all that solvers and the implicit derivative know of a set.

Several sets of one kind and size are one image with a group dimension g, so that a hundred quadratics cost a few
operations. Constants lead with 1 and are never copied over the batch. Intervals stand here, cones in `cones`,
quadratics in `quadratic_image`. Made by `blocks`; read by `stack` and `barriers`.

The derivative D of the projection onto a closed convex K is symmetric with eigenvalues in [0, 1]. Everything that
solvers and gradients need of it is its eigenbasis Q and its eigenvalues delta: 0 along directions in which the
constraint is tight, 1 along directions in which it is free, and in between where the boundary is curved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor

from hardnet.products import times_tiled
from hardnet.rows import bound_size


def positive(size: Tensor) -> Tensor:
    """A divisor: zero sizes become one."""
    return torch.where(size > 0, size, torch.ones_like(size))


def same(X: Tensor) -> Tensor:
    """The rotation of a frame whose eigenbasis are the coordinates."""
    return X


class Frame(NamedTuple):
    """``D = Q diag(delta) Q'``, the derivative of a projection at one point of each sample.

    Attributes:
        delta: Eigenvalues, ``(B, r)``.
        rotate: ``X -> Q' X`` for ``X`` of shape ``(B, r, columns)``.
        restore: ``X -> Q X``, the inverse of `rotate`.
    """

    delta: Tensor
    rotate: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]


class Foot(NamedTuple):
    """The foot of z: the nearest point of K, how far z is from it, and the derivative of the projection there.

    Attributes:
        onto: ``P_K(z)``, ``(B, r)``.
        excess: ``z - P_K(z)``, ``(B, r)``; exactly zero inside.
        frame: The frame at z; within its argument, a tolerance ``(B, 1)``, a point counts as inside.
    """

    onto: Tensor
    excess: Tensor
    frame: Callable[[Tensor], Frame]


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
    def foot(self, z: Tensor) -> Foot:
        """The nearest point of K to z ``(B, r)``, and the derivative of the projection onto K there."""

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

    def outside(self, excess: Tensor) -> Tensor:
        """How far out ``z - P_K(z)`` is, at least the violation of each row as it is written, ``(B, r)``."""
        return excess.abs()

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

    def foot(self, z: Tensor) -> Foot:
        """``z - clamp(z, lower, upper)``; tight where z lies outside or the interval is a point."""
        onto = torch.minimum(torch.maximum(z, self.lower), self.upper)
        excess = z - onto

        def frame(tolerance: Tensor) -> Frame:
            tight = (excess.abs() > tolerance) | (self.lower == self.upper)
            return Frame((~tight).to(z), same, same)

        return Foot(onto, excess, frame)

    def factor(self, y: Tensor) -> Tensor:
        """The norm of each row."""
        return positive(torch.linalg.vector_norm(self.A, dim=-1))

    def scaled(self, factor: Tensor, unit: Tensor) -> IntervalImage:
        """Rows and bounds divided."""
        divisor = factor * unit
        return IntervalImage(self.A / factor.unsqueeze(-1), self.lower / divisor, self.upper / divisor)

    def size(self, y: Tensor) -> Tensor:
        """``|A| |y|`` plus the bounds."""
        return times_tiled(self.A.abs(), y.abs()) + bound_size(self.lower, self.upper, self.A.abs().sum(-1))

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
