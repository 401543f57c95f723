"""Profiles with limits on values, steps and second differences on a CPU: interior point and exact finish, by numba.

Problems stand side by side, `LANES` at a time, so that every loop over them is one of vectors. A row of family 0 is
``z_t``, of family 1 ``z_t - z_{t-1}``, of family 2 ``z_t - 2 z_{t-1} + z_{t-2}``; what stands before the first value is
left out. All systems have five diagonals: O(T) a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from hardnet.kernels.cpu.compiling import Tile, compiled

LANES = 8
MOST_STEPS, MOST_ROUNDS, REFINEMENTS = 40, 10, 8
"""Interior point: the most steps; finish: the most changes of the active rows, and solves for one set of them."""
START, CLOSE, CENTER = 0.1, 1e-11, 0.995
"""Slacks and multipliers to start from, the mean product of both to end at, and the part of a step to the boundary."""
STIFF = 1e6
"""What holds active rows in the finish, relative to the largest weight; multipliers take over what is left."""
ROUNDING, WRONG = 8.0 * 2.0**-52, 1e-11
"""By how much of its terms a row may miss its bound, and of the largest multiplier one may have the wrong sign."""


@compiled
def products(out: Tile, z: Tile) -> None:
    """The rows ``(3, T, LANES)`` of z ``(T, LANES)``."""
    T = z.shape[0]
    for t in range(T):
        for v in range(LANES):
            first = z[t - 1, v] if t > 0 else 0.0
            second = z[t - 2, v] if t > 1 else 0.0
            out[0, t, v] = z[t, v]
            out[1, t, v] = z[t, v] - first
            out[2, t, v] = z[t, v] - 2.0 * first + second


@compiled
def transposed(out: Tile, w: Tile) -> None:
    """``out -= A'w`` for w ``(3, T, LANES)``."""
    T = out.shape[0]
    for t in range(T):
        for v in range(LANES):
            total = w[0, t, v] + w[1, t, v] + w[2, t, v]
            if t + 1 < T:
                total -= w[1, t + 1, v] + 2.0 * w[2, t + 1, v]
            if t + 2 < T:
                total += w[2, t + 2, v]
            out[t, v] -= total


@compiled
def factorize(d: Tile, e: Tile, f: Tile, weight: Tile, D: Tile) -> None:
    """``L diag(d) L'`` of ``diag(weight) + A'diag(D)A``; e and f are the two diagonals below that of L."""
    T = weight.shape[0]
    for t in range(T):
        for v in range(LANES):
            own, near, far = weight[t, v] + D[0, t, v] + D[1, t, v] + D[2, t, v], -D[1, t, v] - 2.0 * D[2, t, v], 0.0
            far = D[2, t, v]
            if t + 1 < T:
                own += D[1, t + 1, v] + 4.0 * D[2, t + 1, v]
                near -= 2.0 * D[2, t + 1, v]
            if t + 2 < T:
                own += D[2, t + 2, v]
            if t > 1:
                f[t, v] = far / d[t - 2, v]
                near -= f[t, v] * d[t - 2, v] * e[t - 1, v]
                own -= f[t, v] * far
            if t > 0:
                e[t, v] = near / d[t - 1, v]
                own -= e[t, v] * near
            d[t, v] = own


@compiled
def solve(z: Tile, d: Tile, e: Tile, f: Tile) -> None:
    """Solve with these factors in place."""
    T = z.shape[0]
    for t in range(1, T):
        for v in range(LANES):
            z[t, v] -= e[t, v] * z[t - 1, v]
            if t > 1:
                z[t, v] -= f[t, v] * z[t - 2, v]
    for t in range(T - 1, -1, -1):
        for v in range(LANES):
            z[t, v] /= d[t, v]
            if t + 1 < T:
                z[t, v] -= e[t + 1, v] * z[t + 1, v]
            if t + 2 < T:
                z[t, v] -= f[t + 2, v] * z[t + 2, v]


