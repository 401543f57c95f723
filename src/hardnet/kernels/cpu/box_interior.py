"""A box and several rows on a CPU: the multipliers by an interior point method, sample by sample.

The variables are ``z = (y, s)`` with ``M z = A y - s = 0``, so that the bounds of rows become a box too.
`hardnet.solvers.polyhedron.box_interior` explains the method and has it in plain torch; here each sample stops when it
is done.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.tiles import inner

STEPS, ROW_CURVATURE, TO_THE_BORDER, DONE = 32, 1e-12, 0.995, 1e-28
DEPENDENT = 1e-12
"""The same constants as in `hardnet.solvers.polyhedron.box_interior` and `hardnet.solvers.polyhedron.box_factor`."""


class Factor(NamedTuple):
    """``C C' = L D L'`` of k long rows C: their orthogonal parts, L below its diagonal, and D; 0 for dependent rows."""

    rows: Tile
    below: Tile
    diagonal: Tile


class Frame(NamedTuple):
    """The problem in z: A ``(k, n)``; center, low and high ``(n + k,)``."""

    A: Tile
    center: Tile
    low: Tile
    high: Tile


class State(NamedTuple):
    """z, its distances to the bounds, the bounds' multipliers (0 for an absent bound), and those of ``M z = 0``."""

    z: Tile
    below: Tile
    above: Tile
    at_low: Tile
    at_high: Tile
    dual: Tile


class Scratch(NamedTuple):
    """Inverse weights of z, the gradient of the Lagrangian, the targets of a direction, and ``M z``."""

    inverse: Tile
    slope: Tile
    low_goal: Tile
    high_goal: Tile
    miss: Tile


@compiled
def factorize(factor: Factor) -> None:
    """Orthogonalize the rows in place, each against those before it."""
    rows, below, diagonal = factor.rows, factor.below, factor.diagonal
    k, n = rows.shape
    for i in range(k):
        before = inner(rows[i], rows[i])
        for j in range(i):
            share = inner(rows[i], rows[j]) / diagonal[j] if diagonal[j] > 0.0 else 0.0
            below[i, j] = share
            for c in range(n):
                rows[i, c] -= share * rows[j, c]
        left = inner(rows[i], rows[i])
        diagonal[i] = left if left > DEPENDENT * DEPENDENT * before else 0.0


@compiled
def solve(factor: Factor, right: Tile) -> None:
    """``right <- (C C')^-1 right``, zero for dependent rows."""
    below, diagonal = factor.below, factor.diagonal
    k = right.shape[0]
    for i in range(k):
        for j in range(i):
            right[i] -= below[i, j] * right[j]
    for i in range(k - 1, -1, -1):
        value = right[i] / diagonal[i] if diagonal[i] > 0.0 else 0.0
        for j in range(i + 1, k):
            value -= below[j, i] * right[j]
        right[i] = value if diagonal[i] > 0.0 else 0.0


@compiled
def normal(A: Tile, dual: Tile, j: int) -> float:
    """Entry j of ``M'dual``, where ``M = [A, -I]``."""
    k, n = A.shape
    total = 0.0
    for i in range(k if j < n else 0):
        total += A[i, j] * dual[i]
    return total - float(dual[j - n]) if j >= n else total


@compiled
def curvature(j: int, n: int) -> float:
    """Curvature of the objective in ``z_j``; small for rows, so that rows far from their bounds stay solvable."""
    return 1.0 if j < n else ROW_CURVATURE


@compiled
def start(frame: Frame, state: State) -> None:
    """Start at raw and ``A raw``, moved inside their bounds by a margin, with multipliers of 1."""
    A, n = frame.A, frame.A.shape[1]
    for j in range(frame.center.shape[0]):
        low, high = frame.low[j], frame.high[j]
        value = frame.center[j] if j < n else inner(A[j - n], state.z)
        margin = 0.1 * min(high - low, 1.0)
        value = min(max(value, low + margin), high - margin) if low < high else low
        state.z[j] = value
        has_low, has_high = low > -np.inf and low < high, high < np.inf and low < high
        state.below[j], state.above[j] = value - low if has_low else 1.0, high - value if has_high else 1.0
        state.at_low[j], state.at_high[j] = 1.0 if has_low else 0.0, 1.0 if has_high else 0.0
    state.dual[:] = 0.0


@compiled
def prepare(frame: Frame, state: State, scratch: Scratch, factor: Factor) -> None:
    """Factorize the matrix of a step's equations; compute the slope and ``M z``."""
    A, n = frame.A, frame.A.shape[1]
    for i in range(A.shape[0]):
        scratch.miss[i] = inner(A[i], state.z) - state.z[n + i]
    for j in range(frame.center.shape[0]):
        own = curvature(j, n)
        weight = own + state.at_low[j] / state.below[j] + state.at_high[j] / state.above[j]
        scratch.inverse[j] = 1.0 / weight if frame.low[j] < frame.high[j] else 0.0
        scratch.slope[j] = own * (state.z[j] - frame.center[j]) + normal(A, state.dual, j)
        root = math.sqrt(scratch.inverse[j])
        for i in range(A.shape[0]):
            factor.rows[i, j] = root * (A[i, j] if j < n else -1.0 if j - n == i else 0.0)
    factorize(factor)


