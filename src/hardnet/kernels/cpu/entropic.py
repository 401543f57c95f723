"""Entropic nearest points on a CPU: the Newton method of `hardnet.solvers.entropic`, sample by sample, by numba."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray

from hardnet.kernels.cpu.compiling import Tile, compiled, summed
from hardnet.kernels.limits import FIRST_SPREAD, GROWTH, KEEP_BASIS, LAST_STEP, LEAST_PIVOT, LEAST_SCORE, ROUGH, SWEEPS

Indices = npt.NDArray[np.int64]
EPS = 2.0**-52


@summed
def dot(a: Tile, b: Tile, n: int) -> float:
    """``sum_j a_j b_j``."""
    total = 0.0
    for j in range(n):
        total += a[j] * b[j]
    return total


@compiled
def list_members(members: Indices, A: Tile) -> None:
    """The outputs in each row of zeros and ones, and -1 behind them; none for other rows."""
    k, n = A.shape
    for i in range(k):
        count = 0
        for j in range(n):
            if A[i, j] == 1.0:
                members[i, count] = j
                count += 1
            elif A[i, j] != 0.0:
                count = -n
                break
        members[i, max(count, 0)] = -1


@compiled
def sweep(score: Tile, members: Indices, b: Tile) -> None:
    """Rescale the outputs of each row of zeros and ones, one after another, so that they have its sum."""
    for i in range(members.shape[0]):
        row, top, at = members[i], -np.inf, 0
        while row[at] >= 0:
            top = max(top, score[row[at]])
            at += 1
        if top == -np.inf or not b[i] > 0.0:
            continue
        total = 0.0
        for place in range(at):
            total += math.exp(score[row[place]] - top)
        move = math.log(b[i] / total) - top
        for place in range(at):
            score[row[place]] += move


@compiled
def basis_of(T: Tile, pivot: Indices, basis: Indices, order: Indices, A: Tile, b: Tile, score: Tile) -> int:
    """``T = [Q, b, M]`` with ``Q = M A`` the identity on the largest outputs that are independent; their number."""
    k, n = A.shape
    for i in range(k):
        T[i, :n] = A[i]
        T[i, n:] = 0.0
        T[i, n], T[i, n + 1 + i] = b[i], 1.0
    for place in range(1, n):  # sorted already, but for few
        j, at = order[place], place
        while at > 0 and score[order[at - 1]] < score[j]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = j
    rank = 0
    for place in range(n):
        j, row, largest = order[place], -1, LEAST_PIVOT
        if rank == k or score[j] <= LEAST_SCORE:
            break
        for i in range(k):
            taken = False
            for p in range(rank):
                taken |= pivot[p] == i
            if not taken and abs(T[i, j]) > largest:
                row, largest = i, abs(T[i, j])
        if row < 0:
            continue
        if T[row, j] != 1.0:
            T[row] /= T[row, j]
        for i in range(k):
            factor = T[i, j]
            if i != row and factor != 0.0:
                for c in range(T.shape[1]):
                    T[i, c] -= factor * T[row, c]
        pivot[rank], basis[rank] = row, j
        rank += 1
    for i in range(k):
        size = 0.0
        for c in range(k):
            size += abs(T[i, n + 1 + c] * b[c])
        T[i, n] = 0.0 if abs(T[i, n]) <= 16.0 * EPS * size else T[i, n]
    return rank


@compiled
def still_largest(T: Tile, pivot: Indices, basis: Indices, y: Tile, rank: int, n: int) -> bool:
    """Whether no other output of a row has become much larger than the one of the basis."""
    for p in range(rank):
        row, most = T[pivot[p]], KEEP_BASIS * y[basis[p]]
        if most == 0.0:
            return False
        for j in range(n):
            if abs(row[j]) * y[j] > most:
                return False
    return True


@compiled
def factorize(H: Tile, root: Tile, part: Tile, T: Tile, pivot: Indices, basis: Indices, y: Tile, rank: int) -> None:
    """The Cholesky factor of ``Q diag(y) Q'``, scaled by the roots of the outputs of the basis."""
    n = y.shape[0]
    for p in range(rank):
        row = T[pivot[p]]
        root[p] = math.sqrt(y[basis[p]])
        for j in range(n):
            part[j] = row[j] * y[j] / root[p]
        for q in range(p + 1):
            H[p, q] = dot(T[pivot[q]], part, n) / root[q]
    for p in range(rank):
        for q in range(p + 1):
            value = H[p, q]
            for c in range(q):
                value -= H[p, c] * H[q, c]
            H[p, q] = math.sqrt(max(value, EPS)) if p == q else value / H[q, q]


