"""Images ``G(y) in K`` of one batch: all that solvers and the implicit derivative know of a set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Self

import torch
from torch import Tensor

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
from hardnet.solvers.quadratic_root import nearest_root


def _times(A: Tensor, y: Tensor) -> Tensor:
    """``A y`` with batches."""
    return (A @ y.unsqueeze(-1)).squeeze(-1)


def _positive(size: Tensor) -> Tensor:
    """A divisor: zero sizes become one."""
    return torch.where(size > 0, size, torch.ones_like(size))


def _same(X: Tensor) -> Tensor:
    """The rotation of a frame whose eigenbasis are the coordinates."""
    return X


class Image(ABC):
    """A map G and a closed convex K; a frozen dataclass of tensors that lead with the same batch (or with 1)."""

    @abstractmethod
    def value(self, y: Tensor) -> Tensor:
        """``G(y)``, ``(*batch, r)``."""

    @abstractmethod
    def jacobian(self, y: Tensor) -> Tensor:
        """``DG(y)``, ``(*batch, r, n)``."""

    @abstractmethod
    def look(self, z: Tensor) -> ConeLook:
        """How far z ``(B, r)`` is outside of K, and the derivative of the projection onto K there."""

    @abstractmethod
    def factor(self, y: Tensor) -> Tensor:
        """What to divide G by so that its rows have unit size near y, ``(B, r)`` or ``(B, 1)``."""

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

    def clamped(self, y: Tensor) -> Tensor:
        """Y with every coordinate that has bounds of its own exactly inside them."""
        return y

    def pairing(self, y: Tensor, u: Tensor, weight: Tensor, dual: Tensor) -> Tensor:
        """``weight . G(y) - dual . DG(y) u``: its gradient to the numbers of the set is their cotangent."""
        return (weight * self.value(y)).sum() - (dual * _times(self.jacobian(y), u)).sum()

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The image with `function` applied to each tensor."""
        return type(self)(*(function(getattr(self, field.name)) for field in fields(self)))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class IntervalImage(Image):
    """``A y in [lower, upper]``."""

    A: Tensor
    lower: Tensor
    upper: Tensor

    def value(self, y: Tensor) -> Tensor:
        """``A y``."""
        return _times(self.A, y)

    def jacobian(self, y: Tensor) -> Tensor:
        """``A``."""
        return self.A

    def look(self, z: Tensor) -> ConeLook:
        """``z - clamp(z, lower, upper)``; tight where z lies outside or the interval is a point."""
        onto = torch.minimum(torch.maximum(z, self.lower), self.upper)
        excess = z - onto

        def frame(tolerance: Tensor) -> Frame:
            tight = (excess.abs() > tolerance) | (self.lower == self.upper)
            return Frame((~tight).to(z), _same, _same)

        return ConeLook(onto, excess, frame)

    def factor(self, y: Tensor) -> Tensor:
        """The norm of each row."""
        return _positive(torch.linalg.vector_norm(self.A, dim=-1))

    def scaled(self, factor: Tensor, unit: Tensor) -> IntervalImage:
        """Rows and bounds divided."""
        divisor = factor * unit
        return IntervalImage(self.A / factor.unsqueeze(-1), self.lower / divisor, self.upper / divisor)

    def size(self, y: Tensor) -> Tensor:
        """``|A| |y|`` plus the larger finite bound."""
        bounds = [torch.where(side.isfinite(), side.abs(), 0.0) for side in (self.lower, self.upper)]
        return _times(self.A.abs(), y.abs()) + torch.maximum(*bounds)

    def clamped(self, y: Tensor) -> Tensor:
        """The rows ``y_j`` and ``-y_j`` as bounds of their coordinate."""
        alone = (self.A != 0).sum(-1, keepdim=True) == 1
        up, down = alone & (self.A == 1), alone & (self.A == -1)
        lower, upper = self.lower.unsqueeze(-1), self.upper.unsqueeze(-1)
        least = torch.where(up, lower, torch.where(down, -upper, -torch.inf)).amax(-2)
        most = torch.where(up, upper, torch.where(down, -lower, torch.inf)).amin(-2)
        return torch.minimum(torch.maximum(y, least), most)

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
        return (weight * (self.value(y) - bound)).sum() - (dual * _times(self.A, u)).sum()


