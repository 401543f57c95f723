"""A control barrier row that is not affine in the control: a robot that turns and moves within one time step.

The next position is ``p + step v (cos(angle + step w), sin(angle + step w))`` for a speed v and a turning rate w, so
that ``h(next) >= (1 - decay) h(p)`` with ``h = |p|^2 - 1`` bends in both. A controller that heads straight for the goal
behind the disc is moved, at each step, to the nearest control that keeps the row and the limits of v and w.
"""

import torch

import hardnet as hn

STEP, DECAY = 0.1, 0.3
GOAL = torch.tensor([3.0, 0.1], dtype=torch.float64)


def move(state, control):
    """The next state (p1, p2, angle)."""
    angle = state[..., 2] + STEP * control[..., 1]
    forward = torch.stack([angle.cos(), angle.sin()], dim=-1)
    return torch.cat([state[..., :2] + STEP * control[..., :1] * forward, angle.unsqueeze(-1)], dim=-1)


def outside(state):
    """``|p|^2 - 1``: positive outside of the disc."""
    return state[..., :2].square().sum(-1, keepdim=True) - 1


def barrier(control, state):
    """What must not be negative, (..., 1)."""
    return outside(move(state, control)) - (1 - DECAY) * outside(state)


def straight(state):
    """Towards the goal at full speed, whatever stands between."""
    way = GOAL - state[..., :2]
    turn = torch.atan2(way[..., 1], way[..., 0]) - state[..., 2]
    turn = torch.atan2(turn.sin(), turn.cos())
    return torch.stack([torch.full_like(turn, 1.0), 4 * turn], dim=-1)


limits = hn.Box([0.0, -4.0], [1.0, 4.0])
safe = hn.layers.NonlinearLayer(hn.Nonlinear(barrier, dim=2, lower=0.0, name="barrier") & limits)
torch.manual_seed(0)
state = torch.cat([torch.rand(8, 2) - torch.tensor([3.5, 0.5]), torch.zeros(8, 1)], dim=-1).double()
worst, blind = torch.inf, state
for _ in range(40):
    state = move(state, safe(straight(state), state))
    blind = move(blind, straight(blind).clamp(torch.tensor([0.0, -4.0]), torch.tensor([1.0, 4.0])))
    worst = min(worst, outside(state).min().item())
print(f"least |p|^2 - 1 over 40 steps of 8 robots: {worst:.1e}; unfiltered, at the end: {outside(blind).min():.3f}")
assert worst > 0
