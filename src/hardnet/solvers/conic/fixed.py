"""The projection onto blocks as a fixed program: so many interior point steps, then Newton on the active set.

No value is looked at, so that CUDA graphs take it; what it did not solve says so in its status. Where a look is free,
both loops end early and `conic` sends the rest to a solver that needs no interior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.modes import may_look
from hardnet.solvers.conic.distance import Answer, Guess, near_y, scaled_task
from hardnet.solvers.conic.interior import follow_path
from hardnet.solvers.conic.iterate import State, Task, optimality, pull, start
from hardnet.solvers.conic.lagrangian import BEYOND_REACH
from hardnet.solvers.conic.newton import TARGET, step
from hardnet.solvers.conic.saddle import StiffSaddle
from hardnet.solvers.conic.stack import Stack
from hardnet.solvers.solution import choose

STEPS = 20
"""Interior point steps; problems of the benchmarks take 9 to 16."""
POLISH = 5
"""Newton steps on the active set; most samples need two."""


FREE = 3
"""From this step on one must halve the residual for another to follow."""


def follow_and_polish(raw: Tensor, stack: Stack, unit: Tensor, steps: int = STEPS) -> Answer:
    """The projection of raw ``(B, n)`` after at most `steps` interior point steps, in lengths of `unit` ``(B, 1)``."""
    origin = Guess(raw, raw.new_zeros(raw.shape[0], sum(stack.sizes)), unit)
    task, factor = scaled_task(raw, stack, origin, torch.ones_like(unit))
    found = follow_path(task, steps)
    lost = beyond_reach(task, found.y, found.dual)
    guess, weight = near_y(raw, stack, found.y * unit, found.dual / factor)
    task, factor = scaled_task(raw, stack, guess, weight)
    state, more = _polish(task, start(task, guess.y / guess.unit, guess.dual * factor))
    iterations = found.iterations + more
    y, dual = state.y * guess.unit, state.dual / factor
    return Answer(y, dual, guess.unit, state.residual, iterations, lost & (state.residual > 1e-9))


def _polish(task: Task, state: State) -> tuple[State, Tensor]:
    """The best of some Newton steps, and which ``(B,)``; a step may raise the residual to change the active set."""
    best, kept, noise = state, torch.zeros_like(state.residual, dtype=torch.int64), torch.zeros_like(state.penalty)
    running = best.residual > TARGET
    for number in range(1, POLISH + 1):
        y, dual = step(task, state, noise, StiffSaddle)
        state = State(y, dual, state.penalty, optimality(task, y, dual))
        better = running & (state.residual < best.residual)
        halved = (state.residual < 0.5 * best.residual) | (number < FREE)
        best = State(*(choose(better, new, old) for new, old in zip(state, best, strict=True)))
        kept, running = torch.where(better, number, kept), running & halved & (best.residual > TARGET)
        if may_look(kept) and not bool(running.any()):
            break
    return best, kept


def beyond_reach(task: Task, y: Tensor, dual: Tensor) -> Tensor:
    """Samples whose multipliers prove that the set has no point near y, ``(B,)``.

    ``dual . G`` is convex and not positive at a point z of the set, so ``|z - y| >= dual . G(y) / |DG'dual|``, where
    intervals count from the bound that the sign of the multiplier picks.
    """
    stack = task.stack
    height = torch.stack(
        [image.height(y, own) for image, own in zip(stack.images, stack.split(dual), strict=True)]
    ).sum(0)
    slope = torch.linalg.vector_norm(pull(stack, y, dual), dim=-1)
    size = 1 + y.abs().amax(-1)
    return (height > BEYOND_REACH * size * slope) & (height > 1e-7 * size * dual.abs().amax(-1))
