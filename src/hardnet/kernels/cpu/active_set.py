"""The step of the nonlinear solver on a CPU: its small quadratic program for each sample, compiled by numba.

    min over d, s   1/2 (d - free)'W(d - free) + |s / elastic - elastic center|^2 / 2   s.t.   low <= J d + s <= high

in the multipliers of the rows, by a dual active-set method. See `hardnet.solvers.nonlinear.step`, which calls it, for
the same in plain torch and for the handling of samples that are not solved here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from torch import Tensor

from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.launch import launch
from hardnet.kernels.cpu.pivoting import Room, room_for, solve_equalities, solve_gram
from hardnet.kernels.cpu.ready import entries
from hardnet.kernels.cpu.tiles import row_dot
from hardnet.kernels.limits import NOISE


@compiled
def make_gram(gram: Tile, target: Tile, J: Tile, across: Tile, free: Tile, metric: int) -> None:
    """``J W^-1 J'`` and ``J free``; without a metric ``J J'`` and 0. Columns of `across` beyond m are not read."""
    m, n = J.shape
    for i in range(m):
        target[i] = row_dot(J[i], free) if metric else 0.0
        for j in range(0 if metric else i + 1):
            gram[i, j] = gram[j, i] = row_dot(J[i], J[j])
        for k in range(n if metric else 0):
            share, own, line = J[i, k], gram[i], across[k]
            for j in range(m):
                own[j] = share * line[j] + (own[j] if k else 0.0)


@compiled
def scale_rows(
    gram: Tile, target: Tile, low: Tile, high: Tile, unit: Tile, elastic: Tile, center: Tile, centered: int
) -> None:
    """Add elasticity and center, then scale the rows to length one by the factors ``unit``."""
    m = gram.shape[0]
    for i in range(m):
        square = elastic[i] * elastic[i]
        gram[i, i] += square
        target[i] += square * center[i] if centered else 0.0
        unit[i] = 1.0 / np.sqrt(gram[i, i]) if gram[i, i] > 0.0 else 1.0
    for i in range(m):
        target[i], low[i], high[i] = target[i] * unit[i], low[i] * unit[i], high[i] * unit[i]
        for j in range(m):
            gram[i, j] *= unit[i] * unit[j]


@compiled
def settle(dual: Tile, gram: Tile, target: Tile, low: Tile, high: Tile, slack: Tile, room: Room) -> bool:
    """The multipliers of rows of length one; whether bounds and numbers are valid and the multipliers were found."""
    sound, tight = True, True
    for i in range(len(dual)):
        sound &= low[i] <= high[i] and gram[i, i] < np.inf
        tight &= low[i] == high[i]
    if not sound or tight:
        return sound and solve_equalities(dual, gram, target, low, room)
    for i in range(len(dual)):
        slack[i] = NOISE * max(abs(target[i]), min(abs(low[i]), abs(high[i])))
    return solve_gram(dual, gram, target, low, high, slack, room)


@compiled
def solve_samples(
    dual: Tile, step: Tile, good: Tile, J: Tile, across: Tile, free: Tile, low: Tile, high: Tile, elastic: Tile,
    center: Tile, metric: int, centered: int, begin: int, end: int,
) -> int:  # fmt: skip
    """All samples from `begin` to `end`; `good` is 1 where the multipliers were found."""
    m, n = J.shape[1:]
    gram, room = np.empty((m, m)), room_for(m)
    target, least, most, unit, slack = np.empty(m), np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    for b in range(begin, end):
        make_gram(gram, target, J[b], across[b], free[b], metric)
        least[:], most[:] = low[b], high[b]
        scale_rows(gram, target, least, most, unit, elastic[b], center[b], centered)
        sound = settle(dual[b], gram, target, least, most, slack, room)
        good[b] = 1.0 if sound else 0.0
        for i in range(m):
            dual[b, i] = dual[b, i] * unit[i] if sound else 0.0
        for k in range(n):
            step[b, k] = free[b, k] if metric else 0.0
            for i in range(m):
                step[b, k] -= (across[b, k, i] if metric else J[b, i, k]) * dual[b, i]
    return 0


def _solve(
    dual: Any, step: Any, good: Any, J: Any, across: Any, free: Any, low: Any, high: Any, elastic: Any,
    center: Any, metric: int, centered: int, samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`solve_samples` with addresses; an absent array has the address of another one, and is not read."""
    few, many = (samples, m), (samples, n)
    return solve_samples(
        carray(dual, few), carray(step, many), carray(good, (samples,)), carray(J, (samples, m, n)),
        carray(across, (samples, n, m)), carray(free, many), carray(low, few), carray(high, few), carray(elastic, few),
        carray(center, few), metric, centered, begin, end,
    )  # fmt: skip


ENTRIES = (_solve,)


def solve(
    J: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    across: Tensor | None,
    free: Tensor | None,
    center: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The step ``(B, n)``, the multipliers ``(B, m)``, and which samples are settled ``(B,)``.

    Args:
        J: ``(B, m, n)``.
        low: ``(B, m)``.
        high: ``(B, m)``.
        elastic: ``(B, m)``.
        across: ``W^-1 J'``, ``(B, n, m)``; None, with `free`, for the identity and 0.
        free: ``(B, n)``.
        center: ``(B, m)``, or None for 0.
    """
    dual, step, good = J.new_empty(J.shape[:2]), J.new_empty(J.shape[0], J.shape[2]), J.new_empty(len(J))
    given = [J if across is None else across, J if free is None else free, low, high, elastic]
    given += [low if center is None else center]
    counts = (int(across is not None), int(center is not None))
    launch(entries("active_set")[0], [dual, step, good], [J, *given], (), J.shape, *counts, tile=1)
    return step, dual, good > 0
