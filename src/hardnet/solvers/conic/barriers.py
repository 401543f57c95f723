"""Rows and quadratics in an interior point method: ``G(y) = s > 0`` with multipliers z and ``s z = mu``.

Every barrier eliminates its slack and multiplier from the Newton system by a linear map and a vector,

    ds = DG dy + gap,      dz = drive - weigh(DG dy),

so that `interior` sees one positive definite system in dy. An equality has a constant weight and no slack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times_tiled
from hardnet.solvers.conic.images import Image, IntervalImage

TINY = 1e-300
STIFF = 1e7
"""Weight of an equality: each step leaves about this part of its residual."""


class Pair(NamedTuple):
    """Slack s and multiplier z of one barrier, of one shape that leads with B."""

    s: Tensor
    z: Tensor


class Barrier(ABC):
    """One image in an interior point method: its pair, and where the pair stands at y."""

    @abstractmethod
    def start(self, y: Tensor) -> Pair:
        """A pair inside, whatever y is."""

    @abstractmethod
    def at(self, y: Tensor, pair: Pair) -> Local:
        """Linearize at y."""

    @abstractmethod
    def dual(self, pair: Pair) -> Tensor:
        """The multipliers as the rest of the library knows them, ``(B, r)``."""

    @abstractmethod
    def degree(self) -> Tensor | int:
        """How many products s z there are, ``(B,)`` or a number."""


class Local(ABC):
    """A barrier linearized at one point."""

    pair: Pair
    gap: Tensor
    """``G(y) - s``, zero once the slack is that of y."""

    @abstractmethod
    def hessian(self) -> Tensor:
        """What it adds to the system in dy, ``(B, n, n)``."""

    @abstractmethod
    def pull(self, v: Tensor) -> Tensor:
        """``DG'v``, ``(B, n)``."""

    @abstractmethod
    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """What dz is without dy, for ``s z = target`` ``(B,)``, corrected by a guess of both moves."""

    @abstractmethod
    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """``(ds, dz)``."""

    @abstractmethod
    def reach(self, move: Pair) -> Tensor:
        """The longest step that stays inside, ``(B,)``."""

    def product(self) -> Tensor:
        """``s . z``, ``(B,)``."""
        return (self.pair.s * self.pair.z).flatten(1).sum(-1)

    def missed(self) -> Tensor:
        """The largest entry of `gap`, ``(B,)``."""
        return self.gap.abs().flatten(1).amax(-1)


class RowsLocal(Local):
    """Rows with slacks of their own: weight ``z / s``."""

    def __init__(self, J: Tensor, value: Tensor, pair: Pair, held: Tensor, fixed: Tensor, bend: Tensor | None) -> None:
        self.J, self.pair, self.bend, self.held = J, pair, bend, held
        self.gap: Tensor = torch.where(held | fixed, value - pair.s, 0.0)
        self.weight: Tensor = torch.where(fixed, STIFF, torch.where(held, pair.z / pair.s, 0.0))

    def hessian(self) -> Tensor:
        """``J' diag(weight) J`` and the curvature of the rows."""
        total = self.J.mT @ (self.weight.unsqueeze(-1) * self.J)
        return total if self.bend is None else total + self.bend

    def pull(self, v: Tensor) -> Tensor:
        """``J'v``."""
        return times_tiled(self.J.mT, v)

    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """``(target - guess_s guess_z) / s - z - weight gap``; an equality takes the last term alone."""
        aim = target.unsqueeze(-1) if guess is None else target.unsqueeze(-1) - guess.s * guess.z
        return torch.where(self.held, aim / self.pair.s - self.pair.z, 0.0) - self.weight * self.gap

    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """An equality keeps its slack of zero."""
        change = times_tiled(self.J, dy)
        return Pair(torch.where(self.held, change + self.gap, 0.0), drive - self.weight * change)

    def reach(self, move: Pair) -> Tensor:
        """Where the first slack or multiplier vanishes."""
        shrink = torch.maximum(-move.s / self.pair.s, -move.z / self.pair.z.clamp_min(TINY))
        return 1 / torch.where(self.held, shrink, 0.0).amax(-1).clamp_min(TINY)


class IntervalBarrier(Barrier):
    """``upper - A y > 0`` and ``A y - lower > 0`` where finite; rows with ``lower == upper`` are equalities."""

    def __init__(self, image: IntervalImage) -> None:
        lower, upper = torch.broadcast_tensors(image.lower, image.upper)
        self.image, equal = image, lower == upper
        self.held: Tensor = torch.cat([upper.isfinite() & ~equal, lower.isfinite() & ~equal], -1)
        self.fixed: Tensor = torch.cat([equal, torch.zeros_like(equal)], -1)
        bounds = [torch.where(bound.isfinite(), bound, 0.0) for bound in (upper, -lower)]
        self.bound: Tensor = torch.cat(bounds, -1)

    def _value(self, y: Tensor) -> Tensor:
        product = self.image.value(y)
        return self.bound - torch.cat([product, -product], -1)

    def start(self, y: Tensor) -> Pair:
        """At least one unit inside."""
        value = self._value(y)
        held, fixed = self.held.expand_as(value), self.fixed.expand_as(value)
        s = torch.where(held, value.clamp_min(1.0), 1.0)
        return Pair(torch.where(fixed, 0.0, s), torch.where(held, 1 / s, 0.0))

    def at(self, y: Tensor, pair: Pair) -> Local:
        """Constant rows."""
        J = torch.cat([-self.image.A, self.image.A], -2)
        return RowsLocal(J, self._value(y), pair, self.held, self.fixed, None)

    def dual(self, pair: Pair) -> Tensor:
        """Positive at the upper bound, negative at the lower."""
        up, down = pair.z.chunk(2, -1)
        return up - down

    def degree(self) -> Tensor:
        """One for each finite side."""
        return self.held.sum(-1)


class ValueBarrier(Barrier):
    """``-G(y) > 0`` for the values of convex functions, each one row."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def start(self, y: Tensor) -> Pair:
        """At least one unit inside."""
        s = (-self.image.value(y)).clamp_min(1.0)
        return Pair(s, 1 / s)

    def at(self, y: Tensor, pair: Pair) -> Local:
        """The gradients, and the curvature that the multipliers give."""
        every = torch.ones_like(pair.s, dtype=torch.bool)
        value, J, bend = -self.image.value(y), -self.image.jacobian(y), self.image.curvature(pair.z)
        return RowsLocal(J, value, pair, every, ~every, bend)

    def dual(self, pair: Pair) -> Tensor:
        """Z itself."""
        return pair.z

    def degree(self) -> int:
        """One for each row."""
        return self.image.rows
