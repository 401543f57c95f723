"""L1 balls: ``sum_i weights_i |y_i - center_i| <= radius``."""

from __future__ import annotations

from torch import Tensor

from hardnet.functional.l1_ball import L1
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet, Name, Number


class L1Ball(ConstraintSet):
    """``sum_i weights_i(x) |y_i - center_i(x)| <= radius(x)``: turnover, leverage, a budget of changes.

    Alone it is soft thresholding, O(n log n). Beside boxes, affine rows and curved sets (``&``) the nearest point is as
    exact, without a row for each of its 2^n faces; an output that does not move is exactly at its center.

    Args:
        center: ``(n,)``, or a function of x that returns ``(*batch, n)``.
        radius: A number >= 0, or a function that returns ``(*batch)``.
        weights: ``(n,)`` or a number for all outputs, >= 0, or a function that returns ``(*batch, n)``; None for ones.
        name: What errors and certificates call it.
    """

    kind = Kind.ABSOLUTE
    record = L1

    def __init__(self, center: Number, radius: Number, weights: Number | None = None, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("center", center, ("n",), "finite")
        self.take("radius", radius, (), "size")
        self.take("weights", weights, ("n",), "size")

    def data(self, numbers: L1, like: Tensor) -> L1:
        """The numbers themselves."""
        return numbers

    def alone(self, numbers: L1, like: Tensor) -> L1:
        """Soft thresholding."""
        return numbers
