"""Blocks: the numbers that a convex set is made of, each as it is usually written, and its image ``G(y) in K``.

Tensors may carry batch dimensions or not; the solver flattens them to one, of length B or 1 (constant).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from itertools import groupby
from math import prod, sqrt
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from hardnet.kernels.limits import CURVED
from hardnet.modes import may_look
from hardnet.products import gram, length, power_above, product_each, tiled_product, times_tiled
from hardnet.rows import bound_size, ordered
from hardnet.shapes import joint_batch
from hardnet.solvers.algebra.small import ascending, eigh

# Several images as one map ``G(y) in K_1 x K_2 x ...``, and the linear system that Newton and gradients share.


# Images ``G(y) in K`` of one batch: all that solvers and the implicit derivative know of a set.
#
# Several sets of one kind and size are one image with a group dimension g, so that a hundred quadratics cost a few
# operations. Constants lead with 1 and are never copied over the batch. Intervals stand here, then cones,
# quadratics. Made by `blocks`; read by `stack` and `barriers`.
#
# The derivative D of the projection onto a closed convex K is symmetric with eigenvalues in [0, 1]. Everything that
# solvers and gradients need of it is its eigenbasis Q and its eigenvalues delta: 0 along directions in which the
# constraint is tight, 1 along directions in which it is free, and in between where the boundary is curved.


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
        return self.delta <= CURVED.floor

    @property
    def inverse(self) -> Tensor:
        """``1 / delta``, and zero on tight rows."""
        return torch.where(self.tight, 0.0, 1 / self.delta.clamp_min(CURVED.floor))

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


# The multiplier of one convex quadratic, by Newton in one dimension: ``1/2 y'Py + q'y + r = 0`` along y(mu).


ROOT_STEPS, PATIENT = 32, 128
"""Newton steps at most, and where a look tells when to stop.

