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

LANES = 16
MOST_STEPS, MOST_ROUNDS, REFINEMENTS = 40, 12, 8
"""Interior point: the most steps; finish: the most changes of the active rows, and solves for one set of them."""
START, CLOSE, CENTER = 0.1, 1e-8, 0.995
"""Slacks and multipliers to start from, the mean product of both to end at, and the part of a step to the boundary."""
STIFF = 1e6
"""What holds active rows in the finish, relative to the largest weight; multipliers take over what is left."""
ROUNDING, WRONG = 8.0 * 2.0**-52, 1e-11
"""By how much of its terms a row may miss its bound, and of the largest multiplier one may have the wrong sign."""


@compiled
def combine(out: Tile, x: Tile, a: float, y: Tile, b: float, z: Tile) -> None:
    """``out = x + a y + b z``, lane by lane."""
    for v in range(out.shape[0]):
        out[v] = x[v] + a * y[v] + b * z[v]


@compiled
def products(out: Tile, z: Tile) -> None:
    """The rows ``(3, T, LANES)`` of z ``(T, LANES)``."""
    T, none = z.shape[0], np.zeros(LANES)
    for t in range(T):
        first, second = z[t - 1] if t > 0 else none, z[t - 2] if t > 1 else none
        combine(out[0, t], z[t], 0.0, none, 0.0, none)
        combine(out[1, t], z[t], -1.0, first, 0.0, none)
        combine(out[2, t], z[t], -2.0, first, 1.0, second)


@compiled
def transposed(out: Tile, w: Tile) -> None:
    """``out -= A'w`` for w ``(3, T, LANES)``."""
    T, none = out.shape[0], np.zeros(LANES)
    for t in range(T):
        combine(out[t], out[t], -1.0, w[0, t], -1.0, w[1, t])
        combine(out[t], out[t], -1.0, w[2, t], 1.0, w[1, t + 1] if t + 1 < T else none)
        combine(out[t], out[t], 2.0, w[2, t + 1] if t + 1 < T else none, -1.0, w[2, t + 2] if t + 2 < T else none)


@compiled
def pivot(d: Tile, e: Tile, near: Tile, f: Tile, far: Tile, before: Tile, d1: Tile, d2: Tile) -> None:
    """One row of the factors below; `before` is the row of e before it."""
    for v in range(d.shape[0]):
        f[v] = far[v] / d2[v]
        own = near[v] - far[v] * before[v]
        e[v] = own / d1[v]
        d[v] -= f[v] * far[v] + e[v] * own


@compiled
def factorize(d: Tile, e: Tile, f: Tile, weight: Tile, D: Tile) -> None:
    """``L diag(d) L'`` of ``diag(weight) + A'diag(D)A``; e and f are the two diagonals below that of L."""
    T, none, ones = weight.shape[0], np.zeros(LANES), np.ones(LANES)
    near, far = np.empty(LANES), np.empty(LANES)
    for t in range(T):
        next1, next2 = D[1, t + 1] if t + 1 < T else none, D[2, t + 1] if t + 1 < T else none
        combine(d[t], weight[t], 1.0, D[0, t], 1.0, D[1, t])
        combine(d[t], d[t], 1.0, D[2, t], 1.0, next1)
        combine(d[t], d[t], 4.0, next2, 1.0, D[2, t + 2] if t + 2 < T else none)
        combine(near, none, -1.0, D[1, t], -2.0, D[2, t])
        combine(near, near, -2.0, next2, 0.0, none)
        combine(far, none, 1.0, D[2, t], 0.0, none)
        one, two = d[t - 1] if t > 0 else ones, d[t - 2] if t > 1 else ones
        if t == 0:
            near[:] = 0.0
        if t < 2:
            far[:] = 0.0
        pivot(d[t], e[t], near, f[t], far, e[t - 1] if t > 0 else none, one, two)


@compiled
def eliminate(out: Tile, e: Tile, y: Tile, f: Tile, z: Tile) -> None:
    """``out -= e y + f z``, lane by lane."""
    for v in range(out.shape[0]):
        out[v] -= e[v] * y[v] + f[v] * z[v]


