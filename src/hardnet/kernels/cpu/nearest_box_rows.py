"""The projection onto a box and several rows on a CPU: in the rows' multipliers, sample by sample, compiled by numba.

``y = clamp(raw - A'dual, low, high)``: Newton steps on the rows at y until nothing moves, then a check. Where that
fails, an interior point method finds approximate multipliers, and the Newton steps start from these. Steps and bounds
are those of `hardnet.solvers.polyhedron.box_rows`, which explains them and handles the samples left open here: those
that did not converge, and empty sets.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray

from hardnet.kernels.cpu.box_interior import (
    Factor,
    Frame,
    Scratch,
    State,
    factorize,
    find_multipliers,
    normal,
    solve,
)
from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.nearest_box import (
    EPS,
    INVALID,
    NOT_CONVERGED,
    SOLVED,
    inside,
    row_scale,
    sound,
    write,
)
from hardnet.kernels.cpu.tiles import bound_size, inner, largest
from hardnet.kernels.limits import STRICT

NEWTON_STEPS = 8
ROUNDINGS, VERIFIED = 8.0, 11.0
"""`SOLVED` and `VERIFIED` of `hardnet.solvers.polyhedron.box_rows` and `hardnet.solvers.polyhedron.box_problem`."""


class Way(NamedTuple):
    """A step of the multipliers, and which rows are active ``(k,)``."""

    step: Tile
    active: npt.NDArray[np.bool_]


class Problem(NamedTuple):
    """One sample: raw ``(n,)``, rows of size 1 ``(k, n)`` and their bounds ``(k,)``, and the box ``(n,)``."""

    raw: Tile
    A: Tile
    lower: Tile
    upper: Tile
    low: Tile
    high: Tile


@compiled
def clamp(problem: Problem, point: Tile, y: Tile) -> None:
    """The nearest point of the box."""
    for j in range(y.shape[0]):
        y[j] = min(max(point[j], problem.low[j]), problem.high[j])


@compiled
def row_length(problem: Problem, i: int) -> float:
    """``|a|_1``."""
    total = 0.0
    for j in range(problem.raw.shape[0]):
        total += abs(problem.A[i, j])
    return total


@compiled
def row_size(problem: Problem, i: int, reach: float) -> float:
    """``|a|_1 |y|_inf + |bounds|``, to which the rounding of a row is relative."""
    length = row_length(problem, i)
    return length * reach + bound_size(problem.lower[i], problem.upper[i], length)


@compiled
def power_below(size: float) -> float:
    """The largest power of two up to a size, 1 for zero."""
    return math.ldexp(1.0, math.frexp(size)[1] - 1) if size > 0.0 else 1.0


@compiled
def make_frame(problem: Problem, frame: Frame, y: Tile) -> float:
    """Write the problem in z, divided by the sample's unit; return the unit."""
    A, n = problem.A, problem.raw.shape[0]
    clamp(problem, problem.raw, y)
    reach = max(largest(problem.raw), largest(y))
    for i in range(A.shape[0]):
        product = inner(A[i], y)
        away = max(product - problem.upper[i], problem.lower[i] - product)
        reach = max(reach, away) if away < np.inf else reach
    unit = power_below(reach)
    for j in range(frame.center.shape[0]):
        row = j >= n
        frame.center[j] = 0.0 if row else problem.raw[j] / unit
        frame.low[j] = (problem.lower[j - n] if row else problem.low[j]) / unit
        frame.high[j] = (problem.upper[j - n] if row else problem.high[j]) / unit
    return unit


@compiled
def choose_rows(problem: Problem, point: Tile, y: Tile, dual: Tile, way: Way, factor: Factor) -> None:
    """The rows over the free coordinates, which rows are active, and how far y is from the bounds of these."""
    near, n = 4.0 * EPS * largest(problem.raw), problem.raw.shape[0]
    for i in range(dual.shape[0]):
        weight, product = 0.0, inner(problem.A[i], y)
        factor.rows[i] = 0.0
        for j in range(n):
            free = point[j] > problem.low[j] - near and point[j] < problem.high[j] + near
            if free and problem.low[j] < problem.high[j]:
                factor.rows[i, j] = problem.A[i, j]
                weight += problem.A[i, j] * problem.A[i, j]
        goal = product + (weight if weight > 0.0 else 1.0) * dual[i]
        target = min(max(goal, problem.lower[i]), problem.upper[i])
        way.active[i] = goal != target or problem.lower[i] == problem.upper[i]
        way.step[i] = product - target if way.active[i] else 0.0