A ball or a half-space needs one, 10^5 random ones of every rank and distance at most 20; curvatures that differ by 1e16
and a raw 1e16 away up to 100, since far from the root a step makes the multiplier half as large again.
"""
POLISHING_ROOTS = 3
"""Steps along the gradient that undo the rounding of ``raw - mu q`` where y is much shorter than raw."""
POINT = 1e100
"""The multiplier of a set without interior, which has none: ``y(mu)`` has arrived where the value is least."""
ROUND_SPECTRUM = 1e-8
"""Curvatures above this part of the largest count as round: their squares are completed."""


class Root(NamedTuple):
    """The nearest point, its multiplier, and what is known of the set.

    Attributes:
        y: In eigencoordinates, ``(*batch, n)``; the point itself where it is inside.
        mu: ``(*batch, 1)``.
        solved: Whether the value at y is zero or negative to rounding, ``(*batch)``.
        empty: Whether the minimum of the quadratic is known to be positive, ``(*batch)``.
    """

    y: Tensor
    mu: Tensor
    solved: Tensor
    empty: Tensor


class Curve(NamedTuple):
    """The quadratic along ``y(mu) = (p - mu q) / (1 + mu values)``, in units in which its numbers are of size one."""

    p: Tensor
    q: Tensor
    r: Tensor
    values: Tensor

    def point(self, mu: Tensor) -> Tensor:
        """``y(mu)``."""
        return (self.p - mu * self.q) / (1 + mu * self.values)

    @property
    def flat(self) -> Tensor:
        """Coordinates without curvature, to the rounding of an eigendecomposition."""
        noise = self.p.shape[-1] * torch.finfo(self.p.dtype).eps
        return self.values <= noise * self.values.amax(-1, keepdim=True)


def nearest_root(p: Tensor, q: Tensor, r: Tensor, values: Tensor, *, noise: Tensor | None = None) -> Root:
    """The point ``y = (p - mu q) / (1 + mu values)`` with value zero, in eigencoordinates of P.

    Args:
        p: The point to project, ``(*batch, n)``.
        q: ``(*batch, n)``.
        r: ``(*batch)``.
        values: Eigenvalues of P, not negative, ``(*batch, n)``.
        noise: How exactly q is known, ``(*batch, n)``: it was turned into eigencoordinates.
    """
    p, q, values = torch.broadcast_tensors(p, q, values)
    r = r.unsqueeze(-1).expand(*p.shape[:-1], 1)
    length, height = _root_units(p, q, r, values)
    weight = length / height
    curve = Curve(p / length, q * weight, r / height, values * weight * length)
    empty, point = _lowest(curve, 0.0 if noise is None else noise * weight)
    mu = climb(curve)
    mu = torch.where(point & (mu > 0), POINT, mu)
    bottom = torch.where(curve.flat, curve.p, -curve.q / torch.where(curve.flat, 1.0, curve.values))
    z = torch.where(point, bottom, _polish_root(curve, mu))
    value, slack = value_and_rounding(z, curve.q, curve.r, curve.values)
    least = torch.finfo(p.dtype).eps ** 4  # a root at zero has terms of any size: polishing leaves less than this
    solved = value.isfinite() & ((mu == 0) | (~empty & (point | (value <= 8 * slack + least))))
    y = torch.where(mu > 0, z * length, p)
    return Root(y, mu * weight * length, solved.squeeze(-1), empty.squeeze(-1))


def value_and_rounding(y: Tensor, q: Tensor, r: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """``1/2 y'Py + q'y + r`` and two roundings of its terms, ``(*batch, 1)`` each; r is ``(*batch, 1)``."""
    bent, straight = values * y * y / 2, q * y
    value = (bent + straight).sum(-1, keepdim=True) + r
    size = (bent + straight.abs()).sum(-1, keepdim=True) + r.abs()
    return value, 2 * torch.finfo(y.dtype).eps * size


def climb(curve: Curve) -> Tensor:
    """The multiplier ``(*batch, 1)``: zero where p is inside, else the root of the value along y(mu).

    With the squares of the round coordinates completed, the value is ``g(mu) - h(mu)``: g a sum of squares that falls,
    h a concave function that rises. Both ``g - h`` (convex) and ``1/sqrt(g) - 1/sqrt(h)`` (concave, and nearly straight
    for a ball however far away) have Newton steps that stay below the root, so the longer of the two is taken. Where
    rounding made one too long, the first alone leads back and goes on.
    """
    value, slack = value_and_rounding(curve.p, curve.q, curve.r, curve.values)
    mu, outside = torch.zeros_like(value), value > slack
    below, passed = mu, torch.zeros_like(outside)
    for step in range(PATIENT if may_look(mu) else ROOT_STEPS):
        value, direct, curved, noise = _root_step(curve, mu)
        moving = outside & (value.abs() > noise)
        below, passed = torch.where(value > 0, mu, below), passed | (value < 0)
        ahead = mu + torch.where(passed, direct, torch.maximum(direct, curved))
        mu = torch.where(moving, torch.maximum(ahead, below), mu)
        if step % 4 == 3 and may_look(mu) and not bool(moving.any()):
            break
    return mu


def _root_step(curve: Curve, mu: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The value at y(mu), both Newton steps, and the rounding of the value, ``(*batch, 1)`` each."""
    p, q, r, values = curve
    eps, tiny = torch.finfo(p.dtype).eps, torch.finfo(p.dtype).tiny
    damping = 1 / (1 + mu * values)
    y = (p - mu * q) * damping
    value, slack = value_and_rounding(y, q, r, values)
    slope = values * y + q
    fall = slope * slope * damping
    direct = value / fall.sum(-1, keepdim=True).clamp_min(tiny)
    noise = eps * (slope.abs() * damping * (p.abs() + mu * q.abs())).sum(-1, keepdim=True)
    bowl = values > ROUND_SPECTRUM * values.amax(-1, keepdim=True)
    divisor = 2 * torch.where(bowl, values, 1.0)
    g = torch.where(bowl, slope * slope / divisor, 0.0).sum(-1, keepdim=True)
    h = torch.where(bowl, q * q / divisor, -(values * y / 2 + q) * y).sum(-1, keepdim=True) - r
    sink, rise = (torch.where(mask, fall, 0.0).sum(-1, keepdim=True) for mask in (bowl, ~bowl))
    up = torch.where(h < 0, -h / rise.clamp_min(tiny), 0.0)  # h is concave, and not negative at the root
    usable = (g > 0) & (h > 0)
    g, h = torch.where(usable, g, 1.0), torch.where(usable, h, 1.0)
    # 1/sqrt(h) - 1/sqrt(g) without the cancellation
    gap = value / ((g * h).sqrt() * (g.sqrt() + h.sqrt()))
    curved = 2 * gap / (sink / (g * g.sqrt()) + rise / (h * h.sqrt())).clamp_min(tiny)
    return value, direct, torch.where(usable, curved, up), torch.maximum(slack, noise)


