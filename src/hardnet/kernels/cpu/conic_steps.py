"""The projection onto curved sets on a CPU, one small sample at a time: an augmented Lagrangian, then Newton.

``min weight/2 |y - raw|^2  s.t.  G(y) in K`` by the steps of `hardnet.solvers.conic.distance` and
`hardnet.solvers.conic.distance`, where they are derived; what is not solved here goes on there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, bare
from hardnet.kernels.cpu.conic_blocks import (
    TINY,
    Foot,
    Rows,
    copy,
    evaluate,
    find_foot,
    largest,
    measure,
    miss,
    pull,
    tighten,
    turn_rows,
)
from hardnet.kernels.cpu.conic_system import (
    FLOOR,
    System,
    down,
    factorize,
    solve_saddle,
    turned,
    up,
    weigh_bends,
)
from hardnet.kernels.cpu.small_eigen import EPS
from hardnet.kernels.limits import CURVED

FIRST_ACCURACY, FACTOR, FINEST, ROUNDS = 1e-2, 1e-2, 1e-11, 12
"""The accuracy at which Newton is tried first, what it is multiplied by each time, down to which, and how often."""
STEPS, TRIALS, NEWTON = 32, CURVED.trials, 12
"""Steps of the augmented Lagrangian in one round, points of a line search, and Newton steps, at most."""
FIRST_PENALTY, LARGEST_PENALTY = CURVED.first_penalty, CURVED.largest_penalty
TARGET, SOLVED, LOOSE = CURVED.target, 1e-13, 1e-9
"""Newton stops at the first residual, a sample with the second needs no further round, and the third is repaired."""
REPAIRS, ROUGH, FAR = CURVED.repairs, 0.5, 64.0
"""Steps inwards at most, how much of what rounding may miss is not worth one, and lengths of y that are too far."""


class Sample(NamedTuple):
    """One sample: the iterate, the last foot, the systems, and room for vectors.

    Attributes:
        rows: Its numbers.
        raw: ``(n,)``.
        y: ``(n,)``.
        dual: ``(R,)``.
        at: The last foot.
        system: The last system.
        slope: ``(n,)``.
        old_y: ``(n,)``.
        old_dual: ``(R,)``.
        second: ``(R,)``.
        shift: ``(1, R)``.
        kept: ``(3, R)``.
    """

    rows: Rows
    raw: Tile
    y: Tile
    dual: Tile
    at: Foot
    system: System
    slope: Tile
    old_y: Tile
    old_dual: Tile
    second: Tile
    shift: Tile
    kept: Tile


@bare
def lean(sample: Sample, weight: float, penalty: float) -> None:
    """The augmented Lagrangian at y: the foot of ``G(y) + dual / penalty``, and the slope."""
    at, slope = sample.at, sample.slope
    evaluate(sample.rows, sample.y, at.z)
    for i in range(at.z.size):
        at.z[i] += sample.dual[i] / penalty
    find_foot(sample.rows, at)
    for i in range(at.z.size):
        sample.shift[0, i] = penalty * at.excess[i]
    for j in range(slope.size):
        slope[j] = weight * (sample.y[j] - sample.raw[j])
    pull(sample.rows, sample.shift[0], slope)


@bare
def descend(sample: Sample, weight: float, penalty: float) -> None:
    """One Newton step of the augmented Lagrangian from the last foot, with a line search on the slope along it."""
    at, system, y = sample.at, sample.system, sample.y
    turned(sample.rows, at, 0.0, sample.shift[0], system)
    for i in range(at.delta.size):
        system.weight[i] = penalty * (1.0 - at.delta[i])
    factorize(sample.rows, weight, sample.shift[0], system)
    move = system.move
    for j in range(y.size):
        move[j] = -sample.slope[j]
    down(system.L, move)
    up(system.L, move)
    first = 0.0
    for j in range(y.size):
        sample.old_y[j] = y[j]
        first -= sample.slope[j] * move[j]
    step = 1.0
    for _ in range(TRIALS):
        for j in range(y.size):
            y[j] = sample.old_y[j] + step * move[j]
        lean(sample, weight, penalty)
        along = 0.0
        for j in range(y.size):
            along += sample.slope[j] * move[j]
        if not (first > 0.0 and along > 0.5 * first):
            break
        step *= max(first / (first + along), 0.1)


@bare
def approach(sample: Sample, weight: float, penalty: float, accuracy: float) -> tuple[float, float, int]:
    """The augmented Lagrangian until its residual is below `accuracy`; penalty, residual and steps."""
    at, dual, residual = sample.at, sample.dual, np.inf
    lean(sample, weight, penalty)
    for spent in range(STEPS):
        gap = 0.0
        for i in range(dual.size):
            gap = max(gap, abs(at.excess[i] - dual[i] / penalty))
        slope = largest(sample.slope)
        if slope <= max(0.1 * gap, 0.1 * accuracy):
            found = max(slope, gap)
            for i in range(dual.size):
                dual[i] = penalty * at.excess[i]
            if found > 0.1 * residual:
                penalty = min(10.0 * penalty, LARGEST_PENALTY)
            residual = found
            if residual <= accuracy:
                return penalty, residual, spent
            lean(sample, weight, penalty)
        descend(sample, weight, penalty)
    return penalty, residual, STEPS


@bare
def conditions(sample: Sample, weight: float) -> float:
    """``weight (y - raw) + DG'dual`` and ``G - P_K(G + dual)``, into `slope` and `second`; the largest entry."""
    at, dual = sample.at, sample.dual
    evaluate(sample.rows, sample.y, at.z)
    for i in range(dual.size):
        at.z[i] += dual[i]
    find_foot(sample.rows, at)
    for i in range(dual.size):
        sample.second[i] = at.excess[i] - dual[i]
    for j in range(sample.slope.size):
        sample.slope[j] = weight * (sample.y[j] - sample.raw[j])
    pull(sample.rows, dual, sample.slope)
    return max(largest(sample.slope), largest(sample.second))


