"""What stands around the two products of ``y = raw + P' s`` where all samples share A and its factor ``P = A⁺'``.

The library multiplies; each of these does the rest in one pass over the batch: compare with the bounds, find the
samples that need a second application, share a gradient out among the bounds. numba compiles them for the CPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray

from hardnet.kernels.cpu.affine import SHRUNK, SMALL_ENTRY
from hardnet.kernels.cpu.tiles import VERIFIED, Tile, bound_of, compile_addresses, compiled, sound, summed

ACCURATE = 32.0
"""Roundings that the square of ``A P' - I`` may have: then two applications of the factor leave no more of s."""
LEFT = 8.0
"""Roundings of a row's size that one application may leave of s: half of what the certificate allows."""


@compiled
def contracts(A: Tile, P: Tile) -> bool:
    """Whether two applications of the factor leave no more than rounding of s; that of dependent rows does not."""
    left = defect(A, P)
    return left * left <= ACCURATE * np.finfo(A.dtype).eps


@compiled
def excess(product: Tile, chosen: Tile, A: Tile, P: Tile, lower: Tile, upper: Tile) -> int:
    """``p - clamp(p, lower, upper)`` in place of p; NaN for samples without an answer, and how many these are.

    Args:
        product: ``(B, m)``, overwritten.
        chosen: ``(B,)``, zero for samples whose excess is to be taken for zero, or ``(0,)`` for none of them.
        A: ``(m, n)``.
        P: ``(m, n)``; NaN if the rows of A are dependent.
        lower: ``(B, m)``, ``(1, m)`` for all samples, or ``(0, m)`` for none.
        upper: Like `lower`.
    """
    samples, m = product.shape
    dependent, lost = not contracts(A, P), 0
    for b in range(samples):
        bad, left_out = dependent, chosen.shape[0] > 0 and chosen[b] == 0.0
        for i in range(m):
            p = product[b, i]
            low, high = bound_of(lower, b, i, -np.inf), bound_of(upper, b, i, np.inf)
            bad |= not sound(p, low, high)
            product[b, i] = p - min(max(p, low), high)
        if bad or left_out:
            lost += bad
            product[b] = np.nan if bad else 0.0
    return lost


@compiled
def defect(A: Tile, P: Tile) -> float:
    """The largest entry of ``A P' - I`` for unit rows: what one application of the factor leaves of s; NaN for none."""
    lengths, worst = np.empty(A.shape[0]), 0.0
    for i in range(A.shape[0]):
        lengths[i] = length(A[i])
    for i in range(A.shape[0]):
        for k in range(A.shape[0]):
            left = abs(inner(A[i], P[k]) - (1.0 if i == k else 0.0)) * lengths[k] / lengths[i]
            worst = left if not left <= worst else worst
    return worst


@compiled
def leftover(A: Tile, P: Tile, lengths: Tile) -> float:
    """The length of the longest row of ``A P' - I`` for unit rows."""
    worst = 0.0
    for i in range(A.shape[0]):
        squares = 0.0
        for k in range(A.shape[0]):
            squares += ((inner(A[i], P[k]) - (1.0 if i == k else 0.0)) * lengths[k] / lengths[i]) ** 2
        worst = max(worst, squares)
    return np.sqrt(worst)


@summed
def inner(left: Tile, right: Tile) -> float:
    """``l'r``."""
    total = 0.0
    for j in range(left.shape[0]):
        total += left[j] * right[j]
    return total


@summed
def length(row: Tile) -> float:
    """``|a|``."""
    return np.sqrt(inner(row, row))


@compiled
def settle(y: Tile, chosen: Tile, raw: Tile, excess: Tile, A: Tile, P: Tile) -> int:
    """The bits of raw for samples without excess; which others need the closed form again, at y, and how many.

    The first pass leaves rounding relative to the terms ``|a||raw|`` of a row, and a certificate holds y to ``|a||y|``.
    Where every row feels every output, that matters only for outputs that shrank. Of the excess e the factor leaves
    ``|(A P' - I) e|``, at most `leftover` times ``|e|``, for unit rows.

    Args:
        y: ``(B, n)``, overwritten where a sample has no excess.
        chosen: ``(B,)``, written: one for the samples in need, else zero.
        raw: ``(B, n)``.
        excess: ``(B, m)``, of raw.
        A: ``(m, n)``.
        P: Its factor ``(m, n)``.
    """
    dense, count, lengths, share = is_dense(A), 0, np.empty(A.shape[0]), np.inf
    for i in range(A.shape[0]):
        lengths[i] = length(A[i])
        share = min(share, np.abs(A[i]).sum() / lengths[i])
    left, limit = leftover(A, P, lengths), LEFT * np.finfo(A.dtype).eps * share
    for b in range(y.shape[0]):
        squares, moves = 0.0, False
        for i in range(excess.shape[1]):
            moves |= excess[b, i] != 0.0
            squares += (excess[b, i] / lengths[i]) ** 2
        if not moves:
            y[b] = raw[b]
        inaccurate = left * np.sqrt(squares) > limit * np.abs(y[b]).max()
        inexact = moves and (not dense or inaccurate or shrank(y[b], raw[b]))
        chosen[b] = 1.0 if inexact else 0.0
        count += inexact
    return count