def _polish_root(curve: Curve, mu: Tensor) -> Tensor:
    """``y(mu)`` moved onto the boundary as a change of mu would: ``p - mu q`` rounds like p, the move like y itself."""
    damping, y = 1 / (1 + mu * curve.values), curve.point(mu)
    for _ in range(POLISHING_ROOTS):
        value, slack = value_and_rounding(y, curve.q, curve.r, curve.values)
        slope = curve.values * y + curve.q
        fall = (slope * slope * damping).sum(-1, keepdim=True)
        moving = (mu > 0) & (value.abs() > slack) & (fall > 0)
        y = y - torch.where(moving, value / torch.where(moving, fall, 1.0), 0.0) * slope * damping
    return y


def _lowest(curve: Curve, noise: Tensor | float) -> tuple[Tensor, Tensor]:
    """Whether the minimum is positive, and whether it is zero to rounding: one point or a flat, ``(*batch, 1)`` each.

    Where q leaves the range of P there is no minimum: a paraboloid is never empty.
    """
    flat, eps, n = curve.flat, torch.finfo(curve.p.dtype).eps, curve.p.shape[-1]
    bounded = ~(flat & (curve.q.abs() > noise)).any(-1, keepdim=True)
    depth = torch.where(flat, 0.0, curve.q * curve.q / (2 * torch.where(flat, 1.0, curve.values)))
    depth = depth.sum(-1, keepdim=True)
    lowest, rounding = curve.r - depth, 8 * n * eps * (depth + curve.r.abs())
    return bounded & (lowest > rounding), bounded & (lowest.abs() <= rounding)


