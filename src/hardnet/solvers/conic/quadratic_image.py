"""The image of g convex quadratics: ``1/2 y'P_i y + q_i'y + r_i in (-inf, 0]`` for every i.

Made by `blocks`; read by `stack` and `barriers`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hardnet.products import tiled_product, times_tiled
from hardnet.solvers.algebra.eigen import ascending
from hardnet.solvers.conic.images import Foot, Frame, Image, positive, same
from hardnet.solvers.conic.quadratic_root import nearest_root


@dataclass(frozen=True)
class QuadraticImage(Image):
    """``bend/2 y'Py + q'y + r in (-inf, 0]``, P symmetric.

    P is ``(b, g, n, n)``, bend ``(b, g)``, q ``(b, g, n)`` and r ``(b, g)``. The number
    `bend` keeps a constant P one matrix in the unit of every sample.
    """

    P: Tensor
    bend: Tensor
    q: Tensor
    r: Tensor

    @property
    def rows(self) -> int:
        """One for each quadratic."""
        return self.P.shape[-3]

    def _bent(self, y: Tensor) -> Tensor:
        """``bend P y``, ``(*batch, g, n)``."""
        turned = times_tiled(self.P.flatten(-3, -2), y).unflatten(-1, self.P.shape[-3:-1])
        return self.bend.unsqueeze(-1) * turned

    def value(self, y: Tensor) -> Tensor:
        """One row for each."""
        return ((self._bent(y) / 2 + self.q) * y.unsqueeze(-2)).sum(-1) + self.r

    def jacobian(self, y: Tensor) -> Tensor:
        """``(bend P y + q)'``."""
        return self._bent(y) + self.q

    def curvature(self, dual: Tensor) -> Tensor:
        """``sum dual_i P_i``; a multiplier of the wrong sign, which an iterate may have, bends nothing."""
        share = dual.clamp_min(0) * self.bend
        flat = self.P.flatten(-2)
        total = tiled_product(share, flat) if flat.shape[0] == 1 else (share.unsqueeze(-2) @ flat).squeeze(-2)
        return total.unflatten(-1, self.P.shape[-2:])

    def nearby(self, y: Tensor) -> Tensor:
        """One pass of projections onto each quadratic alone; an empty one is left out."""
        values, V = ascending(self.P)
        values = values.clamp_min(0) * self.bend.unsqueeze(-1)
        for i in range(self.rows):
            own, turn = values[:, i], V[:, i]
            root = nearest_root(times_tiled(turn.mT, y), times_tiled(turn.mT, self.q[:, i]), self.r[:, i], own)
            moved = (root.solved & (root.mu.squeeze(-1) > 0)).unsqueeze(-1)
            y = torch.where(moved, times_tiled(turn, root.y), y)
        return y

    def foot(self, z: Tensor) -> Foot:
        """``max(z, 0)``; tight where positive."""
        return Foot(z.clamp_max(0), z.clamp_min(0), lambda slack: Frame((z <= slack).to(z), same, same))

    def factor(self, y: Tensor) -> Tensor:
        """The size of the gradient near y, so that the scaled value is a length."""
        slope = torch.linalg.vector_norm(self.jacobian(y), dim=-1)
        bend = torch.linalg.matrix_norm(self.P) * self.bend
        return positive(slope + (self.value(y).abs() * bend).sqrt())

    def scaled(self, factor: Tensor, unit: Tensor) -> QuadraticImage:
        """`bend` multiplied by the unit, r divided, and all divided by the factor."""
        return QuadraticImage(
            self.P, self.bend * (unit / factor), self.q / factor.unsqueeze(-1), self.r / (unit * factor)
        )

    def size(self, y: Tensor) -> Tensor:
        """The sum of the absolute terms."""
        return QuadraticImage(self.P.abs(), self.bend, self.q.abs(), self.r.abs()).value(y.abs())

    def tightened(self, margin: Tensor) -> QuadraticImage:
        """``r + margin``."""
        return QuadraticImage(self.P, self.bend, self.q, self.r + margin)
