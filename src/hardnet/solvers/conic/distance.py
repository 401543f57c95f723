"""Projections from near and from far: the same problem in the unit of raw, and then in the unit of the answer.

Far away from a small set, rounding relative to raw is no accuracy at y. But ``y = P(raw)`` is also the projection of
every point between y and raw. So a first answer names a point on the way, a hundred sizes of the set away; its
projection is exact at the size of the set; and Newton, with the distance weighted so that the multipliers are of that
size too, carries it over to raw itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import HALFWAY
from hardnet.modes import may_look
from hardnet.products import power_above
from hardnet.solvers.conic.iterate import State, Task, start
from hardnet.solvers.conic.lagrangian import BEYOND_REACH, approach, proved_empty
from hardnet.solvers.conic.newton import finish, repair
from hardnet.solvers.conic.stack import Stack
from hardnet.solvers.solution import place, take

ROUNDS = tuple(accuracy for accuracy in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-11) for _ in range(4))
"""Accuracies at which the augmented Lagrangian hands over to Newton; each round takes the samples still open."""
STEPS = 8
"""Newton steps of the augmented Lagrangian in one round: then solved samples leave the batch."""


class Guess(NamedTuple):
    """Where to start: point ``(B, n)``, multipliers ``(B, r)`` in plain numbers, and the unit to work in ``(B, 1)``."""

    y: Tensor
    dual: Tensor
    unit: Tensor


class Answer(NamedTuple):
    """Point, multipliers and residual of each sample, the unit that the residual is relative to, and the effort.

    Attributes:
        y: ``(B, n)``.
        dual: ``(B, r)``, of the rows as they were given.
        unit: ``(B, 1)``.
        residual: Largest violation of an optimality condition, ``(B,)``.
        iterations: ``(B,)``.
        lost: Whether the set has no point within reach, ``(B,)``.
    """

    y: Tensor
    dual: Tensor
    unit: Tensor
    residual: Tensor
    iterations: Tensor
    lost: Tensor


def settle(raw: Tensor, stack: Stack, guess: Guess, weight: Tensor, tolerance: float) -> Answer:
    """The projection in `guess.unit`, with the distance weighted by ``(B, 1)`` numbers: Newton first, then all."""
    task, factor = scaled_task(raw, stack, guess, weight)
    first, lean = guess.y / guess.unit, guess.dual * factor
    state, steps = _recall(task, start(task, first, lean))
    state, iterations, lost = _alternate(task, state, tolerance)
    iterations = iterations + steps
    y = torch.where((iterations > 0).unsqueeze(-1), state.y * guess.unit, guess.y)
    return Answer(y, state.dual / factor, guess.unit, state.residual, iterations, lost)


def _recall(task: Task, state: State) -> tuple[State, Tensor]:
    """Newton alone where multipliers are known, and its steps ``(B,)``."""
    known = (state.dual != 0).any(-1).nonzero().squeeze(-1)
    near, steps = finish(task.select(known), take(state, known))
    none = torch.zeros_like(state.residual, dtype=torch.int64)
    return place(state, known, near), none.index_add(0, known, steps)


def scaled_task(raw: Tensor, stack: Stack, guess: Guess, weight: Tensor) -> tuple[Task, Tensor]:
    """The scaled task, and what to multiply plain multipliers by to get its own."""
    factors = stack.factors(guess.y)
    task = Task(raw / guess.unit, weight, stack.scaled(factors, guess.unit))
    return task, stack.spread(factors, raw) * weight / guess.unit


def _alternate(task: Task, state: State, tolerance: float) -> tuple[State, Tensor, Tensor]:
    """Alternate the globally convergent phase and the fast one until each sample is solved.

    Returns the state, the steps spent ``(B,)``, and which samples have no point within reach ``(B,)``.
    """
    iterations = torch.zeros_like(state.residual, dtype=torch.int64)
    lost = torch.zeros_like(state.residual, dtype=torch.bool)
    for accuracy in ROUNDS:
        index = ((state.residual > max(tolerance * 1e-3, 1e-13)) & ~lost).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        part, spent, gone = _round(task.select(index), take(state, index), accuracy)
        state = place(state, index, part)
        iterations = iterations.index_add(0, index, spent)
        lost = lost.index_copy(0, index, gone & (part.residual > tolerance))
    index = ((state.residual > tolerance) & ~lost).nonzero().squeeze(-1)
    if index.numel() > 0:
        lost = lost.index_copy(0, index, proved_empty(task.select(index), take(state, index), BEYOND_REACH))
    return state, iterations, lost


def _round(task: Task, state: State, accuracy: float) -> tuple[State, Tensor, Tensor]:
    """One round of both phases: the state, the steps spent ``(B,)`` and which samples look empty ``(B,)``."""
    found = approach(task, state, accuracy, STEPS)
    near = (found.state.residual <= accuracy).nonzero().squeeze(-1)  # from further away Newton may diverge
    polished, steps = finish(task.select(near), take(found.state, near))
    return place(found.state, near, polished), found.spent.index_add(0, near, steps), found.gone


def come_closer(raw: Tensor, stack: Stack, answer: Answer, tolerance: float) -> Answer:
    """The answer at the accuracy of y: by the projection of a point on the way, and Newton from there."""
    unit = local_unit(raw, stack, answer.y, answer.dual)
    part = (HALFWAY * unit / _length(raw - answer.y)).clamp_max(1)
    near = answer.y + part * (raw - answer.y)
    guess = Guess(answer.y, answer.dual * part, HALFWAY * unit)
    middle = settle(near, stack, guess, torch.ones_like(unit), tolerance)
    further = _length(raw - middle.y) / _length(near - middle.y)
    found = settle(raw, stack, *near_y(raw, stack, middle.y, middle.dual * further), tolerance)
    iterations = answer.iterations + middle.iterations + found.iterations
    return found._replace(iterations=iterations, lost=middle.lost & found.lost)


def tidy(raw: Tensor, stack: Stack, answer: Answer) -> Answer:
    """Newton with rows of unit size at y, and steps inwards where a row is still missed by more than rounding.

    Where no value may be looked at, steps inwards alone.
    """
    guess, weight = near_y(raw, stack, answer.y, answer.dual)
    force = (guess.dual * scaled_task(raw, stack, guess, weight)[1]).abs().amax(-1, keepdim=True)
    # rows are known to rounding of their multipliers, which are long where the set is thin
    task, factor = scaled_task(raw, stack, guess, weight / power_above(force).clamp_min(1))
    state, steps = start(task, guess.y / guess.unit, guess.dual * factor), 0
    if may_look(raw):
        state, steps = finish(task, state)
    y, iterations = repair(task, state) * guess.unit, answer.iterations + steps
    return answer._replace(y=y, dual=state.dual / factor, unit=guess.unit, iterations=iterations)


def near_y(raw: Tensor, stack: Stack, y: Tensor, dual: Tensor) -> tuple[Guess, Tensor]:
    """Start from y in its own unit, and the weight that makes multipliers of that size."""
    unit = local_unit(raw, stack, y, dual)
    return Guess(y, dual, unit), power_above((unit / _length(raw - y)).clamp_max(1))


def _length(v: Tensor) -> Tensor:
    """The largest entry, ``(B, 1)``; one for zero, so that it divides."""
    size = v.abs().amax(-1, keepdim=True)
    return torch.where(size > 0, size, 1.0)


def local_unit(raw: Tensor, stack: Stack, y: Tensor, dual: Tensor) -> Tensor:
    """The power of two above y and above the terms of the rows that hold it, over their slopes, ``(B, 1)``."""
    factor = stack.factor(y)
    force = (dual * factor).abs()
    holds = force > 1e-6 * force.amax(-1, keepdim=True)
    terms = torch.where(holds, stack.size(y) / factor, 0.0).amax(-1, keepdim=True)
    least = 2.0**-60 * raw.abs().amax(-1, keepdim=True)
    size = torch.maximum(torch.maximum(terms, y.abs().amax(-1, keepdim=True)), least)
    return power_above(size)