def _root_units(p: Tensor, q: Tensor, r: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Powers of two for lengths and for values, ``(*batch, 1)`` each: dividing by them is exact."""
    largest, slope = values.amax(-1, keepdim=True), q.abs().amax(-1, keepdim=True)
    tiny = torch.finfo(p.dtype).tiny
    reach = torch.minimum(r.abs() / slope.clamp_min(tiny), (r.abs() / largest.clamp_min(tiny)).sqrt())
    length = power_above(torch.maximum(p.abs().amax(-1, keepdim=True), torch.where(reach.isfinite(), reach, 0.0)))
    terms = torch.maximum(torch.maximum(largest * length * length, slope * length), r.abs())
    return length, power_above(terms)


# The image of g convex quadratics: ``1/2 y'P_i y + q_i'y + r_i in (-inf, 0]`` for every i.
#
# Made by `blocks`; read by `stack` and `barriers`.


@dataclass(frozen=True)
class QuadraticImage(Image):
    """``bend/2 y'Py + q'y + r in (-inf, 0]``, P symmetric.

    P is ``(b, g, n, n)``, bend ``(b, g)``, q ``(b, g, n)`` and r ``(b, g)``. The number
    `bend` keeps a constant P one matrix in the unit of every sample.
    """

    P: Tensor
    bend: Tensor
    q: Tensor
    r: Tensor

    @property
    def rows(self) -> int:
        """One for each quadratic."""
        return self.P.shape[-3]

    def _bent(self, y: Tensor) -> Tensor:
        """``bend P y``, ``(*batch, g, n)``."""
        turned = times_tiled(self.P.flatten(-3, -2), y).unflatten(-1, self.P.shape[-3:-1])
        return self.bend.unsqueeze(-1) * turned

    def value(self, y: Tensor) -> Tensor:
        """One row for each."""
        return ((self._bent(y) / 2 + self.q) * y.unsqueeze(-2)).sum(-1) + self.r

    def jacobian(self, y: Tensor) -> Tensor:
        """``(bend P y + q)'``."""
        return self._bent(y) + self.q

    def curvature(self, dual: Tensor) -> Tensor:
        """``sum dual_i P_i``; a multiplier of the wrong sign, which an iterate may have, bends nothing."""
        share = dual.clamp_min(0) * self.bend
        flat = self.P.flatten(-2)
        total = tiled_product(share, flat) if flat.shape[0] == 1 else (share.unsqueeze(-2) @ flat).squeeze(-2)
        return total.unflatten(-1, self.P.shape[-2:])

    def nearby(self, y: Tensor) -> Tensor:
        """One pass of projections onto each quadratic alone; an empty one is left out."""
        values, V = ascending(self.P)
        values = values.clamp_min(0) * self.bend.unsqueeze(-1)
        for i in range(self.rows):
            own, turn = values[:, i], V[:, i]
            root = nearest_root(times_tiled(turn.mT, y), times_tiled(turn.mT, self.q[:, i]), self.r[:, i], own)
            moved = (root.solved & (root.mu.squeeze(-1) > 0)).unsqueeze(-1)
            y = torch.where(moved, times_tiled(turn, root.y), y)
        return y

    def foot(self, z: Tensor) -> Foot:
        """``max(z, 0)``; tight where positive."""
        return Foot(z.clamp_max(0), z.clamp_min(0), lambda slack: Frame((z <= slack).to(z), same, same))

    def factor(self, y: Tensor) -> Tensor:
        """The size of the gradient near y, so that the scaled value is a length."""
        slope = torch.linalg.vector_norm(self.jacobian(y), dim=-1)
        bend = torch.linalg.matrix_norm(self.P) * self.bend
        return positive(slope + (self.value(y).abs() * bend).sqrt())

    def scaled(self, factor: Tensor, unit: Tensor) -> QuadraticImage:
        """`bend` multiplied by the unit, r divided, and all divided by the factor."""
        return QuadraticImage(
            self.P, self.bend * (unit / factor), self.q / factor.unsqueeze(-1), self.r / (unit * factor)
        )

    def size(self, y: Tensor) -> Tensor:
        """The sum of the absolute terms."""
        return QuadraticImage(self.P.abs(), self.bend, self.q.abs(), self.r.abs()).value(y.abs())

    def tightened(self, margin: Tensor) -> QuadraticImage:
        """``r + margin``."""
        return QuadraticImage(self.P, self.bend, self.q, self.r + margin)


# Images in cones, and the second-order cone: projection, and its derivative in an eigenbasis.


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


# The cone of positive semidefinite matrices, packed: image, projection, and its derivative in an eigenbasis.


class Layout(NamedTuple):
    """How a symmetric ``k x k`` matrix is packed: entries on and below the diagonal, the others times sqrt(2).

    Attributes:
        lower: Where they stand in the flat matrix, ``(k (k + 1) / 2,)``.
        full: Which of them each entry of the flat matrix is, ``(k k,)``.
        weight: 1 on the diagonal, sqrt(2) off it, ``(k (k + 1) / 2,)``.
        share: The inverse, for each entry of the flat matrix, ``(k k,)``.
        i: Rows of the packed entries.
        j: Columns of the packed entries.
    """

    lower: Tensor
    full: Tensor
    weight: Tensor
    share: Tensor
    i: Tensor
    j: Tensor


@lru_cache(maxsize=64)
def layout(k: int, dtype: torch.dtype, device: torch.device) -> Layout:
    """The layout of order k, made once; outside of inference mode, since derivatives may keep it."""
    with torch.inference_mode(False):
        i, j = torch.tril_indices(k, k, device=device)
        full = torch.empty(k, k, dtype=torch.int64, device=device)
        full[i, j] = full[j, i] = torch.arange(len(i), device=device)
        weight = (1 + (i != j).to(dtype)).sqrt()
        return Layout(i * k + j, full.flatten(), weight, 1 / weight[full.flatten()], i, j)


def pack(X: Tensor) -> Tensor:
    """The symmetric part of ``(..., k, k)`` as ``(..., k (k + 1) / 2)``: norms are kept."""
    return pack_symmetric((X + X.mT) / 2)


def pack_symmetric(X: Tensor) -> Tensor:
    """The same for a matrix that is symmetric already, to rounding."""
    plan = layout(X.shape[-1], X.dtype, X.device)
    return X.flatten(-2).index_select(-1, plan.lower) * plan.weight


def unpack(packed: Tensor, k: int) -> Tensor:
    """The inverse of `pack`."""
    plan = layout(k, packed.dtype, packed.device)
    return (packed.index_select(-1, plan.full) * plan.share).unflatten(-1, (k, k))


def order(packed_size: int) -> int:
    """The k of a packed symmetric matrix of ``k (k + 1) / 2`` entries."""
    return (int(sqrt(8 * packed_size + 1)) - 1) // 2


def project_semidefinite(X: Tensor) -> Tensor:
    """``V relu(Lambda) V'`` for symmetric X ``(..., k, k)``; X itself where no eigenvalue is negative."""
    values, V = ascending(X)
    onto = (V * values.clamp_min(0).unsqueeze(-2)) @ V.mT
    return torch.where((values[..., :1] >= 0).unsqueeze(-1), X, onto)


def negative_part(values: Tensor, V: Tensor) -> Tensor:
    """``V min(Lambda, 0) V'``, packed ``(..., k (k + 1) / 2)``: exactly zero where no eigenvalue is negative."""
    return pack_symmetric((V * values.clamp_max(0).unsqueeze(-2)) @ V.mT)


def semidefinite_frame(values: Tensor, V: Tensor, tolerance: Tensor) -> Frame:
    """The derivative of `project_semidefinite` at ``V diag(values) V'``: pairs of eigenvectors, and their ratios.

    For eigenvalues a, b: delta is 1 if both are >= 0, 0 if both are < 0, else ``a / (a - b)`` with a the positive
    one. Repeated eigenvalues need no care: only differences across the sign enter.
    """
    plan = layout(values.shape[-1], values.dtype, values.device)
    kept = torch.where(values < -tolerance, values, values.clamp_min(0))
    one, other = kept.index_select(-1, plan.i), kept.index_select(-1, plan.j)
    above, below = torch.maximum(one, other), torch.minimum(one, other)
    # both of one sign: free, or tight; rounding of the ratio stays in [0, 1]
    ratio = above / (above - below).clamp_min(torch.finfo(V.dtype).tiny)
    delta = torch.where(below >= 0, 1.0, ratio.clamp_min(0))
    return Frame(delta, lambda X: _congruence(X, V), lambda X: _congruence(X, V.mT))


def _congruence(X: Tensor, V: Tensor) -> Tensor:
    """``V' X V`` on each packed column of X ``(B, r, columns)``: twice ``X -> (X V)'``, one product per sample."""
    k = V.shape[-1]
    matrices = unpack(X.mT, k)
    for _ in range(2):
        matrices = product_each(matrices.flatten(-3, -2), V).unflatten(-2, (-1, k)).mT
    return pack_symmetric(matrices).mT


class SemiDefiniteImage(ConeImage):
    """In cones of positive semidefinite matrices, packed."""

    def foot(self, z: Tensor) -> Foot:
        """On the semidefinite cones, with one eigendecomposition."""
        points = self.each(z)
        values, V = eigh(unpack(points, order(points.shape[-1])))
        excess = negative_part(values, V)
        frame = partial(self._grouped, partial(semidefinite_frame, values, V))
        return Foot((points - excess).flatten(-2), excess.flatten(-2), frame)

    def tightened(self, margin: Tensor) -> SemiDefiniteImage:
        """Less a multiple of the identity."""
        margin = self.each(margin)
        eye = torch.eye(order(margin.shape[-1]), dtype=margin.dtype, device=margin.device)
        return SemiDefiniteImage(self.K, self.k - margin * pack(eye))


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


def _runs(blocks: Sequence[Block]) -> Iterator[tuple[type[Block], list[Any]]]:
    """Neighbors of one kind and of one size, which are worked on together."""
    for (kind, *_), run in groupby(blocks, key=lambda block: (type(block), *(part.shape for part in block))):
        yield kind, list(run)


def valid(blocks: Sequence[Block]) -> Tensor:
    """Samples whose numbers describe a convex set, ``(b,)``: as they were given, since roundings go by their dtype."""
    good = [kind.sound(run) for kind, run in _runs(blocks)]
    return torch.stack(torch.broadcast_tensors(*good)).all(0)


def _stacked(cores: Sequence[int], blocks: Sequence[Any], dtype: torch.dtype | None = None) -> list[Tensor]:
    """The fields of blocks of one kind and shape with a group dimension behind the batch: ``(*batch, g, *core)``."""
    columns = zip(cores, zip(*blocks, strict=True), strict=True)
    return [torch.stack(fields, dim=fields[0].dim() - core).to(dtype or fields[0].dtype) for core, fields in columns]


def in_units(block: Block, units: Tensor) -> Block:
    """The block as a set of ``y / units``, for units ``(*batch, n)``."""
    if isinstance(block, Balls):
        block = block.cone()  # an ellipsoid
    if isinstance(block, SecondOrder):
        return SecondOrder(block.A * units.unsqueeze(-2), block.b, block.c * units, block.d)
    if isinstance(block, SemiDefinite):
        return SemiDefinite(block.F0, block.F * units[..., None, None])
    if isinstance(block, Quadratics):
        return Quadratics(units.unsqueeze(-1) * block.P * units.unsqueeze(-2), units * block.q, block.r)
    return Intervals(block.A * units.unsqueeze(-2), block.lower, block.upper)


def images(blocks: Sequence[Block]) -> list[Image]:
    """The images of all blocks in float64; neighbors of one kind and size share one, so that their order stays."""
    return [kind.together(run, torch.float64) for kind, run in _runs(blocks)]


class Intervals(NamedTuple):
    """``lower <= A y <= upper``: A ``(m, n)``, bounds ``(m,)``, infinite where absent."""

    A: Tensor
    lower: Tensor
    upper: Tensor
    cores = (2, 1, 1)

    @property
    def rows(self) -> int:
        """One for each row of A."""
        return self.A.shape[-2]

    @classmethod
    def sound(cls, blocks: Sequence[Intervals]) -> Tensor:
        """A finite, ``lower <= upper``, and no bound infinite on the wrong side, ``(b,)``."""
        A, lower, upper = _stacked(cls.cores, blocks)
        return _all_finite(A) & ordered(lower, upper).flatten(1).all(-1)

    def image(self) -> Image:
        """``A y in [lower, upper]``."""
        return IntervalImage(*self)

    @classmethod
    def together(cls, blocks: Sequence[Intervals], dtype: torch.dtype | None = None) -> Image:
        """The rows of all, one below the other."""
        A, lower, upper = zip(*blocks, strict=True)
        return IntervalImage(
            *(part.to(dtype or part.dtype) for part in (torch.cat(A, -2), torch.cat(lower, -1), torch.cat(upper, -1)))
        )

    def excess(self, y: Tensor) -> Tensor:
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

    @property
    def rows(self) -> int:
        """Those of A, and the height."""
        return self.A.shape[-2] + 1

    @classmethod
    def sound(cls, blocks: Sequence[SecondOrder]) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*_stacked(cls.cores, blocks))

    def image(self) -> Image:
        """``(A y + b, c'y + d)`` in the second-order cone."""
        return self.together([self])

    @classmethod
    def together(cls, blocks: Sequence[SecondOrder], dtype: torch.dtype | None = None) -> Image:
        """Cones of one size as one image."""
        A, b, c, d = _stacked(cls.cores, blocks, dtype)
        K = [A, c.unsqueeze(-2)]
        k = [b, d.unsqueeze(-1)]
        batch = joint_batch(*(row.shape[:-2] for row in K))
        own = joint_batch(*(offset.shape[:-1] for offset in k))
        return SecondOrderImage(
            torch.cat([row.expand(*batch, *row.shape[-2:]) for row in K], dim=-2),
            torch.cat([offset.expand(*own, offset.shape[-1]) for offset in k], dim=-1),
        )

    def excess(self, y: Tensor) -> Tensor:
        """``|A y + b| - c'y - d``, one row."""
        z = self.image().value(y)
        return length(z[..., :-1]) - z[..., -1:]

    def scale(self, y: Tensor) -> Tensor:
        """The norm of ``|A||y| + |b|`` and ``|c|'|y| + |d|`` together, one row."""
        return self.image().size(y)[..., :1]


