"""A dual active set in the Gram matrix of rows and bounds: what is left of them beside the equalities, N.

    y = z - N_W' u,  H = N N',  H_WW u = N_W z - bound_W,  with z the nearest point of the equalities

A row of H is made when its row or bound first enters, and serves all samples that share A; then a step costs
``(m + n) |W|`` and touches no matrix of n columns. Squares of lengths lose half the digits, so it is for polyhedra of
moderate size whose working rows are far from depending on each other. y and its multipliers are refined at the rows
themselves; where anything is close (a pivot, a row that touches y without being in W) it says so, and
`polyhedron.solve` finds the point with its orthogonal factor.
"""

from __future__ import annotations

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, bare
from hardnet.kernels.cpu.working_rows import (
    ABSENT,
    EPS,
    FREE,
    Marks,
    add,
    back_substitute,
    copy,
    forward_substitute,
    largest,
    product,
    remove_row,
    take_row,
)
from hardnet.kernels.limits import POLYHEDRON

CLOSE, NEAR, VIOLATED = POLYHEDRON.close, POLYHEDRON.near, POLYHEDRON.violated


@bare
def keep_equalities(
    A: Tile, equal: Marks, held: Marks, kept: Marks, Q: Tile, R: Tile, z: Tile, part: Tile, c: Tile
) -> bool:
    """The factor of the equalities over all coordinates, unless it is kept already; returns whether it is made.

    `kept`: for each row 1 in the factor, 0 an equality that depends on these, -1 none; how many; and their order.
    """
    m, k = A.shape[0], 0
    same, work = kept[m] >= 0, kept[m + 1 :]
    for i in range(m):
        same &= (kept[i] != ABSENT) == (equal[i] == 1)
    if same:
        return False
    for i in range(m):
        kept[i] = ABSENT
        if equal[i]:
            more = take_row(i, A, held, work, k, Q, R, z, part, c)
            kept[i], k = 1 if more > k else FREE, more
    kept[m] = k
    return True


@bare
def gram_row(p: int, A: Tile, equal: Marks, k: int, Q: Tile, H: Tile) -> None:
    """Row p of H, of row p or the bounds of coordinate ``p - m``: its last n entries are what the equalities leave."""
    m = A.shape[0]
    left = H[p, m:]
    if p < m:
        copy(A[p], left)
    else:
        left[:] = 0.0
        left[p - m] = 1.0
    for i in range(k):
        add(-product(Q[i], left), Q[i], left)
    for i in range(m):
        H[p, i] = 0.0 if equal[i] else product(A[i], left)


@bare
def onto_equalities(A: Tile, upper: Tile, kept: Marks, Q: Tile, R: Tile, y: Tile, c: Tile) -> float:
    """Move y onto the equalities, by the least step; returns by how much it missed them."""
    m, far = A.shape[0], 0.0
    k = kept[m]
    for i in range(k):
        row = kept[m + 1 + i]
        c[i] = upper[row] - product(A[row], y)
        far = max(far, abs(c[i]))
    forward_substitute(R, k, c, c)
    for i in range(k):
        add(c[i], Q[i], y)
    return far


@bare
def enter_gram(
    p: int, sigma: float, bound: float, H: Tile, G: Tile, work: Marks, count: int, mark: Marks, dual: Tile, v: Tile,
    u: Tile, c: Tile, r: Tile, none: Tile,
) -> int:  # fmt: skip
    """Bring row p of H into the working set; returns how many it has then, or -1 where one nearly depends on others."""
    own = 0.0
    while True:
        for i in range(count):
            c[i] = H[p, work[i]]
        forward_substitute(G, count, c, c)
        pivot = H[p, p] - product(c[:count], c[:count])
        if not pivot > CLOSE:
            return ABSENT
        back_substitute(G, count, c, r)
        copy(H[p], u)
        for i in range(count):
            add(-r[i], H[work[i]], u)
        full, shortest, blocking = sigma * (v[p] - bound) / pivot, np.inf, ABSENT
        for i in range(count):
            rate = sigma * r[i] * mark[work[i]]
            if rate > 0.0:
                step = max(dual[work[i]] * mark[work[i]], 0.0) / rate
                if step < shortest:
                    shortest, blocking = step, i
        step = sigma * min(full, shortest)
        for i in range(count):
            dual[work[i]] -= step * r[i]
        add(-step, u, v)
        own += step
        if full <= shortest:
            for row in range(count):
                G[row, count], G[count, row] = c[row], 0.0
            G[count, count], work[count] = np.sqrt(pivot), p
            dual[p], mark[p] = own, int(sigma)
            return count + 1
        dual[work[blocking]], mark[work[blocking]] = 0.0, FREE
        remove_row(none, G, work, count, blocking)
        count -= 1


