"""``y = raw + A⁺ s`` for many rows per sample on a CPU, between the library's factorisation and the answer.

The library factorises: ``A A' = U' U`` by Cholesky, or, where A is square, ``A' = S L U`` by LU with the row swaps S.
The rest of a sample, its products with A and its triangular solves, is done here in one go, while its A is in the
cache: a pass over all samples for each of them would read A from memory again. numba compiles these loops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray

from hardnet.kernels.cpu.tiles import Tile, bound_of, compile_addresses, compiled, sound, summed


@summed
def dot(left: Tile, right: Tile) -> float:
    """``l'r`` of long vectors."""
    total = 0.0
    for k in range(left.shape[0]):
        total += left[k] * right[k]
    return total


@compiled
def short_dot(left: Tile, right: Tile, begin: int, end: int) -> float:
    """``sum of l_k r_k`` for begin <= k < end: four sums side by side, for vectors too short for the vector unit."""
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    fours = begin + (end - begin) // 4 * 4
    for k in range(begin, fours, 4):
        first += left[k] * right[k]
        second += left[k + 1] * right[k + 1]
        third += left[k + 2] * right[k + 2]
        fourth += left[k + 3] * right[k + 3]
    for k in range(fours, end):
        first += left[k] * right[k]
    return (first + second) + (third + fourth)


@compiled
def subtract(weight: float, row: Tile, out: Tile, begin: int, end: int) -> None:
    """``out -= w r`` for begin <= k < end."""
    for k in range(begin, end):
        out[k] -= weight * row[k]


@compiled
def add_transposed(A: Tile, weights: Tile, out: Tile) -> None:
    """``out += A' w`` for A ``(m, n)``."""
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            out[j] += weights[i] * A[i, j]


@compiled
def solve_gram(U: Tile, right: Tile) -> None:
    """``(U' U)⁻¹ r`` in place of r ``(m,)``, for U ``(m, m)`` above its diagonal."""
    m = right.shape[0]
    for k in range(m):
        right[k] /= U[k, k]
        subtract(right[k], U[k], right, k + 1, m)
    for k in range(m - 1, -1, -1):
        right[k] = (right[k] - short_dot(U[k], right, k + 1, m)) / U[k, k]


@compiled
def solve_rows(F: Tile, swaps: Tile, right: Tile) -> None:
    """``A⁻¹ r`` in place of r ``(n,)``, for ``A' = S L U`` with ``F = (L - I + U)'`` and the swaps S, from 1 on."""
    n = right.shape[0]
    for i in range(n):
        right[i] = (right[i] - short_dot(F[i], right, 0, i)) / F[i, i]
    for k in range(n - 1, -1, -1):
        right[k] -= short_dot(F[k], right, k + 1, n)
    for k in range(n - 1, -1, -1):
        other = int(swaps[k]) - 1
        right[k], right[other] = right[other], right[k]


@compiled
def solve_columns(F: Tile, swaps: Tile, right: Tile) -> None:
    """``A⁻' r`` in place of r ``(n,)``."""
    n = right.shape[0]
    for k in range(n):
        other = int(swaps[k]) - 1
        right[k], right[other] = right[other], right[k]
    for k in range(n):
        subtract(right[k], F[k], right, k + 1, n)
    for i in range(n - 1, -1, -1):
        right[i] /= F[i, i]
        subtract(right[i], F[i], right, 0, i)


@compiled
def clamp(product: Tile, lower: Tile, upper: Tile, sample: int, target: Tile) -> bool:
    """``clamp(p, lower, upper)`` of one sample, and whether its bounds are valid and its products finite."""
    valid = True
    for i in range(product.shape[0]):
        low, high = bound_of(lower, sample, i, -np.inf), bound_of(upper, sample, i, np.inf)
        valid &= sound(product[i], low, high)
        target[i] = min(max(product[i], low), high)
    return valid


