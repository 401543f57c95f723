"""The linear system behind the derivative of a nearest point on a CPU: solved for each sample, compiled by numba.

    [W C'; C 0] (p, q) = (cotangent, 0),    W = I + H,    C the unit gradients of the active rows

by the system of the rows ``C W^-1 C' q = C W^-1 cotangent``. See `hardnet.solvers.nonlinear.nearest` for the same in
plain torch, and for samples whose W is not positive definite.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray
from torch import Tensor

from hardnet.kernels.cpu.compiling import Tile, compile_addresses, compiled
from hardnet.kernels.cpu.definite import eliminate
from hardnet.kernels.cpu.launch import launch
from hardnet.kernels.limits import DEPENDENT


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
def solve_samples(
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


def _solve(
    p: Any, q: Any, pivot: Any, J: Any, H: Any, active: Any, grad: Any, bent: int,
    samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`solve_samples` with addresses; without `bent` H has the address of another array, and is not read."""
    few, many = (samples, m), (samples, n)
    return solve_samples(
        carray(p, many), carray(q, few), carray(pivot, (samples,)), carray(J, (samples, m, n)),
        carray(H, (samples, n, n)), carray(active, few), carray(grad, many), bent, begin, end,
    )  # fmt: skip


@cache
def _kernel() -> Callable[..., int]:
    """The compiled kernel, which takes addresses."""
    return compile_addresses(_solve, torch.float64)


def solve(J: Tensor, H: Tensor | None, active: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``p (B, n)``, ``q (B, m)`` for the rows J ``(B, m, n)`` of any length, and the least pivot of W ``(B,)``.

    Args:
        J: ``(B, m, n)``.
        H: ``sum_i dual_i Hess g_i``, ``(B, n, n)``, or None for 0.
        active: ``(B, m)``.
        grad: ``(B, n)``.
    """
    p, q, pivot = J.new_empty(grad.shape), J.new_empty(active.shape), J.new_empty(len(J))
    inputs = [J, J if H is None else H, active.to(J), grad]
    launch(_kernel(), [p, q, pivot], inputs, (), J.shape, int(H is not None), tile=1)
    return p, q, pivot
