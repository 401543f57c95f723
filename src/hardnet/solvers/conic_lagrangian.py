"""The globally convergent phase: an augmented Lagrangian minimised by semismooth Newton steps.

For multipliers and a penalty rho it minimises ``1/2 |y - raw|^2 + rho/2 dist(G(y) + dual / rho, K)^2``, which is
strongly convex whatever the rank or the interior of the set, and then sets ``dual = rho (z - P_K(z))``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.conic_iterate import State, finite, pull, scale
from hardnet.solvers.stack import Stack

FAR = 1e6
"""Iterations stop where no point of the set lies within FAR times the size of raw and of the set's numbers."""
BEYOND_REACH = 1e2
"""The same for a sample that did not converge: it is called infeasible, and not merely unfinished."""
LARGEST_PENALTY = 1e9
"""Slopes are known to about LARGEST_PENALTY roundings: below this accuracy Newton alone goes on."""
TRIALS = 12
"""Points that one line search may look at."""


class Point(NamedTuple):
    """The augmented Lagrangian at y ``(B, n)``: ``z = G(y) + dual / penalty``, its excess over K, the gradient."""

    y: Tensor
    z: Tensor
    excess: Tensor
    gradient: Tensor


class Outcome(NamedTuple):
    """Where the phase ended: the iterate, the Newton steps spent ``(B,)`` and which samples are infeasible ``(B,)``."""

    state: State
    spent: Tensor
    gone: Tensor


def approach(raw: Tensor, stack: Stack, state: State, accuracy: float, limit: int) -> Outcome:
    """Newton steps until the residual is below `accuracy`; multipliers move as soon as a step is good enough."""
    size = scale(raw)
    running, spent = torch.ones_like(size, dtype=torch.bool), torch.zeros_like(size, dtype=torch.int64)
    gone, here = torch.zeros_like(running), look(raw, stack, state, state.y)
    for _ in range(limit):
        gap = (here.excess - state.dual / state.penalty).abs().amax(-1)
        slope = here.gradient.abs().amax(-1)
        good = running & (slope <= torch.maximum(0.1 * gap, 0.1 * accuracy * size))
        residual = torch.maximum(slope, gap) / size
        if bool(good.any()):
            gone = gone | (good & hopeless(raw, stack, state.y, FAR))
            state = _advance(state, here, good, residual)
            running = running & ~gone & ~(good & (residual <= accuracy))
            if not bool(running.any()):
                break
            here = look(raw, stack, state, state.y)
        spent = spent + running
        here = _descend(raw, stack, state, here, running)
        state = state._replace(y=here.y)
    return Outcome(state, spent, gone)


def look(raw: Tensor, stack: Stack, state: State, y: Tensor) -> Point:
    """Evaluate the augmented Lagrangian at y with the multipliers of `state`."""
    z = finite(stack.value(y) + state.dual / state.penalty)
    excess = z - stack.project(z)
    return Point(y, z, excess, y - raw + state.penalty * pull(stack, y, excess))


def _advance(state: State, here: Point, good: Tensor, residual: Tensor) -> State:
    """``dual = penalty excess`` where the inner problem is solved well enough; a tenfold penalty where that is slow."""
    dual = torch.where(good.unsqueeze(-1), state.penalty * here.excess, state.dual)
    slow = (good & (residual > 0.1 * state.residual)).unsqueeze(-1)
    penalty = torch.where(slow, (10 * state.penalty).clamp_max(LARGEST_PENALTY), state.penalty)
    return State(state.y, dual, penalty, torch.where(good, residual, state.residual))


def _descend(raw: Tensor, stack: Stack, state: State, here: Point, move: Tensor) -> Point:
    """One Newton step with a line search, for the samples `move` ``(B,)``."""
    linear, _ = stack.linear(here.y, here.z, torch.zeros_like(state.penalty))
    bend = state.penalty * (1 - linear.delta)
    H = stack.curvature(here.y, state.penalty * here.excess) + linear.rows.mT @ (bend.unsqueeze(-1) * linear.rows)
    L, _ = torch.linalg.cholesky_ex(H)
    direction = -torch.cholesky_solve(here.gradient.unsqueeze(-1), L).squeeze(-1)
    direction = torch.where(move.unsqueeze(-1) & direction.isfinite(), direction, torch.zeros_like(direction))
    return _search(raw, stack, state, here, direction)


def _search(raw: Tensor, stack: Stack, state: State, here: Point, direction: Tensor) -> Point:
    """The full step, or a shorter one where it overshoots: where the slope along `direction` has turned and is steep.

    The slope increases along the way by convexity, so its secant tells where it vanishes. Only slopes are compared:
    near the solution differences of values drown in rounding long before slopes do.
    """
    first = -(here.gradient * direction).sum(-1)
    step, running = torch.ones_like(first), first > 0
    there = look(raw, stack, state, here.y + direction)
    for _ in range(TRIALS):
        slope = (there.gradient * direction).sum(-1)
        running = running & (slope > 0.5 * first)
        if not bool(running.any()):
            break
        step = torch.where(running, step * (first / (first + slope)).clamp_min(0.1), step)
        there = look(raw, stack, state, here.y + step.unsqueeze(-1) * direction)
    return there


def hopeless(raw: Tensor, stack: Stack, y: Tensor, reach: float) -> Tensor:
    """Samples whose set has no point within `reach` sizes of y, by convexity of ``f(y) = 1/2 dist(G(y), K)^2``.

    ``0 = f(point) >= f(y) + grad f . (point - y)`` puts every feasible point at least ``f / |grad f|`` away.
    """
    value = finite(stack.value(y))
    excess = value - stack.project(value)
    half = (excess * excess).sum(-1) / 2
    gradient = torch.linalg.vector_norm(pull(stack, y, excess), dim=-1)
    size = scale(raw) + stack.size(y).amax(-1)
    return (half > reach * size * gradient) & (excess.abs().amax(-1) > 1e-7 * size)