@compiled
def confirm(y: Tile, product: Tile, A: Tile, lower: Tile, upper: Tile) -> int:
    """NaN for samples of which some row is off its bounds by over `VERIFIED` roundings of its size; how many these are.

    Args:
        y: ``(B, n)``, overwritten where a sample is lost.
        product: ``A y``, ``(B, m)``.
        A: ``(m, n)``.
        lower: ``(B, m)``, ``(1, m)`` for all samples, or ``(0, m)`` for none.
        upper: Like `lower`.
    """
    lost, rounding, weights = 0, np.finfo(A.dtype).eps, np.empty(A.shape[0])
    for i in range(A.shape[0]):
        weights[i] = np.abs(A[i]).sum()
    for b in range(y.shape[0]):
        largest, bad = np.abs(y[b]).max(), False
        for i in range(A.shape[0]):
            low, high = bound_of(lower, b, i, -np.inf), bound_of(upper, b, i, np.inf)
            bounds = (abs(low) if low > -np.inf else 0.0) + (abs(high) if high < np.inf else 0.0)
            size = weights[i] * largest + (bounds if bounds > 0.0 else rounding * weights[i])
            p = product[b, i]
            bad |= not abs(p - min(max(p, low), high)) <= VERIFIED * rounding * size
        if bad:
            y[b] = np.nan
            lost += 1
    return lost


@compiled
def is_dense(A: Tile) -> bool:
    """Whether every entry of A counts: none is smaller than `SMALL_ENTRY` of the largest."""
    least, most = np.inf, 0.0
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            least, most = min(least, abs(A[i, j])), max(most, abs(A[i, j]))
    return least > SMALL_ENTRY * most


@summed
def shrank(y: Tile, raw: Tile) -> bool:
    """Whether one output ``(n,)`` is much shorter than it was."""
    length, before = 0.0, 0.0
    for j in range(y.shape[0]):
        length += y[j] * y[j]
        before += raw[j] * raw[j]
    return length < SHRUNK * SHRUNK * before


@compiled
def split(w: Tile, above: Tile, below: Tile, excess: Tile) -> int:
    """``w`` ``(B, m)`` on rows above their upper and below their lower bound, and on either in place of w."""
    for b in range(w.shape[0]):
        for i in range(w.shape[1]):
            side = w[b, i] if excess[b, i] == excess[b, i] else np.nan
            above[b, i] = side if not excess[b, i] <= 0.0 else 0.0
            below[b, i] = side if not excess[b, i] >= 0.0 else 0.0
            w[b, i] = side if excess[b, i] != 0.0 else 0.0
    return 0


def _excess(
    product: Any, chosen: Any, A: Any, P: Any, lower: Any, upper: Any,
    samples: int, m: int, n: int, marks: int, lowers: int, uppers: int,
) -> int:  # fmt: skip
    """`excess` of addresses."""
    return excess(
        carray(product, (samples, m)), carray(chosen, (marks,)), carray(A, (m, n)), carray(P, (m, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)),
    )  # fmt: skip


def _settle(y: Any, chosen: Any, raw: Any, excess: Any, A: Any, P: Any, samples: int, m: int, n: int) -> int:
    """`settle` of addresses."""
    return settle(
        carray(y, (samples, n)), carray(chosen, (samples,)), carray(raw, (samples, n)),
        carray(excess, (samples, m)), carray(A, (m, n)), carray(P, (m, n)),
    )  # fmt: skip


def _confirm(
    y: Any, product: Any, A: Any, lower: Any, upper: Any, samples: int, m: int, n: int, lowers: int, uppers: int
) -> int:
    """`confirm` of addresses."""
    return confirm(
        carray(y, (samples, n)), carray(product, (samples, m)), carray(A, (m, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)),
    )  # fmt: skip


def _split(w: Any, above: Any, below: Any, excess: Any, samples: int, m: int) -> int:
    """`split` of addresses."""
    shape = (samples, m)
    return split(carray(w, shape), carray(above, shape), carray(below, shape), carray(excess, shape))


@cache
def compiled_passes(dtype: torch.dtype) -> tuple[Any, ...]:
    """The compiled `excess`, `settle`, `split` and `confirm` of addresses."""
    excess_pass, settle_pass = compile_addresses(_excess, dtype, 6, 6), compile_addresses(_settle, dtype, 6, 3)
    split_pass, confirm_pass = compile_addresses(_split, dtype, 4, 2), compile_addresses(_confirm, dtype, 5, 5)
    return excess_pass, settle_pass, split_pass, confirm_pass