class Balls(NamedTuple):
    """``|y - center| <= radius``: center ``(n,)``, radius ``()``."""

    center: Tensor
    radius: Tensor
    cores = (1, 0)

    @property
    def rows(self) -> int:
        """Those of its cone."""
        return self.center.shape[-1] + 1

    def cone(self) -> SecondOrder:
        """``|I y - center| <= 0'y + radius``, with a batch of 1 for I where the center has one."""
        center, n = self.center, self.center.shape[-1]
        eye = torch.eye(n, dtype=center.dtype, device=center.device).expand(*(1 for _ in center.shape[:-1]), n, n)
        return SecondOrder(eye, -center, torch.zeros_like(eye[..., 0, :]), self.radius)

    @classmethod
    def sound(cls, blocks: Sequence[Balls]) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*_stacked(cls.cores, blocks))

    @classmethod
    def together(cls, blocks: Sequence[Balls], dtype: torch.dtype | None = None) -> Image:
        """Their cones as one image."""
        return SecondOrder.together([block.cone() for block in blocks], dtype)

    def excess(self, y: Tensor) -> Tensor:
        """``|y - center| - radius``, one row."""
        return length(y - self.center) - self.radius.unsqueeze(-1)

    def scale(self, y: Tensor) -> Tensor:
        """``|y| + |center| + radius``, one row."""
        return length(y) + length(self.center) + self.radius.abs().unsqueeze(-1)


