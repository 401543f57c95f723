"""A set ``G(y) in K`` of one sample on a CPU: values, distance to the cones, and the derivative of their projection.

All rows of all blocks follow one another, the row being the last index. The same mathematics for batches of tensors,
with its derivation, is in `hardnet.solvers.conic.stack`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, bare
from hardnet.kernels.cpu.small_eigen import eigen
from hardnet.kernels.cpu.tiles import bound_size, row_dot

INTERVALS, CONE, MATRIX = 0, 1, 2
"""Kinds of blocks: rows between bounds, one second-order cone (the height last), one packed semidefinite matrix."""
ROOT = math.sqrt(2.0)
TINY = 2.0**-1022
LONG = 64
"""Numbers from which on a sum in whatever order the vector unit likes is worth its call."""
SMALLEST = 2.0**-900
"""Below it, and above its inverse, a sum of squares is not trusted."""


class Rows(NamedTuple):
    """The numbers of one sample.

    Attributes:
        J: The Jacobian, transposed, ``(n, R)``; the columns of curved rows are those of the last point.
        k: What G is at zero, ``(R,)``.
        lower: Bounds of rows in intervals, ``(R,)``.
        upper: Likewise.
        P: Second derivatives of the curved rows, each up to a factor, ``(C, n n)``.
        bend: These factors, ``(C,)``.
        q: Gradients of the curved rows at zero, ``(C, n)``.
        curved: Which rows these are, ``(C,)``.
        blocks: Kind, first row, number of rows and order of each block, ``(blocks, 4)``.
    """

    J: Tile
    k: Tile
    lower: Tile
    upper: Tile
    P: Tile
    bend: Tile
    q: Tile
    curved: Tile
    blocks: Tile


class Foot(NamedTuple):
    """The foot of z: ``z - P_K(z)``, and what the derivative of P_K there takes.

    Attributes:
        z: ``(R,)``.
        excess: ``(R,)``.
        delta: Eigenvalues of the derivative, ``(R,)``.
        values: Eigenvalues of the matrices, ``(R,)``.
        vectors: Their eigenvectors, row by row, ``(blocks, order, order)`` for the largest order.
        axis: The axes of the cones, ``(R,)``.
        mirror: What takes them to the first coordinate, ``(R,)``.
        X: Room for a matrix of the largest order.
        Y: Room for another.
    """

    z: Tile
    excess: Tile
    delta: Tile
    values: Tile
    vectors: Tile
    axis: Tile
    mirror: Tile
    X: Tile
    Y: Tile


@bare
def block(rows: Rows, b: int) -> tuple[int, int, int, int]:
    """Kind, first row, number of rows and order of one block."""
    return int(rows.blocks[b, 0]), int(rows.blocks[b, 1]), int(rows.blocks[b, 2]), int(rows.blocks[b, 3])


@bare
def copy(source: Tile, target: Tile) -> None:
    """All numbers of a vector; an assignment would look for an overlap first."""
    for i in range(target.size):
        target[i] = source[i]


@bare
def largest(v: Tile) -> float:
    """The largest absolute entry; infinite for NaN."""
    size = 0.0
    for i in range(v.size):
        size = max(size, abs(v[i]) if v[i] == v[i] else np.inf)
    return size


@bare
def norm(v: Tile) -> float:
    """``|v|`` of numbers of any size: where their squares overflow or vanish, in the unit of the largest."""
    square = 0.0
    for i in range(v.size):
        square += v[i] * v[i]
    if SMALLEST < square < 1.0 / SMALLEST:
        return math.sqrt(square)
    size, square = largest(v), 0.0
    if not 0.0 < size < np.inf:
        return size
    for i in range(v.size):
        square += (v[i] / size) * (v[i] / size)
    return size * math.sqrt(square)


@bare
def power_above(size: float) -> float:
    """The power of two above a size, which is exact to divide by; one where it is zero or not finite."""
    if not 0.0 < size < np.inf:
        return 1.0
    return math.ldexp(1.0, min(math.frexp(size)[1], 1023))


@bare
def evaluate(rows: Rows, y: Tile, z: Tile) -> None:
    """``G(y)`` into z, and the Jacobian of curved rows there."""
    n, R = rows.J.shape
    for i in range(R):
        z[i] = rows.k[i]
    for j in range(n):
        for i in range(R):
            z[i] += rows.J[j, i] * y[j]
    for c in range(rows.curved.size):
        row = int(rows.curved[c])
        total = rows.k[row]
        for j in range(n):
            turned = 0.0
            if n >= LONG:
                turned = row_dot(rows.P[c, j * n : j * n + n], y)
            else:
                for i in range(n):
                    turned += rows.P[c, j * n + i] * y[i]
            turned *= rows.bend[c]
            rows.J[j, row] = turned + rows.q[c, j]
            total += (0.5 * turned + rows.q[c, j]) * y[j]
        z[row] = total


@bare
def pull(rows: Rows, dual: Tile, out: Tile) -> None:
    """``out += DG'dual``."""
    for j in range(out.size):
        total = 0.0
        for i in range(dual.size):
            total += rows.J[j, i] * dual[i]
        out[j] += total


