"""The dual active-set method for one sample on a CPU, for numba: Gaussian elimination, then Goldfarb-Idnani pivots.

See the plain reference `hardnet.solvers.polyhedron.pivoting.pivot_reference` for the mathematics; this version does
less work. Of the tableau only ``K^-1`` of the active rows J is kept, and the column of a joining row j is computed when
it is needed:

    weight = K^-1 G_Jj,     column = G_j - weight' G_J.

The equalities E are eliminated first: the reduced Gram matrix and products describe the inequalities on the points
that satisfy E.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hardnet.kernels.cpu.compiling import Tile, inner
from hardnet.kernels.limits import UNRELATED, VANISHING

Indices = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """A sample's inequalities on the points that satisfy its equalities: ``lower <= value - gram dual <= upper``."""

    gram: Tile
    value: Tile
    lower: Tile
    upper: Tile
    slack: Tile


class Active(NamedTuple):
    """The active rows of a sample, with space for all: ``K^-1``, their indices, multipliers, and the side of each row.

    ``every`` is 0, 1, 2, ...; the other fields are scratch vectors.
    """

    inverse: Tile
    row: Indices
    dual: Tile
    side: Tile
    every: Indices
    weight: Tile
    column: Tile
    spare: Tile


@inner
def order_rows(order: Indices, lower: Tile, upper: Tile) -> tuple[int, int]:
    """Order the rows, equalities first, without those that have no bounds; return the counts of equalities and rows."""
    first = 0
    for i in range(len(order)):
        if lower[i] == upper[i]:
            order[first] = i
            first += 1
    count = first
    for i in range(len(order)):
        if lower[i] != upper[i] and (lower[i] > -np.inf or upper[i] < np.inf):
            order[count] = i
            count += 1
    return first, count


@inner
def eliminate(work: Tile, first: int, count: int, width: int) -> bool:
    """Eliminate the first rows of a symmetric matrix in its upper half; return whether they are independent.

    Each pivot is replaced by its reciprocal; the columns from `count` up to `width` are right-hand sides.
    """
    for k in range(first):
        top = work[k]
        if not top[k] > UNRELATED:
            return False
        top[k] = 1.0 / top[k]
        for i in range(k + 1, count):
            share, line = top[i] * top[k], work[i]
            for j in range(i, width):
                line[j] -= share * top[j]
    return True


@inner
def forward(right: Tile, work: Tile, first: int) -> None:
    """Apply the same elimination to a right-hand side."""
    for k in range(first):
        share, top = right[k] * work[k, k], work[k]
        for i in range(k + 1, len(right)):
            right[i] -= share * top[i]


@inner
def backward(found: Tile, right: Tile, work: Tile, first: int) -> None:
    """The first entries of ``work^-1 right``, given those that follow them."""
    for i in range(first - 1, -1, -1):
        total, line = right[i], work[i]
        for j in range(i + 1, len(found)):
            total -= line[j] * found[j]
        found[i] = total * line[i]


@inner
def furthest(rows: Rows, side: Tile) -> int:
    """The inactive row with the largest violation beyond its slack, or -1."""
    worst, row = 0.0, -1
    for i in range(len(side)):
        excess = max(rows.value[i] - rows.upper[i], rows.lower[i] - rows.value[i]) - rows.slack[i]
        if side[i] == 0.0 and excess > worst:
            worst, row = excess, i
    return row


@inner
def add_rows(total: Tile, size: int, share: Tile, matrix: Tile, chosen: Indices, count: int) -> None:
    """``total += share' matrix[chosen]`` in the first `size` columns, four rows at a time for the vector unit."""
    whole = count - count % 4
    for j in range(0, whole, 4):
        s0, s1, s2, s3 = share[j], share[j + 1], share[j + 2], share[j + 3]
        r0, r1, r2, r3 = matrix[chosen[j]], matrix[chosen[j + 1]], matrix[chosen[j + 2]], matrix[chosen[j + 3]]
        for i in range(size):
            total[i] += s0 * r0[i] + s1 * r1[i] + s2 * r2[i] + s3 * r3[i]
    for j in range(whole, count):
        s0, r0 = share[j], matrix[chosen[j]]
        for i in range(size):
            total[i] += s0 * r0[i]


