"""The linear algebra of nonlinear rows on a CPU, for each sample, compiled by numba: systems, steps, and derivatives.

`hardnet.solvers.algebra.small`, `hardnet.solvers.nonlinear.step` and `hardnet.solvers.nonlinear.nearest` have the same
in plain torch, and call these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from torch import Tensor

from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.launch import launch
from hardnet.kernels.cpu.pivoting import Room, room_for, solve_equalities, solve_gram
from hardnet.kernels.cpu.ready import entries
from hardnet.kernels.cpu.tiles import row_dot
from hardnet.kernels.limits import DEPENDENT, NOISE

# Many small symmetric systems: ``matrix^-1 right`` and the least pivot, by Gaussian elimination.


@compiled
def eliminate(work: Tile, right: Tile) -> float:
    """``right <- work^-1 right``, ``(n, n)`` and ``(n, k)``, without pivoting; the least pivot, NaN where one is NaN.

    Only the upper half of the symmetric matrix is read. Elimination does not stop at a bad pivot: the caller must check
    the least pivot to know whether the solution is valid.
    """
    n, k, least = work.shape[0], right.shape[1], np.inf
    for column in range(n):
        pivot = work[column, column]
        least = pivot if pivot < least or pivot != pivot else least
        inverse = 1.0 / pivot
        for row in range(column + 1, n):
            share = work[column, row] * inverse
            for j in range(row, n):
                work[row, j] -= share * work[column, j]
            for j in range(k):
                right[row, j] -= share * right[column, j]
        work[column, column] = inverse
    for column in range(n - 1, -1, -1):
        for j in range(k):
            right[column, j] *= work[column, column]
        for row in range(column):
            for j in range(k):
                right[row, j] -= work[row, column] * right[column, j]
    return least


def _definite(
    solved: Any, pivot: Any, matrix: Any, right: Any, samples: int, n: int, k: int, begin: int, end: int
) -> int:  # fmt: skip
    """All samples from `begin` to `end`, by address."""
    x, least = carray(solved, (samples, n, k)), carray(pivot, (samples,))
    A, b = carray(matrix, (samples, n, n)), carray(right, (samples, n, k))
    work = np.empty((n, n))
    for sample in range(begin, end):
        for i in range(n):
            for j in range(n):
                work[i, j] = A[sample, i, j]
            for j in range(k):
                x[sample, i, j] = b[sample, i, j]
        least[sample] = eliminate(work, x[sample])
    return 0


def solve_definite(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """``matrix^-1 right``, ``(B, n, k)``, and the least pivot ``(B,)``, of a flat batch in float64."""
    solved, pivot = right.new_empty(right.shape), right.new_empty(len(right))
    launch(entries("nonlinear_step")[0], [solved, pivot], [matrix, right], (), right.shape, tile=1)
    return solved, pivot


# The step, a small quadratic program in the multipliers of the rows, by a dual active-set method:
#
#     min over d, s   1/2 (d - free)'W(d - free) + |s / elastic - elastic center|^2 / 2   s.t.   low <= J d + s <= high


@compiled
def make_gram(gram: Tile, target: Tile, J: Tile, across: Tile, free: Tile, metric: int) -> None:
    """``J W^-1 J'`` and ``J free``; without a metric ``J J'`` and 0. Columns of `across` beyond m are not read."""
    m, n = J.shape
    for i in range(m):
        target[i] = row_dot(J[i], free) if metric else 0.0
        for j in range(0 if metric else i + 1):
            gram[i, j] = gram[j, i] = row_dot(J[i], J[j])
        for k in range(n if metric else 0):
            share, own, line = J[i, k], gram[i], across[k]
            for j in range(m):
                own[j] = share * line[j] + (own[j] if k else 0.0)


@compiled
def scale_rows(
    gram: Tile, target: Tile, low: Tile, high: Tile, unit: Tile, elastic: Tile, center: Tile, centered: int
) -> None:
    """Add elasticity and center, then scale the rows to length one by the factors ``unit``."""
    m = gram.shape[0]
    for i in range(m):
        square = elastic[i] * elastic[i]
        gram[i, i] += square
        target[i] += square * center[i] if centered else 0.0
        unit[i] = 1.0 / np.sqrt(gram[i, i]) if gram[i, i] > 0.0 else 1.0
    for i in range(m):
        target[i], low[i], high[i] = target[i] * unit[i], low[i] * unit[i], high[i] * unit[i]
        for j in range(m):
            gram[i, j] *= unit[i] * unit[j]


@compiled
def settle(dual: Tile, gram: Tile, target: Tile, low: Tile, high: Tile, slack: Tile, room: Room) -> bool:
    """The multipliers of rows of length one; whether bounds and numbers are valid and the multipliers were found."""
    sound, tight = True, True
    for i in range(len(dual)):
        sound &= low[i] <= high[i] and gram[i, i] < np.inf
        tight &= low[i] == high[i]
    if not sound or tight:
        return sound and solve_equalities(dual, gram, target, low, room)
    for i in range(len(dual)):
        slack[i] = NOISE * max(abs(target[i]), min(abs(low[i]), abs(high[i])))
    return solve_gram(dual, gram, target, low, high, slack, room)


@compiled
def solve_samples(
    dual: Tile, step: Tile, good: Tile, J: Tile, across: Tile, free: Tile, low: Tile, high: Tile, elastic: Tile,
    center: Tile, metric: int, centered: int, begin: int, end: int,
) -> int:  # fmt: skip
    """All samples from `begin` to `end`; `good` is 1 where the multipliers were found."""
    m, n = J.shape[1:]
    gram, room = np.empty((m, m)), room_for(m)
    target, least, most, unit, slack = np.empty(m), np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    for b in range(begin, end):
        make_gram(gram, target, J[b], across[b], free[b], metric)
        least[:], most[:] = low[b], high[b]
        scale_rows(gram, target, least, most, unit, elastic[b], center[b], centered)
        sound = settle(dual[b], gram, target, least, most, slack, room)
        good[b] = 1.0 if sound else 0.0
        for i in range(m):
            dual[b, i] = dual[b, i] * unit[i] if sound else 0.0
        for k in range(n):
            step[b, k] = free[b, k] if metric else 0.0
            for i in range(m):
                step[b, k] -= (across[b, k, i] if metric else J[b, i, k]) * dual[b, i]
    return 0


def _step(
    dual: Any, step: Any, good: Any, J: Any, across: Any, free: Any, low: Any, high: Any, elastic: Any,
    center: Any, metric: int, centered: int, samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`solve_samples` with addresses; an absent array has the address of another one, and is not read."""
    few, many = (samples, m), (samples, n)
    return solve_samples(
        carray(dual, few), carray(step, many), carray(good, (samples,)), carray(J, (samples, m, n)),
        carray(across, (samples, n, m)), carray(free, many), carray(low, few), carray(high, few), carray(elastic, few),
        carray(center, few), metric, centered, begin, end,
    )  # fmt: skip


