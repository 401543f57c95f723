"""The barriers of the unicycle as two affine rows on its control, and its nominal controller."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.sets import Affine
from hardnet.sets.base import AffineRows

OBSTACLES = ((-2.25, 0.5, 0.5, 0.75), (-0.8, 0.0, 0.5, 0.5))
"""Centre and radii (c_x, c_y, r_x, r_y) of each ellipse."""
ARM = 0.1
"""Distance l of the body centre, which must stay outside, from the axle."""
KAPPA, ALPHA = 10.0, 20.0


def nominal_control(x: Tensor) -> Tensor:
    """Accelerations ``(*batch, 2)`` that drive the state ``(*batch, 5)`` to the origin, blind to obstacles."""
    px, py, heading, speed, turn = x.unbind(-1)
    cos, sin = heading.cos(), heading.sin()
    distance = (px.square() + py.square()).sqrt()
    goal_turn = 10 * (px * sin - py * cos) / (distance + 1e-5)
    goal_speed = (10 * distance * (-px * cos - py * sin)).clamp(-5, 5)
    return torch.stack([5 * (goal_speed - speed), 5 * (goal_turn - turn)], -1)


class Barriers(Affine):
    """``-∇h·g y <= ∇h·(f + g u_nom) + α h`` for each obstacle, where ``h = ḣ_e + κ h_e``.

    ``h_e = (e_x/r_x)² + (e_y/r_y)² - 1`` with e from the obstacle to the body centre. In closed form: let
    ``w = 2 e / r²``, d the unit vector along the heading, n the one across it, V the velocity of the body centre.
    Then ``∇h·g = (w·d, l w·n) =: G``, ``ḣ_e = G·(v, ω)``, and since ``V̇ = a d + l α n + ω J V``,

    ``upper = (2/r²)·V² + G·(u_nom + (κ + α)(v, ω) + (-l ω², v ω / l)) + α κ h_e``,  ``A = -G``.

    The two numbers are built together, because they share nearly all of their terms.
    """

    centre: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__(self.matrix, upper=self.bound)
        obstacles = torch.tensor(OBSTACLES, dtype=torch.float64)
        self.register_buffer("centre", obstacles[:, :2].T.contiguous())
        self.register_buffer("weight", (2 / obstacles[:, 2:].square()).T.contiguous())

    @property
    def dim(self) -> int:
        """Two controls."""
        return 2

    def matrix(self, x: Tensor) -> Tensor:
        """A alone."""
        return self.both(x)[0]

    def bound(self, x: Tensor) -> Tensor:
        """The upper bounds alone."""
        return self.both(x)[1]

    def numbers(self, x: Any, like: Tensor) -> AffineRows:
        """``A`` ``(*batch, 2, 2)`` and ``upper`` ``(*batch, 2)`` at the states x ``(*batch, 5)``, an obstacle a row."""
        A, upper = self.both(x)
        return AffineRows(A, None, upper)

    def height(self, x: Tensor) -> Tensor:
        """``h = ḣ_e + κ h_e`` per obstacle ``(*batch, 2)``: safe where it is not negative."""
        rate = -(self.matrix(x) * x[..., 3:].unsqueeze(-2)).sum(-1)
        return rate + KAPPA * self._geometry(x)[-1]

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A and the upper bounds, as derived above."""
        _, _, _, speed, turn = x.unsqueeze(-2).unbind(-1)  # each (*batch, 1), against (2,) obstacles
        cos, sin, wx, wy, ellipse = self._geometry(x)
        G = torch.stack([wx * cos + wy * sin, ARM * (wy * cos - wx * sin)], -1)
        swing = ARM * turn
        square = self.weight[0] * (speed * cos - swing * sin).square()
        square = square + self.weight[1] * (speed * sin + swing * cos).square()
        turning = torch.cat([-swing * turn, speed * turn / ARM], -1)
        drive = nominal_control(x) + (KAPPA + ALPHA) * x[..., 3:] + turning
        upper = square + (G * drive.unsqueeze(-2)).sum(-1) + ALPHA * KAPPA * ellipse
        return -G, upper

    def _geometry(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Cosine and sine of the heading ``(*batch, 1)``; ``2 e / r²`` and ``h_e`` per obstacle ``(*batch, 2)``."""
        px, py, heading, _, _ = x.unsqueeze(-2).unbind(-1)
        cos, sin = heading.cos(), heading.sin()
        ex, ey = px + ARM * cos - self.centre[0], py + ARM * sin - self.centre[1]
        wx, wy = self.weight[0] * ex, self.weight[1] * ey
        return cos, sin, wx, wy, 0.5 * (wx * ex + wy * ey) - 1
