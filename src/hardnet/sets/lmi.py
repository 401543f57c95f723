"""Linear matrix inequalities: ``F0 + sum_i y_i F_i`` positive semidefinite."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from hardnet.errors import ASYMMETRIC, sentence
from hardnet.functional.conic import project_intersection
from hardnet.sets.base import Name, Number
from hardnet.sets.curved import CurvedSet
from hardnet.solvers.conic.blocks import SemiDefinite


class LMI(CurvedSet):
    """``F0(x) + sum_i y_i F_i(x)`` positive semidefinite.

    Args:
        F0: ``(k, k)`` symmetric, or a function of x that returns ``(*batch, k, k)``.
        F: ``(n, k, k)``, each symmetric, or a function that returns ``(*batch, n, k, k)``; where they come from a
            function only the symmetric parts count.
        name: What errors and certificates call it.
    """

    record = SemiDefinite
    nonzero: ClassVar[dict[str, str]] = {"k": sentence("F0", "a matrix of order 1 or more", "one without entries")}

    def __init__(self, F0: Number, F: Number, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("F0", F0, ("k", "k"), "finite")
        self.take("F", F, ("n", "k", "k"), "finite")
        for matrix in ("F0", "F"):
            fixed = self.fixed(matrix)
            if fixed is not None and not fixed.is_meta and fixed.numel():
                _require_symmetric(matrix, fixed)
        self._require_nonempty()

    def residual(self, numbers: SemiDefinite, y: Tensor) -> Tensor:
        """``relu(-lambda_min)``, one row; NaN where y is."""
        return numbers.residual(y)

    def scale(self, numbers: SemiDefinite, y: Tensor) -> Tensor:
        """The norm of ``|F0| + sum_i |y_i| |F_i|``, one row."""
        return numbers.scale(y)

    def project(self, numbers: SemiDefinite, raw: Tensor, **policies: Any) -> Tensor:
        """By Newton on the optimality conditions: a cone seen through F has no closed form."""
        return project_intersection(raw, [numbers], **policies)


def _require_symmetric(name: str, F: Tensor) -> None:
    """Refuse constant matrices that are not symmetric."""
    off = (F - F.mT).abs().max().item()
    if off > 1e-6 * F.abs().max().item():
        raise ASYMMETRIC.of(name, f"|{name} - {name}'| up to {off:.3g}")