@compiled
def independent(A: Tile, F: Tile) -> bool:
    """Whether no pivot of a square A is rounding next to the length of its row."""
    n = A.shape[0]
    limits, regular = np.finfo(A.dtype), True
    for k in range(n):
        regular &= abs(F[k, k]) > 4 * n * limits.eps * np.sqrt(dot(A[k], A[k])) + limits.tiny
    return regular


@compiled
def advance(A: Tile, F: Tile, swaps: Tile, square: bool, rest: Tile, point: Tile) -> None:
    """``v += A⁺ r``; r itself becomes ``(A A')⁻¹ r``, or ``A⁻¹ r`` where A is square."""
    if square:
        solve_rows(F, swaps, rest)
        for j in range(point.shape[0]):
            point[j] += rest[j]
    else:
        solve_gram(F, rest)
        add_transposed(A, rest, point)


@compiled
def forward(
    y: Tile, signed: Tile, q: Tile, raw: Tile, A: Tile, F: Tile, swaps: Tile, lower: Tile, upper: Tile,
    square: bool, begin: int, end: int,
) -> int:  # fmt: skip
    """``y = raw + A⁺ s``, corrected by what is left of s at y; the number of samples without an answer.

    Args:
        y: ``(B, n)``, written; a sample without violation gets the bits of raw, one without an answer NaN.
        signed: ``s``, ``(B, m)``, written; NaN for a sample without an answer.
        q: ``(A A')⁻¹ s``, ``(B, m)``, written where A is not square.
        raw: ``(B, n)``.
        A: ``(B, m, n)``.
        F: U ``(B, m, m)`` of Cholesky, or ``(L - I + U)'`` ``(B, n, n)`` of LU where A is square.
        swaps: ``(B, n)``, of LU; not read otherwise.
        lower: ``(B, m)``, ``(1, m)`` for all samples, or ``(0, m)`` for none.
        upper: Like `lower`.
        square: Whether F is of LU.
        begin: The first sample to compute.
        end: The first that is left alone.
    """
    m, n = A.shape[1:]
    target, rest, point, lost = np.empty(m), np.empty(m), np.empty(n), 0
    for b in range(begin, end):
        moves = False
        for i in range(m):
            rest[i] = dot(A[b, i], raw[b])
        good = clamp(rest, lower, upper, b, target) and (not square or independent(A[b], F[b]))
        for i in range(m):
            rest[i] = target[i] - rest[i]
            signed[b, i] = rest[i] if good else np.nan
            moves |= rest[i] != 0.0
        if good and moves:
            for j in range(n):
                point[j] = raw[b, j]
            advance(A[b], F[b], swaps[b], square, rest, point)
            for i in range(m):
                q[b, i] = rest[i]
                rest[i] = target[i] - dot(A[b, i], point)
            advance(A[b], F[b], swaps[b], square, rest, point)
        for i in range(m):
            q[b, i] = q[b, i] + rest[i] if good and moves else 0.0
        for j in range(n):
            y[b, j] = np.nan if not good else point[j] if moves else raw[b, j]
        lost += not good
    return lost