@bare
def refine(
    A: Tile, upper: Tile, bounds: Tile, kept: Marks, Q: Tile, R: Tile, H: Tile, G: Tile, work: Marks, count: int,
    mark: Marks, y: Tile, dual: Tile, c: Tile, r: Tile,
) -> bool:  # fmt: skip
    """Move y onto the equalities and the working set as the rows themselves are; whether it comes to rounding."""
    m = A.shape[0]
    for sweep in range(4):
        far = onto_equalities(A, upper, kept, Q, R, y, c)
        for i in range(count):
            p = work[i]
            value = product(A[p], y) if p < m else y[p - m]
            r[i] = (bounds[1, p] if mark[p] > 0 else bounds[0, p]) - value
            far = max(far, abs(r[i]))
        forward_substitute(G, count, r, r)
        back_substitute(G, count, r, c)
        for i in range(count):
            p = work[i]
            add(c[i], H[p, m:], y)
            dual[p] -= c[i]
        for i in range(count):
            p = work[i]
            if p >= m:
                y[p - m] = bounds[1, p] if mark[p] > 0 else bounds[0, p]
        if sweep > 0 and far <= 4.0 * EPS * np.sqrt(A.shape[1]) * largest(y):
            return True
    return False


@bare
def by_gram(
    raw: Tile, A: Tile, lower: Tile, upper: Tile, low: Tile, high: Tile, equal: Marks, kept: Marks, Q: Tile, R: Tile,
    H: Tile, known: Marks, G: Tile, work: Marks, mark: Marks, numbers: Tile, none: Tile, y: Tile, dual: Tile,
    push: Tile, side: Marks, held: Marks,
) -> tuple[bool, int]:  # fmt: skip
    """The nearest point of one sample, if nothing about it is close, and the number of steps.

    `numbers` ``(7, m + n)`` is scratch. Of an answer y, the multipliers and the working set are written.
    """
    m, n = A.shape
    k, count, steps = kept[m], 0, 0
    v, u, c, r, most, bounds = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5:]
    for i in range(m):
        if equal[i] and kept[i] == FREE:
            return False, 0
        bounds[0, i], bounds[1, i] = (-np.inf, np.inf) if equal[i] else (lower[i], upper[i])
    for i in range(k):
        if R[i, i] * R[i, i] <= CLOSE:
            return False, 0
    copy(raw, y)
    for _ in range(2):
        onto_equalities(A, upper, kept, Q, R, y, c)
    for i in range(m):
        v[i] = product(A[i], y)
    for j in range(n):
        v[m + j], bounds[0, m + j], bounds[1, m + j] = y[j], low[j], high[j]
    for i in range(m + n):
        most[i], mark[i] = 0.0, FREE  # the multipliers
    allowed = 16.0 * EPS * largest(y)
    while True:
        worst, p, sigma = allowed, ABSENT, 1.0
        for i in range(m + n):
            above, below = v[i] - bounds[1, i], bounds[0, i] - v[i]
            excess = max(above, below)
            if excess > worst and mark[i] == FREE:
                worst, p, sigma = excess, i, 1.0 if above > below else -1.0
        if p == ABSENT:
            break
        if not known[p]:
            gram_row(p, A, equal, k, Q, H)
            known[p] = 1
        bound = bounds[1, p] if sigma > 0.0 else bounds[0, p]
        count = enter_gram(p, sigma, bound, H, G, work, count, mark, most, v, u, c, r, none)
        steps += 1
        if count < 0 or steps > 4 * (m + n):
            return False, steps
    copy(v[m:], y)
    if not refine(A, upper, bounds, kept, Q, R, H, G, work, count, mark, y, most, c, r):
        return False, steps
    reach = largest(y)
    for i in range(m):
        if mark[i] == FREE and not equal[i]:
            value = product(A[i], y)
            if max(value - upper[i], lower[i] - value) > -NEAR * (reach + abs(value)):
                return False, steps
    for j in range(n):
        if mark[m + j] == FREE and max(y[j] - high[j], low[j] - y[j]) > VIOLATED * EPS * abs(y[j]):
            return False, steps
    for j in range(n):
        u[j] = raw[j] - y[j]
        held[j], push[j] = mark[m + j], most[m + j]
        if held[j] * push[j] < 0.0:
            return False, steps
    for i in range(m):
        side[i], dual[i] = mark[i], most[i]
        if side[i] * dual[i] < 0.0:
            return False, steps
        if dual[i] != 0.0:
            add(-dual[i], A[i], u[:n])
    for j in range(n):
        u[j] -= push[j]
    for i in range(k):
        c[i] = product(Q[i], u[:n])
    back_substitute(R, k, c, r)
    for i in range(k):
        row = kept[m + 1 + i]
        dual[row], side[row] = r[i], 1
    return True, steps