@compiled
def solve(H: Tile, root: Tile, s: Tile, rank: int) -> None:
    """``(Q diag(y) Q') s = s``, in place."""
    for p in range(rank):
        value = s[p] / root[p]
        for c in range(p):
            value -= H[p, c] * s[c]
        s[p] = value / H[p, p]
    for p in range(rank - 1, -1, -1):
        value = s[p]
        for c in range(p + 1, rank):
            value -= H[c, p] * s[c]
        s[p] = value / H[p, p]
    for p in range(rank):
        s[p] /= root[p]


@compiled
def forward(score: Tile, ended: Tile, raw: Tile, A: Tile, b: Tile, limit: Tile, begin: int, end: int) -> int:
    """The logarithms of the nearest points ``(B, n)``; `ended` ``(B, 2)``: whether it is solved, and iterations."""
    k, n = A.shape[1], A.shape[2]
    T, H, s, root = np.empty((k, n + 1 + k)), np.empty((k, k)), np.empty(k), np.empty(k)
    y, step, pivot, basis, order = np.empty(n), np.empty(n), np.empty(k, np.int64), np.empty(k, np.int64), np.arange(n)
    members = np.empty((k, n + 1), np.int64)
    for sample in range(begin, end):
        if sample == begin or A.shape[0] > 1:
            list_members(members, A[sample % A.shape[0]])
        rows, sums, own, given = A[sample % A.shape[0]], b[sample % b.shape[0]], score[sample], raw[sample]
        lowest, highest = np.inf, -np.inf
        for j in range(n):
            lowest, highest = min(lowest, given[j]), max(highest, given[j])
        part = min(1.0, FIRST_SPREAD / max(highest - lowest, 1e-300))
        for j in range(n):
            own[j] = part * given[j]
        for i in range(k):  # a sum of zero of outputs >= 0
            empty = sums[i] == 0.0
            for j in range(n):
                empty &= rows[i, j] >= 0.0
            for j in range(n):
                if empty and rows[i, j] > 0.0:
                    own[j] = -np.inf
        for _ in range(SWEEPS):
            sweep(own, members, sums)
        rank, solved, steps = 0, False, 0
        for _ in range(int(limit[0])):
            steps += 1
            for j in range(n):
                y[j] = math.exp(own[j]) if own[j] > LEAST_SCORE else 0.0
            if rank == 0 or not still_largest(T, pivot, basis, y, rank, n):
                rank = basis_of(T, pivot, basis, order, rows, sums, own)
            worst = 0.0
            for p in range(rank):
                row = T[pivot[p]]
                left = row[n]
                for j in range(n):
                    left -= row[j] * y[j]
                s[p] = left
                worst = max(worst, abs(left) / y[basis[p]])
            if not worst < np.inf:
                break
            ahead = min(GROWTH, 1.0 / part) - 1.0 if part < 1.0 and worst < ROUGH else 0.0
            if ahead > 0.0:  # to larger scores, along the path of the answers
                for j in range(n):
                    step[j] = given[j] * y[j]
                for p in range(rank):
                    s[p] -= ahead * part * dot(T[pivot[p]], step, n)
            factorize(H, root, step, T, pivot, basis, y, rank)
            solve(H, root, s, rank)
            longest = 0.0
            for j in range(n):
                step[j] = 0.0
            for p in range(rank):
                row = T[pivot[p]]
                for j in range(n):
                    step[j] += row[j] * s[p]
            for j in range(n):
                longest = max(longest, abs(step[j])) if y[j] > 0.0 else longest
            if ahead > 0.0:
                for j in range(n):
                    own[j] += ahead * part * given[j] + step[j]
                part = min(1.0, part * (1.0 + ahead))
                sweep(own, members, sums)
                continue
            length = 1.0 if longest < 0.7 else math.log1p(longest) / longest
            for j in range(n):
                own[j] += length * step[j]
            if part == 1.0 and worst <= LAST_STEP and longest <= LAST_STEP:
                solved = True
                break
        for i in range(k):  # rows that the others imply have nothing left
            used = False
            for p in range(rank):
                used |= pivot[p] == i
            solved &= used | (T[i, n] == 0.0)
        ended[sample, 0], ended[sample, 1] = 1.0 if solved else 0.0, steps
    return 0


