"""The formulas of HardNet++'s unicycle: cost, rows and Jacobians, for plans and for controls.

From the pose s_0 = (p_x, p_y, heading), ten steps of 0.2 s with the speed v_k and the turning rate w_k:

    min  sum_k |e_k|^2 + e_T' diag(10, 10, 1) e_T + 0.1 |(v, w)|^2,   e = s - (3.5, 0, 0), the heading wrapped
    s.t. s_k = s_{k-1} + 0.2 (v_k cos heading_{k-1}, v_k sin heading_{k-1}, w_k),   p_k'diag(Q) p_k >= 1,
         0 <= v <= 2,  |w| <= 1.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 10

TIME_STEP = 0.2

GOAL = (3.5, 0.0, 0.0)

OBSTACLE = (0.51020408, 0.90702948)
"""Diagonal of the matrix Q of the keep-out ellipse."""

TERMINAL = (10.0, 10.0, 1.0)

CONTROL_WEIGHT = 0.1

LARGEST = (2.0, 1.5)
"""Largest speed and turning rate; the smallest speed is 0."""

STATES, CONTROLS = 3 * STEPS, 2 * STEPS


def split_plan(y: Tensor) -> tuple[Tensor, Tensor]:
    """States ``(*batch, T, 3)`` and controls ``(*batch, T, 2)`` of outputs ``(*batch, 50)``."""
    return y[..., :STATES].unflatten(-1, (STEPS, 3)), y[..., STATES:].unflatten(-1, (STEPS, 2))


def cost(y: Tensor) -> Tensor:
    """The objective per sample: ``(*batch, 50) -> (*batch,)``."""
    states, controls = split_plan(y)
    ahead, aside, turned = (part - goal for part, goal in zip(states.unbind(-1), GOAL, strict=True))
    squares = ahead.square(), aside.square(), torch.atan2(turned.sin(), turned.cos()).square()
    stage = sum(square.sum(-1) for square in squares)
    terminal = sum(weight * square[..., -1] for weight, square in zip(TERMINAL, squares, strict=True))
    return stage + terminal + CONTROL_WEIGHT * controls.square().sum((-1, -2))


def advance(state: Tensor, control: Tensor) -> Tensor:
    """The pose after one step: ``s + 0.2 (v cos heading, v sin heading, w)``, ``(*batch, 3)``."""
    heading, (speed, turn) = state[..., 2], control.unbind(-1)
    return state + TIME_STEP * torch.stack([speed * heading.cos(), speed * heading.sin(), turn], -1)


def roll_out(controls: Tensor, x: Tensor) -> Tensor:
    """The plan ``(*batch, 50)`` of controls ``(*batch, 20)`` from x ``(*batch, 3)``; the dynamics hold to rounding."""
    state, states = x, []
    for control in controls.unflatten(-1, (STEPS, 2)).unbind(-2):
        state = advance(state, control)
        states.append(state)
    return torch.cat([*states, controls], -1)


def dynamics(y: Tensor, x: Tensor) -> Tensor:
    """``s_k - advance(s_{k-1}, u_k)``, ``(*batch, 30)``."""
    states, controls = split_plan(y)
    before = torch.cat([x.expand(*y.shape[:-1], 3).unsqueeze(-2), states[..., :-1, :]], -2)
    return (states - advance(before, controls)).flatten(-2)


def keep_out(y: Tensor) -> Tensor:
    """``p_k' Q p_k`` of every step, ``(*batch, 10)``; at least 1 outside the obstacle."""
    ahead, aside, _ = split_plan(y)[0].unbind(-1)
    return OBSTACLE[0] * ahead.square() + OBSTACLE[1] * aside.square()


def plan_rows(y: Tensor, x: Tensor) -> Tensor:
    """Dynamics, then keep-out rows: ``(*batch, 40)``."""
    return torch.cat([dynamics(y, x), keep_out(y)], -1)


def plan_jacobian(y: Tensor, x: Tensor) -> Tensor:
    """``d plan_rows / d y``, ``(*batch, 40, 50)``."""
    states, controls = split_plan(y)
    before = torch.cat([x.expand(*y.shape[:-1], 3)[..., 2:], states[..., :-1, 2]], -1)
    cosine, sine, speed = before.cos(), before.sin(), controls[..., 0]
    step = torch.arange(STEPS, device=y.device)
    J = y.new_zeros(*y.shape[:-1], STATES + STEPS, STATES + CONTROLS)
    index = torch.arange(STATES, device=y.device)
    J[..., index, index] = 1.0
    later = index[3:]
    J[..., later, later - 3] = -1.0
    J[..., 3 * step[1:], 3 * step[:-1] + 2] = (TIME_STEP * speed * sine)[..., 1:]
    J[..., 3 * step[1:] + 1, 3 * step[:-1] + 2] = -(TIME_STEP * speed * cosine)[..., 1:]
    J[..., 3 * step, STATES + 2 * step] = -TIME_STEP * cosine
    J[..., 3 * step + 1, STATES + 2 * step] = -TIME_STEP * sine
    J[..., 3 * step + 2, STATES + 2 * step + 1] = -TIME_STEP
    for axis in range(2):
        J[..., STATES + step, 3 * step + axis] = 2 * OBSTACLE[axis] * states[..., axis]
    return J


def control_jacobian(u: Tensor, x: Tensor) -> Tensor:
    """``d control_rows / d u``, ``(*batch, 10, 20)``, by cumulative sums over the steps, without a loop.

    ``dp_k/dv_j = 0.2 (cos, sin) h_{j-1}`` for j <= k, ``dp_k/dw_i = 0.04 sum_{i < j <= k} v_j (-sin, cos) h_{j-1}``.
    """
    x = x.expand(*u.shape[:-1], 3)
    position = split_plan(roll_out(u, x))[0][..., :2]
    speed, turn = u.unflatten(-1, (STEPS, 2)).unbind(-1)
    heading = x[..., 2:] + TIME_STEP * (turn.cumsum(-1) - turn)
    direction = torch.stack([heading.cos(), heading.sin()], -1)
    across = torch.stack([-heading.sin(), heading.cos()], -1)
    weight = 2 * u.new_tensor(OBSTACLE) * position
    past = torch.ones(STEPS, STEPS, dtype=u.dtype, device=u.device).tril()
    by_speed = TIME_STEP * (weight @ direction.mT) * past
    total = (speed.unsqueeze(-1) * across).cumsum(-2)
    by_turn = TIME_STEP**2 * ((weight * total).sum(-1, keepdim=True) - weight @ total.mT) * past
    return torch.stack([by_speed, by_turn], -1).flatten(-2)


def control_rows(u: Tensor, x: Tensor) -> Tensor:
    """The keep-out rows of the controls' states: ``(*batch, 20) -> (*batch, 10)``."""
    return keep_out(roll_out(u, x.expand(*u.shape[:-1], 3)))


def limits(like: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of the controls, ``(20,)`` each."""
    upper = like.new_tensor(LARGEST * STEPS)
    return upper * like.new_tensor((0.0, -1.0) * STEPS), upper


def cut(controls: Tensor) -> Tensor:
    """Controls clamped to their bounds, with Python numbers as bounds so that it can be captured on a GPU."""
    speed, turn = controls.unflatten(-1, (STEPS, 2)).unbind(-1)
    return torch.stack([speed.clamp(0.0, LARGEST[0]), turn.clamp(-LARGEST[1], LARGEST[1])], -1).flatten(-2)
