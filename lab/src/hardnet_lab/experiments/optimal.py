"""Optima of the problems by IPOPT (the one bundled with CasADi), to which the tables measure the distance."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import MissingExtraError
from hardnet_lab.problems.barrier import ALPHA, ARM, KAPPA, OBSTACLES
from hardnet_lab.problems.programs import Programs
from hardnet_lab.problems.suites import SuitePrograms
from hardnet_lab.problems.unicycle import STEPS, TIME_STEP, Unicycle

CONTROL_LIMIT = 100.0
"""Bound on each control of the open-loop optimum: above it the simulator would cut its step."""


class Optimum(NamedTuple):
    """The best value found for each sample.

    Attributes:
        value: ``(samples,)``.
        point: ``(samples, n)``: the minimizer.
        milliseconds: Mean processor time of one solve.
        solver: Name of the solver, as printed in tables.
    """

    value: Tensor
    point: Tensor
    milliseconds: float
    solver: str = "IPOPT"


def _casadi() -> Any:
    try:
        import casadi
    except ImportError:
        raise MissingExtraError("casadi") from None
    return casadi


def _ipopt(program: dict[str, Any], tolerance: float, **more: Any) -> Any:
    """A silent IPOPT for one symbolic program; `more` are CasADi options."""
    options = {"ipopt.print_level": 0, "print_time": False, "ipopt.sb": "yes", "ipopt.tol": tolerance} | more
    options["ipopt.bound_relax_factor"] = 0.0  # so that the optimum is feasible, not just nearly feasible
    return _casadi().nlpsol("solve", "ipopt", program, options)


def optimal_programs(problem: Programs | SuitePrograms, x: Tensor) -> Optimum:
    """``min 1/2 y'Qy + p'sin y  s.t.  A y <= b, C y = x`` from the feasible start ``C⁺ x``, one x at a time."""
    casadi = _casadi()
    problem, x = problem.to("cpu"), x.cpu()
    like = torch.zeros_like(problem.Q)
    A, _, b = problem.inequalities.affine(None, like)
    C = problem.equalities.affine(x[0], like).A
    y, parameter = casadi.MX.sym("y", problem.output_dim), casadi.MX.sym("x", problem.input_dim)
    linear = y if problem.convex else casadi.sin(y)
    value = 0.5 * casadi.dot(problem.Q.numpy(), y**2) + casadi.dot(problem.p.numpy(), linear)
    rows = casadi.vertcat(casadi.mtimes(A.numpy(), y), casadi.mtimes(C.numpy(), y) - parameter)
    solve = _ipopt({"x": y, "p": parameter, "f": value, "g": rows}, 1e-10)
    zeros = [0.0] * len(C)
    lower, upper = [-casadi.inf] * len(A) + zeros, _numbers(b) + zeros
    starts = x @ torch.linalg.pinv(C).T
    return _solve_all(x, [starts], lambda p, y0: solve(x0=y0, p=p, lbg=lower, ubg=upper), solve)


def optimal_control(problem: Unicycle, x: Tensor, starts: list[Tensor]) -> Optimum:
    """The cheapest open-loop controls that satisfy both barrier rows and ``|u| <= 100``, in Euler steps of 0.02 s.

    Args:
        problem: The unicycle.
        x: Initial states ``(samples, 5)``.
        starts: Controls ``(samples, 50, 2)`` to start the solver from; the best result is kept.
    """
    casadi = _casadi()
    solve = _ipopt(_transcription(casadi, problem), 1e-8)
    bound = [CONTROL_LIMIT] * (2 * STEPS) + [casadi.inf] * (5 * STEPS)
    lower, upper = [0.0] * (7 * STEPS), [0.0] * (5 * STEPS) + [casadi.inf] * (2 * STEPS)

    def run(p: Any, guess: Any) -> Any:
        return solve(x0=guess, p=p, lbx=[-entry for entry in bound], ubx=bound, lbg=lower, ubg=upper)

    guesses = [torch.cat([start.flatten(1), _follow(x, start).flatten(1)], 1) for start in starts]
    return _solve_all(x, guesses, run, solve)


def _transcription(casadi: Any, problem: Unicycle) -> dict[str, Any]:
    """The program over 50 controls and the 50 states after them: gaps must be zero, barrier rows nonnegative."""
    controls, states = casadi.SX.sym("u", 2, STEPS), casadi.SX.sym("s", 5, STEPS)
    initial = casadi.SX.sym("x", 5)
    gaps, rows, cost, state = [], [], 0, initial
    for step in range(STEPS):
        control, after = controls[:, step], states[:, step]
        rate = _dynamics(casadi, state, control)
        weight = casadi.dot(problem.state_weight.numpy(), state**2) + problem.control_weight * casadi.sumsqr(control)
        cost += TIME_STEP * weight
        rows.append(_barrier_rows(casadi, state, rate))
        gaps.append(after - state - TIME_STEP * rate)
        state = after
    unknown = casadi.vertcat(casadi.vec(controls), casadi.vec(states))
    return {"x": unknown, "p": initial, "f": cost, "g": casadi.vertcat(*gaps, *rows)}


def _numbers(bound: Tensor | None) -> list[float]:
    return [] if bound is None else bound.tolist()


def _dynamics(casadi: Any, state: Any, control: Any) -> Any:
    """``ẋ = f(x) + g(x) u`` of the unicycle."""
    _, _, heading, speed, turn = casadi.vertsplit(state)
    return casadi.vertcat(speed * casadi.cos(heading), speed * casadi.sin(heading), turn, control)


def _barrier_rows(casadi: Any, state: Any, rate: Any) -> Any:
    """``ḣ + α h >= 0`` per obstacle, by symbolic differentiation of the ellipse along the motion."""
    x = casadi.SX.sym("x", 5)
    drift = _dynamics(casadi, x, casadi.DM.zeros(2))
    rows = []
    for cx, cy, rx, ry in OBSTACLES:
        ellipse = (
            ((x[0] + ARM * casadi.cos(x[2]) - cx) / rx) ** 2 + ((x[1] + ARM * casadi.sin(x[2]) - cy) / ry) ** 2 - 1
        )
        height = casadi.jtimes(ellipse, x, drift) + KAPPA * ellipse
        row = casadi.jtimes(height, x, rate) + ALPHA * height
        rows.append(casadi.substitute(row, x, state))
    return casadi.vertcat(*rows)


def _follow(x: Tensor, controls: Tensor) -> Tensor:
    """The Euler states ``(samples, 50, 5)`` after each of the controls ``(samples, 50, 2)``."""
    states = []
    for control in controls.unbind(1):
        _, _, heading, speed, turn = x.unbind(-1)
        rate = torch.stack([speed * heading.cos(), speed * heading.sin(), turn], -1)
        x = x + TIME_STEP * torch.cat([rate, control], -1)
        states.append(x)
    return torch.stack(states, 1)


def _solve_all(x: Tensor, starts: list[Tensor], run: Callable[..., Any], solver: Any) -> Optimum:
    """Solve every sample from every start and keep its best converged solution."""
    values, points = torch.full((len(x),), torch.inf, dtype=torch.float64), torch.zeros_like(starts[0])
    began = time.process_time()
    for start in starts:
        for index, (parameter, guess) in enumerate(zip(x, start, strict=True)):
            end = run(parameter.numpy(), guess.numpy())
            value = float(end["f"])
            if solver.stats()["success"] and value < values[index]:
                values[index] = value
                points[index] = torch.from_numpy(end["x"].full().ravel())
    elapsed = time.process_time() - began
    return Optimum(values, points, 1e3 * elapsed / (len(x) * len(starts)))