class SemiDefinite(NamedTuple):
    """``F0 + sum_i y_i F_i`` positive semidefinite: F0 ``(k, k)``, F ``(n, k, k)``; only symmetric parts count."""

    F0: Tensor
    F: Tensor
    cores = (2, 3)

    @property
    def rows(self) -> int:
        """The packed entries."""
        return self.F0.shape[-1] * (self.F0.shape[-1] + 1) // 2

    @classmethod
    def sound(cls, blocks: Sequence[SemiDefinite]) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*_stacked(cls.cores, blocks))

    def image(self) -> Image:
        """The packed matrix in the semidefinite cone."""
        return self.together([self])

    @classmethod
    def together(cls, blocks: Sequence[SemiDefinite], dtype: torch.dtype | None = None) -> Image:
        """Matrices of one order as one image."""
        F0, F = _stacked(cls.cores, blocks, dtype)
        return SemiDefiniteImage(pack(F).mT, pack(F0))

    def excess(self, y: Tensor) -> Tensor:
        """``-lambda_min``, one row; NaN where y is."""
        packed = self.image().value(y)
        finite = packed.isfinite().all(-1, keepdim=True)  # LAPACK refuses a whole batch for one NaN
        matrix = unpack(torch.where(finite, packed, 0.0), order(packed.shape[-1]))
        return torch.where(finite, -torch.linalg.eigvalsh(matrix)[..., :1], torch.nan)

    def scale(self, y: Tensor) -> Tensor:
        """The norm of ``|F0| + sum_i |y_i| |F_i|``, one row."""
        return self.image().size(y)[..., :1]


