"""The task of a projection onto blocks, its iterate, and how far it is from optimal."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times_tiled
from hardnet.solvers.conic.stack import Feet, Stack, finite

FIRST_PENALTY = 10.0
"""The penalty of an augmented Lagrangian that starts."""


class Task(NamedTuple):
    """``min weight/2 |y - raw|^2  s.t.  G(y) in K``, in units in which y and ``weight (y - raw)`` are of size one.

    Attributes:
        raw: ``(B, n)``; may be long where its weight is small.
        weight: ``(B, 1)``; it moves no minimizer, only the length of the multipliers.
        stack: The constraints.
    """

    raw: Tensor
    weight: Tensor
    stack: Stack

    def slope(self, y: Tensor) -> Tensor:
        """The gradient of the distance, ``(B, n)``."""
        return self.weight * (y - self.raw)

    def select(self, index: Tensor) -> Task:
        """The samples `index` alone."""
        return Task(self.raw[index], self.weight[index], self.stack.select(index))


class State(NamedTuple):
    """The iterate of a batch: point ``(B, n)``, multipliers ``(B, r)``, penalty ``(B, 1)``, residual ``(B,)``."""

    y: Tensor
    dual: Tensor
    penalty: Tensor
    residual: Tensor


def start(task: Task, y: Tensor, dual: Tensor) -> State:
    """From y and multipliers."""
    return State(y, dual, torch.full_like(task.weight, FIRST_PENALTY), optimality(task, y, dual))


def pull(stack: Stack, y: Tensor, dual: Tensor) -> Tensor:
    """``DG(y)' dual``, ``(B, n)``."""
    pieces = zip(stack.images, stack.split(dual), strict=True)
    pulls = [times_tiled(image.jacobian(y).mT, own) for image, own in pieces]
    return pulls[0] if len(pulls) == 1 else torch.stack(pulls).sum(0)


def conditions(task: Task, y: Tensor, dual: Tensor) -> tuple[Tensor, Tensor, Feet]:
    """``weight (y - raw) + DG'dual`` and ``G - P_K(G + dual)``: ``(B, n)`` and ``(B, r)``, both zero at the projection.

    And the feet of ``G + dual``.
    """
    value = task.stack.value(y)
    feet = task.stack.feet(finite(value + dual))
    return task.slope(y) + pull(task.stack, y, dual), value - feet.onto, feet


def optimality(task: Task, y: Tensor, dual: Tensor) -> Tensor:
    """The largest entry of both conditions, ``(B,)``; NaN counts as infinite."""
    first, second, _ = conditions(task, y, dual)
    return largest(first, second)


def largest(first: Tensor, second: Tensor) -> Tensor:
    """The largest entry of both, ``(B,)``; NaN counts as infinite."""
    size = torch.maximum(first.abs().amax(-1), second.abs().amax(-1))
    return torch.where(size.isnan(), torch.inf, size)
