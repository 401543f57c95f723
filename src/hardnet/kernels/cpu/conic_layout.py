"""The numbers of one sample of a curved set on a CPU: laid out as rows, judged, and divided by units.

What `hardnet.solvers.conic.blocks` and the images do for batches of tensors. The numbers of all blocks lie one after
the other in memory; a table says for each block where its fields begin, and how far from sample to sample.
"""

from __future__ import annotations

import math

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, bare
from hardnet.kernels.cpu.conic_blocks import INTERVALS, ROOT, TINY, Rows, block, norm, power_above
from hardnet.kernels.cpu.tiles import row_dot

ROWS, SECOND_ORDER, BALL, SEMIDEFINITE, QUADRATIC = 0, 1, 2, 3, 4
"""How the numbers of a block are written, as `hardnet.kernels.cpu.conic.FORMS` has it."""
FORM, OFFSETS, STRIDES, FIELDS = 4, 5, 9, 4
"""Columns of the table behind kind, first row, number of rows and order; the most fields of a block."""


@bare
def start(rows: Rows, part: int, which: int, sample: int) -> int:
    """Where a field of a sample begins among all numbers."""
    return int(rows.blocks[part, OFFSETS + which] + sample * rows.blocks[part, STRIDES + which])


@bare
def lay_out(rows: Rows, numbers: Tile, sample: int) -> None:
    """All blocks of a sample as they are given, in plain numbers."""
    curve = 0
    for part in range(rows.blocks.shape[0]):
        _, first, count, order = block(rows, part)
        form, own = int(rows.blocks[part, FORM]), slice(first, first + count)
        one, two = numbers[start(rows, part, 0, sample) :], numbers[start(rows, part, 1, sample) :]
        three, four = numbers[start(rows, part, 2, sample) :], numbers[start(rows, part, 3, sample) :]
        rows.lower[own], rows.upper[own] = -np.inf, 0.0
        if form == ROWS:
            lay_rows(rows, first, count, one, two, three)
        elif form == SECOND_ORDER:
            lay_cone(rows, first, count - 1, one, two, three, four[0])
        elif form == BALL:
            lay_ball(rows, first, one, two[0])
        elif form == SEMIDEFINITE:
            lay_matrix(rows, first, order, one, two)
        else:
            lay_quadratic(rows, first, curve, one, two, three[0])
            curve += 1


@bare
def lay_rows(rows: Rows, first: int, m: int, A: Tile, lower: Tile, upper: Tile) -> None:
    """``lower <= A y <= upper``."""
    n = rows.J.shape[0]
    for i in range(m):
        rows.k[first + i], rows.lower[first + i], rows.upper[first + i] = 0.0, lower[i], upper[i]
        for j in range(n):
            rows.J[j, first + i] = A[i * n + j]


@bare
def lay_cone(rows: Rows, first: int, m: int, A: Tile, b: Tile, c: Tile, d: float) -> None:
    """``|A y + b| <= c'y + d``."""
    n = rows.J.shape[0]
    rows.k[first + m] = d
    for i in range(m):
        rows.k[first + i] = b[i]
        for j in range(n):
            rows.J[j, first + i] = A[i * n + j]
    for j in range(n):
        rows.J[j, first + m] = c[j]


@bare
def lay_ball(rows: Rows, first: int, center: Tile, radius: float) -> None:
    """``|y - center| <= radius``."""
    n = rows.J.shape[0]
    rows.k[first + n] = radius
    for j in range(n):
        rows.k[first + j] = -center[j]
        for i in range(n + 1):
            rows.J[j, first + i] = 1.0 if i == j else 0.0


@bare
def lay_matrix(rows: Rows, first: int, order: int, F0: Tile, F: Tile) -> None:
    """``F0 + sum_i y_i F_i`` positive semidefinite: the symmetric parts, packed."""
    at = first
    for i in range(order):
        for j in range(i + 1):
            here, there, weight = i * order + j, j * order + i, 1.0 if i == j else ROOT
            rows.k[at] = 0.5 * (F0[here] + F0[there]) * weight
            for c in range(rows.J.shape[0]):
                step = c * order * order
                rows.J[c, at] = 0.5 * (F[step + here] + F[step + there]) * weight
            at += 1


