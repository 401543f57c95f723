"""Homogeneous inequalities by generators (Frerix, Nießner & Cremers, 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import ShapeError, UnsupportedSetError, sentence
from hardnet.layers.base import Guarantee
from hardnet.layers.constant_rows import ConstantRows, TableLayer, constant_rows, refuse_other_sets
from hardnet.layers.options import LayerOptions, count, number
from hardnet.sets.base import ConstraintSet
from hardnet.shapes import require_like
from hardnet.solvers.offline import cone_generators


class Cone(TableLayer):
    """``y = rays' |beta| + lineality' gamma`` with ``raw = (beta, gamma)``, so that ``A y <= 0``.

    The generators of the cone are computed once: in closed form where the rows are independent, else by double
    description. The absolute value has a nonzero gradient on both sides of 0. A raw output is a list of coefficients,
    not a point, so the network must emit `raw_dim` numbers and no raw output is returned unchanged.

    Args:
        constraint: Constant rows with every finite bound 0: ``Affine(A, upper=0)``, ``Box(lower=0)``, ...
        limit: Largest number of generators to accept.
        box: Scale y down so that ``|y_i| <= box``; y stays in the cone, which is closed under positive scaling.
    """

    name = "cone"
    accepts = "constant homogeneous rows A y <= 0, A y >= 0, A y = 0"
    guarantee = Guarantee.EXACT
    identity_inside = False
    differentiable_numbers = False

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """`limit` and `box`, as above."""

        limit: int = count(10_000, least=1)
        box: float | None = number(None, above=0)

    options: Options
    rays: Tensor
    lineality: Tensor

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only constant rows whose finite bounds are zero."""
        reason = refuse_other_sets(constraint)
        rows = constant_rows(constraint)
        if reason is not None or rows is None:
            return reason
        for side in (rows.lower, rows.upper):
            wrong = ((side != 0) & ~side.isinf()).nonzero().flatten().tolist()
            if wrong:
                value = side[wrong[0]].item()
                got = "a function of x" if value != value else f"{value:g}"
                return f"cone rows need bounds of 0, and row {wrong[0]} has {got}; use method='projection'"
        return None

    @property
    def raw_dim(self) -> int:
        """One coefficient per ray and per line."""
        return len(self.rays) + len(self.lineality)

    def prepare_tables(self, rows: ConstantRows) -> dict[str, Tensor]:
        """The rays and lines of the cone."""
        above = rows.upper.isfinite() & ~rows.equality
        below = rows.lower.isfinite() & ~rows.equality
        inequalities = torch.cat([rows.A[above], -rows.A[below]])
        rays, lineality = cone_generators(inequalities, rows.A[rows.equality], limit=self.options.limit)
        if len(rays) + len(lineality) == 0:
            reason = "its only point is 0, so there is nothing to learn; return zeros, or relax a row"
            raise UnsupportedSetError(f"method '{self.name}' cannot enforce this set: {reason}")
        return {"rays": rays, "lineality": lineality}

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map coefficients raw ``(*batch, raw_dim)`` to y ``(*batch, n)`` in the cone."""
        require_like("generators", self.rays, raw)
        if raw.shape[-1:] != (self.raw_dim,):
            expected = f"shape (*batch, {self.raw_dim}), one coefficient per generator"
            raise ShapeError(sentence("raw", expected, tuple(raw.shape), "change the network's last layer"))
        count = len(self.rays)
        y = raw[..., :count].abs() @ self.rays + raw[..., count:] @ self.lineality
        box = self.options.box
        return y if box is None else y / (y.abs().amax(dim=-1, keepdim=True) / box).clamp_min(1)
