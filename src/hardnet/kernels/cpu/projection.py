"""``argmin |y - raw|  subject to  lower <= A y <= upper`` on a CPU, sample by sample, compiled by numba.

One call does everything that `hardnet.solvers.polyhedron.projection` does for a sample: the test whether raw is
inside, the Gram matrix, pivoting, y, corrections of y where a row misses its bound by more than rounding, and the
residual of the optimality conditions. Samples that remain open (an empty set, dependent rows, a residual above the
tolerance, a row that is violated beyond rounding or touches y without a multiplier) are flagged for that module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from hardnet.kernels.cpu import pivoting
from hardnet.kernels.cpu.compiling import Tile, inner, summed
from hardnet.kernels.cpu.pivoting import Active, Indices
from hardnet.kernels.cpu.tiles import row_dot
from hardnet.kernels.limits import CORRECTIONS


class Numbers(NamedTuple):
    """One sample in units of size one: raw ``(n,)``, A ``(m, n)``, bounds; ``|a_i|`` and slack of each row ``(m,)``."""

    raw: Tile
    A: Tile
    lower: Tile
    upper: Tile
    norm: Tile
    slack: Tile


class Found(NamedTuple):
    """The current iterate of a sample: y ``(n,)``, ``A y`` and the multipliers ``(m,)`` of unit rows."""

    y: Tile
    product: Tile
    weight: Tile


class Limits(NamedTuple):
    """Four tolerances of `hardnet.kernels.limits.Tolerances`, and the most steps."""

    feasible: float
    solved: float
    strict: float
    certain: float
    steps: int


@summed
def size_of_terms(a: Tile, b: Tile) -> float:
    """``|a|'|b|``."""
    total = 0.0
    for i in range(len(a)):
        total += abs(a[i] * b[i])
    return total


@summed
def four_dots(total: Tile, a: Tile, b: Tile, c: Tile, d: Tile, e: Tile) -> None:
    """``a'b, a'c, a'd, a'e``, reading a once."""
    t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
    for i in range(len(a)):
        t0 += a[i] * b[i]
        t1 += a[i] * c[i]
        t2 += a[i] * d[i]
        t3 += a[i] * e[i]
    total[0], total[1], total[2], total[3] = t0, t1, t2, t3


@inner
def multiply(product: Tile, A: Tile, vector: Tile) -> None:
    """``A v``."""
    for i in range(len(product)):
        product[i] = row_dot(A[i], vector)


@inner
def excess_of(rows: Numbers, product: Tile, i: int) -> float:
    """The violation of a row, negative inside."""
    return max(product[i] - rows.upper[i], rows.lower[i] - product[i])


@inner
def measure_rows(rows: Numbers, product: Tile, feasible: float) -> bool:
    """Compute lengths and slacks of the rows, and ``A raw``; return whether raw is inside."""
    multiply(product, rows.A, rows.raw)
    length, inside = np.sqrt(row_dot(rows.raw, rows.raw)), True
    for i in range(len(product)):
        norm = np.sqrt(row_dot(rows.A[i], rows.A[i]))
        rows.norm[i] = norm if norm > 0.0 else 1.0
        nearest = min(abs(rows.lower[i]), abs(rows.upper[i]))
        rows.slack[i] = feasible * (rows.norm[i] * length + (nearest if nearest < np.inf else 0.0))
        inside &= excess_of(rows, product, i) <= rows.slack[i]
    return inside


@inner
def make_gram(work: Tile, rows: Numbers, order: Indices) -> None:
    """The upper half of ``A A'`` of unit rows, in this order."""
    m, four = len(order), np.empty(4)
    for i in range(m):
        a, unit, whole = rows.A[order[i]], 1.0 / rows.norm[order[i]], i + (m - i) // 4 * 4
        for j in range(i, whole, 4):
            b, c, d, e = order[j], order[j + 1], order[j + 2], order[j + 3]
            four_dots(four, a, rows.A[b], rows.A[c], rows.A[d], rows.A[e])
            for k in range(4):
                work[i, j + k] = four[k] * unit / rows.norm[order[j + k]]
        for j in range(whole, m):
            work[i, j] = row_dot(a, rows.A[order[j]]) * unit / rows.norm[order[j]]


@inner
def move(rows: Numbers, found: Found, step: Tile, order: Indices) -> None:
    """Add `step`, in this order, to the multipliers, move y accordingly, and recompute ``A y``."""
    share = np.empty(len(step))
    for i in range(len(step)):
        found.weight[order[i]] += step[i]
        share[i] = -step[i] / rows.norm[order[i]]
    pivoting.add_rows(found.y, len(found.y), share, rows.A, order, len(step))
    multiply(found.product, rows.A, found.y)


@inner
def certain(rows: Numbers, found: Found, part: float) -> bool:
    """Whether no row is violated by more than `part` of its terms, summed only where ``|a'y|`` is not enough."""
    for i in range(len(found.product)):
        excess = excess_of(rows, found.product, i)
        if excess > part * abs(found.product[i]) and excess > part * size_of_terms(rows.A[i], found.y):
            return False
    return True


@inner
def missing_of(right: Tile, rows: Numbers, found: Found, order: Indices, first: int, active: Active) -> None:
    """How far the equalities and the active rows are from their bounds, in this order; 0 for the others."""
    for i in range(len(order)):
        row = order[i]
        side = 1.0 if i < first else active.side[i - first]
        bound = rows.upper[row] if side > 0.0 else rows.lower[row]
        right[i] = (found.product[row] - bound) / rows.norm[row] if side != 0.0 else 0.0