@bare
def measure(rows: Rows, y: Tile, size: Tile) -> None:
    """The terms that each row adds up at y: what rounding is relative to; a cone has one size for all its rows."""
    n, R = rows.J.shape
    for i in range(R):
        size[i] = abs(rows.k[i])
        for j in range(n):
            size[i] += abs(rows.J[j, i] * y[j])
    for c in range(rows.curved.size):
        row = int(rows.curved[c])
        size[row] = abs(rows.k[row])
        for j in range(n):
            turned = 0.0
            for i in range(n):
                turned += abs(rows.P[c, j * n + i] * y[i])
            size[row] += (0.5 * rows.bend[c] * turned + abs(rows.q[c, j])) * abs(y[j])
    for b in range(rows.blocks.shape[0]):
        kind, first, count, _ = block(rows, b)
        if kind != INTERVALS:
            size[first : first + count] = norm(size[first : first + count])
            continue
        for i in range(first, first + count):
            weight = 0.0
            for j in range(n):
                weight += abs(rows.J[j, i])
            size[i] += bound_size(rows.lower[i], rows.upper[i], weight)


@bare
def miss(rows: Rows, excess: Tile, out: Tile) -> None:
    """At least the violation of each row as it is written, where ``z - P_K(z)`` is `excess`; one for a whole cone."""
    for b in range(rows.blocks.shape[0]):
        kind, first, count, _ = block(rows, b)
        if kind != INTERVALS:
            out[first : first + count] = ROOT * norm(excess[first : first + count])
            continue
        for i in range(first, first + count):
            out[i] = abs(excess[i])


