"""The nearest point of any polyhedron beside a box, sample by sample: a dual active set method, compiled by numba.

    y = argmin |y - raw|^2  subject to  lower <= A y <= upper,  low <= y <= high

The method is the one of Goldfarb and Idnani. Its working set has coordinates held at their bounds, never as rows, and
rows W; the factor is ``A_WF' = Q'R`` over the free coordinates F, with orthonormal rows of Q that are kept by
Gram-Schmidt done twice and by rotations, so that nearly dependent rows lose no more digits than they must. Every full
step increases the dual objective, so the method ends: no working set returns. The start is the clamped raw, or the
working set that a few Newton steps on the multipliers suggest. At the end y is recomputed from its working set, and the
rows are judged at it by the certificate's terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from hardnet.kernels.cpu.compiling import Tile, bare, bare_summed, compiled
from hardnet.kernels.cpu.gram_rows import by_gram, keep_equalities
from hardnet.kernels.cpu.working_rows import (
    ABSENT,
    EPS,
    FREE,
    Marks,
    add,
    append_row,
    back_substitute,
    copy,
    forward_substitute,
    free_coordinate,
    free_part,
    hold_coordinate,
    largest,
    orthogonalize,
    orthogonalize_again,
    product,
    remove_row,
    take_row,
)
from hardnet.kernels.limits import POLYHEDRON, ROUNDINGS

SOLVED, INFEASIBLE, NOT_CONVERGED, INVALID, FEASIBLE = 0.0, 1.0, 2.0, 3.0, 4.0
"""`hardnet.solvers.solution.Status`, written beside numbers."""
DEPENDENT, NO_RATE, BEYOND = POLYHEDRON.dependent, POLYHEDRON.rate, POLYHEDRON.beyond
VIOLATED, VERIFIED, CERTAIN, STRICT = POLYHEDRON.violated, POLYHEDRON.verified, POLYHEDRON.certain, POLYHEDRON.strict
ROOM, NARROW, ALLOWED = POLYHEDRON.room, POLYHEDRON.narrow, float(ROUNDINGS)
STRAIGHTENED, TOUCHING = POLYHEDRON.straightened, POLYHEDRON.touching
NEWTON_STEPS, GRAM = POLYHEDRON.newton_steps, POLYHEDRON.gram
ATTEMPTS = 4
"""The first as rows are; the others with straightened equalities, and the usual room, hardly any, and more."""


@bare_summed
def size_of_row(a: Tile, y: Tile, lower: float, upper: float, rounding: float) -> float:
    """What rounding of a row is relative to, by the rule of `hardnet.tolerances`."""
    weight, read, most = 0.0, 0.0, 0.0
    for j in range(a.shape[0]):
        length = abs(y[j])
        most = max(most, length)
        if a[j] != 0.0:
            weight += abs(a[j])
            read = max(read, length)
    least, far = min(abs(lower), abs(upper)), max(abs(lower), abs(upper))
    bounds = min(least + far, 2.0 * least + weight) if far < np.inf else least if least < np.inf else 0.0
    own = bounds > ROUNDINGS * rounding * weight * min(most, rounding**-0.25)
    return weight * read + bounds if own else weight * (most + rounding)


@bare
def resolve(
    raw: Tile, A: Tile, bound: Tile, held: Marks, work: Marks, k: int, Q: Tile, R: Tile, y: Tile, dual: Tile,
    push: Tile, z: Tile, c: Tile, r: Tile,
) -> None:  # fmt: skip
    """y and the multipliers of the working set from nothing: coordinates held keep their y, rows reach `bound`.

    With ``A_WF' = Q'R`` and z the difference ``raw - y`` over F, ``y += Q' R^-T (bound - A_W y)`` and ``R dual = Q z``.
    """
    n = raw.shape[0]
    for j in range(n):
        y[j] = raw[j] if held[j] == FREE else y[j]
    for sweep in range(4):  # the first reaches the bounds, the others refine
        far = 0.0
        for i in range(k):
            c[i] = bound[work[i]] - product(A[work[i]], y)
            far = max(far, abs(c[i]))
        if k == 0 or (sweep > 1 and far <= EPS * (largest(y) + abs(bound[work[0]]))):
            break
        forward_substitute(R, k, c, c)
        for i in range(k):
            for j in range(n):
                y[j] += c[i] * Q[i, j] if held[j] == FREE else 0.0
    for j in range(n):
        push[j] = raw[j] - y[j]
        z[j] = push[j] if held[j] == FREE else 0.0
    for i in range(k):
        c[i] = product(Q[i], z)
        add(-c[i], Q[i], push)
    back_substitute(R, k, c, r)
    dual[:] = 0.0
    for i in range(k):
        dual[work[i]] = r[i]
    for j in range(n):
        push[j] = 0.0 if held[j] == FREE else push[j]


@bare
def drop_row(Q: Tile, R: Tile, work: Marks, side: Marks, k: int, place: int, dual: Tile) -> int:
    """`remove_row` with its multiplier and its side; returns how many rows are left."""
    dual[work[place]] = 0.0
    side[work[place]] = FREE
    remove_row(Q, R, work, k, place)
    return k - 1


@bare
def repair(
    raw: Tile, A: Tile, bound: Tile, equal: Marks, side: Marks, held: Marks, work: Marks, k: int, Q: Tile, R: Tile,
    y: Tile, dual: Tile, push: Tile, z: Tile, c: Tile, r: Tile,
) -> int:  # fmt: skip
    """`resolve`, without the rows and bounds whose multipliers then have the wrong sign, until none has."""
    for _ in range(64):
        resolve(raw, A, bound, held, work, k, Q, R, y, dual, push, z, c, r)
        noise, wrong = 0.0, False
        for j in range(y.shape[0]):
            noise = max(noise, abs(push[j]))
        for i in range(k):
            noise = max(noise, abs(dual[work[i]]))
        noise *= 1e-13
        for place in range(k - 1, -1, -1):
            i = work[place]
            if not equal[i] and side[i] * dual[i] < 0.0:
                wrong |= side[i] * dual[i] < -noise
                k = drop_row(Q, R, work, side, k, place, dual)
        for j in range(y.shape[0]):
            if held[j] * held[j] == 1 and held[j] * push[j] < 0.0:
                wrong |= held[j] * push[j] < -noise
                free_coordinate(Q, R, A, work, k, j, z, c)
                held[j], push[j] = FREE, 0.0
        if not wrong:
            break
    return k


@bare
def enter(
    p: int, sigma: float, excess: float, slack: float, careful: bool, A: Tile, equal: Marks, side: Marks, held: Marks,
    work: Marks, k: int, Q: Tile, R: Tile, y: Tile, dual: Tile, push: Tile, part: Tile, z: Tile, c: Tile, r: Tile,
) -> tuple[int, int, int]:  # fmt: skip
    """Bring row p, or the bound of coordinate ``p - m``, into the working set by steps of the dual method.

    Returns how many rows the set has then, what happened (0 it is in, 1 it depends on the others and is met, 2 the
    multipliers `sigma`, `r` and `z` prove that it contradicts them, 3 it nearly depends on the others and `careful` is
    not set), and how many steps it took. `sigma` says which side is violated, by `excess`; up to `slack` a row that
    depends on the others is met.
    """
    m, n = A.shape
    own, steps = 0.0, 0
    while True:
        steps += 1
        if p < m:
            for j in range(n):
                z[j] = A[p, j]
            whole = free_part(z, held, part)
            length = orthogonalize(Q, k, held, z, part, c)
        else:
            z[:] = 0.0
            z[p - m], whole = 1.0, 1.0
            for i in range(k):
                c[i] = Q[i, p - m]
                add(-c[i], Q[i], z)
            length = orthogonalize_again(Q, k, held, z, part, c, whole)
        back_substitute(R, k, c, r)
        independent = length > DEPENDENT * whole
        if independent and length < NARROW * whole and not careful:
            return k, 3, steps
        if not independent and excess <= slack:
            return k, 1, steps
        most = max(1.0, max(largest(r[:k]), largest(z)))
        shortest, blocking, fastest = np.inf, ABSENT, 0.0
        for i in range(k):
            rate = sigma * r[i] * side[work[i]]
            if not equal[work[i]] and rate > NO_RATE * most:
                step = max(dual[work[i]] * side[work[i]], 0.0) / rate
                if step < shortest or (step == shortest and rate > fastest):
                    shortest, blocking, fastest = step, i, rate
        for j in range(n):
            rate = sigma * z[j] * held[j]
            if held[j] * held[j] == 1 and rate > NO_RATE * most:
                step = max(push[j] * held[j], 0.0) / rate
                if step < shortest or (step == shortest and rate > fastest):
                    shortest, blocking, fastest = step, k + j, rate
        full = excess / (length * length) if independent else np.inf
        step = min(shortest, full)
        if step == np.inf:
            return k, 2, steps
        for i in range(k):
            dual[work[i]] -= step * sigma * r[i]
        for j in range(n):
            if held[j] != FREE:
                push[j] -= step * sigma * z[j]
            elif independent:
                y[j] -= step * sigma * z[j]
        own += step * sigma
        excess -= step * length * length if independent else 0.0
        if full <= shortest:
            if p < m:
                append_row(Q, R, work, k, p, z, length, c)
                dual[p], side[p] = own, int(sigma)
                return k + 1, 0, steps
            hold_coordinate(Q, R, k, z, length, p - m, c)
            held[p - m], push[p - m] = int(sigma), own
            return k, 0, steps
        if blocking < k:
            k = drop_row(Q, R, work, side, k, blocking, dual)
        else:
            free_coordinate(Q, R, A, work, k, blocking - k, z, c)
            held[blocking - k], push[blocking - k] = FREE, 0.0


@bare
def most_violated(
    A: Tile, lower: Tile, upper: Tile, low: Tile, high: Tile, equal: Marks, side: Marks, held: Marks, passed: Marks,
    y: Tile,
) -> tuple[int, float, float]:  # fmt: skip
    """The row, or m plus the coordinate, that is violated the most beyond rounding, its side and by how much."""
    m, n = A.shape
    worst, chosen, sign, reach = 0.0, ABSENT, 1.0, largest(y)
    for i in range(m):
        if side[i] == FREE and not passed[i]:
            value = product(A[i], y)
            above, below = value - upper[i], lower[i] - value
            excess = max(above, below)
            if excess > worst and excess > VIOLATED * EPS * size_of_row(A[i], y, lower[i], upper[i], EPS):
                worst, chosen, sign = excess, i, 1.0 if above > below else -1.0
    for j in range(n):
        if held[j] == FREE:
            above, below = y[j] - high[j], low[j] - y[j]
            excess = max(above, below)
            allowed = 1e3 * EPS * reach if passed[m + j] else VIOLATED * EPS * abs(y[j])
            if excess > worst and excess > allowed:
                worst, chosen, sign = excess, m + j, 1.0 if above > below else -1.0
    return chosen, sign, worst


@bare
def guess(
    raw: Tile, A: Tile, lower: Tile, upper: Tile, low: Tile, high: Tile, equal: Marks, side: Marks, held: Marks,
    y: Tile, dual: Tile, G: Tile, z: Tile, c: Tile, r: Tile, active: Marks, before: Tile,
) -> bool:  # fmt: skip
    """Which rows and coordinates the nearest point holds, by Newton steps on the multipliers; false if none is seen.

    With F the coordinates that ``clamp(raw - A'dual)`` leaves free, the active rows reach their bounds by ``A_JF A_JF'
    dual = A_JF raw_F + A_JX y_X - bound``; rows with the wrong sign leave and violated ones join, until nothing moves.
    """
    m, n = A.shape
    best = -np.inf
    for i in range(m):
        side[i], dual[i], before[i] = FREE, 0.0, 0.0
    for step in range(NEWTON_STEPS):
        for j in range(n):
            z[j] = raw[j]
        for i in range(m):
            if dual[i] != 0.0:
                add(-dual[i], A[i], z)
        moved = False
        for j in range(n):
            y[j] = min(max(z[j], low[j]), high[j])
            mark = 2 if low[j] == high[j] else 1 if z[j] > high[j] else -1 if z[j] < low[j] else FREE
            moved |= mark != held[j]
            held[j] = mark
        value = 0.0
        for j in range(n):
            value += 0.5 * (y[j] - raw[j]) * (y[j] - raw[j])
        for i in range(m):
            r[i] = product(A[i], y)
            if dual[i] != 0.0:
                value += dual[i] * (r[i] - (upper[i] if dual[i] > 0.0 else lower[i]))
        if value < best - 1e-9 * abs(best):  # too far: half the way
            for i in range(m):
                dual[i] = 0.5 * (dual[i] + before[i])
            continue
        best = value
        k = 0
        for i in range(m):
            value, weight = r[i], 0.0
            for j in range(n):
                weight += A[i, j] * A[i, j] if held[j] == FREE else 0.0
            goal = value + (weight if weight > 0.0 else 1.0) * dual[i]
            mark = 1 if goal > upper[i] else -1 if goal < lower[i] else FREE
            mark = 1 if equal[i] else mark
            moved |= mark != side[i]
            side[i] = mark
            if mark != FREE:
                if k == min(m, n):
                    return False
                active[k] = i
                k += 1
        if not moved and step > 0:
            return True
        for i in range(k):
            row = A[active[i]]
            for j in range(n):
                z[j] = row[j] if held[j] == FREE else 0.0
            for other in range(i + 1):
                G[i, other] = product(z, A[active[other]])
            reach = upper[active[i]] if side[active[i]] > 0 else lower[active[i]]
            total = -reach
            for j in range(n):
                total += row[j] * (raw[j] if held[j] == FREE else y[j])
            c[i] = total
        for i in range(k):  # Cholesky, with rows that depend on others left out
            for other in range(i):
                G[i, other] = (G[i, other] - product(G[i, :other], G[other, :other])) / G[other, other]
            pivot = G[i, i] - product(G[i, :i], G[i, :i])
            if pivot <= 1e-10 * G[i, i] or pivot <= 0.0:
                return False
            G[i, i] = np.sqrt(pivot)
            r[i] = (c[i] - product(G[i, :i], r[:i])) / G[i, i]
        for i in range(k - 1, -1, -1):
            total = r[i]
            for other in range(i + 1, k):
                total -= G[other, i] * c[other]
            c[i] = total / G[i, i]
        for i in range(m):
            before[i], dual[i] = dual[i], 0.0
        for i in range(k):
            row = active[i]
            if equal[row] or c[i] * side[row] > 0.0:
                dual[row] = c[i]
    return False


@bare
def straighten(
    A: Tile, lower: Tile, upper: Tile, y: Tile, rounding: float, held: Marks, work: Marks, Q: Tile, R: Tile, z: Tile,
    part: Tile, c: Tile, r: Tile, bound: Tile, taken: Marks, left: Tile,
) -> tuple[int, int, float]:  # fmt: skip
    """Replace the equalities by orthonormal ones with the same points; returns how many there are, twice.

    If row i contradicts the others, returns ``-1 - i``, how many others, and by how much; c are then their weights.

    With ``E = R'U`` and ``R'b = bound``: points of ``U y = b`` meet nearly dependent rows E to their rounding, which
    E itself would only tell through the large inverse of R. A row that nearly depends on others says no more about y
    than its rounding over the distance from these, so much room it gets; one that depends on others becomes zeros.
    """
    m = A.shape[0]
    held[:], taken[:] = FREE, 0
    k, level = 0, 0.6
    for i in range(m):
        left[i] = np.inf
    while level > DEPENDENT:  # rows that say the most first, so that the room of one is no more in the others
        for i in range(m):
            if lower[i] == upper[i] and not taken[i] and left[i] > level:
                copy(A[i], z)
                whole = free_part(z, held, part)
                length = orthogonalize(Q, k, held, z, part, c)
                left[i] = length / whole if whole > 0.0 else 0.0
                if left[i] > level:
                    rest = lower[i] - product(c[:k], r[:k])
                    r[k] = rest / length
                    room = ROOM * rounding * size_of_row(A[i], y, lower[i], upper[i], rounding) / length
                    bound[k] = room if left[i] < NARROW else 0.0
                    append_row(Q, R, work, k, i, z, length, c)
                    k, taken[i] = k + 1, 1
        level *= 0.6
    for i in range(m):
        if lower[i] == upper[i] and not taken[i]:  # it depends on the others, with which it has to agree
            for row in range(k):
                c[row] = product(Q[row], A[i])
            rest = lower[i] - product(c[:k], r[:k])
            back_substitute(R, k, c, c)
            own = size_of_row(A[i], y, lower[i], upper[i], rounding)
            for row in range(k):
                other = int(work[row])
                own += abs(c[row]) * size_of_row(A[other], y, lower[other], upper[other], rounding)
            far = left[i] * np.sqrt(product(A[i], A[i])) * largest(y)
            if abs(rest) > ALLOWED * rounding * own + BEYOND * far:
                return -1 - i, k, rest
    for i in range(m):
        if lower[i] == upper[i]:
            A[i, :] = 0.0
            lower[i] = upper[i] = 0.0
    for row in range(k):
        copy(Q[row], A[work[row]])
        lower[work[row]], upper[work[row]] = r[row] - bound[row], r[row] + bound[row]
    return k, k, 0.0


@bare
def spread(
    A: Tile, rows: Marks, count: int, Q: Tile, k: int, held: Marks, right: Tile, G: Tile, z: Tile, out: Tile
) -> None:  # fmt: skip
    """The least multipliers of unit rows with ``A_JF' w = Q'right``: for rows J that depend on each other, unique.

    With ``M = U_JF Q'`` they are ``M (M'M)^-1 right``; Q spans the rows over the free coordinates F.
    """
    for i in range(k):
        G[i, :k] = 0.0
    for place in range(count):
        row = A[rows[place]]
        free_part(row, held, z)
        size = product(row, row)
        for i in range(k):
            out[i] = product(Q[i], z)
        for i in range(k):
            add(out[i] / size, out[: i + 1], G[i, : i + 1])
    for i in range(k):  # Cholesky, and both solves in place
        for other in range(i):
            G[i, other] = (G[i, other] - product(G[i, :other], G[other, :other])) / G[other, other]
        G[i, i] = np.sqrt(max(G[i, i] - product(G[i, :i], G[i, :i]), EPS))
        right[i] = (right[i] - product(G[i, :i], right[:i])) / G[i, i]
    for i in range(k - 1, -1, -1):
        for other in range(i + 1, k):
            right[i] -= G[other, i] * right[other]
        right[i] /= G[i, i]
    for place in range(count):
        row = A[rows[place]]
        free_part(row, held, z)
        total = 0.0
        for i in range(k):
            total += right[i] * product(Q[i], z)
        out[place] = total / product(row, row)


@bare
def share(
    raw: Tile, A: Tile, lower: Tile, upper: Tile, y: Tile, dual: Tile, side: Marks, held: Marks, equal: Marks,
    work: Marks, k: int, Q: Tile, R: Tile, z: Tile, part: Tile, c: Tile, r: Tile, G: Tile,
) -> None:  # fmt: skip
    """Give rows that touch y and depend on the working rows their part of the multipliers, where signs allow it."""
    m, n = A.shape
    count = k
    for i in range(m):
        value = product(A[i], y)
        above = abs(value - upper[i])
        excess = min(above, abs(value - lower[i]))
        if (
            side[i] == FREE
            and excess < np.inf
            and excess <= ALLOWED * EPS * size_of_row(A[i], y, lower[i], upper[i], EPS)
        ):
            copy(A[i], z)
            whole = free_part(z, held, part)
            if whole > 0.0 and orthogonalize(Q, k, held, z, part, c) <= TOUCHING * whole:
                side[i] = 2 if excess == above else -2  # for now
                work[count] = i
                count += 1
    if count == k:
        return
    for j in range(n):
        z[j] = raw[j] - y[j] if held[j] == FREE else 0.0
    for i in range(k):
        c[i] = product(Q[i], z)
    spread(A, work, count, Q, k, held, c, G, part, r)
    fits = True
    for place in range(count):
        i = work[place]
        fits &= equal[i] == 1 or r[place] * side[i] >= 0.0
    for place in range(count):
        i = work[place]
        if fits:
            dual[i] = r[place]
            side[i] = 1 if side[i] > 0 else -1
        elif place >= k:
            side[i] = FREE


@bare
def contradicts(
    p: int, sigma: float, excess: float, A: Tile, lower: Tile, upper: Tile, work: Marks, k: int, r: Tile, y: Tile,
    rounding: float, raw: Tile, z: Tile, held: Marks,
) -> bool:  # fmt: skip
    """Whether no point could meet all rows of a proof even by 16 roundings of each.

    What is left of the combined rows, z over the free coordinates, is rounding: a point that makes up for the excess by
    it would lie `BEYOND` times as far away as y and raw.
    """
    own, far = largest(y), 0.0
    for j in range(y.shape[0]):
        if held[j] == FREE:
            far += abs(z[j]) * max(abs(y[j]), abs(raw[j]))
    if p < A.shape[0]:
        own = size_of_row(A[p], y, lower[p], upper[p], rounding)
    for i in range(k):
        row = int(work[i])
        own += abs(r[i]) * size_of_row(A[row], y, lower[row], upper[row], rounding)
    return excess > ALLOWED * rounding * own + BEYOND * far


@bare
def solve(
    raw: Tile, A: Tile, lower: Tile, upper: Tile, low: Tile, high: Tile, rounding: float, careful: bool,
    y: Tile, dual: Tile, push: Tile, side: Marks, held: Marks,
    equal: Marks, passed: Marks, work: Marks, bound: Tile, Q: Tile, R: Tile, part: Tile, z: Tile, c: Tile, r: Tile,
    Q_kept: Tile, R_kept: Tile, kept: Marks, G: Tile,
) -> tuple[float, int]:  # fmt: skip
    """The nearest point of one sample; returns its status before the verdict, and the number of steps."""
    m, n = A.shape
    k, steps, limit, equalities = 0, 0, 6 * (m + n) + 100, 0
    for i in range(m):
        equal[i] = lower[i] == upper[i]
        equalities += equal[i]
    passed[:] = 0
    start = 2 if careful or (equalities > 0 and 3 * equalities >= n) else 1 if 3 * m <= n else 0
    if start == 1 and guess(raw, A, lower, upper, low, high, equal, side, held, y, dual, R, z, c, r, work, bound):
        for place in range(2 * m):  # equalities first
            i = place % m
            mark = side[i]
            if equal[i] == (place < m) and mark != FREE:
                more = take_row(i, A, held, work, k, Q, R, z, part, c)
                side[i] = mark if more > k else FREE
                bound[i], k = upper[i] if mark > 0 else lower[i], more
        k = repair(raw, A, bound, equal, side, held, work, k, Q, R, y, dual, push, z, c, r)
    elif start == 2:
        fixed = False
        for j in range(n):
            held[j], y[j] = 2 if low[j] == high[j] else FREE, low[j]
            fixed |= held[j] != FREE
        for i in range(m):
            side[i], bound[i] = FREE, upper[i]
            if equal[i] and (fixed or careful):
                more = take_row(i, A, held, work, k, Q, R, z, part, c)
                side[i], k = 1 if more > k else FREE, more
        if not fixed and not careful:
            keep_equalities(A, equal, held, kept, Q_kept, R_kept, z, part, c)
            k = kept[m]
            for i in range(k):
                copy(Q_kept[i], Q[i])
                copy(R_kept[i, :k], R[i, :k])
                work[i] = kept[m + 1 + i]
                side[work[i]] = 1
        resolve(raw, A, bound, held, work, k, Q, R, y, dual, push, z, c, r)
    else:
        for i in range(m):
            side[i], dual[i] = FREE, 0.0
        for j in range(n):
            y[j] = min(max(raw[j], low[j]), high[j])
            push[j] = raw[j] - y[j]
            held[j] = 2 if low[j] == high[j] else 1 if push[j] > 0.0 else -1 if push[j] < 0.0 else FREE
    first, polished = 0, False
    while steps < limit:
        p, sigma, excess, slack = ABSENT, 1.0, 0.0, 0.0
        while first < m and p == ABSENT:  # equalities enter first, also those that hold
            if equal[first] and side[first] == FREE:
                value = product(A[first], y) - upper[first]
                p, sigma, excess = first, 1.0 if value >= 0.0 else -1.0, abs(value)
                slack = VIOLATED * EPS * size_of_row(A[p], y, lower[p], upper[p], EPS)
            first += 1
        if p == ABSENT:
            p, sigma, excess = most_violated(A, lower, upper, low, high, equal, side, held, passed, y)
        if p == ABSENT and polished:
            if k > 0 and not careful:
                share(raw, A, lower, upper, y, dual, side, held, equal, work, k, Q, R, z, part, c, r, G)
            return SOLVED, steps
        outcome, taken = 2, 1
        if p != ABSENT:
            if p < m:
                bound[p] = upper[p] if sigma > 0.0 else lower[p]
            else:
                slack = VIOLATED * EPS * largest(y)
            k, outcome, taken = enter(
                p, sigma, excess, slack, careful, A, equal, side, held, work, k, Q, R, y, dual, push, part, z, c, r
            )  # fmt: skip
            steps += taken
        if outcome == 0:
            polished = False
            if p >= m:
                y[p - m] = high[p - m] if sigma > 0.0 else low[p - m]
        elif outcome == 3:
            return NOT_CONVERGED, steps
        elif outcome == 2 and not polished:  # y is found anew before it is believed
            k = repair(raw, A, bound, equal, side, held, work, k, Q, R, y, dual, push, z, c, r)
            polished = True
        elif outcome == 2:
            doubt = max(rounding, STRAIGHTENED) if careful else rounding
            if contradicts(p, sigma, excess, A, lower, upper, work, k, r, y, doubt, raw, z, held):
                if not alone(A, lower, upper, low, high, rounding, dual, push):
                    prove(p, sigma, work, k, r, z, held, dual, push)
                return INFEASIBLE, steps
            if not careful:
                return NOT_CONVERGED, steps
            passed[p] = 1
        elif p >= m:
            passed[p] = 1
    return NOT_CONVERGED, steps


@bare
def alone(
    A: Tile, lower: Tile, upper: Tile, low: Tile, high: Tile, rounding: float, dual: Tile, push: Tile
) -> bool:  # fmt: skip
    """Whether one row contradicts the box alone: then its proof is written, the shortest there is."""
    m, n = A.shape
    for i in range(m):
        for side in (1, -1):
            least, size, bound = 0.0, 0.0, upper[i] if side > 0 else -lower[i]
            for j in range(n):
                if A[i, j] != 0.0:
                    term = side * A[i, j] * (low[j] if side * A[i, j] > 0.0 else high[j])
                    least, size = least + term, size + abs(term)
            if least - bound > ALLOWED * rounding * (size + abs(bound)):
                dual[:] = 0.0
                dual[i] = side
                for j in range(n):
                    push[j] = -side * A[i, j]
                return True
    return False


@bare
def prove(
    p: int, sigma: float, work: Marks, k: int, r: Tile, z: Tile, held: Marks, dual: Tile, push: Tile
) -> None:  # fmt: skip
    """Write the multipliers that prove an empty set: ``A'dual + push = 0``, and every bound they name is beyond."""
    dual[:] = 0.0
    noise = EPS * (1.0 + largest(r[:k]))
    for i in range(k):
        dual[work[i]] = -sigma * r[i] if abs(r[i]) > noise else 0.0
    for j in range(z.shape[0]):
        push[j] = -sigma * z[j] if held[j] != FREE else 0.0
    if p < dual.shape[0]:
        dual[p] = sigma
    else:
        push[p - dual.shape[0]] = sigma