@compiled
def solve(z: Tile, d: Tile, e: Tile, f: Tile) -> None:
    """Solve with these factors in place."""
    T, none = z.shape[0], np.zeros(LANES)
    for t in range(1, T):
        eliminate(z[t], e[t], z[t - 1], f[t], z[t - 2] if t > 1 else none)
    for t in range(T - 1, -1, -1):
        own, div = z[t], d[t]
        for v in range(LANES):
            own[v] /= div[v]
        if t + 1 < T:
            last = t + 2 >= T
            eliminate(own, e[t + 1], z[t + 1], none if last else f[t + 2], none if last else z[t + 2])


@compiled
def gaps(off: Tile, inverse: Tile, az: Tile, bound: Tile, s: Tile, on: Tile, sign: float) -> None:
    """``on (sign (az - bound) - s)`` and ``1 / s``."""
    for i in range(off.size):
        off[i] = on[i] * (sign * (az[i] - bound[i]) - s[i])
        inverse[i] = 1.0 / s[i]


@compiled
def slopes(D: Tile, m: Tile, inverse: Tile, more: Tile, other: Tile) -> None:
    """``m / s`` of both sides."""
    for i in range(D.size):
        D[i] = m[i] * inverse[i] + more[i] * other[i]


@compiled
def push(w: Tile, aim: Tile, m: Tile, off: Tile, inverse: Tile, sign: float) -> None:
    """``w -= sign (aim - m off) / s``."""
    for i in range(w.size):
        w[i] -= sign * (aim[i] - m[i] * off[i]) * inverse[i]


@compiled
def slack_step(ds: Tile, off: Tile, on: Tile, adz: Tile, sign: float) -> None:
    """``off + sign on A dz``."""
    for i in range(ds.size):
        ds[i] = off[i] + sign * on[i] * adz[i]


@compiled
def multiplier_step(dm: Tile, aim: Tile, m: Tile, s: Tile, ds: Tile, inverse: Tile) -> None:
    """``(aim - m (s + ds)) / s``."""
    for i in range(dm.size):
        dm[i] = (aim[i] - m[i] * (s[i] + ds[i])) * inverse[i]


@compiled
def steepest(ratio: Tile, ds: Tile, inverse: Tile, dm: Tile, m: Tile) -> None:
    """The largest relative decrease of a slack or multiplier, lane by lane; all but `ratio` ``(rows, LANES)``."""
    for r in range(ds.shape[0]):
        a, b, c, e = ds[r], inverse[r], dm[r], m[r]
        for v in range(LANES):
            ratio[v] = max(ratio[v], max(-a[v] * b[v], -c[v] / (e[v] + 1e-300)))


@compiled
def add_products(total: Tile, s: Tile, ds: Tile, m: Tile, dm: Tile, length: Tile) -> None:
    """``sum (s + length ds) (m + length dm)``, lane by lane."""
    for r in range(s.shape[0]):
        a, b, c, e = s[r], ds[r], m[r], dm[r]
        for v in range(LANES):
            total[v] += (a[v] + length[v] * b[v]) * (c[v] + length[v] * e[v])


@compiled
def advance(values: Tile, change: Tile, length: Tile) -> None:
    """``values += length change``, lane by lane."""
    for r in range(values.shape[0]):
        a, b = values[r], change[r]
        for v in range(LANES):
            a[v] += length[v] * b[v]


@compiled
def correction(aim: Tile, on: Tile, ds: Tile, dm: Tile, goal: Tile) -> None:
    """``on (goal - ds dm)``: what the products of slacks and multipliers are to become."""
    for r in range(aim.shape[0]):
        a, b, c, e = aim[r], on[r], ds[r], dm[r]
        for v in range(LANES):
            a[v] = b[v] * (goal[v] - c[v] * e[v])