@bare
def tighten(rows: Rows, margin: float) -> None:
    """Every inequality moved inwards by the margin, where there is room for it."""
    for b in range(rows.blocks.shape[0]):
        kind, first, count, order = block(rows, b)
        if kind == INTERVALS:
            for i in range(first, first + count):
                if rows.upper[i] - rows.lower[i] > 2.0 * margin:
                    rows.lower[i] += margin
                    rows.upper[i] -= margin
        elif kind == CONE:
            rows.k[first + count - 1] -= margin
        else:
            for i in range(order):
                rows.k[first + (i * (i + 3)) // 2] -= margin


@bare
def unpack(packed: Tile, X: Tile, k: int) -> None:
    """The symmetric matrix of order k of its packed entries."""
    at = 0
    for i in range(k):
        for j in range(i):
            X[i, j] = X[j, i] = packed[at + j] * (1.0 / ROOT)
        X[i, i] = packed[at + i]
        at += i + 1


@bare
def leave_cone(z: Tile, excess: Tile) -> None:
    """``z - P_K(z)`` for a second-order cone."""
    last, square = z.size - 1, 0.0
    for i in range(last):
        square += z[i] * z[i]
    size, t = math.sqrt(square), z[last]
    over = 0.5 * (size - t)
    share = 0.0 if size <= t else 1.0 if size <= -t else over / size
    for i in range(last):
        excess[i] = share * z[i]
    excess[last] = 0.0 if size <= t else t if size <= -t else -over


@bare
def leave_matrix(z: Tile, X: Tile, V: Tile, values: Tile, excess: Tile) -> None:
    """``V' min(Lambda, 0) V``, packed."""
    unpack(z, X, values.size)
    eigen(X, V, values, values.size)
    for i in range(excess.size):
        excess[i] = 0.0
    for vector in range(values.size):
        if values[vector] < 0.0:
            at = 0
            for i in range(values.size):
                scaled = values[vector] * V[vector, i]
                for j in range(i):
                    excess[at + j] += ROOT * scaled * V[vector, j]
                excess[at + i] += scaled * V[vector, i]
                at += i + 1


@bare
def find_foot(rows: Rows, at: Foot) -> None:
    """The distance of z from the cones."""
    for b in range(rows.blocks.shape[0]):
        kind, first, count, order = block(rows, b)
        z, excess = at.z[first : first + count], at.excess[first : first + count]
        if kind == INTERVALS:
            for i in range(count):
                excess[i] = z[i] - min(max(z[i], rows.lower[first + i]), rows.upper[first + i])
        elif kind == CONE:
            leave_cone(z, excess)
        else:
            leave_matrix(z, at.X, at.vectors[b], at.values[first : first + order], excess)


@bare
def find_foot_of_any_size(rows: Rows, at: Foot) -> None:
    """The same for z of any size, whose squares may overflow or vanish: each cone in the unit of its own z."""
    for b in range(rows.blocks.shape[0]):
        kind, first, count, _ = block(rows, b)
        at.delta[first] = 1.0 if kind == INTERVALS else power_above(largest(at.z[first : first + count]))
        for i in range(first, first + count if kind != INTERVALS else first):
            at.z[i] /= at.delta[first]
    find_foot(rows, at)
    for b in range(rows.blocks.shape[0]):
        kind, first, count, _ = block(rows, b)
        for i in range(first, first + count if kind != INTERVALS else first):
            at.excess[i] *= at.delta[first]


@bare
def frame_cone(z: Tile, tolerance: float, e: Tile, mirror: Tile, delta: Tile) -> None:
    """The axis e, the mirror that takes it to the first coordinate, and delta."""
    last, square = z.size - 1, 0.0
    for i in range(last):
        square += z[i] * z[i]
    size, t = math.sqrt(square), z[last]
    for i in range(last):
        e[i] = z[i] / size if size > 0.0 else (1.0 if i == 0 else 0.0)
    sign = -1.0 if e[0] < 0.0 else 1.0
    length = math.sqrt(2.0 + 2.0 * sign * e[0])
    for i in range(last):
        mirror[i] = (e[i] + (sign if i == 0 else 0.0)) / length
    free, apex = size - t <= tolerance, size + t <= tolerance
    across = 0.5 * (1.0 + t / max(size, TINY))
    for i in range(z.size):
        curved = 1.0 if i == 0 else 0.0 if i == 1 else across
        delta[i] = 1.0 if free else 0.0 if apex else curved


@bare
def frame_matrix(values: Tile, tolerance: float, delta: Tile) -> None:
    """Ratios of eigenvalues across the sign."""
    at = 0
    for i in range(values.size):
        for j in range(i + 1):
            one = values[i] if values[i] < -tolerance else max(values[i], 0.0)
            other = values[j] if values[j] < -tolerance else max(values[j], 0.0)
            above, below = max(one, other), min(one, other)
            delta[at] = 1.0 if below >= 0.0 else max(above / max(above - below, TINY), 0.0)
            at += 1


@bare
def frame(rows: Rows, at: Foot, tolerance: float) -> None:
    """The eigenvalues of the derivative of P_K, and its eigenbasis; within `tolerance` a point counts as inside."""
    for b in range(rows.blocks.shape[0]):
        kind, first, count, order = block(rows, b)
        delta = at.delta[first : first + count]
        if kind == INTERVALS:
            for i in range(first, first + count):
                tight = abs(at.excess[i]) > tolerance or rows.lower[i] == rows.upper[i]
                at.delta[i] = 0.0 if tight else 1.0
        elif kind == CONE:
            e, mirror = at.axis[first : first + count - 1], at.mirror[first : first + count - 1]
            frame_cone(at.z[first : first + count], tolerance, e, mirror, delta)
        else:
            frame_matrix(at.values[first : first + order], tolerance, delta)


@bare
def turn_cone(v: Tile, e: Tile, mirror: Tile, back: bool) -> None:
    """A vector in the eigenbasis of a second-order cone, or `back`."""
    last = v.size - 1
    if back:
        along, t = (v[0] + v[1]) / ROOT, (v[0] - v[1]) / ROOT
        for i in range(1, last):
            v[i] = v[i + 1]
        v[0] = 0.0
    else:
        along, t = 0.0, v[last]
        for i in range(last):
            along += e[i] * v[i]
    across = 0.0
    for i in range(last):
        across += mirror[i] * v[i]
    for i in range(last):
        v[i] -= 2.0 * across * mirror[i]
    if back:
        for i in range(last):
            v[i] += along * e[i]
        v[last] = t
    else:
        for i in range(last, 1, -1):
            v[i] = v[i - 1]
        v[0], v[1] = (along + t) / ROOT, (along - t) / ROOT


@bare
def turn_matrix(v: Tile, V: Tile, X: Tile, Y: Tile, k: int, back: bool) -> None:
    """``V X V'`` of a packed X of order k, or ``V'X V``: `back`."""
    unpack(v, X, k)
    for i in range(k):
        for j in range(k):
            total = 0.0
            for s in range(k):
                total += X[i, s] * (V[s, j] if back else V[j, s])
            Y[i, j] = total
    at = 0
    for i in range(k):
        for j in range(i + 1):
            total = 0.0
            for s in range(k):
                total += (V[s, i] if back else V[i, s]) * Y[s, j]
            v[at] = total if i == j else ROOT * total
            at += 1


@bare
def turn_rows(rows: Rows, at: Foot, vectors: Tile, back: bool) -> None:
    """``Q'v`` in place of each v of the vectors ``(count, R)``, or ``Q v``: `back`."""
    for b in range(rows.blocks.shape[0]):
        kind, first, count, order = block(rows, b)
        e, mirror, V = at.axis[first : first + count - 1], at.mirror[first : first + count - 1], at.vectors[b]
        if kind == CONE:
            for j in range(vectors.shape[0]):
                turn_cone(vectors[j, first : first + count], e, mirror, back)
        elif kind == MATRIX:
            for j in range(vectors.shape[0]):
                turn_matrix(vectors[j, first : first + count], V, at.X, at.Y, order, back)
