"""Balls: ``|y - center| <= radius``.

Called by users and `hardnet.experiments.measured`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.functional.elementary import project_ball, solve_ball
from hardnet.functional.samples import Policy
from hardnet.products import length
from hardnet.sets.base import Number
from hardnet.sets.curved import CurvedSet
from hardnet.solvers.conic.blocks import SecondOrder
from hardnet.solvers.solution import Solution


class BallNumbers(NamedTuple):
    """``center (*batch, n)`` and ``radius (*batch)``."""

    center: Tensor
    radius: Tensor


class Ball(CurvedSet):
    """``|y - center(x)| <= radius(x)``.

    Args:
        center: ``(n,)``, or a function of x that returns ``(*batch, n)``.
        radius: A number >= 0, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    smooth = True

    def __init__(self, center: Number, radius: Number, *, name: str | None = None) -> None:
        super().__init__(name)
        self.take("center", center, ("n",), "finite")
        self.take("radius", radius, (), "size")

    def numbers(self, x: Any, like: Tensor) -> BallNumbers:
        """``center(x), radius(x)``."""
        return BallNumbers(self.number("center", x, like), self.number("radius", x, like))

    def residual(self, numbers: BallNumbers, y: Tensor) -> Tensor:
        """``relu(|y - center| - radius)``, one row."""
        return (length(y - numbers.center) - numbers.radius.unsqueeze(-1)).clamp_min(0)

    def level(self, numbers: BallNumbers, y: Tensor) -> Tensor:
        """``|y - center|^2 - radius^2``, one row; a negative radius leaves no point."""
        square = (y - numbers.center).square().sum(-1)
        return (square - numbers.radius * numbers.radius.abs()).unsqueeze(-1)

    def scale(self, numbers: BallNumbers, y: Tensor) -> Tensor:
        """``|y| + |center| + radius``, one row."""
        return length(y) + length(numbers.center) + numbers.radius.abs().unsqueeze(-1)

    def block(self, numbers: BallNumbers) -> SecondOrder:
        """``|I y - center| <= 0'y + radius``."""
        eye = torch.eye(numbers.center.shape[-1], dtype=numbers.center.dtype, device=numbers.center.device)
        return SecondOrder(eye, -numbers.center, torch.zeros_like(eye[0]), numbers.radius)

    def solve(self, raw: Tensor, x: Any = None, *, tolerance: float = 1e-9) -> Solution:
        """The projection with its `Solution`, in closed form: status, residual and multipliers of each sample."""
        return solve_ball(raw, *self.numbers(x, raw))

    def project(
        self, numbers: BallNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``center + (raw - center) min(1, radius / |raw - center|)``; a negative radius is invalid."""
        return project_ball(raw, *numbers, on_invalid=on_invalid)
