"""Points of small curved sets on a CPU, sample by sample, compiled by numba; and the derivative.

From the address of the numbers to the verdict: layouts, blocks and their cones, the system of a Newton step, the
augmented Lagrangian, the sample. `hardnet.solvers.conic` has the same in plain torch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray

from hardnet.kernels.cpu.compiling import Tile, bare, inner
from hardnet.kernels.cpu.tiles import bound_size, row_dot
from hardnet.kernels.limits import CURVED

SWEEPS = 40
"""Maximum number of sweeps over all pairs: convergence is quadratic and takes three to six."""
EPS = 2.0**-52


@bare
def rotation(p: float, q: float, off: float) -> tuple[float, float]:
    """Cosine and sine of the smaller angle that makes ``[p off; off q]`` diagonal."""
    half = 0.5 * (q - p)
    root = math.sqrt(half * half + off * off)
    tangent = off / (half + root) if half >= 0.0 else off / (half - root)
    cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
    return cosine, tangent * cosine


@bare
def turn(X: Tile, i: int, j: int, cosine: float, sine: float, columns: int) -> None:
    """Rows i and j of X become ``cosine X_i - sine X_j`` and ``sine X_i + cosine X_j``."""
    for column in range(columns):
        one, other = X[i, column], X[j, column]
        X[i, column] = cosine * one - sine * other
        X[j, column] = sine * one + cosine * other


@bare
def identity(X: Tile, k: int) -> None:
    """Set X to the identity of order k."""
    for i in range(k):
        for j in range(k):
            X[i, j] = 1.0 if i == j else 0.0


@bare
def eigen(X: Tile, V: Tile, values: Tile, k: int) -> None:
    """``X = V' diag(values) V`` for symmetric X of order k, which is overwritten; eigenvectors are the rows of V."""
    identity(V, k)
    for _ in range(SWEEPS):
        off, size = 0.0, 0.0
        for i in range(k):
            size += X[i, i] * X[i, i]
            for j in range(i):
                off += X[i, j] * X[i, j]
        if not off > EPS * EPS * size:  # also for NaN
            break
        for i in range(k):
            for j in range(i):
                if X[i, j] != 0.0:
                    cosine, sine = rotation(X[j, j], X[i, i], X[i, j])
                    turn(X, j, i, cosine, sine, k)
                    for row in range(k):
                        one, other = X[row, j], X[row, i]
                        X[row, j] = cosine * one - sine * other
                        X[row, i] = sine * one + cosine * other
                    turn(V, j, i, cosine, sine, k)
    for i in range(k):
        values[i] = X[i, i]


@bare
def orthogonalize(M: Tile, V: Tile, sizes: Tile, t: int) -> None:
    """``M = V' G`` with orthogonal rows G in place of the first t rows of M; their norms are the singular values.

    One-sided Jacobi: pairs of rows are rotated until all are orthogonal, which keeps small singular values accurate.
    """
    n, turned = M.shape[1], t > 1
    identity(V, t)
    for _ in range(SWEEPS):
        if not turned:
            break
        turned = False
        for i in range(t):
            for j in range(i):
                p, q, off = 0.0, 0.0, 0.0
                for column in range(n):
                    p += M[j, column] * M[j, column]
                    q += M[i, column] * M[i, column]
                    off += M[i, column] * M[j, column]
                if abs(off) > EPS * math.sqrt(p * q):
                    turned = True
                    cosine, sine = rotation(p, q, off)
                    turn(M, j, i, cosine, sine, n)
                    turn(V, j, i, cosine, sine, t)
    for i in range(t):
        square = 0.0
        for column in range(n):
            square += M[i, column] * M[i, column]
        sizes[i] = math.sqrt(square)


# A set ``G(y) in K`` of one sample on a CPU: values, distance to the cones, and the derivative of their projection.
#
# All rows of all blocks follow one another, the row being the last index. The same mathematics for batches of tensors,
# with its derivation, is in `hardnet.solvers.conic.blocks`.


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


