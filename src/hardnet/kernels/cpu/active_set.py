"""The step of the nonlinear solver on a CPU: numba compiles its small quadratic program, sample by sample.

    min over d, s   1/2 (d - free)'W(d - free) + |s / elastic - elastic centre|^2 / 2   s.t.   low <= J d + s <= high

in the multipliers of the rows, by guesses of the active ones. See `hardnet.solvers.nonlinear_step`, which calls it, for
the same in plain torch and for what is done with samples that are not settled.

Called by `hardnet.solvers.nonlinear_step`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray
from torch import Tensor

from hardnet.kernels.cpu.compiling import Tile, compile_addresses, compiled
from hardnet.kernels.cpu.definite import eliminate
from hardnet.kernels.cpu.launch import launch
from hardnet.kernels.limits import INDEPENDENT, NOISE, PATIENCE, ROUNDS


@compiled
def make_gram(gram: Tile, target: Tile, J: Tile, across: Tile, free: Tile, metric: int) -> None:
    """``J W^-1 J'`` and ``J free``; without a metric ``J J'`` and 0."""
    m, n = J.shape
    for i in range(m):
        target[i] = 0.0
        for k in range(n if metric else 0):
            target[i] += J[i, k] * free[k]
        for j in range(i + 1):
            total = 0.0
            for k in range(n):
                total += J[i, k] * (across[k, j] if metric else J[j, k])
            gram[i, j] = total
            gram[j, i] = total


@compiled
def outside(value: float, low: float, high: float, slack: float) -> float:
    """+1 above the upper bound, -1 below the lower, 0 between."""
    return 1.0 if value > high + slack else -1.0 if value < low - slack else 0.0


@compiled
def make_tight(work: Tile, dual: Tile, gram: Tile, target: Tile, low: Tile, high: Tile, side: Tile) -> bool:
    """Multipliers ``(m, 1)`` that make the rows of `side` tight; whether these are independent."""
    m = gram.shape[0]
    for i in range(m):
        active = side[i] != 0.0
        for j in range(m):
            work[i, j] = gram[i, j] if active and side[j] != 0.0 else 1.0 if i == j else 0.0
        dual[i, 0] = target[i] - (high[i] if side[i] > 0.0 else low[i]) if active else 0.0
    sound = eliminate(work, dual) > INDEPENDENT
    for i in range(m):
        sound &= abs(dual[i, 0]) < np.inf
    return sound


@compiled
def follow(after: Tile, dual: Tile, gram: Tile, target: Tile, low: Tile, high: Tile, slack: Tile, side: Tile) -> int:
    """The guess that follows from the multipliers of a guess; how many rows it changes."""
    m, wrong = gram.shape[0], 0
    for i in range(m):
        if side[i] == 0.0:
            value = target[i]
            for j in range(m):
                value -= gram[i, j] * dual[j, 0]
            after[i] = outside(value, low[i], high[i], slack[i])
        else:  # a row that pulls the wrong way is let go
            after[i] = side[i] if dual[i, 0] * side[i] > 0.0 or low[i] == high[i] else 0.0
        wrong += after[i] != side[i]
    return wrong


@compiled
def settle(
    dual: Tile, gram: Tile, target: Tile, low: Tile, high: Tile, side: Tile, slack: Tile, after: Tile, work: Tile
) -> bool:
    """Guess until a guess confirms itself; a sample that gets no better changes one wrong row at a time, the last."""
    m, patience = gram.shape[0], PATIENCE
    least = m + 1
    for _ in range(ROUNDS):
        if not make_tight(work, dual, gram, target, low, high, side):
            return False
        wrong = follow(after, dual, gram, target, low, high, slack, side)
        if wrong == 0:
            return True
        patience = PATIENCE if wrong < least else patience - 1
        least = min(least, wrong)
        for i in range(m - 1, -1, -1):
            if after[i] != side[i]:
                side[i] = after[i]
                if patience < 0:
                    break
    return False


@compiled
def scale_rows(
    gram: Tile, target: Tile, low: Tile, high: Tile, unit: Tile, elastic: Tile, centre: Tile, centred: int
) -> None:
    """Elasticity and centre, then rows of length one: ``unit`` is what they were divided by."""
    m = gram.shape[0]
    for i in range(m):
        square = elastic[i] * elastic[i]
        gram[i, i] += square
        target[i] += square * centre[i] if centred else 0.0
        unit[i] = 1.0 / np.sqrt(gram[i, i]) if gram[i, i] > 0.0 else 1.0
    for i in range(m):
        target[i], low[i], high[i] = target[i] * unit[i], low[i] * unit[i], high[i] * unit[i]
        for j in range(m):
            gram[i, j] *= unit[i] * unit[j]


@compiled
def first_side(side: Tile, slack: Tile, target: Tile, low: Tile, high: Tile, guess: Tile, guessed: int) -> bool:
    """The first guess: equalities, and the signs of `guess` or the rows violated without it; whether bounds are any."""
    numbers = True
    for i in range(side.shape[0]):
        slack[i] = NOISE * max(abs(target[i]), min(abs(low[i]), abs(high[i])))
        side[i] = outside(guess[i], 0.0, 0.0, 0.0) if guessed else outside(target[i], low[i], high[i], slack[i])
        if low[i] == high[i]:
            side[i] = 1.0
        numbers &= low[i] <= high[i]
    return numbers


@compiled
def solve_samples(
    dual: Tile, step: Tile, good: Tile, J: Tile, across: Tile, free: Tile, low: Tile, high: Tile, elastic: Tile,
    centre: Tile, guess: Tile, metric: int, centred: int, guessed: int, begin: int, end: int,
) -> int:  # fmt: skip
    """All samples from `begin` to `end`; `good` is 1 where a guess confirmed itself.

    `retraction` and `approach` write the calls of one sample again: a function for them made `solve` 8 to 38 % slower.
    """
    m, n = J.shape[1:]
    gram, work, found = np.empty((m, m)), np.empty((m, m)), np.empty((m, 1))
    target, least, most, unit, side, slack, after = np.empty((7, m))
    for b in range(begin, end):
        make_gram(gram, target, J[b], across[b], free[b], metric)
        least[:], most[:] = low[b], high[b]
        scale_rows(gram, target, least, most, unit, elastic[b], centre[b], centred)
        sound = first_side(side, slack, target, least, most, guess[b], guessed)
        sound = sound and settle(found, gram, target, least, most, side, slack, after, work)
        good[b] = 1.0 if sound else 0.0
        for i in range(m):
            dual[b, i] = found[i, 0] * unit[i] if sound else 0.0
        for k in range(n):
            step[b, k] = free[b, k] if metric else 0.0
            for i in range(m):
                step[b, k] -= (across[b, k, i] if metric else J[b, i, k]) * dual[b, i]
    return 0


def _solve(
    dual: Any, step: Any, good: Any, J: Any, across: Any, free: Any, low: Any, high: Any, elastic: Any,
    centre: Any, guess: Any, metric: int, centred: int, guessed: int,
    samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`solve_samples` of addresses; what is absent has the address of something else, and is not read."""
    few, many = (samples, m), (samples, n)
    return solve_samples(
        carray(dual, few), carray(step, many), carray(good, (samples,)), carray(J, (samples, m, n)),
        carray(across, (samples, n, m)), carray(free, many), carray(low, few), carray(high, few), carray(elastic, few),
        carray(centre, few), carray(guess, few), metric, centred, guessed, begin, end,
    )  # fmt: skip


@cache
def _kernel() -> Callable[..., int]:
    """The compiled kernel of addresses."""
    return compile_addresses(_solve, torch.float64)


def solve(
    J: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    across: Tensor | None,
    free: Tensor | None,
    centre: Tensor | None,
    guess: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The step ``(B, n)``, the multipliers ``(B, m)``, and which samples are settled ``(B,)``.

    Args:
        J: ``(B, m, n)``.
        low: ``(B, m)``.
        high: ``(B, m)``.
        elastic: ``(B, m)``.
        across: ``W^-1 J'``, ``(B, n, m)``; None, with `free`, for the identity and 0.
        free: ``(B, n)``.
        centre: ``(B, m)``, or None for 0.
        guess: Multipliers whose signs are the first guess, ``(B, m)``, or None.
    """
    dual, step, good = J.new_empty(J.shape[:2]), J.new_empty(J.shape[0], J.shape[2]), J.new_empty(len(J))
    given = [J if across is None else across, J if free is None else free, low, high, elastic]
    given += [low if centre is None else centre, low if guess is None else guess]
    counts = (int(across is not None), int(centre is not None), int(guess is not None))
    launch(_kernel(), [dual, step, good], [J, *given], (), J.shape, *counts, tile=1)
    return step, dual, good > 0