@bare
def newton_step(sample: Sample, weight: float, noise: float) -> None:
    """One semismooth Newton step of y and dual, from the conditions at both; a multiplier below `noise` is none."""
    at, system, n = sample.at, sample.system, sample.y.size
    turned(sample.rows, at, noise, sample.second, system)
    weigh_bends(at, 0.0, system)
    factorize(sample.rows, weight, sample.dual, system)
    shift, tight, right = sample.shift[0], sample.second, sample.slope
    for i in range(shift.size):
        held = at.delta[i] <= FLOOR
        shift[i] = 0.0 if held else system.T[n, i] / at.delta[i]
        tight[i] = -system.T[n, i] if held else 0.0
    for j in range(n):
        total = right[j]
        for i in range(shift.size):
            total += system.T[j, i] * shift[i]
        right[j] = -total
    solve_saddle(at, right, tight, system)
    for i in range(shift.size):
        along = 0.0
        for j in range(n):
            along += system.T[j, i] * system.move[j]
        shift[i] += system.weight[i] * along + system.force[i]
    turn_rows(sample.rows, at, sample.shift, True)
    for j in range(n):
        sample.y[j] += system.move[j]
    for i in range(shift.size):
        sample.dual[i] += shift[i]


@bare
def polish(sample: Sample, weight: float, target: float) -> tuple[float, int]:
    """Newton steps, kept only where they lower the residual, down to the target; the residual, and how many."""
    residual, kept = conditions(sample, weight), 0
    for _ in range(NEWTON):
        if residual <= target:
            break
        copy(sample.y, sample.old_y)
        copy(sample.dual, sample.old_dual)
        newton_step(sample, weight, 0.0)
        found = conditions(sample, weight)
        if not found < residual:
            copy(sample.old_y, sample.y)
            copy(sample.old_dual, sample.dual)
            break
        slow = found >= 0.5 * residual
        residual, kept = found, kept + 1
        if slow:
            break
    return residual, kept


@bare
def overshoot(sample: Sample) -> tuple[float, float]:
    """The worst miss of G(y) in units of eight roundings of its row's terms, and the largest miss."""
    at, missed, worst, most = sample.at, sample.shift[0], 0.0, 0.0
    measure(sample.rows, sample.y, sample.second)
    evaluate(sample.rows, sample.y, at.z)
    find_foot(sample.rows, at)
    miss(sample.rows, at.excess, missed)
    for i in range(missed.size):
        most = max(most, missed[i])
        worst = max(worst, missed[i] / (8.0 * EPS * sample.second[i] + TINY))
    return worst, most


