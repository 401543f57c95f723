"""The best known controls for the unicycle's simulator, free in every sub-step that it takes.

The simulator cuts a step of 0.02 s where a control is large: a sub-step lasts ``min(rest of the step, 2 / |u|)``, and
the policy is evaluated again in each. So a policy can do what no sequence of 50 controls can. Here the sub-steps of a
given run are kept as a pattern and all its controls are optimized. The result is a run of the same simulator, never
worse than the initial one. The solver is local and the pattern is one of many: a best known value, not a proof.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ConvergenceError
from hardnet_lab.experiments.optimal import CONTROL_LIMIT, _barrier_rows, _casadi, _dynamics, _ipopt
from hardnet_lab.problems import Policy
from hardnet_lab.problems.barrier import nominal_control
from hardnet_lab.problems.unicycle import TIME_STEP, Rollout, Unicycle

AREA = CONTROL_LIMIT * TIME_STEP
"""Upper bound on ``|u| * length`` of a sub-step."""


HOLDS = 1e-8
"""Allowed violation of a barrier row, integrated over one second: the solver's own tolerance."""


class Run(NamedTuple):
    """One sample's run through the simulator, sub-step by sub-step.

    Attributes:
        controls: ``(sub-steps, 2)``.
        lengths: ``(sub-steps,)``, in seconds.
        ends: ``(sub-steps,)``: whether the sub-step is the last of its step of 0.02 s.
        cost: Cost over the whole second.
        violation: The largest violation of a barrier, integrated over the second.
    """

    controls: Tensor
    lengths: Tensor
    ends: Tensor
    cost: float
    violation: float = 0.0


@torch.no_grad()
def runs_of(problem: Unicycle, policy: Policy, x: Tensor) -> list[Run]:
    """The runs of a policy from each state ``(samples, 5)``."""
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
    taken = lengths > 0
    return [
        Run(asked[i][taken[i]], lengths[i][taken[i]], (clock <= longest)[i][taken[i]], *totals)
        for i, totals in enumerate(zip(end.total[:, 0].tolist(), end.total[:, 1:].amax(-1).tolist(), strict=True))
    ]


def improve(problem: Unicycle, x: Tensor, run: Run) -> Run:
    """The best controls with the run's own pattern of sub-steps, starting from the run; the run if none is better.

    The solver's result is replayed in the simulator: its cost there counts, and no barrier may be violated by more than
    `HOLDS`.
    """
    casadi = _casadi()
    program, bounds = _program(casadi, problem, run)
    solve = _ipopt(program, 1e-8)
    end = solve(x0=_guess(x, run).numpy(), p=x.numpy(), **bounds)
    if not solve.stats()["success"] or float(end["f"]) >= run.cost:
        return run
    count = len(run.lengths)
    found = replayed(problem, x, torch.from_numpy(end["x"].full().ravel())[: 2 * count].reshape(count, 2))
    return found if found is not None and found.cost < run.cost else run


def replayed(problem: Unicycle, x: Tensor, controls: Tensor) -> Run | None:
    """The run of these controls in the simulator, one per sub-step; None if a barrier or the pattern is violated."""
    step = iter([*controls, *controls[-1:].expand(len(controls), -1)])
    policy: Policy = lambda state: next(step).unsqueeze(0) - nominal_control(state)
    try:
        run = runs_of(problem, policy, x.unsqueeze(0))[0]
    except (StopIteration, ConvergenceError):
        return None
    return run if run.violation <= HOLDS and len(run.lengths) == len(controls) else None


def _program(casadi: Any, problem: Unicycle, run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The program over controls, lengths and states; a cut sub-step lasts exactly as long as its control allows."""
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
    held = [casadi.vertcat(*part) for part in (equal, areas, rows)]
    unknown = casadi.vertcat(casadi.vec(controls), casadi.vec(lengths), casadi.vec(states))
    program = {"x": unknown, "p": initial, "f": cost, "g": casadi.vertcat(*held)}
    return program, _bounds(casadi, count, *(part.numel() for part in held))


def _bounds(casadi: Any, count: int, equal: int, areas: int, rows: int) -> dict[str, Any]:
    """Bounds for the given numbers of equalities, control areas and barrier rows, and for the unknowns."""
    lower = [0.0] * equal + [-AREA] * areas + [0.0] * rows
    upper = [0.0] * equal + [AREA] * areas + [casadi.inf] * rows
    least = [-casadi.inf] * (2 * count) + [0.0] * count + [-casadi.inf] * (5 * count)
    return {"lbg": lower, "ubg": upper, "lbx": least}


def _running_cost(casadi: Any, problem: Unicycle, state: Any, control: Any) -> Any:
    """``x'Qx + u'Ru``."""
    return casadi.dot(problem.state_weight.numpy(), state**2) + problem.control_weight * casadi.sumsqr(control)


def _guess(x: Tensor, run: Run) -> Tensor:
    """The unknowns at the run itself: controls, lengths and the resulting states."""
    states = []
    for control, length in zip(run.controls, run.lengths, strict=True):
        _, _, heading, speed, turn = x.unbind(-1)
        rate = torch.stack([speed * heading.cos(), speed * heading.sin(), turn])
        x = x + length * torch.cat([rate, control])
        states.append(x)
    return torch.cat([run.controls.flatten(), run.lengths, torch.stack(states).flatten()])


def cut(run: Run, pieces: tuple[int, ...]) -> Run:
    """A run of 50 whole steps with the first ones cut into `pieces` sub-steps each, as a pattern to start from.

    The sub-steps of a cut step have equal lengths, and the larger control is ``2 / length`` in all but the last.
    """
    controls, lengths, ends = [], [], []
    for step, control in enumerate(run.controls):
        count = pieces[step] if step < len(pieces) else 1
        needed = AREA / (TIME_STEP / count)
        scale = needed / float(control.abs().max()) if count > 1 else 1.0
        controls += [control * scale] * (count - 1) + [control]
        lengths += [TIME_STEP / count] * count
        ends += [False] * (count - 1) + [True]
    numbers = torch.tensor(lengths, dtype=run.controls.dtype)
    return Run(torch.stack(controls), numbers, torch.tensor(ends), float("inf"))


def path_of(x: Tensor, run: Run) -> list[list[float]]:
    """Positions along a run from x ``(5,)``, rounded for drawing."""
    states = _guess(x, run)[3 * len(run.lengths) :].reshape(-1, 5)
    return [[round(number, 4) for number in state[:2].tolist()] for state in (x, *states)]
