"""Several images as one map ``G(y) in K_1 x K_2 x ...``, and the linear system that Newton and gradients share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import gram, power_above
from hardnet.solvers.conic.images import Frame, Image

FLOOR = 1e-11
"""Below this eigenvalue of the projection's derivative a direction counts as tight."""


class Linear(NamedTuple):
    """The derivative of the cone projection seen from y.

    Attributes:
        rows: ``Q' DG``, the Jacobian of G in the eigenbasis of the cones, ``(B, r, n)``.
        delta: The eigenvalues, ``(B, r)``.
    """

    rows: Tensor
    delta: Tensor

    @property
    def tight(self) -> Tensor:
        """Rows that hold as equalities, ``(B, r)``."""
        return self.delta <= FLOOR

    @property
    def inverse(self) -> Tensor:
        """``1 / delta``, and zero on tight rows."""
        return torch.where(self.tight, 0.0, 1 / self.delta.clamp_min(FLOOR))

    @property
    def bend(self) -> Tensor:
        """``(1 - delta) / delta``, how strongly a row pulls back, and zero on tight rows."""
        return self.inverse * (1 - self.delta)

    def hessian(self, straight: Tensor) -> Tensor:
        """The Hessian of the Lagrangian: ``straight + rows' diag(bend) rows``, ``(B, n, n)``."""
        return straight + gram(self.rows, self.bend)


