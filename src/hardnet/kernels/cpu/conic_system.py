"""The linear systems of one sample on a CPU: the Hessian of the Lagrangian, its factor, and the saddle of tight rows.

See `hardnet.solvers.conic.stack.Linear` and `hardnet.solvers.conic.distance.Saddle` for the same on batches of tensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hardnet.kernels.cpu.compiling import Tile, bare
from hardnet.kernels.cpu.conic_blocks import LONG, Foot, Rows, frame, turn_rows
from hardnet.kernels.cpu.small_eigen import EPS, orthogonalize
from hardnet.kernels.cpu.tiles import row_dot
from hardnet.kernels.limits import CURVED

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
