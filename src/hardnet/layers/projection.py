"""The exact Euclidean projection onto any polyhedron, as a layer."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from hardnet.functional import project_affine
from hardnet.layers.base import Guarantee, Layer
from hardnet.sets.base import ConstraintSet


class Projection(Layer):
    """``y = argmin |y - raw|  s.t.  lower(x) <= A(x) y <= upper(x)``, for any number of rows.

    Unlike the closed form of HardNet-Aff it takes more rows than outputs, dependent, duplicated and redundant rows,
    and never moves further than the nearest feasible point. Non-expansive: ``|y - y'| <= |raw - raw'|``.

    Args:
        constraint: A polyhedral set: `Affine`, `Equality`, `Box`, `Simplex`, or `&` of these.
        on_infeasible: What an empty C(x) gives: an `InfeasibleError` that names samples and rows, the ``"nearest"``
            compromise, or ``"nan"`` for that sample alone.
        on_invalid: What NaN or lower > upper give: an error that names the samples, or ``"nan"`` for these alone.
    """

    name = "projection"
    accepts = "affine rows lower(x) <= A(x) y <= upper(x), any number of them, dependent or not"
    guarantee = Guarantee.EXACT

    def __init__(
        self,
        constraint: ConstraintSet,
        *,
        on_infeasible: Literal["raise", "nearest", "nan"] = "raise",
        on_invalid: Literal["raise", "nan"] = "raise",
    ) -> None:
        super().__init__(constraint)
        self.on_infeasible: Literal["raise", "nearest", "nan"] = on_infeasible
        self.on_invalid: Literal["raise", "nan"] = on_invalid

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Only polyhedral sets."""
        if not constraint.polyhedral:
            return f"{type(constraint).__name__} is not a set of affine rows; use method='cvx'"
        return None

    def forward(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y ``(*batch, n)`` of C(x)."""
        rows = self.constraint.affine(x, raw)
        return project_affine(raw, *rows, on_infeasible=self.on_infeasible, on_invalid=self.on_invalid)  # pyright: ignore[reportCallIssue]
