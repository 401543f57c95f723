"""The barriers of the unicycle as two affine rows on its control, and its nominal controller.

A rollout evaluates both about fifty times and differentiates through every evaluation, so their derivatives are
written out instead of left to autograd: this takes a third of the operations, and derivatives of any order still
work, because the backward formulas are themselves differentiable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.modes import signed
from hardnet.sets import Affine
from hardnet.sets.base import AffineRows

OBSTACLES = ((-2.25, 0.5, 0.5, 0.75), (-0.8, 0.0, 0.5, 0.5))
"""Center and radii (c_x, c_y, r_x, r_y) of each ellipse."""
ARM = 0.1
"""Distance l from the axle to the body center, the point that must stay outside the obstacles."""
KAPPA, ALPHA = 10.0, 20.0
GAIN = 5.0
"""Gain of the nominal accelerations toward the goal speed and the goal turning rate."""
PULL = 10.0
"""Gain of the goal speed and the goal turning rate toward the origin."""
TOP_SPEED = 5.0


def nominal_control(x: Tensor) -> Tensor:
    """Accelerations ``(*batch, 2)`` that drive the state ``(*batch, 5)`` to the origin, ignoring the obstacles."""
    return _Nominal.apply(x)  # pyright: ignore[reportReturnType]


class Barriers(Affine):
    """``-∇h·g y <= ∇h·(f + g u_nom) + α h`` for each obstacle, where ``h = ḣ_e + κ h_e``.

    ``h_e = (e_x/r_x)² + (e_y/r_y)² - 1`` with e the vector from the obstacle to the body center. In closed form: let
    ``w = 2 e / r²``, d the unit vector along the heading, n the one across it, V the velocity of the body center.
    Then ``∇h·g = (w·d, l w·n) =: G``, ``ḣ_e = G·(v, ω)``, and since ``V̇ = a d + l α n + ω J V``,

    ``upper = (2/r²)·V² + G·z + α κ h_e``  with  ``z = u_nom + (κ + α)(v, ω) + (-l ω², v ω / l)``,  ``A = -G``.

    A and upper are computed together, because they share nearly all of their terms.
    """

    center: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__(self.matrix, upper=self.bound)
        obstacles = torch.tensor(OBSTACLES, dtype=torch.float64)
        self.register_buffer("center", obstacles[:, :2].T.contiguous())
        self.register_buffer("weight", (2 / obstacles[:, 2:].square()).T.contiguous())

    @property
    def dim(self) -> int:
        """The two controls."""
        return 2

    def matrix(self, x: Tensor) -> Tensor:
        """Only A."""
        return self.both(x)[0]

    def bound(self, x: Tensor) -> Tensor:
        """Only the upper bounds."""
        return self.both(x)[1]

    def numbers(self, x: Any, like: Tensor) -> AffineRows:
        """``A`` ``(*batch, 2, 2)``, ``upper`` ``(*batch, 2)`` at the states x ``(*batch, 5)``; one row per obstacle."""
        A, upper = self.both(x)
        return AffineRows(A, None, upper)

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A and the upper bounds, as derived above."""
        return _Rows.apply(x, self.center, self.weight)  # pyright: ignore[reportReturnType]

    def height(self, x: Tensor) -> Tensor:
        """``h = ḣ_e + κ h_e`` per obstacle ``(*batch, 2)``: safe where it is not negative."""
        at = _geometry(x, self.center, self.weight)
        rate = at.along * at.speed + at.across * at.turn
        return rate + KAPPA * (0.5 * (at.wx * at.ex + at.wy * at.ey) - 1)


class _Goal(NamedTuple):
    """The origin as seen from the state, each ``(*batch, 1)``: its distance, and its offsets across and behind."""

    distance: Tensor
    across: Tensor
    behind: Tensor


def _goal(px: Tensor, py: Tensor, cos: Tensor, sin: Tensor) -> _Goal:
    across = torch.addcmul(px * sin, py, cos, value=-1)
    return _Goal((px.square() + py.square()).sqrt(), across, torch.addcmul(px * cos, py, sin))


