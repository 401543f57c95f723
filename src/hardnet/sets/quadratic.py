"""Convex quadratics: ``1/2 y'Py + q'y + r <= 0``; ellipsoids, paraboloids, cylinders, half-spaces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import UnsupportedSetError, sentence
from hardnet.functional.quadratic import Spectrum, diagonalize, project_quadratic
from hardnet.functional.samples import Policy
from hardnet.sets.base import Number
from hardnet.sets.curved import CurvedSet
from hardnet.solvers.blocks import Quadratics


class Quadratic(CurvedSet):
    """``1/2 y'P(x)y + q(x)'y + r(x) <= 0`` with P positive semidefinite.

    Args:
        P: ``(n, n)``, or a function of x that returns ``(*batch, n, n)``.
        q: ``(n,)``, or a function that returns ``(*batch, n)``.
        r: A number, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    def __init__(self, P: Number, q: Number, r: Number, *, name: str | None = None) -> None:
        super().__init__(name)
        self.take("P", P, ("n", "n"))
        self.take("q", q, ("n",))
        self.take("r", r, ())
        fixed = self.fixed("P")
        if fixed is not None:
            _require_convex(fixed)
        self._require_nonempty()

    def numbers(self, x: Any, like: Tensor) -> Quadratics:
        """``P(x), q(x), r(x)``."""
        return Quadratics(*(self.number(name, x, like) for name in ("P", "q", "r")))

    def residual(self, numbers: Quadratics, y: Tensor) -> Tensor:
        """``relu(1/2 y'Py + q'y + r)``, one row."""
        return numbers.image().value(y).clamp_min(0)

    def scale(self, numbers: Quadratics, y: Tensor) -> Tensor:
        """The same sum over absolute values, one row."""
        return numbers.image().size(y)

    def block(self, numbers: Quadratics) -> Quadratics:
        """The numbers themselves."""
        return numbers

    def factorize(self) -> Spectrum | None:
        """The eigendecomposition of a constant P, to be kept; None where P depends on x."""
        fixed = self.fixed("P")
        return None if fixed is None or fixed.dim() > 2 else diagonalize(fixed)

    def project(
        self,
        numbers: Quadratics,
        raw: Tensor,
        *,
        factor: Spectrum | None = None,
        on_infeasible: Policy = "raise",
        on_invalid: Policy = "raise",
    ) -> Tensor:
        """``(I + mu P)^-1 (raw - mu q)`` at the root mu of the value."""
        return project_quadratic(raw, *numbers, factor=factor, on_infeasible=on_infeasible, on_invalid=on_invalid)


def _require_convex(P: Tensor) -> None:
    """Refuse a constant P that is asymmetric or has a negative eigenvalue."""
    slack, P = 64 * torch.finfo(P.dtype).eps, P.double()
    size = P.abs().amax().item()
    if not torch.allclose(P, P.mT, rtol=0, atol=slack * size):
        off = (P - P.mT).abs().max().item()
        raise UnsupportedSetError(sentence("P", "a symmetric matrix", f"|P - P'| up to {off:.3g}", "pass (P + P') / 2"))
    least = torch.linalg.eigvalsh(P).min().item()
    if least < -slack * size:
        expected, got = "a positive semidefinite matrix", f"the eigenvalue {least:.6g}"
        raise UnsupportedSetError(sentence("P", expected, got, "the set is not convex"))
