"""Images ``G(y) in K`` of one batch: all that solvers and the implicit derivative know of a set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

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
    def project(self, z: Tensor) -> Tensor:
        """The projection of z ``(*batch, r)`` onto K."""

    @abstractmethod
    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """The derivative of `project` at z; within `tolerance` ``(B, 1)`` of K a point counts as inside."""

    @abstractmethod
    def factor(self, y: Tensor) -> Tensor:
        """What to divide G by so that its rows have unit size near y, ``(B, r)`` or ``(B, 1)``."""

    @abstractmethod
    def scaled(self, factor: Tensor) -> Self:
        """The same set with G divided by `factor`."""

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

    def project(self, z: Tensor) -> Tensor:
        """``clamp(z, lower, upper)``."""
        return torch.minimum(torch.maximum(z, self.lower), self.upper)

    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """Tight where z lies outside or the interval is a point."""
        tight = (z > self.upper + tolerance) | (z < self.lower - tolerance) | (self.lower == self.upper)
        return Frame((~tight).to(z), _same, _same)

    def factor(self, y: Tensor) -> Tensor:
        """The norm of each row."""
        return _positive(torch.linalg.vector_norm(self.A, dim=-1))

    def scaled(self, factor: Tensor) -> IntervalImage:
        """Rows and bounds divided."""
        return IntervalImage(self.A / factor.unsqueeze(-1), self.lower / factor, self.upper / factor)

    def size(self, y: Tensor) -> Tensor:
        """``|A| |y|`` plus the larger finite bound."""
        bounds = [torch.where(side.isfinite(), side.abs(), 0.0) for side in (self.lower, self.upper)]
        return _times(self.A.abs(), y.abs()) + torch.maximum(*bounds)

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

    def scaled(self, factor: Tensor) -> Self:
        """K and k divided."""
        return type(self)(self.K / factor.unsqueeze(-1), self.k / factor)

    def size(self, y: Tensor) -> Tensor:
        """The norm of ``|K| |y| + |k|``, for every row."""
        terms = _times(self.K.abs(), y.abs()) + self.k.abs()
        return torch.linalg.vector_norm(terms, dim=-1, keepdim=True).expand_as(terms)


class SecondOrderImage(ConeImage):
    """In the second-order cone, the height last."""

    def project(self, z: Tensor) -> Tensor:
        """Onto the second-order cone."""
        return project_second_order(z)

    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """Of the second-order cone."""
        return second_order_frame(z, tolerance)

    def tightened(self, margin: Tensor) -> SecondOrderImage:
        """The height lowered."""
        return SecondOrderImage(
            self.K, torch.cat([self.k[..., :-1].expand_as(margin[..., 1:]), self.k[..., -1:] - margin[..., -1:]], -1)
        )


class SemiDefiniteImage(ConeImage):
    """In the cone of positive semidefinite matrices, packed."""

    def project(self, z: Tensor) -> Tensor:
        """Onto the semidefinite cone."""
        return project_semidefinite(z)

    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """Of the semidefinite cone."""
        return semidefinite_frame(z, tolerance)

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
        root, _ = nearest_root(_times(V.mT, y), _times(V.mT, self.q), self.r, values.clamp_min(0))
        return torch.where(root.isfinite(), _times(V, root), y)

    def project(self, z: Tensor) -> Tensor:
        """``min(z, 0)``."""
        return z.clamp_max(0)

    def frame(self, z: Tensor, tolerance: Tensor) -> Frame:
        """Tight where positive."""
        return Frame((z <= tolerance).to(z), _same, _same)

    def factor(self, y: Tensor) -> Tensor:
        """The size of the gradient near y, so that the scaled value is a length."""
        slope = torch.linalg.vector_norm(self.jacobian(y), dim=-1)
        bend = torch.linalg.matrix_norm(self.P).unsqueeze(-1)
        return _positive(slope + (self.value(y).abs() * bend).sqrt())

    def scaled(self, factor: Tensor) -> QuadraticImage:
        """All three divided."""
        return QuadraticImage(self.P / factor.unsqueeze(-1), self.q / factor, self.r / factor.squeeze(-1))

    def size(self, y: Tensor) -> Tensor:
        """The sum of the absolute terms."""
        return QuadraticImage(self.P.abs(), self.q.abs(), self.r.abs()).value(y.abs())

    def tightened(self, margin: Tensor) -> QuadraticImage:
        """``r + margin``."""
        return QuadraticImage(self.P, self.q, self.r + margin[..., 0])