def _nominal(goal: _Goal, speed: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """``5 (clamp(-10 D behind, ±5) - v)`` and ``5 (10 across / (D + 1e-5) - ω)``."""
    goal_speed = (-PULL * goal.distance * goal.behind).clamp(-TOP_SPEED, TOP_SPEED)
    goal_turn = PULL * goal.across / (goal.distance + 1e-5)
    return GAIN * (goal_speed - speed), GAIN * (goal_turn - turn)


def _nominal_backward(
    goal: _Goal, px: Tensor, py: Tensor, cos: Tensor, sin: Tensor, grad: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Gradients of the five states; turning the heading turns (across, behind) into (behind, -across)."""
    distance, across, behind = goal
    pull = -PULL * distance * behind
    slope = torch.where(pull.abs() <= TOP_SPEED, -GAIN * PULL * grad[0], 0)
    turning = GAIN * PULL * grad[1] / (distance + 1e-5)
    to_behind = slope * distance
    radial = (slope * behind - turning * across / (distance + 1e-5)) / distance
    to_px = to_behind * cos + turning * sin + radial * px
    to_py = to_behind * sin - turning * cos + radial * py
    return to_px, to_py, turning * behind - to_behind * across, -GAIN * grad[0], -GAIN * grad[1]


class _Nominal(torch.autograd.Function):
    """The nominal control and its derivative."""

    generate_vmap_rule = True

    @staticmethod
    @signed
    def forward(x: Tensor) -> Tensor:
        px, py, heading, speed, turn = x.unsqueeze(-2).unbind(-1)
        return torch.cat(_nominal(_goal(px, py, heading.cos(), heading.sin()), speed, turn), -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        px, py, heading, _, _ = ctx.saved_tensors[0].unsqueeze(-2).unbind(-1)
        cos, sin = heading.cos(), heading.sin()
        goal = _goal(px, py, cos, sin)
        return torch.cat(_nominal_backward(goal, px, py, cos, sin, (grad[..., :1], grad[..., 1:])), -1)


class _Geometry(NamedTuple):
    """The state ``(*batch, 1)`` and what depends on the obstacles ``(*batch, 2)``."""

    px: Tensor
    py: Tensor
    cos: Tensor
    sin: Tensor
    speed: Tensor
    turn: Tensor
    ex: Tensor
    ey: Tensor
    wx: Tensor
    wy: Tensor
    along: Tensor  # G of the linear acceleration
    across: Tensor  # G of the angular acceleration
    vx: Tensor  # velocity of the body center
    vy: Tensor


def _geometry(x: Tensor, center: Tensor, weight: Tensor) -> _Geometry:
    px, py, heading, speed, turn = x.unsqueeze(-2).unbind(-1)
    cos, sin = heading.cos(), heading.sin()
    ex = torch.add(px, cos, alpha=ARM) - center[0]
    ey = torch.add(py, sin, alpha=ARM) - center[1]
    wx, wy = weight[0] * ex, weight[1] * ey
    along = torch.addcmul(wx * cos, wy, sin)
    across = ARM * torch.addcmul(wy * cos, wx, sin, value=-1)
    swing = ARM * turn
    vx = torch.addcmul(speed * cos, swing, sin, value=-1)
    vy = torch.addcmul(speed * sin, swing, cos)
    return _Geometry(px, py, cos, sin, speed, turn, ex, ey, wx, wy, along, across, vx, vy)


def _drive(at: _Geometry, goal: _Goal) -> tuple[Tensor, Tensor]:
    """``z = u_nom + (κ + α)(v, ω) + (-l ω², v ω / l)``."""
    linear, angular = _nominal(goal, at.speed, at.turn)
    linear = torch.add(linear, at.speed, alpha=KAPPA + ALPHA)
    angular = torch.add(angular, at.turn, alpha=KAPPA + ALPHA)
    linear = torch.addcmul(linear, at.turn, at.turn, value=-ARM)
    return linear, torch.addcmul(angular, at.speed, at.turn, value=1 / ARM)


class _Rows(torch.autograd.Function):
    """The barrier rows ``(A, upper)`` and their derivative with respect to the state."""

    generate_vmap_rule = True

    @staticmethod
    @signed
    def forward(x: Tensor, center: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        at = _geometry(x, center, weight)
        linear, angular = _drive(at, _goal(at.px, at.py, at.cos, at.sin))
        upper = torch.addcmul(weight[0] * at.vx.square(), weight[1], at.vy.square())
        upper = torch.addcmul(torch.addcmul(upper, at.along, linear), at.across, angular)
        ellipse = torch.addcmul(at.wx * at.ex, at.wy, at.ey)
        upper = torch.add(upper, ellipse, alpha=0.5 * ALPHA * KAPPA) - ALPHA * KAPPA
        return torch.stack([-at.along, -at.across], -1), upper

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_A: Tensor, grad_upper: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, center, weight = ctx.saved_tensors
        at = _geometry(x, center, weight)
        goal = _goal(at.px, at.py, at.cos, at.sin)
        gathered = _gather(at, _drive(at, goal), weight, grad_A, grad_upper)
        nominal = _nominal_backward(goal, at.px, at.py, at.cos, at.sin, gathered[:2])
        return _to_state(at, gathered) + torch.cat(nominal, -1), None, None


def _gather(
    at: _Geometry, drive: tuple[Tensor, Tensor], weight: Tensor, grad_A: Tensor, grad_upper: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of z (2), of the body center (2), of the heading in G, and of V² (2), summed over the obstacles."""
    to_along = torch.addcmul(-grad_A[..., 0], grad_upper, drive[0])
    to_across = torch.addcmul(-grad_A[..., 1], grad_upper, drive[1])
    swung, height = ARM * to_across, ALPHA * KAPPA * grad_upper
    to_ex = torch.addcmul(height * at.wx, weight[0], to_along * at.cos - swung * at.sin)
    to_ey = torch.addcmul(height * at.wy, weight[1], to_along * at.sin + swung * at.cos)
    turned = to_along * at.across / ARM - swung * at.along
    parts = [grad_upper * at.along, grad_upper * at.across, to_ex, to_ey, turned]
    parts += [grad_upper * weight[0], grad_upper * weight[1]]
    return torch.stack(parts, -2).sum(-1, keepdim=True).unbind(-2)


def _to_state(at: _Geometry, gathered: tuple[Tensor, ...]) -> Tensor:
    """The gradient of the state ``(*batch, 5)`` from these, without the part through the nominal control."""
    to_linear, to_angular, to_px, to_py, to_heading, to_vx, to_vy = gathered
    to_vx, to_vy = 2 * to_vx * at.vx, 2 * to_vy * at.vy
    to_heading = to_heading + ARM * (to_py * at.cos - to_px * at.sin) + to_vy * at.vx - to_vx * at.vy
    rate = KAPPA + ALPHA
    to_speed = to_vx * at.cos + to_vy * at.sin + rate * to_linear + to_angular * at.turn / ARM
    to_turn = ARM * (to_vy * at.cos - to_vx * at.sin - 2 * at.turn * to_linear)
    to_turn = to_turn + to_angular * (rate + at.speed / ARM)
    return torch.cat([to_px, to_py, to_heading, to_speed, to_turn], -1)
