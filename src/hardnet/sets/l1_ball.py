"""L1 balls: ``sum_i weights_i |y_i - center_i| <= radius``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hardnet.functional.l1_ball import L1, project_l1_ball, solve_l1_ball
from hardnet.functional.samples import Policy
from hardnet.sets.base import ConstraintSet, Name, Number
from hardnet.solvers.solution import Solution


class AbsoluteSet(ConstraintSet):
    """What L1 balls share, in the units of y or in others: from the numbers of the set at x they have a `ball`."""

    projectable = True
    absolute = True

    def ball(self, numbers: Any) -> L1:
        """The numbers of the ball in y, from those of the set at x."""
        return numbers

    def row_count(self, numbers: Any, like: Tensor) -> int:
        """One."""
        return 1

    def residual(self, numbers: Any, y: Tensor) -> Tensor:
        """``relu(sum_i weights_i |y_i - center_i| - radius)``, one row."""
        return self.ball(numbers).excess(y).clamp_min(0)

    def scale(self, numbers: Any, y: Tensor) -> Tensor:
        """``sum_i weights_i (|y_i| + |center_i|) + radius``, one row."""
        return self.ball(numbers).scale(y)

    def solve(self, raw: Tensor, x: Any = None) -> Solution:
        """The projection with its `Solution`: status, residual, and as multiplier the price of the radius."""
        return solve_l1_ball(raw, *self.ball(self.numbers(x, raw)))

    def project(
        self, numbers: Any, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """Soft thresholding; a negative radius or weight is invalid, any other numbers give points."""
        return project_l1_ball(raw, *self.ball(numbers), on_invalid=on_invalid)


class L1Ball(AbsoluteSet):
    """``sum_i weights_i(x) |y_i - center_i(x)| <= radius(x)``: turnover, leverage, a budget of changes.

    Alone it is soft thresholding, O(n log n). Beside boxes, affine rows and curved sets (``&``) the nearest point is as
    exact, without a row for each of its 2^n faces; an output that does not move is exactly at its center.

    Args:
        center: ``(n,)``, or a function of x that returns ``(*batch, n)``.
        radius: A number >= 0, or a function that returns ``(*batch)``.
        weights: ``(n,)`` or a number for all outputs, >= 0, or a function that returns ``(*batch, n)``; None for ones.
        name: What errors and certificates call it.
    """

    record = L1

    def __init__(self, center: Number, radius: Number, weights: Number | None = None, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("center", center, ("n",), "finite")
        self.take("radius", radius, (), "size")
        self.take("weights", weights, ("n",), "size")