class Quadratics(NamedTuple):
    """``1/2 y'Py + q'y + r <= 0``: P ``(n, n)`` positive semidefinite, q ``(n,)``, r ``()``."""

    P: Tensor
    q: Tensor
    r: Tensor
    cores = (2, 1, 0)

    @property
    def rows(self) -> int:
        """One."""
        return 1

    @classmethod
    def sound(cls, blocks: Sequence[Quadratics]) -> Tensor:
        """All finite, and every P has a Cholesky factor once rounding is added to its diagonal, ``(b,)``."""
        P, q, r = _stacked(cls.cores, blocks)
        finite = _all_finite(P, q, r)
        exact = torch.where(_all_finite(P)[:, None, None, None], P.detach().double(), 0.0)
        exact = (exact + exact.mT) / 2
        largest = exact.abs().sum(-1).amax(-1)
        rounding = 8 * P.shape[-1] * torch.finfo(P.dtype).eps * largest + torch.finfo(exact.dtype).tiny
        _, failed = torch.linalg.cholesky_ex(exact + torch.diag_embed(rounding.unsqueeze(-1).expand(exact.shape[:-1])))
        return finite & (failed == 0).all(-1)

    def image(self) -> Image:
        """The value in ``(-inf, 0]``."""
        return self.together([self])

    @classmethod
    def together(cls, blocks: Sequence[Quadratics], dtype: torch.dtype | None = None) -> Image:
        """All of them as one image, with the entries of each P of size one."""
        P, q, r = _stacked(cls.cores, blocks, dtype)
        bend = power_above(P.detach().abs().amax((-2, -1)))
        P = P / bend[..., None, None]
        return QuadraticImage((P + P.mT) / 2, bend, q, r)

    def excess(self, y: Tensor) -> Tensor:
        """``1/2 y'Py + q'y + r``, one row."""
        return self.image().value(y)

    def scale(self, y: Tensor) -> Tensor:
        """The same sum over absolute values, one row."""
        return self.image().size(y)


Block = Intervals | SecondOrder | Balls | SemiDefinite | Quadratics
"""What a convex set is made of."""


def gather(kinds: Sequence[type[Block]], flat: Sequence[Tensor]) -> list[Block]:
    """Cut a flat list of tensors back into blocks."""
    fields = iter(flat)
    return [kind(*(next(fields) for _ in kind.cores)) for kind in kinds]