@compiled
def backward(
    grad_raw: Tile, grad_A: Tile, grad_lower: Tile, grad_upper: Tile,
    grad_y: Tile, raw: Tile, y: Tile, signed: Tile, q: Tile, A: Tile, F: Tile, swaps: Tile,
    square: bool, begin: int, end: int,
) -> int:  # fmt: skip
    """The gradients of `forward`: the formulas of `hardnet.functional.affine_plain.gradients`.

    Args:
        grad_raw: ``(B, n)``, written.
        grad_A: ``(B, m, n)``, written, or ``(0, m, n)`` where it is not wanted.
        grad_lower: ``(B, m)``, written.
        grad_upper: ``(B, m)``, written.
        grad_y: ``(B, n)``.
        raw: ``(B, n)``.
        y: From `forward`, like the two next.
        signed: See there.
        q: See there.
        A: As for `forward`, like the rest.
        F: See there.
        swaps: See there.
        square: See there.
        begin: See there.
        end: See there.
    """
    m, n = A.shape[1:]
    w, active, across = np.empty(m), np.empty(m), np.empty(n)
    for b in range(begin, end):
        pull_back(A[b], F[b], swaps[b], square, grad_y[b], w, across)
        for i in range(m):
            side = signed[b, i]
            active[i] = w[i] if side != 0.0 else 0.0
            active[i] = active[i] if side == side else np.nan
            grad_lower[b, i] = active[i] if not side <= 0.0 else 0.0
            grad_upper[b, i] = active[i] if not side >= 0.0 else 0.0
        for j in range(n):
            grad_raw[b, j] = grad_y[b, j]
        for i in range(m):
            subtract(active[i], A[b, i], grad_raw[b], 0, n)
        if grad_A.shape[0] > 0:
            outer(q[b], across, w, active, raw[b], y[b], grad_A[b])
    return 0


@compiled
def pull_back(A: Tile, F: Tile, swaps: Tile, square: bool, gradient: Tile, w: Tile, across: Tile) -> None:
    """``w = A⁺' g`` and ``g - A⁺ A g``, what of g lies across the rows."""
    m, n = A.shape
    if square:
        for i in range(m):
            w[i], across[i] = gradient[i], 0.0
        solve_columns(F, swaps, w)
        return
    rest = np.empty(m)
    for j in range(n):
        across[j] = gradient[j]
    for i in range(m):
        w[i] = 0.0
    for _ in range(1 if A.itemsize == 8 else 2):  # in float32 the Gram matrix is coarse: once more with the residual
        for i in range(m):
            rest[i] = dot(A[i], across)
        solve_gram(F, rest)
        for i in range(m):
            w[i] += rest[i]
            subtract(rest[i], A[i], across, 0, n)


@compiled
def outer(q: Tile, across: Tile, w: Tile, active: Tile, raw: Tile, y: Tile, out: Tile) -> None:
    """``q (g - A⁺ A g)' - w step' - V w raw'``: ``(m, n)``."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = q[i] * across[j] - w[i] * (y[j] - raw[j]) - active[i] * raw[j]


def _forward(
    y: Any, signed: Any, q: Any, raw: Any, A: Any, F: Any, swaps: Any, lower: Any, upper: Any,
    square: int, samples: int, m: int, n: int, lowers: int, uppers: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`forward` of addresses; without LU any address stands for the swaps."""
    return forward(
        carray(y, (samples, n)), carray(signed, (samples, m)), carray(q, (samples, m)), carray(raw, (samples, n)),
        carray(A, (samples, m, n)), carray(F, (samples, m, m)), carray(swaps, (samples, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)), square != 0, begin, end,
    )  # fmt: skip


def _backward(
    grad_raw: Any, grad_A: Any, grad_lower: Any, grad_upper: Any,
    grad_y: Any, raw: Any, y: Any, signed: Any, q: Any, A: Any, F: Any, swaps: Any,
    matrices: int, square: int, samples: int, m: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`backward` of addresses; `matrices` is B where the gradient of A is wanted, else 0."""
    return backward(
        carray(grad_raw, (samples, n)), carray(grad_A, (matrices, m, n)), carray(grad_lower, (samples, m)),
        carray(grad_upper, (samples, m)), carray(grad_y, (samples, n)), carray(raw, (samples, n)),
        carray(y, (samples, n)), carray(signed, (samples, m)), carray(q, (samples, m)), carray(A, (samples, m, n)),
        carray(F, (samples, m, m)), carray(swaps, (samples, n)), square != 0, begin, end,
    )  # fmt: skip


@cache
def compiled_kernels(dtype: torch.dtype) -> tuple[Callable[..., int], Callable[..., int]]:
    """The compiled `forward` and `backward` of addresses."""
    return compile_addresses(_forward, dtype, 9, 8), compile_addresses(_backward, dtype, 12, 7)