@bare
def inside(
    raw: Tile, A: Tile, lower: Tile, upper: Tile, low: Tile, high: Tile, rounding: float, y: Tile
) -> bool:  # fmt: skip
    """Whether raw is in the box, and meets every row to a few roundings of its dtype."""
    for j in range(raw.shape[0]):
        y[j] = raw[j]
        if raw[j] < low[j] or raw[j] > high[j]:
            return False
    for i in range(A.shape[0]):
        value = product(A[i], raw)
        excess = max(value - upper[i], lower[i] - value)
        if not excess <= 0.0:
            allowed = VIOLATED * rounding * size_of_row(A[i], raw, lower[i], upper[i], rounding)
            if not (allowed < np.inf and excess <= allowed):  # a sum that overflowed says nothing of its row
                return False
    return True


@bare
def judge(
    raw: Tile, A: Tile, lower: Tile, upper: Tile, low: Tile, high: Tile, rounding: float, y: Tile, dual: Tile,
    push: Tile, side: Marks, held: Marks, z: Tile, c: Tile,
) -> tuple[float, float, float]:  # fmt: skip
    """The status of y once it is in the box, the residual, and the size to which multipliers are relative."""
    m, n = A.shape
    met, size, strict = True, 0.0, 0.0
    for j in range(n):
        y[j] = min(max(y[j], low[j]), high[j])
        size = max(size, max(abs(raw[j]), abs(y[j])))
        z[j], c[j] = raw[j] - y[j] - push[j], 0.0
    for i in range(m):
        value = product(A[i], y)
        excess = max(value - upper[i], lower[i] - value)
        if not excess <= 0.0:
            allowed = VERIFIED * rounding * size_of_row(A[i], y, lower[i], upper[i], rounding)
            met &= allowed < np.inf and excess <= allowed
        if dual[i] != 0.0:
            for j in range(n):
                z[j] -= dual[i] * A[i, j]
                c[j] += abs(dual[i] * A[i, j])
            strict = max(strict, abs(dual[i]) * largest(A[i])) if lower[i] < upper[i] else strict
    worst, strict = 0.0, max(strict, size)
    for j in range(n):
        worst, size = max(worst, abs(z[j])), max(size, c[j])
        if held[j] * held[j] == 1:
            worst = max(worst, -held[j] * push[j])
    for i in range(m):
        if lower[i] < upper[i]:
            worst = max(worst, -dual[i] if side[i] > 0 else dual[i] if side[i] < 0 else abs(dual[i]))
    residual = worst / size if size > 0.0 else 0.0
    return NOT_CONVERGED if not met else SOLVED if residual <= CERTAIN else FEASIBLE, residual, strict


