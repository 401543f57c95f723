"""What the unicycle's simulator itself allows: the best controls known, free in every sub-step that it takes.

The simulator cuts a step of 0.02 s where a control is large: a sub-step lasts ``min(rest of the step, 2 / |u|)``, and a
policy acts anew in each. So a policy can do what no sequence of 50 controls can. Here the sub-steps of a given run are
kept as a pattern, and all of its controls are optimised: the outcome is a run of the same simulator, never worse than
the one it starts from. The solver is a local one and the pattern is one of many: a best known value, not a proof.
Called by `hardnet.experiments.limits`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.experiments.optimal import CONTROL_LIMIT, _barrier_rows, _casadi, _dynamics, _ipopt
from hardnet.problems import Policy
from hardnet.problems.unicycle import TIME_STEP, Rollout, Unicycle

AREA = CONTROL_LIMIT * TIME_STEP
"""``|u| * length`` of a sub-step at most."""


class Run(NamedTuple):
    """One sample's way through the simulator, sub-step by sub-step.

    Attributes:
        controls: ``(sub-steps, 2)``.
        lengths: ``(sub-steps,)``, in seconds.
        ends: ``(sub-steps,)``: whether the sub-step is the last of its step of 0.02 s.
        cost: Of the whole second.
    """

    controls: Tensor
    lengths: Tensor
    ends: Tensor
    cost: float


@torch.no_grad()
def runs_of(problem: Unicycle, policy: Policy, x: Tensor) -> list[Run]:
    """How a policy drives from each state ``(samples, 5)``."""
    controls: list[Tensor] = []
    clocks: list[Tensor] = []

    def rate(x: Tensor, control: Tensor, y: Tensor, raw: Tensor) -> Tensor:
        controls.append(control)
        return problem.cost_and_residual(x, control, y, raw)

    def watch(now: Rollout) -> None:
        clocks.append(now.remaining)

    end = problem.rollout(policy, x, rate, record=watch)
    asked, clock = torch.stack(controls[1:], 1), torch.stack(clocks[:-1], 1)  # the first call only measures a shape
    longest = AREA / asked.abs().amax(-1)
    lengths = torch.minimum(clock, longest)
    return [
        Run(asked[i][lengths[i] > 0], lengths[i][lengths[i] > 0], (clock <= longest)[i][lengths[i] > 0], cost)
        for i, cost in enumerate(end.total[:, 0].tolist())
    ]


def improve(problem: Unicycle, x: Tensor, run: Run) -> Run:
    """The best controls with the run's own pattern of sub-steps, from the run; the run itself where none is better."""
    casadi = _casadi()
    program, bounds = _program(casadi, problem, run)
    solve = _ipopt(program, 1e-8)
    end = solve(x0=_guess(x, run).numpy(), p=x.numpy(), **bounds)
    if not solve.stats()["success"] or float(end["f"]) >= run.cost:
        return run
    count = len(run.lengths)
    numbers = torch.from_numpy(end["x"].full().ravel())
    return Run(numbers[: 2 * count].reshape(count, 2), numbers[2 * count : 3 * count], run.ends, float(end["f"]))


def _program(casadi: Any, problem: Unicycle, run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unknown controls, lengths and states; a cut sub-step lasts exactly as long as its largest control allows."""
    count = len(run.lengths)
    controls, lengths, states = (casadi.SX.sym(name, rows, count) for name, rows in (("u", 2), ("l", 1), ("s", 5)))
    state = initial = casadi.SX.sym("x", 5)
    equal, areas, rows, cost, elapsed = [], [], [], 0, 0
    for index in range(count):
        control, length, after = controls[:, index], lengths[index], states[:, index]
        rate = _dynamics(casadi, state, control)
        cost += length * _running_cost(casadi, problem, state, control)
        equal.append(after - state - length * rate)
        elapsed += length
        if run.ends[index]:
            equal.append(elapsed - TIME_STEP)
            elapsed = 0
        else:
            largest = int(run.controls[index].abs().argmax())
            equal.append(float(run.controls[index, largest].sign()) * control[largest] * length - AREA)
        areas.append(control * length)
        rows.append(_barrier_rows(casadi, state, rate))
        state = after
    equal, areas, rows = (casadi.vertcat(*part) for part in (equal, areas, rows))
    unknown = casadi.vertcat(casadi.vec(controls), casadi.vec(lengths), casadi.vec(states))
    program = {"x": unknown, "p": initial, "f": cost, "g": casadi.vertcat(equal, areas, rows)}
    lower = [0.0] * equal.numel() + [-AREA] * areas.numel() + [0.0] * rows.numel()
    upper = [0.0] * equal.numel() + [AREA] * areas.numel() + [casadi.inf] * rows.numel()
    least = [-casadi.inf] * (2 * count) + [0.0] * count + [-casadi.inf] * (5 * count)
    return program, {"lbg": lower, "ubg": upper, "lbx": least}


def _running_cost(casadi: Any, problem: Unicycle, state: Any, control: Any) -> Any:
    """``x'Qx + u'Ru``."""
    return casadi.dot(problem.state_weight.numpy(), state**2) + problem.control_weight * casadi.sumsqr(control)


def _guess(x: Tensor, run: Run) -> Tensor:
    """The unknowns of the run itself: controls, lengths and the states that they lead through."""
    states = []
    for control, length in zip(run.controls, run.lengths, strict=True):
        _, _, heading, speed, turn = x.unbind(-1)
        rate = torch.stack([speed * heading.cos(), speed * heading.sin(), turn])
        x = x + length * torch.cat([rate, control])
        states.append(x)
    return torch.cat([run.controls.flatten(), run.lengths, torch.stack(states).flatten()])