@compiled
def drop_rows(problem: Problem, dual: Tile, way: Way, factor: Factor, reach: float) -> None:
    """Add to the step how dropping the multipliers of inactive rows moves the active ones; zero below rounding."""
    k = dual.shape[0]
    for i in range(k):
        if way.active[i]:
            for dropped in range(k):
                if not way.active[dropped] and dual[dropped] != 0.0:
                    way.step[i] += inner(problem.A[dropped], factor.rows[i]) * dual[dropped]
            if abs(way.step[i]) <= EPS * row_size(problem, i, reach):
                way.step[i] = 0.0
    for i in range(k):
        if not way.active[i]:
            factor.rows[i] = 0.0


@compiled
def newton_step(problem: Problem, point: Tile, y: Tile, dual: Tile, way: Way, factor: Factor) -> bool:
    """Move active rows to their bounds over the free coordinates, other multipliers to zero; whether any moved."""
    clamp(problem, point, y)
    choose_rows(problem, point, y, dual, way, factor)
    drop_rows(problem, dual, way, factor, largest(y))
    factorize(factor)
    solve(factor, way.step)
    moves = False
    for i in range(dual.shape[0]):
        if not way.active[i]:
            way.step[i] = -dual[i]
        dual[i] += way.step[i]
        moves |= way.step[i] != 0.0
    for j in range(point.shape[0]):
        point[j] -= normal(problem.A, way.step, j)
    return moves


@compiled
def judge(problem: Problem, point: Tile, y: Tile, dual: Tile, rounding: float) -> tuple[bool, float]:
    """Whether y is the answer, and the residual of the optimality conditions relative to the tolerance."""
    k, n = problem.A.shape
    clamp(problem, point, y)
    far, reach, worst, holds = largest(problem.raw), largest(y), 0.0, True
    for i in range(k):
        product, length = inner(problem.A[i], y), row_length(problem, i)
        bounds = bound_size(problem.lower[i], problem.upper[i], length)
        size = length * reach + bounds
        target = min(max(product + length * dual[i], problem.lower[i]), problem.upper[i])
        worst = max(worst, abs(product - target) / (size if size > 0.0 else 1.0))
        outside = max(max(product - problem.upper[i], problem.lower[i] - product), 0.0)
        floor = 0.0 if bounds > 0.0 else rounding * length
        holds &= outside <= VERIFIED * rounding * (size + floor) and size < np.inf
    moved, weight = 0.0, 0.0
    for j in range(n):
        total = 0.0
        for i in range(k):
            total += abs(problem.A[i, j] * dual[i])
        again = min(max(problem.raw[j] - normal(problem.A, dual, j), problem.low[j]), problem.high[j])
        moved, weight = max(moved, abs(y[j] - again)), max(weight, total)
    size = max(max(far, reach), weight)
    worst = max(worst, moved / (size if size > 0.0 else 1.0) / 8.0) / (ROUNDINGS * EPS)
    return holds and worst <= 1.0, worst


@compiled
def polish(
    problem: Problem, point: Tile, y: Tile, dual: Tile, way: Way, factor: Factor, rounding: float
) -> tuple[bool, float]:
    """Newton steps from these multipliers, then `judge`; the point becomes ``raw - A'dual``, accumulated by steps."""
    for j in range(point.shape[0]):
        point[j] = problem.raw[j] - normal(problem.A, dual, j)
    for _ in range(NEWTON_STEPS):
        if not newton_step(problem, point, y, dual, way, factor):
            break
    return judge(problem, point, y, dual, rounding)


@compiled
def search(
    problem: Problem, frame: Frame, state: State, move: State, scratch: Scratch, factor: Factor, way: Way,
    point: Tile, y: Tile, dual: Tile, rounding: float,
) -> tuple[float, float]:  # fmt: skip
    """Find the multipliers; return the status and the residual.

    Newton steps from raw find most answers; for the others, the interior point method provides a starting point.
    """
    good, worst = polish(problem, point, y, dual, way, factor, rounding)
    if not good:
        unit = make_frame(problem, frame, y)
        find_multipliers(frame, state, move, scratch, factor)
        for i in range(dual.shape[0]):
            dual[i] = state.dual[i] * unit
        good, worst = polish(problem, point, y, dual, way, factor, rounding)
    return SOLVED if good else NOT_CONVERGED, worst * ROUNDINGS * EPS