@dataclass(frozen=True)
class ConeImage(Image):
    """``K y + k`` in a cone, which knows only uniform scales."""

    K: Tensor
    k: Tensor

    def value(self, y: Tensor) -> Tensor:
        """``K y + k``."""
        return _times(self.K, y) + self.k

    def jacobian(self, y: Tensor) -> Tensor:
        """``K``."""
        return self.K

    def factor(self, y: Tensor) -> Tensor:
        """The largest norm of a column of K: how far G moves with one coordinate of y."""
        return _positive(torch.linalg.vector_norm(self.K, dim=-2).amax(-1, keepdim=True))

    def scaled(self, factor: Tensor, unit: Tensor) -> Self:
        """K and k divided."""
        return type(self)(self.K / factor.unsqueeze(-1), self.k / (factor * unit))

    def size(self, y: Tensor) -> Tensor:
        """The norm of ``|K| |y| + |k|``, for every row."""
        terms = _times(self.K.abs(), y.abs()) + self.k.abs()
        return torch.linalg.vector_norm(terms, dim=-1, keepdim=True).expand_as(terms)


class SecondOrderImage(ConeImage):
    """In the second-order cone, the height last."""

    def look(self, z: Tensor) -> ConeLook:
        """At the second-order cone."""
        onto = project_second_order(z)
        return ConeLook(onto, z - onto, partial(second_order_frame, z))

    def tightened(self, margin: Tensor) -> SecondOrderImage:
        """The height lowered."""
        return SecondOrderImage(
            self.K, torch.cat([self.k[..., :-1].expand_as(margin[..., 1:]), self.k[..., -1:] - margin[..., -1:]], -1)
        )


class SemiDefiniteImage(ConeImage):
    """In the cone of positive semidefinite matrices, packed."""

    def look(self, z: Tensor) -> ConeLook:
        """At the semidefinite cone, with one eigendecomposition."""
        values, V = torch.linalg.eigh(unpack(z, order(z.shape[-1])))
        excess = negative_part(values, V)
        return ConeLook(z - excess, excess, partial(semidefinite_frame, values, V))

    def tightened(self, margin: Tensor) -> SemiDefiniteImage:
        """Less a multiple of the identity."""
        eye = torch.eye(order(margin.shape[-1]), dtype=margin.dtype, device=margin.device)
        return SemiDefiniteImage(self.K, self.k - margin * pack(eye))


@dataclass(frozen=True)
class QuadraticImage(Image):
    """``1/2 y'Py + q'y + r in (-inf, 0]``, P symmetric."""

    P: Tensor
    q: Tensor
    r: Tensor

    def value(self, y: Tensor) -> Tensor:
        """One row."""
        return ((_times(self.P, y) / 2 + self.q) * y).sum(-1, keepdim=True) + self.r.unsqueeze(-1)

    def jacobian(self, y: Tensor) -> Tensor:
        """``(P y + q)'``."""
        return (_times(self.P, y) + self.q).unsqueeze(-2)

    def curvature(self, dual: Tensor) -> Tensor:
        """``dual P``; a multiplier of the wrong sign, which an iterate may have, bends nothing."""
        return dual.clamp_min(0).unsqueeze(-1) * self.P

    def nearby(self, y: Tensor) -> Tensor:
        """The projection onto this quadratic alone; y itself where it is empty."""
        values, V = torch.linalg.eigh(self.P)
        root = nearest_root(_times(V.mT, y), _times(V.mT, self.q), self.r, values.clamp_min(0))
        moved = (root.solved & (root.mu.squeeze(-1) > 0)).unsqueeze(-1)
        return torch.where(moved, _times(V, root.y), y)

    def look(self, z: Tensor) -> ConeLook:
        """``max(z, 0)``; tight where positive."""
        return ConeLook(z.clamp_max(0), z.clamp_min(0), lambda slack: Frame((z <= slack).to(z), _same, _same))

    def factor(self, y: Tensor) -> Tensor:
        """The size of the gradient near y, so that the scaled value is a length."""
        slope = torch.linalg.vector_norm(self.jacobian(y), dim=-1)
        bend = torch.linalg.matrix_norm(self.P).unsqueeze(-1)
        return _positive(slope + (self.value(y).abs() * bend).sqrt())

    def scaled(self, factor: Tensor, unit: Tensor) -> QuadraticImage:
        """P multiplied by the unit, r divided, and all divided by the factor."""
        P = self.P * (unit / factor).unsqueeze(-1)
        return QuadraticImage(P, self.q / factor, self.r / (unit * factor).squeeze(-1))

    def size(self, y: Tensor) -> Tensor:
        """The sum of the absolute terms."""
        return QuadraticImage(self.P.abs(), self.q.abs(), self.r.abs()).value(y.abs())

    def tightened(self, margin: Tensor) -> QuadraticImage:
        """``r + margin``."""
        return QuadraticImage(self.P, self.q, self.r + margin[..., 0])