@compiled
def approach(z: Tile, dual: Tile, active: Tile, raw: Tile, weight: Tile, low: Tile, high: Tile) -> None:
    """Mehrotra's method; `dual` gets the signed multipliers, `active` -1 or 1 for rows that look tight, else 0."""
    T = z.shape[0]
    shape = (3, T, LANES)
    az, adz, D, w = np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape)
    s, m = np.empty((2, 3, T, LANES)), np.empty((2, 3, T, LANES))  # slacks and multipliers below and above
    ds, dm, c = np.zeros((2, 3, T, LANES)), np.zeros((2, 3, T, LANES)), np.zeros((2, 3, T, LANES))
    d, e, f, dz = np.empty((T, LANES)), np.empty((T, LANES)), np.empty((T, LANES)), np.empty((T, LANES))
    count, mu, goal, length = np.zeros(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    products(az, z)
    for side in range(2):
        for k in range(3):
            for t in range(T):
                for v in range(LANES):
                    gap = az[k, t, v] - low[k, t, v] if side == 0 else high[k, t, v] - az[k, t, v]
                    there = gap < np.inf
                    count[v] += 1.0 if there else 0.0
                    s[side, k, t, v] = max(gap, START) if there else 1.0
                    m[side, k, t, v] = START if there else 0.0
    for _ in range(MOST_STEPS):
        products(az, z)
        mu[:] = 0.0
        for side in range(2):
            for k in range(3):
                for t in range(T):
                    for v in range(LANES):
                        mu[v] += s[side, k, t, v] * m[side, k, t, v]
        worst = 0.0
        for v in range(LANES):
            mu[v] /= max(count[v], 1.0)
            worst = max(worst, mu[v])
        if not worst > CLOSE:
            break
        for k in range(3):
            for t in range(T):
                for v in range(LANES):
                    D[k, t, v] = m[0, k, t, v] / s[0, k, t, v] + m[1, k, t, v] / s[1, k, t, v]
        factorize(d, e, f, weight, D)
        for phase in range(2):
            for v in range(LANES):
                length[v] = 1.0
            for k in range(3):
                for t in range(T):
                    for v in range(LANES):
                        left = 0.0
                        for side in range(2):
                            on = m[side, k, t, v] > 0.0
                            aim = goal[v] - c[side, k, t, v] if phase == 1 and on else 0.0
                            gap = az[k, t, v] - low[k, t, v] if side == 0 else high[k, t, v] - az[k, t, v]
                            off = gap - s[side, k, t, v] if on else 0.0
                            part = (aim - m[side, k, t, v] * (s[side, k, t, v] + off)) / s[side, k, t, v]
                            left += part + m[side, k, t, v] if side == 0 else -(part + m[side, k, t, v])
                        w[k, t, v] = -left
            for t in range(T):
                for v in range(LANES):
                    dz[t, v] = weight[t, v] * (raw[t, v] - z[t, v])
            transposed(dz, w)
            solve(dz, d, e, f)
            products(adz, dz)
            for side in range(2):
                for k in range(3):
                    for t in range(T):
                        for v in range(LANES):
                            on = m[side, k, t, v] > 0.0
                            aim = goal[v] - c[side, k, t, v] if phase == 1 and on else 0.0
                            gap = az[k, t, v] - low[k, t, v] if side == 0 else high[k, t, v] - az[k, t, v]
                            move = adz[k, t, v] if side == 0 else -adz[k, t, v]
                            slack, own = s[side, k, t, v], m[side, k, t, v]
                            change = gap - slack + move if on else 0.0
                            turn = (aim - own * (slack + change)) / slack if on else 0.0
                            ds[side, k, t, v], dm[side, k, t, v] = change, turn
                            if change < 0.0:
                                length[v] = min(length[v], -slack / change)
                            if turn < 0.0:
                                length[v] = min(length[v], -own / turn)
            if phase == 0:  # how far it would get without centering
                goal[:] = 0.0
                for side in range(2):
                    for k in range(3):
                        for t in range(T):
                            for v in range(LANES):
                                ahead = s[side, k, t, v] + length[v] * ds[side, k, t, v]
                                goal[v] += ahead * (m[side, k, t, v] + length[v] * dm[side, k, t, v])
                                c[side, k, t, v] = ds[side, k, t, v] * dm[side, k, t, v]
                for v in range(LANES):
                    part = goal[v] / max(count[v], 1.0) / max(mu[v], 1e-300)
                    goal[v] = part * part * part * mu[v]
        for v in range(LANES):
            length[v] = min(1.0, CENTER * length[v]) if mu[v] > CLOSE else 0.0  # nothing depends on the others
        for t in range(T):
            for v in range(LANES):
                z[t, v] += length[v] * dz[t, v]
        for side in range(2):
            for k in range(3):
                for t in range(T):
                    for v in range(LANES):
                        s[side, k, t, v] += length[v] * ds[side, k, t, v]
                        m[side, k, t, v] += length[v] * dm[side, k, t, v]
    for k in range(3):
        for t in range(T):
            for v in range(LANES):
                above, below = m[1, k, t, v] > s[1, k, t, v], m[0, k, t, v] > s[0, k, t, v]
                dual[k, t, v] = m[1, k, t, v] - m[0, k, t, v]
                active[k, t, v] = 1.0 if above and not (below and dual[k, t, v] < 0.0) else -1.0 if below else 0.0


@compiled
def hold(
    z: Tile, dual: Tile, active: Tile, right: Tile, weight: Tile, low: Tile, high: Tile, level: float, rounds: int
) -> None:
    """``W z + A_J'dual = right, A_J z = level * bounds``: solves with stiff rows, whose multipliers take over."""
    T = z.shape[0]
    D, rest = np.empty((3, T, LANES)), np.empty((3, T, LANES))
    d, e, f = np.empty((T, LANES)), np.empty((T, LANES)), np.empty((T, LANES))
    stiff = np.zeros(LANES)
    for t in range(T):
        for v in range(LANES):
            stiff[v] = max(stiff[v], STIFF * weight[t, v])
    for k in range(3):
        for t in range(T):
            for v in range(LANES):
                on = active[k, t, v] != 0.0
                D[k, t, v] = stiff[v] if on else 0.0
                dual[k, t, v] = dual[k, t, v] if on else 0.0
    factorize(d, e, f, weight, D)
    for _ in range(rounds):  # corrections of z, so that what is left is measured, not the size of z
        products(rest, z)
        for k in range(3):
            for t in range(T):
                for v in range(LANES):
                    aim = high[k, t, v] if active[k, t, v] > 0.0 else low[k, t, v]
                    left = rest[k, t, v] - (level * aim if level != 0.0 and D[k, t, v] > 0.0 else 0.0)
                    rest[k, t, v] = dual[k, t, v] + D[k, t, v] * left
        step = np.empty((T, LANES))
        for t in range(T):
            for v in range(LANES):
                step[t, v] = right[t, v] - weight[t, v] * z[t, v]
        transposed(step, rest)
        solve(step, d, e, f)
        z += step
        products(rest, z)
        for k in range(3):
            for t in range(T):
                for v in range(LANES):
                    aim = high[k, t, v] if active[k, t, v] > 0.0 else low[k, t, v]
                    left = rest[k, t, v] - (level * aim if level != 0.0 and D[k, t, v] > 0.0 else 0.0)
                    dual[k, t, v] += D[k, t, v] * left


@compiled
def finish(z: Tile, dual: Tile, active: Tile, solved: Tile, raw: Tile, weight: Tile, low: Tile, high: Tile) -> None:
    """The exact point on the active rows; those with a wrong sign leave, those that are violated enter."""
    T = z.shape[0]
    az, right, largest = np.empty((3, T, LANES)), np.empty((T, LANES)), np.empty(LANES)
    kept, done = np.empty((T, LANES)), np.zeros(LANES)
    for t in range(T):
        for v in range(LANES):
            right[t, v] = weight[t, v] * raw[t, v]
    for _ in range(MOST_ROUNDS):
        kept[:] = z
        hold(z, dual, active, right, weight, low, high, 1.0, REFINEMENTS)
        for t in range(T):
            for v in range(LANES):
                z[t, v] = kept[t, v] if done[v] > 0.0 else z[t, v]
        products(az, z)
        largest[:] = 0.0
        for k in range(3):
            for t in range(T):
                for v in range(LANES):
                    largest[v] = max(largest[v], abs(dual[k, t, v]))
        solved[:] = 1.0
        for k in range(3):
            for t in range(T):
                for v in range(LANES):
                    value, least, most, place = az[k, t, v], low[k, t, v], high[k, t, v], active[k, t, v]
                    size = abs(z[t, v]) + (abs(z[t - 1, v]) if t > 0 and k > 0 else 0.0)
                    if done[v] > 0.0:
                        continue
                    slack = ROUNDING * (size + min(abs(least), abs(most)))
                    if not (value <= most + slack and value >= least - slack):
                        solved[v] = 0.0
                        active[k, t, v] = 1.0 if value > most else -1.0
                    elif place * dual[k, t, v] < -WRONG * largest[v] and least < most:
                        solved[v] = 0.0
                        active[k, t, v] = 0.0
        done[:] = solved
        if np.min(solved) > 0.0:
            break


@compiled
def load(out: Tile, values: Tile, first: int, last: int) -> None:
    """Problems of a matrix ``(P, T)`` side by side; the last one stands for those that are missing."""
    for v in range(LANES):
        row = values[min(first + v, last) % values.shape[0]]
        for t in range(out.shape[0]):
            out[t, v] = row[t]


@compiled
def project(
    y: Tile, place: Tile, ended: Tile, raw: Tile, weight: Tile, low: Tile, high: Tile, begin: int, end: int
) -> int:
    """Y ``(P, T)``, the side of each row ``(P, 3 T)``, and whether it is solved ``(P, 1)``."""
    T = raw.shape[1]
    own, mass, z = np.empty((T, LANES)), np.empty((T, LANES)), np.empty((T, LANES))
    least, most, dual = np.empty((3 * T, LANES)), np.empty((3 * T, LANES)), np.zeros((3, T, LANES))
    active, solved, unit = np.zeros((3, T, LANES)), np.zeros(LANES), np.empty(LANES)
    for first in range(begin, end, LANES):
        load(own, raw, first, end - 1)
        load(mass, weight, first, end - 1)
        load(least, low, first, end - 1)
        load(most, high, first, end - 1)
        bottom, top = least.reshape(3, T, LANES), most.reshape(3, T, LANES)
        for v in range(LANES):
            unit[v] = 1e-300
            for t in range(T):
                unit[v] = max(unit[v], abs(own[t, v] - own[max(t - 1, 0), v]))
                unit[v] = max(unit[v], bottom[0, t, v] - own[t, v], own[t, v] - top[0, t, v])
            for t in range(T):
                own[t, v] /= unit[v]
                z[t, v] = min(max(own[t, v], bottom[0, t, v] / unit[v]), top[0, t, v] / unit[v])
                for k in range(3):
                    bottom[k, t, v] /= unit[v]
                    top[k, t, v] /= unit[v]
        approach(z, dual, active, own, mass, bottom, top)
        finish(z, dual, active, solved, own, mass, bottom, top)
        for v in range(min(LANES, end - first)):
            ended[first + v, 0] = solved[v]
            for t in range(T):
                y[first + v, t] = min(max(z[t, v], bottom[0, t, v]), top[0, t, v]) * unit[v]
                for k in range(3):
                    place[first + v, k * T + t] = active[k, t, v]
    return 0


@compiled
def pull(to_raw: Tile, to_rows: Tile, gradient: Tile, place: Tile, weight: Tile, begin: int, end: int) -> int:
    """``W u`` ``(P, T)`` and the multipliers ``(P, 3 T)`` of ``W u + A_J'w = g, A_J u = 0``."""
    T = gradient.shape[1]
    g, mass, u = np.empty((T, LANES)), np.empty((T, LANES)), np.empty((T, LANES))
    active, w = np.empty((3 * T, LANES)), np.empty((3, T, LANES))
    for first in range(begin, end, LANES):
        load(g, gradient, first, end - 1)
        load(mass, weight, first, end - 1)
        load(active, place, first, end - 1)
        u[:], w[:] = 0.0, 0.0
        rows = active.reshape(3, T, LANES)
        hold(u, w, rows, g, mass, rows, rows, 0.0, REFINEMENTS)
        for v in range(min(LANES, end - first)):
            for t in range(T):
                to_raw[first + v, t] = mass[t, v] * u[t, v]
                for k in range(3):
                    to_rows[first + v, k * T + t] = w[k, t, v]
    return 0


def _project(
    y: Any, place: Any, ended: Any, raw: Any, weight: Any, low: Any, high: Any,
    samples: int, m: int, n: int, weights: int, lows: int, highs: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`project`, called with addresses; m is 3."""
    return project(
        carray(y, (samples, n)), carray(place, (samples, m * n)), carray(ended, (samples, 1)),
        carray(raw, (samples, n)), carray(weight, (weights, n)), carray(low, (lows, m * n)),
        carray(high, (highs, m * n)), begin, end,
    )  # fmt: skip


def _pull(
    to_raw: Any, to_rows: Any, gradient: Any, place: Any, weight: Any,
    samples: int, m: int, n: int, weights: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`pull`, called with addresses; m is 3."""
    return pull(
        carray(to_raw, (samples, n)), carray(to_rows, (samples, m * n)), carray(gradient, (samples, n)),
        carray(place, (samples, m * n)), carray(weight, (weights, n)), begin, end,
    )  # fmt: skip


ENTRIES = (_project, _pull)
"""The entry points to compile; they take addresses."""
