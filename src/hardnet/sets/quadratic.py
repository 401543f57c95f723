"""Convex quadratics: ``1/2 y'Py + q'y + r <= 0``; ellipsoids, paraboloids, cylinders, half-spaces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import ASYMMETRIC, INDEFINITE
from hardnet.functional.quadratic import Spectrum, diagonalize, project_quadratic
from hardnet.sets.base import Name, Number
from hardnet.sets.curved import CurvedSet
from hardnet.solvers.conic.blocks import Quadratics, convex


class Quadratic(CurvedSet):
    """``1/2 y'P(x)y + q(x)'y + r(x) <= 0`` with P positive semidefinite.

    Args:
        P: ``(n, n)``, or a function of x that returns ``(*batch, n, n)``.
        q: ``(n,)``, or a function that returns ``(*batch, n)``.
        r: A number, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    smooth = True
    record = Quadratics

    def __init__(self, P: Number, q: Number, r: Number, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("P", P, ("n", "n"), "finite")
        self.take("q", q, ("n",), "finite")
        self.take("r", r, (), "finite")
        fixed = self.fixed("P")
        if fixed is not None and not fixed.is_meta:
            _require_convex(fixed)
        self._require_nonempty()

    def residual(self, numbers: Quadratics, y: Tensor) -> Tensor:
        """``relu(1/2 y'Py + q'y + r)``, one row."""
        return numbers.residual(y)

    def level(self, numbers: Quadratics, y: Tensor) -> Tensor:
        """``1/2 y'Py + q'y + r``, one row."""
        return numbers.excess(y)

    def scale(self, numbers: Quadratics, y: Tensor) -> Tensor:
        """The same sum over absolute values, one row."""
        return numbers.scale(y)

    def factorize(self) -> Spectrum | None:
        """The eigendecomposition of a constant P, to be kept; None where P depends on x."""
        fixed = self.fixed("P")
        return None if fixed is None or fixed.dim() > 2 else diagonalize(fixed)

    def project(self, numbers: Quadratics, raw: Tensor, *, factor: Spectrum | None = None, **policies: Any) -> Tensor:
        """``(I + mu P)^-1 (raw - mu q)`` at the root mu of the value."""
        return project_quadratic(raw, *numbers, factor=factor, **policies)


def _require_convex(P: Tensor) -> None:
    """Refuse a constant P that is asymmetric or has a negative eigenvalue, beyond the rounding of its dtype."""
    exact = P.double()
    tolerance = 8 * P.shape[-1] * torch.finfo(P.dtype).eps * exact.abs().amax().item()
    off = (exact - exact.mT).abs().amax().item()
    if off > tolerance:
        raise ASYMMETRIC.of("P", f"|P - P'| up to {off:.3g}")
    values = torch.linalg.eigvalsh(exact)
    if not bool(convex(values, P.dtype).all()):
        raise INDEFINITE.of("P", f"the eigenvalue {values.min().item():.6g}")
