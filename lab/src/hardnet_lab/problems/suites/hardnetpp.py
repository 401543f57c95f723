"""Model predictive control of a unicycle around an obstacle: the task of HardNet++, ``hardnet suite hardnetpp``.

`UnicyclePlan` has the states and the controls as its 50 outputs, with 30 equalities, 10 keep-out rows and 20 bounds,
as published. `UnicycleControls` outputs only the 20 controls: the states are computed from them, so the dynamics hold
by construction and the keep-out rows and bounds remain. Both are measured on the same 50 numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from importlib import resources
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from hardnet.files import DIGEST, read_tensors
from hardnet.sets import Box, Nonlinear
from hardnet_lab.problems.base import Policy, random_generator
from hardnet_lab.problems.suites.base import SuiteProblem

# The formulas of HardNet++'s unicycle: cost, rows and Jacobians, for plans and for controls.
#
# From the pose s_0 = (p_x, p_y, heading), ten steps of 0.2 s with the speed v_k and the turning rate w_k:
#
#     min  sum_k |e_k|^2 + e_T' diag(10, 10, 1) e_T + 0.1 |(v, w)|^2,   e = s - (3.5, 0, 0), the heading wrapped
#     s.t. s_k = s_{k-1} + 0.2 (v_k cos heading_{k-1}, v_k sin heading_{k-1}, w_k),   p_k'diag(Q) p_k >= 1,
#          0 <= v <= 2,  |w| <= 1.5.


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


START = (-4.0, -2.2), (-2.4, 2.4), (-0.45, 0.45)
"""Ranges of p_x, p_y and heading from which fresh poses are drawn."""

CLEAR = 1.2
"""Smallest keep-out value of an initial pose."""

VALIDATION = 200
"""Number of poses for validation, taken from the 20 % that are not trained on."""


def fresh_states(seed: int, count: int) -> Tensor:
    """Poses ``(count, 3)`` before the obstacle with a keep-out value above `CLEAR`, drawn as published."""
    random = random_generator(seed)
    states: list[list[float]] = []
    while len(states) < count:
        state = [random.uniform(*bounds) for bounds in START]
        if sum(weight * place**2 for weight, place in zip(OBSTACLE, state, strict=False)) > CLEAR:
            states.append(state)
    return torch.tensor(states, dtype=torch.float64)


def recorded_states() -> tuple[Tensor, str]:
    """The poses of the 1000 recorded trajectories, ``(poses, 3)``, and the digest of their file.

    Only poses as clear of the obstacle as fresh ones are kept: for a pose that touches it, rounding decides whether a
    feasible plan exists. The published recipe takes all 21000 and does not need one.
    """
    path = Path(str(resources.files("hardnet_lab.problems.suites") / "data" / "hardnetpp-states.safetensors"))
    header, tensors = read_tensors(path, "expected the recorded poses of the unicycle")
    states = tensors["states"].double().flatten(0, 1)
    clear = (states[:, :2].square() * states.new_tensor(OBSTACLE)).sum(-1) > CLEAR
    return states[clear], (header or {})[DIGEST][:16]


class MirroredNetwork(nn.Module):
    """From a pose ``(*batch, 3)`` to controls ``(*batch, 20)`` that are mirrored when the pose is, at the goal's axis.

    The side on which to pass the obstacle is ``sign(p_y + heading)``, which costs 0.02 % over 300 training states
    compared with the best choice; the network gets the mirrored pose, for which it always passes on the left.

    Args:
        inputs: 3.
        outputs: 20, or 50 for the plan obtained by rolling out the controls.
        width: Width of the two hidden layers.
    """

    def __init__(self, inputs: int, outputs: int, width: int = 256) -> None:
        super().__init__()
        self.plans = outputs != CONTROLS
        sizes = (inputs + 1, width, width)
        blocks = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.SiLU())]
        self.body = nn.Sequential(*blocks, nn.Linear(width, CONTROLS))

    def forward(self, x: Tensor) -> Tensor:
        """Controls around (1, 0), in units of half their range."""
        side = 2 * (x[..., 1:2] + x[..., 2:] >= 0).to(x.dtype) - 1
        features = [x[..., :1] / 3, side * x[..., 1:2] / 1.5, side * x[..., 2:].sin(), x[..., 2:].cos()]
        speed, turn = self.body(torch.cat(features, -1)).unflatten(-1, (STEPS, 2)).unbind(-1)
        controls = torch.stack([1 + speed, LARGEST[1] * side * turn], -1).flatten(-2)
        return roll_out(cut(controls), x) if self.plans else controls


class UnicycleTask(SuiteProblem):
    """Base of both formulations of the task: data, cost, and the rows of the published plan.

    It is trained on a random 80 % of the recorded poses (seed 13) and tested on 100 fresh poses (seed 101), as
    published.
    """

    batch_size = 1000
    soft_weight = 300.0
    network = MirroredNetwork

    def __init__(self) -> None:
        states, digest = recorded_states()
        order = torch.randperm(len(states), generator=torch.Generator().manual_seed(13))
        count = int(0.8 * len(states))
        parts = states[order[:count]], states[order[count : count + VALIDATION]]
        self.take_data(*parts, fresh_states(101, 100), digest)

    @abstractmethod
    def plan(self, y: Tensor, x: Tensor) -> Tensor:
        """The 50 numbers of the published plan for an output y."""

    def value(self, y: Tensor, x: Tensor) -> Tensor:
        """The cost of the plan."""
        return cost(self.plan(y, x))

    def residuals(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """``|dynamics|``, and the violations of keep-out rows and control bounds, on the published 50 numbers."""
        plan = self.plan(y, x)
        controls = plan[..., STATES:]
        bounds = (controls - cut(controls)).abs()
        return dynamics(plan, x).abs(), torch.cat([(1 - keep_out(plan)).clamp_min(0), bounds], -1)

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """The metrics of all suites, and HardNet++'s suboptimality ``mean relu(f - f*) / f*``."""
        given = self.inputs(x)
        y = policy(given)
        metrics = super().evaluate(lambda _: y, x)
        above = (self.value(y, given) / x[..., self.input_dim] - 1).clamp_min(0)
        known = {"suboptimality": above.mean(-1), "suboptimality_max": above.amax(-1)}
        return metrics | known if "gap" in metrics else metrics