# The linear systems of one sample on a CPU: the Hessian of the Lagrangian, its factor, and the saddle of tight rows.
#
# See `hardnet.solvers.conic.blocks.Linear` and `hardnet.solvers.conic.solve.Saddle` for the same on batches of
# tensors.


FLOOR = CURVED.floor


class System(NamedTuple):
    """Room for the systems of one sample.

    Attributes:
        T: The Jacobian in the eigenbasis of the cones and one vector of rows beside it, ``(n + 1, R)``.
        weight: What the square of each row counts in the Hessian, ``(R,)``.
        L: The Hessian, then its Cholesky factor, ``(n, n)``.
        M: The tight rows times ``L^-T``, then orthogonal, ``(R, n)``.
        V: How these came from the rows, ``(R, R)``.
        sizes: Their norms, ``(R,)``.
        half: ``L^-1`` times the right side, ``(n,)``.
        move: The solution, ``(n,)``.
        force: Multipliers of the tight rows, ``(R,)``.
    """

    T: Tile
    weight: Tile
    L: Tile
    M: Tile
    V: Tile
    sizes: Tile
    half: Tile
    move: Tile
    force: Tile


@bare
def turned(rows: Rows, at: Foot, tolerance: float, beside: Tile, system: System) -> None:
    """The Jacobian in the eigenbasis where `at` was taken, and the vector `beside` ``(R,)`` in the last row of T."""
    frame(rows, at, tolerance)
    n, R = rows.J.shape
    for i in range(R):
        system.T[n, i] = beside[i]
    for j in range(n):
        for i in range(R):
            system.T[j, i] = rows.J[j, i]
    turn_rows(rows, at, system.T, False)


@bare
def factorize(rows: Rows, base: float, dual: Tile, system: System) -> None:
    """``base I + sum dual_i D2G_i + T diag(weight) T'`` as ``L L'``; NaN where it is not positive."""
    n, R = rows.J.shape
    L, T = system.L, system.T
    for a in range(n):
        for b in range(a + 1):
            L[a, b] = base if a == b else 0.0
    for c in range(rows.curved.size):
        share = max(dual[int(rows.curved[c])], 0.0) * rows.bend[c]  # a multiplier of the wrong sign bends nothing
        for a in range(n):
            for b in range(a + 1):
                L[a, b] += share * rows.P[c, a * n + b]
    for a in range(n):
        for i in range(R):
            system.force[i] = system.weight[i] * T[a, i]
        for b in range(a + 1):
            total = 0.0
            for i in range(R):
                total += system.force[i] * T[b, i]
            L[a, b] += total
    for a in range(n):
        for b in range(a + 1):
            total = L[a, b]
            if b >= LONG:
                total -= row_dot(L[a, :b], L[b, :b])
            else:
                for c in range(b):
                    total -= L[a, c] * L[b, c]
            L[a, b] = math.sqrt(total) if a == b else total / L[b, b]


@bare
def down(L: Tile, v: Tile) -> None:
    """``L^-1 v`` in place."""
    for a in range(v.size):
        total = v[a]
        for b in range(a):
            total -= L[a, b] * v[b]
        v[a] = total / L[a, a]


@bare
def up(L: Tile, v: Tile) -> None:
    """``L^-T v`` in place."""
    for a in range(v.size - 1, -1, -1):
        total = v[a]
        for b in range(a + 1, v.size):
            total -= L[b, a] * v[b]
        v[a] = total / L[a, a]


