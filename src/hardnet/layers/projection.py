"""The exact Euclidean projection onto any polyhedron, as a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from hardnet.functional import project_affine
from hardnet.functional.samples import look_is_free
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.invalid import name_rows
from hardnet.layers.options import LayerOptions, choice
from hardnet.sets.base import ConstraintSet


class Projection(Layer):
    """``y = argmin |y - raw|  s.t.  lower(x) <= A(x) y <= upper(x)``, for any number of rows.

    Unlike the closed form of HardNet-Aff it takes more rows than outputs, dependent, duplicated and redundant rows,
    and never moves further than the nearest feasible point. Non-expansive: ``|y - y'| <= |raw - raw'|``.

    Args:
        constraint: A polyhedral set: `Affine`, `Equality`, `Box`, `Simplex`, or `&` of these.
        on_infeasible: What an empty C(x) gives: ``"raise"`` is an `InfeasibleError` that names samples and rows,
            ``"nearest"`` the compromise, ``"nan"`` is NaN for that sample alone; ``"auto"`` raises on a CPU, and gives
            NaN on CUDA, under compile, export and vmap.
        on_invalid: What NaN or lower > upper give: an error that names the samples, or ``"nan"`` for these alone.
    """

    name = "projection"
    accepts = "affine rows lower(x) <= A(x) y <= upper(x), any number of them, dependent or not"
    guarantee = Guarantee.EXACT

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """`on_infeasible` and `on_invalid`, as above."""

        on_infeasible: Literal["auto", "raise", "nearest", "nan"] = choice("auto", "raise", "nearest", "nan")
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

    options: Options

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Only polyhedral sets."""
        if not constraint.polyhedral:
            return f"{type(constraint).__name__} is not a set of affine rows; use method='cvx'"
        return None

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y ``(*batch, n)`` of C(x)."""
        numbers = self.constraint.numbers(x, raw)
        rows = self.constraint.rows(numbers, raw)
        on_infeasible: Any = look_or_nan(self.options.on_infeasible, raw)
        policies: Any = {"on_infeasible": on_infeasible, "on_invalid": self.options.on_invalid}
        return name_rows(
            lambda: project_affine(raw, *rows, **policies), lambda: self.constraint.row_names(numbers, raw)
        )


def look_or_nan(policy: str, raw: Tensor) -> str:
    """``"auto"`` as what it means for this call: raise where a look is free, else NaN."""
    if policy != "auto":
        return policy
    return "raise" if look_is_free(raw) else "nan"