class UnicyclePlan(UnicycleTask):
    """States and controls as outputs: 30 equalities, 10 keep-out rows, 20 bounds, as published."""

    name = "hardnetpp-plan"
    output_dim = STATES + CONTROLS

    def __init__(self) -> None:
        super().__init__()
        free = torch.full((STATES,), torch.inf, dtype=torch.float64)
        lower, upper = limits(free)
        zeros, ones = torch.zeros(STATES, dtype=torch.float64), torch.ones(STEPS, dtype=torch.float64)
        rows = Nonlinear(
            plan_rows,
            dim=self.output_dim,
            lower=torch.cat([zeros, ones]),
            upper=torch.cat([zeros, torch.inf * ones]),
            jacobian=plan_jacobian,
            name="plan",
        )
        self.constraint = rows & Box(torch.cat([-free, lower]), torch.cat([free, upper]))

    def plan(self, y: Tensor, x: Tensor) -> Tensor:
        """The outputs themselves."""
        return y

    def penalty(self, y: Tensor, x: Tensor) -> Tensor:
        """Squared violations plus 0.1 times the inequality violations themselves, so that few of these remain."""
        equalities, inequalities = self.residuals(y, x)
        return equalities.square().sum(-1) + inequalities.square().sum(-1) + 0.1 * inequalities.sum(-1)


class UnicycleControls(UnicycleTask):
    """Controls as outputs, the states by roll-out: 10 keep-out rows and 20 bounds remain."""

    name = "hardnetpp-controls"
    output_dim = CONTROLS

    def __init__(self) -> None:
        super().__init__()
        rows = Nonlinear(control_rows, dim=CONTROLS, lower=1.0, jacobian=control_jacobian, name="keep out")
        self.constraint = rows & Box(*limits(torch.zeros(1, dtype=torch.float64)))

    def plan(self, y: Tensor, x: Tensor) -> Tensor:
        """The roll-out of the controls."""
        return roll_out(y, x)

    def value(self, y: Tensor, x: Tensor) -> Tensor:
        """The cost of the controls clamped to their bounds, so that a raw output outside them gains nothing."""
        return cost(roll_out(cut(y), x))

    def penalty(self, y: Tensor, x: Tensor) -> Tensor:
        """Penalty of the clamped controls' keep-out rows, and of the clamping itself with 1/300 of the weight."""
        inside = cut(y)
        keep = (1 - control_rows(inside, x)).clamp_min(0)
        return keep.square().sum(-1) + 0.1 * keep.sum(-1) + (y - inside).square().sum(-1) / 300