@compiled
def approach(z: Tile, dual: Tile, active: Tile, raw: Tile, weight: Tile, low: Tile, high: Tile) -> None:
    """Mehrotra's method; `dual` gets the signed multipliers, `active` -1 or 1 for rows that look tight, else 0."""
    T, rows = z.shape[0], 3 * z.shape[0]
    az, adz, D, w = np.empty(low.shape), np.empty(low.shape), np.empty(low.shape), np.empty(low.shape)
    s, m, on, bound = (
        np.empty((2, rows, LANES)),
        np.empty((2, rows, LANES)),
        np.empty((2, rows, LANES)),
        np.empty((2, rows, LANES)),
    )  # slacks and multipliers below and above
    ds, dm, aim, off, inverse = (
        np.zeros((2, rows, LANES)),
        np.zeros((2, rows, LANES)),
        np.zeros((2, rows, LANES)),
        np.zeros((2, rows, LANES)),
        np.zeros((2, rows, LANES)),
    )
    d, e, f, dz = np.empty((T, LANES)), np.empty((T, LANES)), np.empty((T, LANES)), np.empty((T, LANES))
    count, mu, goal, length, zeros = np.zeros(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES), np.zeros(LANES)
    flat, flat_w, flat_D, flat_dz = az.ravel(), w.ravel(), D.ravel(), adz.ravel()
    products(az, z)
    for side in range(2):
        for k in range(3):
            for t in range(T):
                for v in range(LANES):
                    limit = low[k, t, v] if side == 0 else high[k, t, v]
                    there, i = abs(limit) < np.inf, k * T + t
                    gap = (az[k, t, v] - limit) * (1.0 - 2.0 * side)
                    count[v] += 1.0 if there else 0.0
                    on[side, i, v], bound[side, i, v] = 1.0 if there else 0.0, limit if there else 0.0
                    s[side, i, v] = max(gap, START) if there else 1.0
                    m[side, i, v] = START if there else 0.0
    for _ in range(MOST_STEPS):
        products(az, z)
        mu[:] = 0.0
        worst = 0.0
        for side in range(2):
            add_products(mu, s[side], ds[side], m[side], dm[side], zeros)
            gaps(
                off[side].ravel(),
                inverse[side].ravel(),
                flat,
                bound[side].ravel(),
                s[side].ravel(),
                on[side].ravel(),
                1.0 - 2.0 * side,
            )
        for v in range(LANES):
            mu[v] /= max(count[v], 1.0)
            worst = max(worst, mu[v])
        if not worst > CLOSE:
            break
        slopes(flat_D, m[0].ravel(), inverse[0].ravel(), m[1].ravel(), inverse[1].ravel())
        factorize(d, e, f, weight, D)
        aim[:] = 0.0
        for phase in range(2):
            w[:] = 0.0
            for side in range(2):
                push(
                    flat_w,
                    aim[side].ravel(),
                    m[side].ravel(),
                    off[side].ravel(),
                    inverse[side].ravel(),
                    1.0 - 2.0 * side,
                )
            for t in range(T):
                for v in range(LANES):
                    dz[t, v] = weight[t, v] * (raw[t, v] - z[t, v])
            transposed(dz, w)
            solve(dz, d, e, f)
            products(adz, dz)
            length[:] = 0.0
            for side in range(2):
                slack_step(ds[side].ravel(), off[side].ravel(), on[side].ravel(), flat_dz, 1.0 - 2.0 * side)
                multiplier_step(
                    dm[side].ravel(),
                    aim[side].ravel(),
                    m[side].ravel(),
                    s[side].ravel(),
                    ds[side].ravel(),
                    inverse[side].ravel(),
                )
                steepest(length, ds[side], inverse[side], dm[side], m[side])
            for v in range(LANES):
                length[v] = 1.0 / max(1.0, length[v])
            if phase == 0:  # how far it would get without centering
                goal[:] = 0.0
                for side in range(2):
                    add_products(goal, s[side], ds[side], m[side], dm[side], length)
                for v in range(LANES):
                    part = goal[v] / max(count[v], 1.0) / max(mu[v], 1e-300)
                    goal[v] = part * part * part * mu[v]
                for side in range(2):
                    correction(aim[side], on[side], ds[side], dm[side], goal)
        for v in range(LANES):
            length[v] = min(1.0, CENTER * length[v]) if mu[v] > CLOSE else 0.0  # nothing depends on the others
        advance(z, dz, length)
        for side in range(2):
            advance(s[side], ds[side], length)
            advance(m[side], dm[side], length)
    for k in range(3):
        for t in range(T):
            for v in range(LANES):
                i = k * T + t
                above, below = m[1, i, v] > s[1, i, v], m[0, i, v] > s[0, i, v]
                dual[k, t, v] = m[1, i, v] - m[0, i, v]
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