@bare
def solve_saddle(at: Foot, right: Tile, tight: Tile, system: System) -> None:
    """``[H C'; C 0] (move, force) = (right, tight)`` for the tight rows C, of any rank; force is zero on the others."""
    n, R, count = right.size, tight.size, 0
    force, half, move = system.force, system.half, system.move
    for i in range(R):
        force[i] = 0.0
        if at.delta[i] <= FLOOR:
            for j in range(n):
                system.M[count, j] = system.T[j, i]
            down(system.L, system.M[count])
            count += 1
    M, V = system.M, system.V
    orthogonalize(M, V, system.sizes, count)
    largest = 0.0
    for j in range(n):
        half[j] = right[j]
    for s in range(count):
        largest = max(largest, system.sizes[s])
    cut = max(n, R) * 8 * EPS * largest
    down(system.L, half)
    for j in range(n):
        move[j] = half[j]
    for s in range(count):
        if system.sizes[s] > cut:
            _along(at, M[s], V[s], system.sizes[s], tight, system)
    up(system.L, move)


@bare
def _along(at: Foot, u: Tile, v: Tile, size: float, tight: Tile, system: System) -> None:
    """Take one singular direction out of the move, and put what the tight rows ask for in its place."""
    asked, along, s = 0.0, 0.0, 0
    for i in range(tight.size):
        if at.delta[i] <= FLOOR:
            asked += v[s] * tight[i]
            s += 1
    for j in range(u.size):
        along += u[j] * system.half[j]
    asked, along, s = asked / size, along / size, 0
    for j in range(u.size):
        system.move[j] += (asked - along) / size * u[j]
    for i in range(tight.size):
        if at.delta[i] <= FLOOR:
            system.force[i] += v[s] * (along - asked) / size
            s += 1


@bare
def weigh_bends(at: Foot, tight: float, system: System) -> None:
    """``(1 - delta) / delta`` for rows that bend; `tight` for tight ones."""
    for i in range(at.delta.size):
        delta = at.delta[i]
        system.weight[i] = tight if delta <= FLOOR else (1.0 - delta) / delta


# The projection onto curved sets on a CPU, one small sample at a time: an augmented Lagrangian, then Newton.
#
# ``min weight/2 |y - raw|^2  s.t.  G(y) in K`` by the steps of `hardnet.solvers.conic.solve` and
# `hardnet.solvers.conic.solve`, where they are derived; what is not solved here goes on there.


FIRST_ACCURACY, FACTOR, FINEST, ROUNDS = 1e-2, 1e-2, 1e-11, 12
"""The accuracy at which Newton is tried first, what it is multiplied by each time, down to which, and how often."""
STEPS, TRIALS, NEWTON = 32, CURVED.trials, 12
"""Steps of the augmented Lagrangian in one round, points of a line search, and Newton steps, at most."""
FIRST_PENALTY, LARGEST_PENALTY = CURVED.first_penalty, CURVED.largest_penalty
TARGET, SOLVED, REPAIRED_BELOW = CURVED.target, 1e-13, 1e-9
"""Newton stops at the first residual, a sample with the second needs no further round, and the third is repaired."""
FAR_AWAY, PASSES, HALFWAY = CURVED.far_away, CURVED.passes, CURVED.halfway
TIGHT, FAINT = CURVED.tight, CURVED.faint
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
def ascend(sample: Sample, weight: float, penalty: float, accuracy: float) -> tuple[float, float, int]:
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
        penalty, residual, steps = ascend(sample, weight, penalty, accuracy)
        spent += steps
        if residual <= accuracy:
            residual, steps = polish(sample, weight, TARGET)
            spent, accuracy = spent + steps, max(accuracy * FACTOR, FINEST)
    if residual <= REPAIRED_BELOW and repair(sample, weight):
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


# The numbers of one sample of a curved set on a CPU: laid out as rows, judged, and divided by units.
#
# What `hardnet.solvers.conic.blocks` and the images do for batches of tensors. The numbers of all blocks lie one after
# the other in memory; a table says for each block where its fields begin, and how far from sample to sample.


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


# One sample of a curved set on a CPU, from its numbers to the answer: inside test, units, projection, verdict.
#
# Everything that `hardnet.solvers.conic.solve` and `hardnet.solvers.conic.solve` do for a sample, where it is
# derived, happens at once. What that leaves open (numbers that describe no convex set, an empty set, a residual above
# the tolerance, a row that is missed by more than rounding) is flagged for these.


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