@inner
def residual_of(rows: Numbers, found: Found) -> float:
    """``max(|y - raw + A'dual|, |A y - clamp(A y + dual, lower, upper)|) / max(1, |y|)`` with unit rows."""
    off, largest = found.y - rows.raw, 1.0
    for i in range(len(found.weight)):
        share, line = found.weight[i] / rows.norm[i], rows.A[i]
        for k in range(len(off)):
            off[k] += share * line[k]
    residual = 0.0
    for k in range(len(off)):
        residual, largest = max(residual, abs(off[k])), max(largest, abs(found.y[k]))
    for i in range(len(found.weight)):
        moved = min(max(found.product[i] + found.weight[i] * rows.norm[i], rows.lower[i]), rows.upper[i])
        residual = max(residual, abs(found.product[i] - moved) / rows.norm[i])
    return residual / largest


@inner
def sides(side: Tile, rows: Numbers, found: Found, strict: float) -> bool:
    """Write the sign of each multiplier that is more than rounding; return whether no other row touches y."""
    largest, alone = 1.0, True
    for i in range(len(side)):
        largest = max(largest, abs(found.weight[i]))
    for i in range(len(side)):
        side[i] = np.sign(found.weight[i]) if abs(found.weight[i]) > strict * largest else 0.0
        touches = excess_of(rows, found.product, i) >= -10.0 * rows.slack[i] or rows.lower[i] == rows.upper[i]
        alone &= not touches or side[i] != 0.0
    return alone


class Held(NamedTuple):
    """The ordered rows with bounds, the number of equalities, the eliminated Gram matrix, and the active rows."""

    order: Indices
    first: int
    work: Tile
    active: Active


@inner
def pivot(step: Tile, rows: Numbers, product: Tile, held: Held, limit: int) -> tuple[int, int, bool]:
    """Write the multipliers of unit rows in the order of `held`; return active rows, steps, and if it finished."""
    order, first = held.order, held.first
    m = len(order)
    lower, upper, slack, right = np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    for i in range(m):
        row, norm = order[i], rows.norm[order[i]]
        lower[i], upper[i], slack[i] = rows.lower[row] / norm, rows.upper[row] / norm, rows.slack[row] / norm
        right[i] = product[row] / norm - (lower[i] if i < first else 0.0)
    pivoting.forward(right, held.work, first)
    free = pivoting.free_rows(held.work, right, first, lower, upper, slack)
    count, steps, through = pivoting.pivot_rows(free, held.active, limit)
    for i in range(count):
        step[first + held.active.row[i]] = held.active.dual[i]
    pivoting.backward(step, right, held.work, first)
    return count, steps, through


@inner
def approach(rows: Numbers, found: Found, limits: Limits) -> int:
    """Move from raw to the nearest point; return the steps taken, or -1 if pivoting failed."""
    order = np.empty(len(found.product), np.int64)
    first, m = pivoting.order_rows(order, rows.lower, rows.upper)
    order, work, right, step = order[:m], np.empty((m, m)), np.empty(m), np.zeros(m)
    make_gram(work, rows, order)
    if not pivoting.eliminate(work, first, m, m):
        return -1
    held = Held(order, first, work, pivoting.no_rows(m - first))
    count, steps, through = pivot(step, rows, found.product, held, limits.steps)
    move(rows, found, step, order)
    for _ in range(CORRECTIONS):
        if not through or certain(rows, found, limits.certain):
            break
        missing_of(right, rows, found, order, first, held.active)
        pivoting.solve_held(step, right, work, first, held.active, count)
        move(rows, found, step, order)
    return first + steps if through else -1


@inner
def project_sample(rows: Numbers, found: Found, side: Tile, ended: Tile, limits: Limits) -> None:
    """Project one sample; ``ended`` gets its number of steps, its residual, and 1 if it is left open."""
    found.y[:], found.weight[:], side[:], ended[:] = rows.raw, 0.0, 0.0, 0.0
    if measure_rows(rows, found.product, limits.feasible):
        ended[2] = 0.0 if certain(rows, found, limits.certain) else 1.0
        return
    steps = approach(rows, found, limits)
    ended[0], ended[1] = steps, residual_of(rows, found)
    settled = steps >= 0 and row_dot(found.y, found.y) < np.inf and ended[1] <= limits.solved
    settled &= sides(side, rows, found, limits.strict) and certain(rows, found, limits.certain)
    ended[2] = 0.0 if settled else 1.0


def _project(
    y: Any, dual: Any, side: Any, ended: Any, raw: Any, A: Any, lower: Any, upper: Any, limits: Any,
    matrices: int, samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """Project the samples from `begin` to `end`, called with addresses."""
    few, many = (samples, m), (samples, n)
    ys, duals, sides_, endings = carray(y, many), carray(dual, few), carray(side, few), carray(ended, (samples, 3))
    raws, rows, lows, highs = carray(raw, many), carray(A, (matrices, m, n)), carray(lower, few), carray(upper, few)
    asked = carray(limits, (5,))
    limit = Limits(asked[0], asked[1], asked[2], asked[3], int(asked[4]))
    norm, slack, product = np.empty(m), np.empty(m), np.empty(m)
    for b in range(begin, end):
        numbers = Numbers(raws[b], rows[b if matrices > 1 else 0], lows[b], highs[b], norm, slack)
        project_sample(numbers, Found(ys[b], product, duals[b]), sides_[b], endings[b], limit)
        for i in range(m):
            duals[b, i] /= norm[i]
    return 0


ENTRIES = (_project,)
