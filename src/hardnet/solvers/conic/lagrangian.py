"""The globally convergent phase: an augmented Lagrangian minimized by semismooth Newton steps.

For multipliers and a penalty rho it minimizes ``weight/2 |y - raw|^2 + rho/2 dist(G(y) + dual / rho, K)^2``, which is
strongly convex whatever the rank or the interior of the set, and then sets ``dual = rho (z - P_K(z))``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import gram
from hardnet.solvers.conic.iterate import State, Task, pull
from hardnet.solvers.conic.stack import Feet, Stack, finite

FAR = 1e6
"""Iterations stop where no point of the set lies within FAR times the size of raw and of the set's numbers."""
BEYOND_REACH = 1e2
"""The same for a sample that did not converge: it is called infeasible, and not merely unfinished."""
LARGEST_PENALTY = 1e9
"""Slopes are known to about LARGEST_PENALTY roundings: below this accuracy Newton alone goes on."""
FADING, FADING_STEPS = (1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 1e-18), 8
"""Weights of the distance beside the violation on the way to the least violated point, and Newton steps with each."""
TRIALS = 12
"""Points that one line search may try."""


class Point(NamedTuple):
    """The augmented Lagrangian at y ``(B, n)``: the feet of ``G(y) + dual / penalty``, and the gradient ``(B, n)``."""

    y: Tensor
    feet: Feet
    gradient: Tensor


class Outcome(NamedTuple):
    """Where the phase ended: the iterate, the Newton steps spent ``(B,)`` and which samples are infeasible ``(B,)``."""

    state: State
    spent: Tensor
    gone: Tensor


def approach(task: Task, state: State, accuracy: float, limit: int) -> Outcome:
    """Newton steps until the residual is below `accuracy`; multipliers move as soon as a step is good enough."""
    running = torch.ones_like(state.residual, dtype=torch.bool)
    spent = torch.zeros_like(running, dtype=torch.int64)
    here = evaluate(task, state, state.y)
    for _ in range(limit):
        gap = (here.feet.excess - state.dual / state.penalty).abs().amax(-1)
        slope = here.gradient.abs().amax(-1)
        good = running & (slope <= (0.1 * gap).clamp_min(0.1 * accuracy))
        residual = torch.maximum(slope, gap)
        if bool(good.any()):
            state = _advance(state, here, good, residual)
            running = running & ~(good & (residual <= accuracy))
            if not bool(running.any()):
                break
            here = evaluate(task, state, state.y)
        spent = spent + running
        here = _descend(task, state, here, running)
        state = state._replace(y=here.y)
    return Outcome(state, spent, running & out_of_reach(task.stack, state.y, FAR))


def evaluate(task: Task, state: State, y: Tensor) -> Point:
    """Evaluate the augmented Lagrangian at y with the multipliers of `state`."""
    found = task.stack.feet(finite(task.stack.value(y) + state.dual / state.penalty))
    return Point(y, found, task.slope(y) + state.penalty * pull(task.stack, y, found.excess))


def _advance(state: State, here: Point, good: Tensor, residual: Tensor) -> State:
    """``dual = penalty excess`` where the inner problem is solved well enough; a tenfold penalty where that is slow."""
    dual = torch.where(good.unsqueeze(-1), state.penalty * here.feet.excess, state.dual)
    slow = (good & (residual > 0.1 * state.residual)).unsqueeze(-1)
    penalty = torch.where(slow, (10 * state.penalty).clamp_max(LARGEST_PENALTY), state.penalty)
    return State(state.y, dual, penalty, torch.where(good, residual, state.residual))


def _descend(task: Task, state: State, here: Point, move: Tensor) -> Point:
    """One Newton step with a line search, for the samples `move` ``(B,)``."""
    linear, _ = task.stack.linear(here.y, here.feet, torch.zeros_like(state.penalty))
    bend = state.penalty * (1 - linear.delta)
    H = task.stack.curvature(task.weight, state.penalty * here.feet.excess)
    L, _ = torch.linalg.cholesky_ex(H + gram(linear.rows, bend))
    direction = -torch.cholesky_solve(here.gradient.unsqueeze(-1), L).squeeze(-1)
    direction = torch.where(move.unsqueeze(-1) & direction.isfinite(), direction, torch.zeros_like(direction))
    return _search(task, state, here, direction)


def _search(task: Task, state: State, here: Point, direction: Tensor) -> Point:
    """The full step, or a shorter one where it overshoots: where the slope along `direction` has turned and is steep.

    The slope increases along the way by convexity, so its secant tells where it vanishes. Only slopes are compared:
    near the solution differences of values are lost in rounding long before slopes do.
    """
    first = -(here.gradient * direction).sum(-1)
    step, running = torch.ones_like(first), first > 0
    there = evaluate(task, state, here.y + direction)
    for _ in range(TRIALS):
        slope = (there.gradient * direction).sum(-1)
        running = running & (slope > 0.5 * first)
        if not bool(running.any()):
            break
        step = torch.where(running, step * (first / (first + slope)).clamp_min(0.1), step)
        there = evaluate(task, state, here.y + step.unsqueeze(-1) * direction)
    return there


def proved_empty(task: Task, state: State, reach: float) -> Tensor:
    """Samples whose set has no point within `reach`, ``(B,)``, as their least violated point proves.

    There the slope of the violation vanishes, however narrow the gap. The distance to raw fades away on the way, so
    that it only chooses among points of the same violation.
    """
    plain = State(state.y, torch.zeros_like(state.dual), torch.ones_like(state.penalty), state.residual)
    found, everyone = out_of_reach(task.stack, state.y, reach), torch.ones_like(state.residual, dtype=torch.bool)
    for weight in FADING:
        light = task._replace(weight=weight * task.weight)
        here = evaluate(light, plain, plain.y)
        for _ in range(FADING_STEPS):
            here = _descend(light, plain, here, everyone)
        plain = plain._replace(y=torch.where(here.y.isfinite().all(-1, keepdim=True), here.y, plain.y))
        found = found | out_of_reach(task.stack, plain.y, reach)
        if bool(found.all()):
            break
    return found


def out_of_reach(stack: Stack, y: Tensor, reach: float) -> Tensor:
    """Samples whose set has no point within `reach` units of y, by convexity of ``f(y) = 1/2 dist(G(y), K)^2``.

    ``0 = f(point) >= f(y) + grad f . (point - y)`` puts every feasible point at least ``f / |grad f|`` away.
    """
    excess = stack.feet(finite(stack.value(y))).excess
    half = (excess * excess).sum(-1) / 2
    gradient = torch.linalg.vector_norm(pull(stack, y, excess), dim=-1)
    size = 1 + stack.size(y).amax(-1)
    return (half > reach * size * gradient) & (excess.abs().amax(-1) > 1e-7 * size)