Counter = npt.NDArray[np.int64]


@inner
def vector(room: Tile, used: Counter, size: int) -> Tile:
    """The next numbers of the room."""
    first = used[0]
    used[0] += size
    return room[first : first + size]


@inner
def matrix(room: Tile, used: Counter, rows: int, columns: int) -> Tile:
    """The same as a matrix."""
    return vector(room, used, rows * columns).reshape((rows, columns))


@inner
def furnish(room: Tile, used: Counter, n: int, R: int, order: int, table: Tile, curved: Tile) -> Sample:
    """The arrays of one sample, cut out of one piece of memory.

    It comes from outside, so that numba counts no references to it: that would cost more than the arithmetic.
    """
    C, parts = curved.size, table.shape[0]
    rows = Rows(
        matrix(room, used, n, R), vector(room, used, R), vector(room, used, R), vector(room, used, R),
        matrix(room, used, C, n * n), vector(room, used, C), matrix(room, used, C, n), curved, table,
    )  # fmt: skip
    at = Foot(
        vector(room, used, R), vector(room, used, R), vector(room, used, R), vector(room, used, R),
        vector(room, used, parts * order * order).reshape((parts, order, order)), vector(room, used, R),
        vector(room, used, R), matrix(room, used, order, order), matrix(room, used, order, order),
    )  # fmt: skip
    system = System(
        matrix(room, used, n + 1, R), vector(room, used, R), matrix(room, used, n, n), matrix(room, used, R, n),
        matrix(room, used, R, R), vector(room, used, R), vector(room, used, n), vector(room, used, n),
        vector(room, used, R),
    )  # fmt: skip
    return Sample(
        rows, vector(room, used, n), vector(room, used, n), vector(room, used, R), at, system, vector(room, used, n),
        vector(room, used, n), vector(room, used, R), vector(room, used, R), matrix(room, used, 1, R),
        matrix(room, used, 3, R),
    )  # fmt: skip


@bare
def run(
    y: Tile, dual: Tile, found: Tile, raw: Tile, limits: Tile, numbers: Tile, sample: Sample, way: Tile, factor: Tile,
    checked: Tile, back: int, begin: int, end: int,
) -> int:  # fmt: skip
    """Samples `begin` to `end`: the projection, or (`back`) its derivative at y and dual for the gradient in raw."""
    allowed, left = Limits(limits[0], limits[1], limits[2], limits[3], limits[4]), 0
    checked[:] = 0.0
    for b in range(begin, end):
        case = Case(sample, numbers, b, raw[b], y[b], dual[b], way, factor, checked)
        if back:
            derive_sample(case, raw[b])
            continue
        copy(raw[b], y[b])
        dual[b] = 0.0
        residual, spent, is_open = project_sample(case, allowed)
        found[b, 0], found[b, 1], found[b, 2] = residual, spent, is_open
        left += is_open
    return left


def _run(
    y: Any, dual: Any, found: Any, raw: Any, limits: Any, numbers: Any, table: Any, curved: Any, rooms: Any,
    back: int, count: int, columns: int, parts: int, curves: int, order: int, threads: int, size: int, samples: int,
    R: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`run` of addresses; each thread has its own room. How many samples are left open."""
    room, used = carray(rooms, (threads, size))[begin * threads // samples], np.zeros(1, dtype=np.int64)
    sample = furnish(room, used, n, R, order, carray(table, (parts, columns)), carray(curved, (curves,)))
    way, factor, checked = vector(room, used, n), vector(room, used, R), vector(room, used, parts)
    return run(
        carray(y, (samples, n)), carray(dual, (samples, R)), carray(found, (samples, 3)), carray(raw, (samples, n)),
        carray(limits, (5,)), carray(numbers, (count,)), sample, way, factor, checked, back, begin, end,
    )  # fmt: skip


ENTRIES = (_run,)