def solve_step(
    J: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    across: Tensor | None,
    free: Tensor | None,
    center: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The step ``(B, n)``, the multipliers ``(B, m)``, and which samples are settled ``(B,)``.

    Args:
        J: ``(B, m, n)``.
        low: ``(B, m)``.
        high: ``(B, m)``.
        elastic: ``(B, m)``.
        across: ``W^-1 J'``, ``(B, n, m)``; None, with `free`, for the identity and 0.
        free: ``(B, n)``.
        center: ``(B, m)``, or None for 0.
    """
    dual, step, good = J.new_empty(J.shape[:2]), J.new_empty(J.shape[0], J.shape[2]), J.new_empty(len(J))
    given = [J if across is None else across, J if free is None else free, low, high, elastic]
    given += [low if center is None else center]
    counts = (int(across is not None), int(center is not None))
    launch(entries("nonlinear_step")[1], [dual, step, good], [J, *given], (), J.shape, *counts, tile=1)
    return step, dual, good > 0


# The derivative of a nearest point, by the system of the rows ``C W^-1 C' q = C W^-1 cotangent``:
#
#     [W C'; C 0] (p, q) = (cotangent, 0),    W = I + H,    C the unit gradients of the active rows


@compiled
def unit_rows(C: Tile, norm: Tile, J: Tile, active: Tile) -> None:
    """The gradients of the active rows, of length one; 0 for the others."""
    m, n = J.shape
    for i in range(m):
        total = 0.0
        for k in range(n):
            total += J[i, k] * J[i, k]
        norm[i] = np.sqrt(total) if total > 0.0 or total != total else 1.0
        for k in range(n):
            C[i, k] = J[i, k] / norm[i] if active[i] > 0.0 else 0.0


@compiled
def solve_systems(
    p: Tile, q: Tile, pivot: Tile, J: Tile, H: Tile, active: Tile, grad: Tile, bent: int, begin: int, end: int
) -> int:
    """All samples from `begin` to `end`; without `bent` W is the identity."""
    m, n = J.shape[1:]
    W, C, solved, gram, right = (
        np.empty((n, n)),
        np.empty((m, n)),
        np.empty((n, m + 1)),
        np.empty((m, m)),
        np.empty((m, 1)),
    )
    norm = np.empty(m)
    for b in range(begin, end):
        unit_rows(C, norm, J[b], active[b])
        for k in range(n):
            for j in range(n if bent else 0):
                W[k, j] = H[b, k, j] + (1.0 if k == j else 0.0)
            for i in range(m):
                solved[k, i] = C[i, k]
            solved[k, m] = grad[b, k]
        pivot[b] = eliminate(W, solved) if bent else 1.0
        for i in range(m):
            for j in range(m + 1):
                total = 0.0
                for k in range(n):
                    total += C[i, k] * solved[k, j]
                if j < m:
                    gram[i, j] = total + ((DEPENDENT if active[b, i] > 0.0 else 1.0) if i == j else 0.0)
                else:
                    right[i, 0] = total
        eliminate(gram, right)
        for i in range(m):
            right[i, 0] = right[i, 0] if active[b, i] > 0.0 else 0.0
            q[b, i] = right[i, 0] / norm[i]
        for k in range(n):
            total = solved[k, m]
            for i in range(m):
                total -= solved[k, i] * right[i, 0]
            p[b, k] = total
    return 0


def _kkt(
    p: Any, q: Any, pivot: Any, J: Any, H: Any, active: Any, grad: Any, bent: int,
    samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`solve_systems` with addresses; without `bent` H has the address of another array, and is not read."""
    few, many = (samples, m), (samples, n)
    return solve_systems(
        carray(p, many), carray(q, few), carray(pivot, (samples,)), carray(J, (samples, m, n)),
        carray(H, (samples, n, n)), carray(active, few), carray(grad, many), bent, begin, end,
    )  # fmt: skip


def solve_kkt(J: Tensor, H: Tensor | None, active: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``p (B, n)``, ``q (B, m)`` for the rows J ``(B, m, n)`` of any length, and the least pivot of W ``(B,)``.

    Args:
        J: ``(B, m, n)``.
        H: ``sum_i dual_i Hess g_i``, ``(B, n, n)``, or None for 0.
        active: ``(B, m)``.
        grad: ``(B, n)``.
    """
    p, q, pivot = J.new_empty(grad.shape), J.new_empty(active.shape), J.new_empty(len(J))
    inputs = [J, J if H is None else H, active.to(J), grad]
    launch(entries("nonlinear_step")[2], [p, q, pivot], inputs, (), J.shape, int(H is not None), tile=1)
    return p, q, pivot


ENTRIES = (_definite, _step, _kkt)
"""The entry points to compile; they take addresses."""