@bare
def lay_quadratic(rows: Rows, row: int, curve: int, P: Tile, q: Tile, r: float) -> None:
    """``1/2 y'Py + q'y + r <= 0``, with entries of P of size one."""
    n, size = rows.J.shape[0], 0.0
    for i in range(n * n):
        size = max(size, abs(P[i]))
    bend = power_above(size)
    rows.k[row], rows.bend[curve] = r, bend
    for j in range(n):
        rows.q[curve, j] = rows.J[j, row] = q[j]
        for i in range(n):
            rows.P[curve, j * n + i] = 0.5 * (P[j * n + i] / bend + P[i * n + j] / bend)


@bare
def sound(rows: Rows, checked: Tile, L: Tile, rounding: float) -> bool:
    """Whether the numbers describe a convex set; what all samples share is looked at once: `checked`."""
    curve, good = 0, True
    for part in range(rows.blocks.shape[0]):
        form, shared = int(rows.blocks[part, FORM]), True
        for which in range(FIELDS):
            shared &= rows.blocks[part, STRIDES + which] == 0.0
        if not shared or checked[part] == 0.0:
            good &= sound_rows(rows, part)
            if form == QUADRATIC:
                good &= convex(rows, curve, L, rounding)
            checked[part] = 1.0 if good else 0.0
        curve += form == QUADRATIC
    return good


@bare
def sound_rows(rows: Rows, part: int) -> bool:
    """Whether all numbers of a block are finite, and bounds in order."""
    kind, first, count, _ = block(rows, part)
    good = True
    for i in range(first, first + count):
        good &= abs(rows.k[i]) < np.inf
        good &= kind != INTERVALS or rows.upper[i] - rows.lower[i] >= 0.0
        for j in range(rows.J.shape[0]):
            good &= abs(rows.J[j, i]) < np.inf
    return good


@bare
def convex(rows: Rows, curve: int, L: Tile, rounding: float) -> bool:
    """Whether P has a Cholesky factor once a part of its largest row sum is added to its diagonal."""
    n, P, most = L.shape[0], rows.P[curve], 0.0
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += abs(P[i * n + j])
        most = max(most, total)
    if not most < np.inf:
        return False
    for a in range(n):
        for b in range(a + 1):
            total = P[a * n + b] + (rounding * most + TINY if a == b else 0.0) - row_dot(L[a, :b], L[b, :b])
            if a == b and not total > 0.0:
                return False
            L[a, b] = math.sqrt(total) if a == b else total / L[b, b]
    return True


@bare
def clamp(rows: Rows, y: Tile) -> None:
    """Every coordinate that has bounds of its own, by a row ``y_j`` or ``-y_j``, exactly inside them."""
    n = y.size
    for part in range(rows.blocks.shape[0]):
        _, first, count, _ = block(rows, part)
        for i in range(first, first + count if int(rows.blocks[part, FORM]) == ROWS else first):
            alone, place = 0, 0
            for j in range(n):
                if rows.J[j, i] != 0.0:
                    alone, place = alone + 1, j
            a = rows.J[place, i]
            if alone == 1 and abs(a) == 1.0:
                lower, upper = (rows.lower[i], rows.upper[i]) if a > 0.0 else (-rows.upper[i], -rows.lower[i])
                y[place] = min(max(y[place], lower), upper)


@bare
def find_factors(rows: Rows, value: Tile, factor: Tile) -> None:
    """What to divide each row by so that it has unit size at the last point, where G has the `value`."""
    curve, n = 0, rows.J.shape[0]
    for part in range(rows.blocks.shape[0]):
        kind, first, count, _ = block(rows, part)
        if kind == INTERVALS:
            for i in range(first, first + count):
                factor[i] = norm(rows.J[:, i])
            if int(rows.blocks[part, FORM]) == QUADRATIC:
                factor[first] += math.sqrt(abs(value[first]) * norm(rows.P[curve]) * rows.bend[curve])
                curve += 1
        else:
            size = 0.0
            for j in range(n):
                size = max(size, norm(rows.J[j, first : first + count]))
            factor[first : first + count] = size
    for i in range(factor.size):
        factor[i] = power_above(factor[i] if factor[i] > 0.0 else 1.0)


@bare
def rescale(rows: Rows, factor: Tile, unit: float) -> None:
    """The same set in lengths of a unit, with rows divided by the factors."""
    n = rows.J.shape[0]
    for i in range(factor.size):
        divisor = factor[i] * unit
        rows.k[i], rows.lower[i], rows.upper[i] = rows.k[i] / divisor, rows.lower[i] / divisor, rows.upper[i] / divisor
        for j in range(n):
            rows.J[j, i] /= factor[i]
    for c in range(rows.curved.size):
        own = factor[int(rows.curved[c])]
        rows.bend[c] *= unit / own
        for j in range(n):
            rows.q[c, j] /= own