@compiled
def write_sides(problem: Problem, dual: Tile, side: Tile) -> None:
    """The side of each row: -1 lower, 1 upper, 2 an equality, 0 if its multiplier is zero or only rounding."""
    size = largest(problem.raw)
    for i in range(dual.shape[0]):
        size = max(size, largest(problem.A[i]) * abs(dual[i]))
    for i in range(dual.shape[0]):
        strict = largest(problem.A[i]) * abs(dual[i]) > STRICT * size
        side[i] = 2.0 if problem.lower[i] == problem.upper[i] else np.sign(dual[i]) if strict else 0.0


@compiled
def all_inside(problem: Problem, rounding: float) -> bool:
    """Whether raw is in the box and satisfies every row to rounding."""
    good = True
    for i in range(problem.A.shape[0]):
        good &= inside(
            problem.raw, problem.A[i], problem.low, problem.high, problem.lower[i], problem.upper[i], rounding
        )
    return good


@compiled
def scale_rows(problem: Problem, A: Tile, lower: Tile, upper: Tile, scale: Tile) -> bool:
    """Scale the rows to size 1; return whether all numbers are valid."""
    good = sound(problem.raw, problem.low, problem.high)
    for i in range(A.shape[0]):
        scale[i] = row_scale(A[i])
        problem.lower[i], problem.upper[i] = lower[i] / scale[i], upper[i] / scale[i]
        good &= problem.lower[i] <= problem.upper[i] and problem.lower[i] < np.inf and problem.upper[i] > -np.inf
        for j in range(A.shape[1]):
            problem.A[i, j] = A[i, j] / scale[i]
    return good


@compiled
def project(
    y: Tile, place: Tile, found: Tile, raw: Tile, A: Tile, rounding: float,
    lower: Tile, upper: Tile, low: Tile, high: Tile, begin: int, end: int,
) -> int:  # fmt: skip
    """Project the samples from `begin` to `end`; `found` ``(B, 2 k + 2)`` gets multipliers, sides, status, residual.

    A, the bounds of the rows and the box have one entry for all samples or one per sample.
    """
    k, n = A.shape[1:]
    size = n + k
    own, least, most, scale = np.empty((k, n)), np.empty(k), np.empty(k), np.empty(k)
    frame = Frame(own, np.empty(size), np.empty(size), np.empty(size))
    state = State(np.empty(size), np.empty(size), np.empty(size), np.empty(size), np.empty(size), np.empty(k))
    move = State(np.empty(size), np.empty(size), np.empty(size), np.empty(size), np.empty(size), np.empty(k))
    scratch = Scratch(np.empty(size), np.empty(size), np.empty(size), np.empty(size), np.empty(k))
    factor = Factor(np.empty((k, size)), np.empty((k, k)), np.empty(k))
    way, point = Way(np.empty(k), np.empty(k, dtype=np.bool_)), np.empty(n)
    for b in range(begin, end):
        problem = Problem(raw[b], own, least, most, low[b % low.shape[0]], high[b % high.shape[0]])
        dual, side = found[b, :k], found[b, k : 2 * k]
        dual[:], status, residual = 0.0, SOLVED, 0.0
        point[:] = raw[b]
        good = scale_rows(
            problem, A[b % A.shape[0]], lower[b % lower.shape[0]], upper[b % upper.shape[0]], scale
        )  # fmt: skip
        if not good:
            status = INVALID
        elif not all_inside(problem, rounding):
            status, residual = search(
                problem, frame, state, move, scratch, factor, way, point, y[b], dual, rounding
            )  # fmt: skip
        write(y[b], place[b], point, problem.low, problem.high)
        write_sides(problem, dual, side)
        if status != SOLVED:
            y[b] = np.nan
        for i in range(k):
            dual[i] /= scale[i]
        found[b, 2 * k], found[b, 2 * k + 1] = status, residual
    return 0


def _project(
    y: Any, place: Any, found: Any, raw: Any, A: Any, rounding: Any, lower: Any, upper: Any, low: Any, high: Any,
    matrices: int, samples: int, k: int, n: int, lowers: int, uppers: int, lows: int, highs: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`project`, called with addresses."""
    return project(
        carray(y, (samples, n)), carray(place, (samples, n)), carray(found, (samples, 2 * k + 2)),
        carray(raw, (samples, n)), carray(A, (matrices, k, n)), carray(rounding, (1,))[0], carray(lower, (lowers, k)),
        carray(upper, (uppers, k)), carray(low, (lows, n)), carray(high, (highs, n)), begin, end,
    )  # fmt: skip


ENTRIES = (_project,)
"""The entry point to compile; it takes addresses."""
