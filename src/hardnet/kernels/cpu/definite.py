"""Many small symmetric systems on a CPU: Gaussian elimination for each sample, compiled by numba.

``matrix^-1 right`` and the least pivot; see `hardnet.solvers.algebra.small`, which calls it, for the same in plain
torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from torch import Tensor

from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.launch import launch
from hardnet.kernels.cpu.ready import entries


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


def _solve(
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


ENTRIES = (_solve,)


def solve(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """``matrix^-1 right``, ``(B, n, k)``, and the least pivot ``(B,)``, of a flat batch in float64."""
    solved, pivot = right.new_empty(right.shape), right.new_empty(len(right))
    launch(entries("definite")[0], [solved, pivot], [matrix, right], (), right.shape, tile=1)
    return solved, pivot