@compiled
def backward(to_raw: Tile, to_sums: Tile, gradient: Tile, score: Tile, A: Tile, b: Tile, begin: int, end: int) -> int:
    """``u = y (f - Q's)`` and ``M'(s + g_basis)`` with ``(Q diag(y) Q') s = Q diag(y) f``, ``f = g - Q'g_basis``."""
    k, n = A.shape[1], A.shape[2]
    T, H, s, root = np.empty((k, n + 1 + k)), np.empty((k, k)), np.empty(k), np.empty(k)
    y, f, pivot, basis, order = np.empty(n), np.empty(n), np.empty(k, np.int64), np.empty(k, np.int64), np.arange(n)
    part = np.empty(n)
    for sample in range(begin, end):
        rows, sums, g = A[sample % A.shape[0]], b[sample % b.shape[0]], gradient[sample]
        rank = basis_of(T, pivot, basis, order, rows, sums, score[sample])
        for j in range(n):
            y[j] = math.exp(score[sample, j]) if score[sample, j] > LEAST_SCORE else 0.0
            f[j] = g[j]
        for p in range(rank):
            for j in range(n):
                f[j] -= T[pivot[p], j] * g[basis[p]]
        for p in range(rank):
            f[basis[p]] = 0.0
        for j in range(n):
            part[j] = f[j] * y[j]
        for p in range(rank):
            s[p] = dot(T[pivot[p]], part, n)
        factorize(H, root, part, T, pivot, basis, y, rank)
        solve(H, root, s, rank)
        to_sums[sample] = 0.0
        for p in range(rank):
            for j in range(n):
                f[j] -= T[pivot[p], j] * s[p]
            for i in range(k):
                to_sums[sample, i] += T[pivot[p], n + 1 + i] * (s[p] + g[basis[p]])
        for j in range(n):
            to_raw[sample, j] = y[j] * f[j]
    return 0


def _forward(
    score: Any, ended: Any, raw: Any, A: Any, limit: Any, b: Any, matrices: int,
    samples: int, m: int, n: int, sums: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`forward`, called with addresses."""
    return forward(
        carray(score, (samples, n)), carray(ended, (samples, 2)), carray(raw, (samples, n)),
        carray(A, (matrices, m, n)), carray(b, (sums, m)), carray(limit, (1,)), begin, end,
    )  # fmt: skip


def _backward(
    to_raw: Any, to_sums: Any, gradient: Any, score: Any, A: Any, b: Any, matrices: int,
    samples: int, m: int, n: int, sums: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`backward`, called with addresses."""
    return backward(
        carray(to_raw, (samples, n)), carray(to_sums, (samples, m)), carray(gradient, (samples, n)),
        carray(score, (samples, n)), carray(A, (matrices, m, n)), carray(b, (sums, m)), begin, end,
    )  # fmt: skip


ENTRIES = (_forward, _backward)
"""The entry points to compile; they take addresses."""
