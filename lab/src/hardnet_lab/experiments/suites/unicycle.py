"""IPOPT for HardNet++'s unicycle: optima of its test poses, and the trajectories that give its training poses."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardnet.files import write_tensors
from hardnet_lab.experiments.optimal import Optimum, _casadi, _ipopt, _solve_all
from hardnet_lab.experiments.stamp import environment
from hardnet_lab.problems.suites.hardnetpp import UnicycleTask, fresh_states
from hardnet_lab.problems.suites.hardnetpp_rows import (
    CONTROL_WEIGHT,
    GOAL,
    LARGEST,
    OBSTACLE,
    STATES,
    STEPS,
    TERMINAL,
    TIME_STEP,
    advance,
)

TURNS = ((0.0, 0.0), (1.1, -0.8), (-1.1, 0.8), (0.5, 0.5), (-0.5, -0.5))
"""Turning rates of the starts in the first five and the next five steps: straight, around either side, arcs."""


def program(steps: int) -> tuple[Any, dict[str, list[float]]]:
    """IPOPT for a horizon of `steps` steps, and its bounds; the unknowns are the states, then the controls."""
    casadi = _casadi()
    states, controls, first = casadi.SX.sym("s", 3, steps), casadi.SX.sym("u", 2, steps), casadi.SX.sym("x", 3)
    gaps, keep, cost, before = [], [], 0, first
    for step in range(steps):
        state, control = states[:, step], controls[:, step]
        speed, turn = casadi.vertsplit(control)
        rate = casadi.vertcat(speed * casadi.cos(before[2]), speed * casadi.sin(before[2]), turn)
        gaps.append(state - before - TIME_STEP * rate)
        keep.append(OBSTACLE[0] * state[0] ** 2 + OBSTACLE[1] * state[1] ** 2)
        error = state - casadi.DM(GOAL)
        error = casadi.vertcat(error[0], error[1], casadi.atan2(casadi.sin(error[2]), casadi.cos(error[2])))
        weight = casadi.DM.ones(3) + (casadi.DM(TERMINAL) if step == steps - 1 else 0)
        cost += casadi.dot(weight, error**2) + CONTROL_WEIGHT * casadi.sumsqr(control)
        before = state
    unknown = casadi.vertcat(casadi.vec(states), casadi.vec(controls))
    free = [casadi.inf] * (3 * steps)
    bounds = {
        "lbx": [-entry for entry in free] + [0.0, -LARGEST[1]] * steps,
        "ubx": free + list(LARGEST) * steps,
        "lbg": [0.0] * (3 * steps) + [1.0] * steps,
        "ubg": [0.0] * (3 * steps) + [casadi.inf] * steps,
    }
    return _ipopt({"x": unknown, "p": first, "f": cost, "g": casadi.vertcat(*gaps, *keep)}, 1e-9), bounds


def starts(x: Tensor, steps: int, turns: tuple[tuple[float, float], ...]) -> list[Tensor]:
    """States and controls to start from, ``(samples, 5 steps)`` each: half speed with the given turning rates."""
    found = []
    for early, late in turns:
        rates = [early] * 5 + [late] * 5 + [0.0] * (steps - 10)
        controls = torch.tensor([[1.0, rate] for rate in rates], dtype=x.dtype).expand(len(x), -1, -1)
        state, states = x, []
        for control in controls.unbind(1):
            state = advance(state, control)
            states.append(state)
        found.append(torch.cat([*states, controls.flatten(1)], 1))
    return found


def solve_plan(problem: UnicycleTask, x: Tensor) -> Optimum:
    """The best solution from five starts for every pose, as outputs of the problem."""
    solve, bounds = program(STEPS)
    x = x.cpu()
    best = _solve_all(x, starts(x, STEPS, TURNS), lambda p, guess: solve(x0=guess, p=p, **bounds), solve)
    return best if problem.output_dim > STATES else best._replace(point=best.point[:, STATES:])


def record_states(path: Path, count: int = 1000, steps: int = 20) -> None:
    """Write every pose of the optimal trajectories over 20 steps from fresh poses with seed 7, in float32."""
    solve, bounds = program(steps)
    x = fresh_states(7, count)
    best = _solve_all(x, starts(x, steps, TURNS[:3]), lambda p, guess: solve(x0=guess, p=p, **bounds), solve)
    states = torch.cat([x.unsqueeze(1), best.point[:, : 3 * steps].unflatten(1, (steps, 3))], 1)
    made = environment(torch.device("cpu"))
    versions = made["versions"] | {"casadi": metadata.version("casadi"), "numpy": metadata.version("numpy")}
    about = {"made_by": "hardnet_lab.experiments.suites.unicycle.record_states", "seed": 7, "solver": best.solver}
    write_tensors(path, {"states": states.float()}, about | {"environment": made | {"versions": versions}})