@compiled
def aim(frame: Frame, state: State, move: State, scratch: Scratch, factor: Factor) -> None:
    """The first-order step to ``at_low below = low_goal``, ``at_high above = high_goal`` and ``M z = 0``."""
    A, n = frame.A, frame.A.shape[1]
    for j in range(move.z.shape[0]):
        pull = scratch.slope[j] - scratch.low_goal[j] / state.below[j] + scratch.high_goal[j] / state.above[j]
        move.z[j] = -pull * scratch.inverse[j]
    for i in range(A.shape[0]):
        move.dual[i] = scratch.miss[i] + inner(A[i], move.z) - move.z[n + i]
    solve(factor, move.dual)
    for j in range(move.z.shape[0]):
        z = move.z[j] - scratch.inverse[j] * normal(A, move.dual, j)
        low, high = state.at_low[j], state.at_high[j]
        move.z[j], move.below[j], move.above[j] = z, z if low > 0.0 else 0.0, -z if high > 0.0 else 0.0
        move.at_low[j] = (scratch.low_goal[j] - low * z) / state.below[j] - low
        move.at_high[j] = (scratch.high_goal[j] + high * z) / state.above[j] - high


@compiled
def products(state: State, move: State, reach: float) -> float:
    """The mean of distance times multiplier after the fraction `reach` of a move."""
    total, count = 0.0, 0
    for j in range(state.z.shape[0]):
        if state.at_low[j] > 0.0:
            total += (state.at_low[j] + reach * move.at_low[j]) * (state.below[j] + reach * move.below[j])
            count += 1
        if state.at_high[j] > 0.0:
            total += (state.at_high[j] + reach * move.at_high[j]) * (state.above[j] + reach * move.above[j])
            count += 1
    return total / max(count, 1)


@compiled
def reach_of(state: State, move: State, part: float) -> float:
    """The fraction of a move, at most 1, that goes `part` of the way to the first zero."""
    fastest = part
    for j in range(state.z.shape[0]):
        if state.at_low[j] > 0.0:
            fastest = max(fastest, max(-move.below[j] / state.below[j], -move.at_low[j] / state.at_low[j]))
        if state.at_high[j] > 0.0:
            fastest = max(fastest, max(-move.above[j] / state.above[j], -move.at_high[j] / state.at_high[j]))
    return part / fastest


@compiled
def correct(frame: Frame, state: State, move: State, scratch: Scratch, factor: Factor, gap: float) -> float:
    """A predictor, then the centered corrector; returns the fraction of it that the bounds allow."""
    scratch.low_goal[:], scratch.high_goal[:] = 0.0, 0.0
    aim(frame, state, move, scratch, factor)
    after = products(state, move, reach_of(state, move, 1.0))
    ratio = min(max(after / gap if gap > 0.0 else after, 0.0), 1.0)
    center = ratio * ratio * ratio * gap
    for j in range(move.z.shape[0]):
        if state.at_low[j] > 0.0:
            scratch.low_goal[j] = center - move.at_low[j] * move.z[j]
        if state.at_high[j] > 0.0:
            scratch.high_goal[j] = center + move.at_high[j] * move.z[j]
    aim(frame, state, move, scratch, factor)
    return reach_of(state, move, TO_THE_BORDER)


@compiled
def advance(old: Tile, way: Tile, reach: float) -> None:
    """``old += reach way``."""
    for j in range(old.shape[0]):
        old[j] += reach * way[j]


@compiled
def find_multipliers(frame: Frame, state: State, move: State, scratch: Scratch, factor: Factor) -> None:
    """Approximate multipliers of the rows, into ``state.dual``."""
    start(frame, state)
    move.below[:], move.above[:], move.at_low[:], move.at_high[:] = 0.0, 0.0, 0.0, 0.0
    for _ in range(STEPS):
        prepare(frame, state, scratch, factor)
        gap = products(state, move, 0.0)
        if not (gap > DONE or np.max(np.abs(scratch.miss)) > DONE):
            return
        reach = correct(frame, state, move, scratch, factor, gap)
        sound = np.isfinite(np.sum(move.z) + np.sum(move.dual) + np.sum(move.at_low) + np.sum(move.at_high))
        if not sound:
            return
        advance(state.z, move.z, reach)
        advance(state.below, move.below, reach)
        advance(state.above, move.above, reach)
        advance(state.at_low, move.at_low, reach)
        advance(state.at_high, move.at_high, reach)
        advance(state.dual, move.dual, reach)