@bare
def scaled_rows(
    source: Tile, lower: Tile, upper: Tile, A: Tile, least: Tile, most: Tile, scale: Tile, fresh: bool
) -> bool:  # fmt: skip
    """Rows divided by a power of two, to a length between 1 and 2, and their bounds; whether all are numbers."""
    good = True
    for i in range(A.shape[0]):
        if fresh:
            length = 0.0
            for j in range(A.shape[1]):
                length = max(length, abs(source[i, j]))
                good &= abs(source[i, j]) < np.inf
            unit = 2.0 ** np.floor(np.log2(length)) if 0.0 < length < np.inf else 1.0
            total = 0.0
            for j in range(A.shape[1]):
                A[i, j] = source[i, j] / unit
                total += A[i, j] * A[i, j]
            again = 2.0 ** np.floor(0.5 * np.log2(total)) if total > 0.0 else 1.0
            again = again if unit * again < np.inf else 1.0
            for j in range(A.shape[1]):
                A[i, j] /= again
            scale[i] = unit * again
        least[i], most[i] = lower[i] / scale[i], upper[i] / scale[i]
        good &= lower[i] <= upper[i] and lower[i] < np.inf and upper[i] > -np.inf
    return good


@compiled
def project(
    y: Tile, place: Tile, found: Tile, raw: Tile, A: Tile, rounding: float,
    lower: Tile, upper: Tile, low: Tile, high: Tile, begin: int, end: int,
) -> int:  # fmt: skip
    """Project the samples from `begin` to `end`; `found` ``(B, 2 m + 3)``: multipliers, sides, status, residual, steps.

    A, the bounds of the rows and the box have one entry for all samples or one per sample.
    """
    m, n = A.shape[1:]
    most = min(m, n)
    own, least, most_of, scale, bound = np.empty((m, n)), np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    Q, R, S = np.empty((most + 1, n)), np.zeros((most + 1, most + 1)), np.zeros((most, most))
    Q_kept, R_kept = np.empty((most + 1, n)), np.empty((most + 1, most + 1))
    small = 3 * m > n and m + n <= GRAM
    entries, corner = (m + n, n + 1) if small else (0, 0)
    H, G, none = np.empty((entries, entries)), np.empty((corner, corner)), np.empty((corner, 0))
    numbers = np.empty((7, entries))
    known, mark = np.zeros(entries, dtype=np.int64), np.empty(entries, dtype=np.int64)
    part, z, c, r, push, dual = np.empty(n), np.empty(n), np.empty(m + n), np.empty(m + n), np.empty(n), np.empty(m)
    kept = np.full(2 * m + 2, ABSENT)
    marks = np.empty((6, m + n + 1), dtype=np.int64)
    side, held, equal, passed, work = marks[0, :m], marks[1, :n], marks[2, :m], marks[3], marks[4]
    rows = marks[5]
    for b in range(begin, end):
        fresh = b == begin or A.shape[0] > 1
        below, above = low[b % low.shape[0]], high[b % high.shape[0]]
        source, floor, ceiling = A[b % A.shape[0]], lower[b % lower.shape[0]], upper[b % upper.shape[0]]
        good = scaled_rows(source, floor, ceiling, own, least, most_of, scale, fresh)
        for j in range(n):
            good &= abs(raw[b, j]) < np.inf and below[j] <= above[j] and below[j] < np.inf and above[j] > -np.inf
        status, residual, steps, size = INVALID, 0.0, 0, 0.0
        kept[m] = kept[m] if A.shape[0] == 1 else ABSENT
        dual[:], side[:], held[:], push[:] = 0.0, FREE, FREE, 0.0
        if good:
            status = SOLVED
            if not inside(raw[b], own, least, most_of, below, above, rounding, y[b]):
                status, whole = NOT_CONVERGED, small
                for j in range(n):
                    whole &= below[j] < above[j]
                if whole:
                    for i in range(m):
                        equal[i] = least[i] == most_of[i]
                    if keep_equalities(own, equal, held, kept, Q_kept, R_kept, z, part, c):
                        known[:] = 0
                    solved, steps = by_gram(
                        raw[b], own, least, most_of, below, above, equal, kept, Q_kept, R_kept, H, known, G, work, mark,
                        numbers, none, y[b], dual, push, side, held,
                    )  # fmt: skip
                    if solved:
                        status, residual, size = judge(
                            raw[b], own, least, most_of, below, above, rounding, y[b], dual, push, side, held, z, c
                        )  # fmt: skip
                for careful in range(0 if status == SOLVED else ATTEMPTS):
                    kept_rows, share = 0, 0.25 if careful == 2 else 3.0 if careful == 3 else 1.0
                    if careful > 0:
                        kept_rows, others, rest = straighten(
                            own, least, most_of, y[b], rounding * share, held, work, Q, R, z, part, c, r, bound,
                            passed, dual,
                        )  # fmt: skip
                        if kept_rows < 0:
                            sigma, status = -1.0 if rest > 0.0 else 1.0, INFEASIBLE
                            dual[:], push[:] = 0.0, 0.0
                            dual[-1 - kept_rows] = sigma
                            for i in range(others):
                                dual[work[i]] = -sigma * c[i]
                            break
                    for i in range(kept_rows):
                        copy(R[i, :kept_rows], S[i, :kept_rows])
                        rows[i] = work[i]
                    status, more = solve(
                        raw[b], own, least, most_of, below, above, rounding, careful > 0, y[b], dual, push, side, held,
                        equal, passed, work, bound, Q, R, part, z, c, r, Q_kept, R_kept, kept, S,
                    )  # fmt: skip
                    steps += more
                    if careful > 0:
                        for i in range(kept_rows):
                            c[i] = dual[rows[i]]
                        back_substitute(S, kept_rows, c, r)
                        for i in range(m):
                            dual[i] = 0.0 if equal[i] else dual[i]
                        for i in range(kept_rows):
                            dual[rows[i]] = r[i]
                        scaled_rows(source, floor, ceiling, own, least, most_of, scale, True)
                    if status == SOLVED:
                        status, residual, size = judge(
                            raw[b], own, least, most_of, below, above, rounding, y[b], dual, push, side, held, z, c
                        )  # fmt: skip
                    if status == SOLVED:
                        break
        for j in range(n):
            strict = abs(push[j]) > 16.0 * EPS * size
            place[b, j] = 2.0 if below[j] == above[j] else held[j] if held[j] != FREE and strict else 0.0
        for i in range(m):
            strict = abs(dual[i]) > STRICT * size
            found[b, m + i] = 2.0 if floor[i] == ceiling[i] else np.sign(dual[i]) if strict else 0.0
            found[b, i] = dual[i] / scale[i]
        if status in (INVALID, INFEASIBLE):
            y[b] = np.nan
        found[b, 2 * m], found[b, 2 * m + 1], found[b, 2 * m + 2] = status, residual, steps
    return 0