@inner
def make_column(active: Active, gram: Tile, row: int, count: int) -> None:
    """``weight = K^-1 G_Jj`` and ``column = G_j - weight' G_J`` of row j."""
    weight, column, spare = active.weight, active.column, active.spare
    for i in range(count):
        weight[i], spare[i] = 0.0, gram[row, active.row[i]]
    add_rows(weight, count, spare, active.inverse, active.every, count)
    for i in range(count):
        spare[i] = -weight[i]
    for i in range(len(column)):
        column[i] = gram[row, i]
    add_rows(column, len(column), spare, gram, active.row, count)


@inner
def first_to_leave(active: Active, sign: float, count: int) -> tuple[int, float]:
    """The position of the first row whose multiplier reaches zero as the joining one grows, and the step to it."""
    place, length = -1, np.inf
    for i in range(count):
        slope = active.weight[i] * sign
        if active.side[active.row[i]] * slope > VANISHING and active.dual[i] / slope < length:
            place, length = i, active.dual[i] / slope
    return place, max(length, 0.0)


@inner
def join(active: Active, row: int, sign: float, dual: float, count: int) -> None:
    """Update ``K^-1`` for one more row, at a squared distance ``column[row]`` from the span of the others."""
    inverse, weight, distance = active.inverse, active.weight, active.column[row]
    for i in range(count):
        share, line = weight[i] / distance, inverse[i]
        for j in range(count):
            line[j] += share * weight[j]
        inverse[i, count] = inverse[count, i] = -share
    inverse[count, count] = 1.0 / distance
    active.row[count], active.dual[count], active.side[row] = row, dual, sign


@inner
def leave(active: Active, place: int, count: int) -> None:
    """Update ``K^-1`` for removing the row at `place`; the last row moves there."""
    inverse, gone, last = active.inverse, active.spare, count - 1
    for i in range(count):
        gone[i] = inverse[i, place]
    for i in range(count):
        share, line = gone[i] / gone[place], inverse[i]
        for j in range(count):
            line[j] -= share * gone[j]
    for i in range(last):
        inverse[place, i] = inverse[last, i]
    inverse[place, place] = inverse[last, last]
    for i in range(last):
        inverse[i, place] = inverse[place, i]
    active.side[active.row[place]] = 0.0
    active.dual[place], active.row[place] = active.dual[last], active.row[last]


@inner
def pivot_rows(rows: Rows, active: Active, limit: int) -> tuple[int, int, bool]:
    """Pivot from the empty active set; return the number of active rows, the steps, and whether it finished."""
    value, count, joining, own = rows.value, 0, -1, 0.0
    for step in range(limit):
        row = joining if joining >= 0 else furthest(rows, active.side)
        if row < 0:
            return count, step, True
        above = value[row] > rows.upper[row]
        sign, missing = (1.0, value[row] - rows.upper[row]) if above else (-1.0, rows.lower[row] - value[row])
        make_column(active, rows.gram, row, count)
        place, until_leaving = first_to_leave(active, sign, count)
        until_tight = missing / active.column[row] if active.column[row] > UNRELATED else np.inf
        length = sign * min(until_tight, until_leaving)
        if abs(length) == np.inf:
            return count, step, False
        for i in range(len(value)):
            value[i] -= active.column[i] * length
        for i in range(count):
            active.dual[i] -= active.weight[i] * length
        own += length
        if until_tight <= until_leaving:
            join(active, row, sign, own, count)
            count, own, joining = count + 1, 0.0, -1
        else:
            gone = active.row[place]
            value[gone] = rows.upper[gone] if active.side[gone] > 0.0 else rows.lower[gone]
            leave(active, place, count)
            count, joining = count - 1, row
    return count, limit, False


