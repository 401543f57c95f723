"""The fast phase: Newton on ``y - raw + DG'dual = 0``, ``G = P_K(G + dual)``, and the final repair."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.modes import may_look
from hardnet.products import times_tiled
from hardnet.solvers.conic.iterate import State, Task, conditions, optimality
from hardnet.solvers.conic.saddle import Saddle, StiffSaddle
from hardnet.solvers.solution import choose, place, take

TARGET = 2.0**-52
"""Newton stops here, or where a step no longer halves the residual."""

REPAIRS = 3
"""Steps inwards at most."""


def finish(task: Task, state: State, limit: int = 12) -> tuple[State, Tensor]:
    """Newton steps, kept only where they lower the residual; returns how many were kept ``(B,)`` too."""
    state = state._replace(residual=optimality(task, state.y, state.dual))
    steps, running = torch.zeros_like(state.residual, dtype=torch.int64), state.residual > TARGET
    for _ in range(limit):
        index = running.nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        moved, better, again = _try_step(task.select(index), take(state, index))
        state, running = place(state, index, moved), running.index_copy(0, index, again)
        steps = steps.index_add(0, index, better.to(steps.dtype))
    return state, steps


def _try_step(task: Task, state: State) -> tuple[State, Tensor, Tensor]:
    """One step, kept where it lowers the residual; which samples it helped, and which may need another ``(B,)``."""
    y, dual = step(task, state, torch.zeros_like(state.penalty))
    residual = optimality(task, y, dual)
    better = residual < state.residual
    keep = better.unsqueeze(-1)
    y, dual = torch.where(keep, y, state.y), torch.where(keep, dual, state.dual)
    again = (residual > TARGET) & (residual < 0.5 * state.residual)
    return State(y, dual, state.penalty, torch.where(better, residual, state.residual)), better, again


def step(task: Task, state: State, noise: Tensor, saddle: type[Saddle | StiffSaddle] = Saddle) -> tuple[Tensor, Tensor]:
    """One semismooth Newton step to ``(y, dual)``; multipliers below `noise` ``(B, 1)`` count as zero.

    In the eigenbasis of the cone projection's derivative, tight rows get ``C dy = -residual``, the others
    ``d dual = ((1 - delta) rows dy + residual) / delta``, which leaves one saddle system in dy.
    """
    stack = task.stack
    first, second, feet = conditions(task, state.y, state.dual)
    linear, frames = stack.linear(state.y, feet, noise)
    system = saddle(linear.hessian(stack.curvature(task.weight, state.dual)), linear)
    second = stack.rotate(frames, second)
    shift = linear.inverse * second
    right = -first - times_tiled(linear.rows.mT, shift)
    move, force = system.solve(right, torch.where(linear.tight, -second, torch.zeros_like(second)))
    change = linear.bend * times_tiled(linear.rows, move) + shift + force
    return state.y + move, state.dual + stack.restore(frames, change)


def repair(task: Task, state: State) -> Tensor:
    """Where the answer still misses a row by more than rounding: Newton steps towards the set tightened by it."""
    if not may_look(state.y):
        return _repair_all(task, state)
    for _ in range(REPAIRS):
        over = task.stack.overshoot(state.y)
        index = (over > 1).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        part, own = task.select(index), take(state, index)
        moved = _inward(part, own)
        better = (part.stack.overshoot(moved) < over[index]).unsqueeze(-1)
        state = state._replace(y=state.y.index_copy(0, index, torch.where(better, moved, own.y)))
    return state.y


def _repair_all(task: Task, state: State) -> Tensor:
    """The same without a look: all samples take every step, and keep what helps those that need it."""
    over = task.stack.overshoot(state.y)
    for _ in range(REPAIRS):
        moved = _inward(task, state, StiffSaddle)
        left = task.stack.overshoot(moved)
        better = (over > 1) & (left < over)
        state, over = state._replace(y=choose(better, moved, state.y)), torch.where(better, left, over)
    return state.y


def _inward(task: Task, state: State, saddle: type[Saddle | StiffSaddle] = Saddle) -> Tensor:
    """One Newton step to the set tightened by four times the worst miss."""
    missed = task.stack.outside(state.y)
    least = 4 * torch.finfo(missed.dtype).eps  # below it a margin drowns in rounding
    margin = (4 * missed.amax(-1, keepdim=True) + least).expand_as(missed)
    noise = 1e-10 * (1 + state.dual.abs().amax(-1, keepdim=True))
    return step(task._replace(stack=task.stack.tightened(margin)), state, noise, saddle)[0]