def _project(
    y: Any, place: Any, found: Any, raw: Any, A: Any, rounding: Any, lower: Any, upper: Any, low: Any, high: Any,
    matrices: int, samples: int, m: int, n: int, lowers: int, uppers: int, lows: int, highs: int,
    begin: int, end: int,
) -> int:  # fmt: skip
    """`project`, called with addresses."""
    return project(
        carray(y, (samples, n)), carray(place, (samples, n)), carray(found, (samples, 2 * m + 3)),
        carray(raw, (samples, n)), carray(A, (matrices, m, n)), carray(rounding, (1,))[0],
        carray(lower, (lowers, m)), carray(upper, (uppers, m)), carray(low, (lows, n)), carray(high, (highs, n)),
        begin, end,
    )  # fmt: skip


@compiled
def pull_back(w: Tile, gradient: Tile, place: Tile, side: Tile, A: Tile, begin: int, end: int) -> int:
    """``w = (A_JF')^+ g_F`` ``(B, m)`` for the free coordinates F and the active rows J, the least one of unit rows.

    A has one entry for all samples or one per sample.
    """
    m, n = A.shape[1:]
    most = min(m, n)
    own, scale, bound = np.empty((m, n)), np.empty(m), np.zeros(m)
    Q, R, z, part, c = (
        np.empty((most + 1, n)),
        np.zeros((most + 1, most + 1)),
        np.empty(n),
        np.empty(n),
        np.empty(m + 1),
    )
    G, out = np.empty((most, most)), np.empty(m + n)
    marks = np.empty((3, m + n), dtype=np.int64)
    held, work, rows = marks[0, :n], marks[1], marks[2]
    for b in range(begin, end):
        scaled_rows(A[b % A.shape[0]], bound, bound, own, c, c, scale, b == begin or A.shape[0] > 1)
        for j in range(n):
            held[j] = FREE if place[b, j] == 0.0 else 1
        k, count = 0, 0
        for i in range(m):
            if side[b, i] != 0.0 and largest(own[i]) > 0.0:  # a row of zeros says nothing
                rows[count] = i
                count += 1
                k = take_row(i, own, held, work, k, Q, R, z, part, c)
        free_part(gradient[b], held, part)
        for i in range(k):
            c[i] = product(Q[i], part)
        w[b, :] = 0.0
        if count > k:
            spread(own, rows, count, Q, k, held, c, G, part, out)
        else:
            back_substitute(R, k, c, out)
        for i in range(count):
            w[b, rows[i]] = out[i] / scale[rows[i]]
    return 0


def _pull_back(
    w: Any, gradient: Any, place: Any, side: Any, A: Any, matrices: int, samples: int, m: int, n: int, begin: int,
    end: int,
) -> int:  # fmt: skip
    """`pull_back`, called with addresses."""
    return pull_back(
        carray(w, (samples, m)), carray(gradient, (samples, n)), carray(place, (samples, n)),
        carray(side, (samples, m)), carray(A, (matrices, m, n)), begin, end,
    )  # fmt: skip


ENTRIES = (_project, _pull_back)
"""The entry points to compile, forward and backward; they take addresses."""