def _join(parts: Sequence[Tensor], dim: int = -1) -> Tensor:
    """The pieces one after the other; one piece as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def finite(v: Tensor) -> Tensor:
    """NaN and infinities of bad samples as zero, so that an eigendecomposition does not refuse the batch."""
    return torch.where(v.isfinite(), v, torch.zeros_like(v))


class Feet(NamedTuple):
    """The foot of z on each image: ``P_K(z)`` and ``z - P_K(z)`` ``(B, r)``, and the frame of each image."""

    onto: Tensor
    excess: Tensor
    frames: list[Callable[[Tensor], Frame]]


class Stack:
    """The product of images, split and joined along the last dimension.

    Args:
        images: Images of one output dimension n and one batch length (or 1).
        dim: n.
    """

    images: list[Image]
    dim: int

    def __init__(self, images: Sequence[Image], dim: int) -> None:
        self.images, self.dim = list(images), dim
        self.sizes: list[int] = [image.rows for image in self.images]

    def value(self, y: Tensor) -> Tensor:
        """``G(y)``, ``(B, r)``."""
        return _join([image.value(y) for image in self.images], dim=-1)

    def jacobian(self, y: Tensor) -> Tensor:
        """``DG(y)``, ``(B, r, n)``."""
        return _join([image.jacobian(y).expand(y.shape[0], -1, -1) for image in self.images], dim=-2)

    def curvature(self, weight: Tensor, dual: Tensor) -> Tensor:
        """``weight I + sum_i dual_i D2G_i``, ``(B, n, n)``, for a weight ``(B, 1)`` of the distance."""
        total = torch.diag_embed(weight.expand(-1, self.dim))
        for image, own in zip(self.images, self.split(dual), strict=True):
            bend = image.curvature(own)
            total = total if bend is None else total + bend
        return total

    def feet(self, z: Tensor) -> Feet:
        """``P_K(z)`` and ``z - P_K(z)``, image by image, and how to get the derivatives there."""
        feet = [image.foot(own) for image, own in zip(self.images, self.split(z), strict=True)]
        onto, excess = (_join(parts) for parts in zip(*(foot[:2] for foot in feet), strict=True))
        return Feet(onto, excess, [foot.frame for foot in feet])

    def miss(self, y: Tensor) -> Tensor:
        """``|G(y) - P_K(G(y))|``, row by row: ``(B, r)``; exactly zero inside."""
        return self.feet(finite(self.value(y))).excess.abs()

    def outside(self, y: Tensor) -> Tensor:
        """At least the violation of each row as it is written, ``(B, r)``; exactly zero inside, NaN beyond float64."""
        value = self.value(y)
        pieces = zip(self.images, self.split(self.feet(finite(value)).excess), strict=True)
        return torch.where(value.isfinite(), _join([image.outside(own) for image, own in pieces]), torch.nan)

    def overshoot(self, y: Tensor) -> Tensor:
        """The worst violation in units of eight roundings of its row's terms, ``(B,)``."""
        eps, tiny = torch.finfo(y.dtype).eps, torch.finfo(y.dtype).tiny
        return (self.outside(y) / (8 * eps * self.size(y) + tiny)).amax(-1)

    def linear(self, y: Tensor, feet: Feet, tolerance: Tensor) -> tuple[Linear, list[Frame]]:
        """The Jacobian in the eigenbases at the feet, and the frames that lead back."""
        frames = [frame(tolerance) for frame in feet.frames]
        rows = [
            frame.rotate(image.jacobian(y).expand(y.shape[0], -1, -1))
            for image, frame in zip(self.images, frames, strict=True)
        ]
        return Linear(_join(rows, dim=-2), _join([frame.delta for frame in frames], dim=-1)), frames

    def rotate(self, frames: list[Frame], v: Tensor) -> Tensor:
        """``Q' v`` for a vector ``(B, r)``."""
        pieces = zip(frames, self.split(v), strict=True)
        return _join([frame.rotate(own.unsqueeze(-1)).squeeze(-1) for frame, own in pieces], dim=-1)

    def restore(self, frames: list[Frame], v: Tensor) -> Tensor:
        """``Q v`` for a vector ``(B, r)``."""
        pieces = zip(frames, self.split(v), strict=True)
        return _join([frame.restore(own.unsqueeze(-1)).squeeze(-1) for frame, own in pieces], dim=-1)

    def factor(self, y: Tensor) -> Tensor:
        """The scale of every row, ``(B, r)``: powers of two, so that dividing by it is exact."""
        return self.spread(self.factors(y), y)

    def spread(self, factors: Sequence[Tensor], y: Tensor) -> Tensor:
        """Numbers of each image ``(b, r)`` as one ``(B, r)`` beside y ``(B, n)``."""
        return _join([factor.expand(y.shape[0], -1) for factor in factors])

    def factors(self, y: Tensor) -> list[Tensor]:
        """The same for each image, ``(1, r)`` where all samples share it."""
        return [power_above(image.factor(y)) for image in self.images]

    def nearby(self, y: Tensor) -> Tensor:
        """One pass of projections onto the images that are bent by themselves: where to start."""
        for image in self.images:
            y = image.nearby(y)
        return y

    def scaled(self, factors: Sequence[Tensor], unit: Tensor) -> Stack:
        """The same set in lengths of `unit` ``(B, 1)``, with rows divided by the `factors` of each image."""
        pieces = zip(self.images, factors, strict=True)
        return Stack([image.scaled(own, unit) for image, own in pieces], self.dim)

    def size(self, y: Tensor) -> Tensor:
        """The terms that each row adds up, ``(B, r)``."""
        return _join([image.size(y) for image in self.images], dim=-1)

    def clamped(self, y: Tensor) -> Tensor:
        """Y with every coordinate that has bounds of its own exactly inside them."""
        for image in self.images:
            y = image.clamped(y)
        return y

    def tightened(self, margin: Tensor) -> Stack:
        """Every inequality moved inwards by `margin` ``(B, r)``."""
        pieces = zip(self.images, self.split(margin), strict=True)
        return Stack([image.tightened(own) for image, own in pieces], self.dim)

    def select(self, index: Tensor) -> Stack:
        """The samples `index` alone; constants stay as they are."""
        chosen = [image.map(lambda field: field if field.shape[0] == 1 else field[index]) for image in self.images]
        return Stack(chosen, self.dim)

    def split(self, v: Tensor) -> list[Tensor]:
        """Cut ``(B, r)`` at the images."""
        return list(v.split(self.sizes, dim=-1))
