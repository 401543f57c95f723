"""The baselines that enforce nothing: a plain network, and one trained with a penalty in the loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hardnet.layers.base import Guarantee, Layer
from hardnet.sets.base import ConstraintSet


class NoEnforcement(Layer):
    """``y = raw``: the plain network, which ignores the constraint."""

    name = "none"
    accepts = "any set"
    guarantee = Guarantee.NONE

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept any set, since none is enforced."""
        return None

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Return raw itself."""
        return raw


class Soft(NoEnforcement):
    """``y = raw``, trained with ``weight * sum_i violation_i(y)^2`` in the loss (`hardnet.metrics.penalty`).

    The penalty pulls the outputs towards C(x) where there is data; no sample is guaranteed to satisfy its rows.
    """

    name = "soft"