@inner
def free_rows(work: Tile, right: Tile, first: int, lower: Tile, upper: Tile, slack: Tile) -> Rows:
    """The inequalities, from `first` on, with their Gram matrix and products as reduced by the elimination."""
    size = len(right) - first
    gram = np.empty((size, size))
    for i in range(size):
        for j in range(i, size):
            gram[i, j] = gram[j, i] = work[first + i, first + j]
    return Rows(gram, right[first:].copy(), lower[first:], upper[first:], slack[first:])


@inner
def no_rows(size: int) -> Active:
    """The empty active set for `size` rows; separate vectors, since numba treats rows of a matrix as strided."""
    inverse, row, every = np.empty((size, size)), np.empty(size, np.int64), np.arange(size)
    return Active(inverse, row, np.empty(size), np.zeros(size), every, np.empty(size), np.empty(size), np.empty(size))


@inner
def solve_held(found: Tile, right: Tile, work: Tile, first: int, active: Active, count: int) -> None:
    """The multipliers of equalities and active rows that move their products by `right`, which is overwritten."""
    forward(right, work, first)
    for i in range(count):
        active.weight[i], active.spare[i] = 0.0, right[first + active.row[i]]
    add_rows(active.weight, count, active.spare, active.inverse, active.every, count)
    found[:] = 0.0
    for i in range(count):
        found[first + active.row[i]] = active.weight[i]
    backward(found, right, work, first)


class Room(NamedTuple):
    """Memory reused for every sample: the order of the rows, a matrix with one extra column, and two vectors."""

    order: Indices
    work: Tile
    right: Tile
    step: Tile


@inner
def room_for(m: int) -> Room:
    """Memory for m rows."""
    return Room(np.empty(m, np.int64), np.empty((m, m + 1)), np.empty(m), np.empty(m))


@inner
def solve_equalities(dual: Tile, gram: Tile, target: Tile, bound: Tile, room: Room) -> bool:
    """The multipliers ``(m,)`` of ``target - gram dual = bound`` by elimination; whether they were found.

    For equalities alone: the same as `solve_gram`, without ordering the rows.
    """
    m, work = len(dual), room.work
    for i in range(m):
        work[i, m] = target[i] - bound[i]
        for j in range(i, m):
            work[i, j] = gram[i, j]
    if not eliminate(work, m, m, m + 1):
        return False
    backward(dual, work[:, m], work, m)
    sound = True
    for i in range(m):
        sound &= abs(dual[i]) < np.inf
    return sound


@inner
def solve_gram(dual: Tile, gram: Tile, target: Tile, lower: Tile, upper: Tile, slack: Tile, room: Room) -> bool:
    """The multipliers ``(m,)`` of ``lower <= target - gram dual <= upper``; whether they were found."""
    first, count = order_rows(room.order, lower, upper)
    order, work, right, step = room.order[:count], room.work, room.right[:count], room.step[:count]
    for i in range(count):
        step[i], right[i] = 0.0, target[order[i]] - (lower[order[i]] if i < first else 0.0)
        for j in range(i, count):
            work[i, j] = gram[order[i], order[j]]
    if not eliminate(work, first, count, count):
        return False
    forward(right, work, first)
    if first < count:
        active = no_rows(count - first)
        free = free_rows(work, right, first, lower[order], upper[order], slack[order])
        held, _, through = pivot_rows(free, active, 10 * count)
        for i in range(held):
            step[first + active.row[i]] = active.dual[i]
        if not through:
            return False
    backward(step, right, work, first)
    dual[:] = 0.0
    sound = True
    for i in range(count):
        dual[order[i]] = step[i]
        sound &= abs(step[i]) < np.inf
    return sound