@bare
def repair(sample: Sample, weight: float) -> bool:
    """Newton at the accuracy of y, then steps towards a tightened set where y misses a row by more than rounding.

    The distance is weighted so that multipliers are no longer than y: beside longer ones its last digits drown. Returns
    whether y may have moved.
    """
    size, far, share = largest(sample.y), 0.0, 1.0
    for j in range(sample.y.size):
        far = max(far, weight * abs(sample.y[j] - sample.raw[j]))
    if far > FAR * size:  # the caller comes closer first
        return False
    while share * far > size:
        share *= 0.5
    for i in range(sample.dual.size):
        sample.dual[i] *= share
    if share < 1.0:
        polish(sample, weight * share, TARGET * size)
    moved = go_inside(sample, weight * share)
    for i in range(sample.dual.size):
        sample.dual[i] /= share
    return moved or share < 1.0


@bare
def go_inside(sample: Sample, weight: float) -> bool:
    """Steps inwards as long as a row is missed by more than rounding; whether there was one."""
    over, missed = overshoot(sample)
    moved = over > ROUGH
    for _ in range(REPAIRS):
        if over > ROUGH:
            over, missed = move_inwards(sample, weight, over, missed)
    return moved


@bare
def move_inwards(sample: Sample, weight: float, over: float, missed: float) -> tuple[float, float]:
    """One Newton step of y to the set tightened by what it misses, kept where it helps; the overshoot there."""
    rows, y, dual = sample.rows, sample.y, sample.dual
    copy(y, sample.old_y)
    copy(dual, sample.old_dual)
    copy(rows.k, sample.kept[0])
    copy(rows.lower, sample.kept[1])
    copy(rows.upper, sample.kept[2])
    tighten(rows, missed + 4.0 * EPS * largest(y))
    conditions(sample, weight)
    newton_step(sample, weight, 1e-10 * (1.0 + largest(dual)))
    copy(sample.kept[0], rows.k)
    copy(sample.kept[1], rows.lower)
    copy(sample.kept[2], rows.upper)
    copy(sample.old_dual, dual)
    found, miss = overshoot(sample)
    if found < over:
        return found, miss
    copy(sample.old_y, y)
    return over, missed


@bare
def settle(sample: Sample, weight: float, known: bool) -> tuple[float, int]:
    """Newton first where multipliers are known, both phases in turn, then the repair; the residual and the steps."""
    residual, spent, penalty, accuracy = np.inf, 0, FIRST_PENALTY, FIRST_ACCURACY
    if known:
        residual, spent = polish(sample, weight, TARGET)
    for _ in range(ROUNDS):
        if residual <= SOLVED:
            break
        penalty, residual, steps = approach(sample, weight, penalty, accuracy)
        spent += steps
        if residual <= accuracy:
            residual, steps = polish(sample, weight, TARGET)
            spent, accuracy = spent + steps, max(accuracy * FACTOR, FINEST)
    if residual <= LOOSE and repair(sample, weight):
        residual = conditions(sample, weight)
    return residual, spent


@bare
def derive(sample: Sample, weight: float, tolerance: float, grad: Tile) -> None:
    """The cotangents of raw and of G at a solution: into `system.move` and `shift`.

    The squares of the tight rows change nothing but the condition of the Hessian, since the cotangent is orthogonal.
    """
    at, system = sample.at, sample.system
    conditions(sample, weight)
    turned(sample.rows, at, tolerance, sample.second, system)
    weigh_bends(at, 1.0, system)
    factorize(sample.rows, weight, sample.dual, system)
    weigh_bends(at, 0.0, system)
    sample.second[:] = 0.0
    solve_saddle(at, grad, sample.second, system)
    for i in range(sample.dual.size):
        along = 0.0
        for j in range(grad.size):
            along += system.T[j, i] * system.move[j]
        sample.shift[0, i] = system.weight[i] * along + system.force[i]
    turn_rows(sample.rows, at, sample.shift, True)
