"""Balls: ``|y - center| <= radius``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hardnet.functional.elementary import project_ball, solve_ball
from hardnet.functional.samples import Policy
from hardnet.sets.base import Name, Number
from hardnet.sets.curved import CurvedSet
from hardnet.solvers.conic.blocks import Balls
from hardnet.solvers.solution import Solution


class Ball(CurvedSet):
    """``|y - center(x)| <= radius(x)``.

    Args:
        center: ``(n,)``, or a function of x that returns ``(*batch, n)``.
        radius: A number >= 0, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    smooth = True
    record = Balls

    def __init__(self, center: Number, radius: Number, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("center", center, ("n",), "finite")
        self.take("radius", radius, (), "size")

    def residual(self, numbers: Balls, y: Tensor) -> Tensor:
        """``relu(|y - center| - radius)``, one row."""
        return numbers.residual(y)

    def level(self, numbers: Balls, y: Tensor) -> Tensor:
        """``|y - center|^2 - radius^2``, one row; a negative radius leaves no point."""
        square = (y - numbers.center).square().sum(-1)
        return (square - numbers.radius * numbers.radius.abs()).unsqueeze(-1)

    def scale(self, numbers: Balls, y: Tensor) -> Tensor:
        """``|y| + |center| + radius``, one row."""
        return numbers.scale(y)

    def solve(self, raw: Tensor, x: Any = None, *, tolerance: float = 1e-9) -> Solution:
        """The projection with its `Solution`, in closed form: status, residual and multipliers of each sample."""
        return solve_ball(raw, *self.numbers(x, raw))

    def project(
        self, numbers: Balls, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``center + (raw - center) min(1, radius / |raw - center|)``; a negative radius is invalid."""
        return project_ball(raw, *numbers, on_invalid=on_invalid)
