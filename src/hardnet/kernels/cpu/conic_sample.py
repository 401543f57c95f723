"""One sample of a curved set on a CPU, from its numbers to the answer: inside test, units, projection, verdict.

Everything that `hardnet.solvers.conic.solve` and `hardnet.solvers.conic.distance` do for a sample, where it is derived,
happens at once. What that leaves open (numbers that describe no convex set, an empty set, a residual above the
tolerance, a row that is missed by more than rounding) is flagged for these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, bare
from hardnet.kernels.cpu.conic_blocks import (
    copy,
    evaluate,
    find_foot_of_any_size,
    largest,
    measure,
    miss,
    power_above,
)
from hardnet.kernels.cpu.conic_layout import clamp, find_factors, lay_out, rescale, sound
from hardnet.kernels.cpu.conic_steps import TARGET, Sample, derive, go_inside, polish, settle
from hardnet.kernels.cpu.conic_system import down, factorize, up
from hardnet.kernels.cpu.small_eigen import EPS, identity
from hardnet.kernels.cpu.tiles import row_dot
from hardnet.kernels.limits import FAINT, FAR_AWAY, HALFWAY, PASSES, TIGHT

LOOSE = 1e-6
"""The residual of an answer from which a point on the way is found: that of the last one alone decides."""
CLIMB, NEAR = 48, 0.25
"""Newton steps towards one quadratic at most, and the part of its multiplier from which on they are left to others."""
LEAP, FAR_STEP = 4.0, 0.4
"""From far away a step makes the multiplier half as large again: one above this part of it is made so much longer."""


class Case(NamedTuple):
    """One sample in plain numbers, beside the same in units.

    Attributes:
        sample: The rows and iterate in units.
        numbers: The numbers of all samples, laid out by the table `sample.rows.blocks`.
        place: Which sample this is.
        raw: ``(n,)``.
        y: ``(n,)``.
        dual: ``(R,)``.
        way: A point on the way from y to raw, ``(n,)``.
        factor: What each row was divided by, ``(R,)``.
        checked: Which blocks that all samples share are known to be sound, ``(blocks,)``.
    """

    sample: Sample
    numbers: Tile
    place: int
    raw: Tile
    y: Tile
    dual: Tile
    way: Tile
    factor: Tile
    checked: Tile


class Limits(NamedTuple):
    """Parts of a row's terms by which raw is inside and y holds; residuals of an open and of a solved sample.

    And the rounding of a P that is positive semidefinite.
    """

    inside: float
    holds: float
    open: float
    solved: float
    rounding: float


@bare
def exceed(case: Case) -> float:
    """How far y misses its worst row, in parts of the terms that the row adds up; infinite for NaN. Rows are plain."""
    rows, at, worst = case.sample.rows, case.sample.at, 0.0
    missed, size = case.sample.shift[0], case.sample.second
    evaluate(rows, case.y, at.z)
    measure(rows, case.y, size)
    if not (largest(at.z) < np.inf and largest(size) < np.inf):
        return np.inf
    find_foot_of_any_size(rows, at)
    miss(rows, at.excess, missed)
    for i in range(missed.size):
        worst = max(worst, missed[i] / size[i] if missed[i] > 0.0 else 0.0)
    return worst


@bare
def measure_slopes(case: Case) -> None:
    """The factors of plain rows at y; only those of curved rows move with it."""
    if case.sample.rows.curved.size > 0:
        evaluate(case.sample.rows, case.y, case.sample.at.z)
        find_factors(case.sample.rows, case.sample.at.z, case.factor)


@bare
def enter(case: Case, target: Tile, unit: float, weight: float) -> None:
    """The projection of `target` from y and dual in a unit of length, with the distance weighted."""
    sample = case.sample
    lay_out(sample.rows, case.numbers, case.place)
    measure_slopes(case)
    rescale(sample.rows, case.factor, unit)
    for j in range(target.size):
        sample.raw[j], sample.y[j] = target[j] / unit, case.y[j] / unit
    for i in range(case.dual.size):
        sample.dual[i] = case.dual[i] * (case.factor[i] * weight / unit)


@bare
def leave(case: Case, unit: float, weight: float, moved: bool) -> None:
    """Back to plain numbers; y as it was where it has not moved."""
    for j in range(case.y.size if moved else 0):
        case.y[j] = case.sample.y[j] * unit
    for i in range(case.dual.size):
        case.dual[i] = case.sample.dual[i] / (case.factor[i] * weight / unit)


@bare
def settle_in(case: Case, target: Tile, unit: float, weight: float) -> tuple[float, int]:
    """The projection of `target` in a unit; residual and steps."""
    enter(case, target, unit, weight)
    residual, spent = settle(case.sample, weight, largest(case.dual) > 0.0)
    leave(case, unit, weight, spent > 0)
    return residual, spent


@bare
def local_unit(case: Case, target: Tile) -> float:
    """The power of two above y and above the terms of the rows that hold it, over their slopes; leaves plain rows."""
    sample, force, size = case.sample, case.sample.shift[0], case.sample.second
    lay_out(sample.rows, case.numbers, case.place)
    measure_slopes(case)
    measure(sample.rows, case.y, size)
    for i in range(force.size):
        force[i] = case.dual[i] * case.factor[i]
    least, most = 1e-6 * largest(force), max(largest(case.y), 2.0**-60 * largest(target))
    for i in range(force.size):
        if abs(force[i]) > least:
            most = max(most, size[i] / case.factor[i])
    return power_above(most)


@bare
def distance(one: Tile, other: Tile) -> float:
    """The largest difference; one for none, so that it divides."""
    size = 0.0
    for j in range(one.size):
        size = max(size, abs(one[j] - other[j]))
    return size if size > 0.0 else 1.0


@bare
def come_closer(case: Case, unit: float) -> tuple[float, int, float]:
    """The answer at the accuracy of y, by the projection of a point on the way: residual, steps and its unit."""
    near, part = case.way, min(HALFWAY * unit / distance(case.raw, case.y), 1.0)
    for j in range(near.size):
        near[j] = case.y[j] + part * (case.raw[j] - case.y[j])
    for i in range(case.dual.size):
        case.dual[i] *= part
    residual, spent = settle_in(case, near, HALFWAY * unit, 1.0)
    if not residual <= LOOSE:
        return residual, spent, unit
    further = distance(case.raw, case.y) / distance(near, case.y)
    for i in range(case.dual.size):
        case.dual[i] *= further
    unit = local_unit(case, case.raw)
    residual, steps = settle_in(case, case.raw, unit, power_above(min(unit / distance(case.raw, case.y), 1.0)))
    return residual, spent + steps, unit


@bare
def tidy(case: Case) -> int:
    """Newton with rows of unit size at y, and steps inwards where a row is still missed by more than rounding."""
    unit, sample = local_unit(case, case.raw), case.sample
    weight = power_above(min(unit / distance(case.raw, case.y), 1.0))
    enter(case, case.raw, unit, weight)
    share = max(power_above(largest(sample.dual)), 1.0)  # rows are known to rounding of their multipliers
    for i in range(sample.dual.size):
        sample.dual[i] /= share
    _, spent = polish(sample, weight / share, TARGET)
    go_inside(sample, weight / share)
    leave(case, unit, weight / share, True)
    return spent


@bare
def start_near_quadratics(case: Case) -> None:
    """One pass of projections onto the curved rows, each alone and roughly: from far away Newton would be slow."""
    rows, y = case.sample.rows, case.sample.system.move
    for c in range(rows.curved.size):
        copy(case.y, y)
        climb(case, c, y)
        if largest(y) < np.inf:
            copy(y, case.y)


@bare
def climb(case: Case, c: int, y: Tile) -> None:
    """``y = (I + mu P)^-1 (y_0 - mu q)`` for the mu of value zero, by Newton; inside it is left as it is."""
    rows, system, dual, z = case.sample.rows, case.sample.system, case.sample.shift[0], case.sample.at.z
    row, mu, below, step, passed = int(rows.curved[c]), 0.0, 0.0, np.inf, False
    system.T[:], system.weight[:], dual[:] = 0.0, 0.0, 0.0
    identity(system.L, y.size)
    for _ in range(CLIMB):
        evaluate(rows, y, z)
        if not abs(step) > NEAR * mu or (mu == 0.0 and not z[row] > 0.0):
            break
        for j in range(y.size):
            system.half[j] = rows.J[j, row]
        down(system.L, system.half)
        below, step = mu if z[row] > 0.0 else below, z[row] / row_dot(system.half, system.half)
        passed |= z[row] < 0.0  # a leap was too long: no other one
        step *= LEAP if step > FAR_STEP * mu > 0.0 and not passed else 1.0
        mu = max(mu + step, below)
        dual[row] = mu
        factorize(rows, 1.0, dual, system)
        for j in range(y.size):
            y[j] = case.y[j] - mu * rows.q[c, j]
        down(system.L, y)
        up(system.L, y)


@bare
def first_unit(case: Case) -> float:
    """The power of two above raw, the first point y and the distance to the furthest row; rows are plain, as at raw."""
    at, size = case.sample.at, largest(case.raw)
    find_factors(case.sample.rows, at.z, case.factor)
    for i in range(case.factor.size):
        size = max(size, abs(at.excess[i]) / case.factor[i])
    if case.sample.rows.curved.size > 0:
        start_near_quadratics(case)
    return power_above(max(size, largest(case.y)))


@bare
def approach(case: Case) -> tuple[float, int]:
    """From raw, outside, to the nearest point: residual and steps; leaves plain rows."""
    unit = first_unit(case)
    residual, spent = settle_in(case, case.raw, unit, 1.0)
    for left in range(PASSES, -1, -1):
        local = local_unit(case, case.raw)
        if not (left > 0 and residual <= LOOSE and unit > FAR_AWAY * local):
            break
        residual, steps, unit = come_closer(case, local)
        spent += steps
    return residual, spent


@bare
def project_sample(case: Case, limits: Limits) -> tuple[float, int, bool]:
    """The nearest point into y and dual, from ``y = raw`` and zero: residual, steps, and whether it is left open."""
    rows = case.sample.rows
    lay_out(rows, case.numbers, case.place)
    if not (largest(case.raw) < np.inf and sound(rows, case.checked, case.sample.system.L, limits.rounding)):
        return np.nan, 0, True
    if exceed(case) <= limits.inside:
        clamp(rows, case.y)
        return 0.0, 0, False
    residual, spent = approach(case)
    if not residual <= min(limits.open, limits.solved):
        return residual, spent, True
    if exceed(case) > 8.0 * EPS:
        spent += tidy(case)
        lay_out(rows, case.numbers, case.place)
    clamp(rows, case.y)
    return residual, spent, not exceed(case) <= limits.holds


@bare
def derive_sample(case: Case, grad: Tile) -> None:
    """The cotangents of raw and of the values G at a solution, in place of y and dual.

    Lengths are taken in the unit of y, and the distance is weighted so that the multipliers are of size one too.
    """
    sample = case.sample
    lay_out(sample.rows, case.numbers, case.place)
    find_factors(sample.rows, sample.at.z, case.factor)
    enter(case, case.y, local_unit(case, case.y), 1.0)
    size = largest(sample.dual)
    weight = power_above(1.0 / max(size, FAINT))
    for i in range(sample.dual.size):
        sample.dual[i] *= weight
    derive(sample, weight, np.inf if size == 0.0 else TIGHT, grad)  # raw was inside: only equalities are tight
    for j in range(grad.size):
        case.y[j] = weight * sample.system.move[j]
    for i in range(sample.dual.size):
        case.dual[i] = -sample.shift[0, i] / case.factor[i]
