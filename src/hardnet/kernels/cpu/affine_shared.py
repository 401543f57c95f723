"""The passes around the two products of ``y = raw + P' s`` if all samples share A and its factor ``P = A⁺'``.

Torch does the products. Each function here does one other step in one pass over the batch: compare with the bounds,
find the samples that need a second application, split a gradient between the bounds. numba compiles them for the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from hardnet.kernels.cpu.affine import SHRUNK, SMALL_ENTRY
from hardnet.kernels.cpu.compiling import Tile, compiled, summed
from hardnet.kernels.cpu.tiles import at_bounds, bound_of, largest, row_dot, sound

ACCURATE = 32.0
"""The most roundings in the square of the largest entry of ``A P' - I``: two applications of the factor leave no more
of s."""
LEFT = 8.0
"""Roundings of a row's size by which one application may miss: half of what the certificate allows."""


@compiled
def survey(facts: Tile, A: Tile, P: Tile) -> bool:
    """``1 / |a_i|`` and the trust in the factor; returns whether two applications of it leave only rounding.

    For unit rows with excess e, one application leaves ``(A P' - I) e``. With d the norm of the longest row of
    ``A P' - I``, this is below rounding of a row's size if ``|e| <= trust max |y|``,
    ``trust = LEFT eps |a|_1 / (|a| d)``. Trust is zero if some row may not depend on every output. Terms ``a_ij y_j``
    below the smallest normal number of the dtype lose digits; the loss is below rounding of every row's size if
    ``max |y| >= n tiny / min |a_i|_1``.

    Args:
        facts: ``(m + 2,)``, written: ``1 / |a_i|``, the trust, and the least ``max |y|`` whose terms lose no digits.
        A: ``(m, n)``.
        P: Its factor ``(m, n)``; NaN for dependent rows.
    """
    m, eps = A.shape[0], np.finfo(A.dtype).eps
    rows, factor = A.astype(np.float64), P.astype(np.float64)
    share, longest, largest, lengths, left = np.inf, 0.0, 0.0, np.empty(m), np.empty(m)
    lightest = np.inf
    for i in range(m):
        lengths[i] = length(rows[i])
        facts[i] = 1.0 / lengths[i]
        share, lightest = min(share, weight(rows[i]) / lengths[i]), min(lightest, weight(rows[i]))
    for i in range(m):
        for k in range(m):
            left[k] = abs(row_dot(rows[i], factor[k]) - (1.0 if i == k else 0.0)) * lengths[k] / lengths[i]
            largest = left[k] if not left[k] <= largest else largest
        longest = max(longest, length(left))
    facts[m] = LEFT * eps * share / longest if is_mostly_nonzero(A) else 0.0
    facts[m + 1] = A.shape[1] * np.finfo(A.dtype).tiny / lightest
    return largest * largest <= ACCURATE * eps


@compiled
def excess(product: Tile, chosen: Tile, lower: Tile, upper: Tile, regular: bool) -> int:
    """Replace p by ``p - clamp(p, lower, upper)``, NaN for samples without an answer; return how many these are.

    Args:
        product: ``(B, m)``, overwritten.
        chosen: ``(B,)``, zero for samples whose excess is set to zero, or ``(0,)`` to compute that of all.
        lower: ``(B, m)``, ``(1, m)`` for all samples, or ``(0, m)`` for none.
        upper: Like `lower`.
        regular: Whether A has a factor; without it no sample has an answer.
    """
    samples, m = product.shape
    lost = 0
    for b in range(samples):
        bad, left_out = not regular, chosen.shape[0] > 0 and chosen[b] == 0.0
        for i in range(m):
            p = product[b, i]
            low, high = bound_of(lower, b, i, -np.inf), bound_of(upper, b, i, np.inf)
            bad |= not sound(p, low, high)
            product[b, i] = p - min(max(p, low), high)
        if bad or left_out:
            lost += bad
            product[b] = np.nan if bad else 0.0
    return lost


@summed
def length(row: Tile) -> float:
    """``|a|``."""
    return np.sqrt(row_dot(row, row))


@summed
def weight(row: Tile) -> float:
    """``|a|_1``."""
    total = 0.0
    for j in range(row.shape[0]):
        total += abs(row[j])
    return total


@summed
def weighted_length(vector: Tile, weights: Tile) -> float:
    """``|diag(w) v|``."""
    total = 0.0
    for i in range(vector.shape[0]):
        entry = vector[i] * weights[i]
        total += entry * entry
    return np.sqrt(total)


@compiled
def holds(excess: Tile) -> bool:
    """Whether a sample ``(m,)`` has no excess."""
    violated = False
    for i in range(excess.shape[0]):
        violated |= excess[i] != 0.0
    return not violated


@compiled
def settle(y: Tile, chosen: Tile, raw: Tile, excess: Tile, facts: Tile) -> int:
    """Restore the bits of raw for samples without excess; mark the others that need a second pass, and count them.

    The rounding of the first pass is relative to the terms ``|a||raw|`` of a row, but a certificate compares with
    ``|a||y|``. If every row depends on every output, that matters only where y shrank. `survey` bounds the error of the
    factor itself; the largest output is computed only where the root mean square is not enough to decide. A sample
    whose terms lose digits is marked too, whatever its excess seems to be, and `confirm` makes it NaN.

    Args:
        y: ``(B, n)``, overwritten where a sample has no excess.
        chosen: ``(B,)``, written: one for the marked samples, else zero.
        raw: ``(B, n)``.
        excess: ``(B, m)``, at raw.
        facts: ``(m + 2,)``, from `survey`.
    """
    count, inverse, trust, least = 0, facts[:-2], facts[-2], facts[-1]
    for b in range(y.shape[0]):
        inexact = loses_digits(raw[b], least)
        if holds(excess[b]):
            y[b] = raw[b]
        elif not inexact:
            size, far = length(y[b]), weighted_length(excess[b], inverse)
            inexact = trust == 0.0 or size < SHRUNK * length(raw[b])
            if not inexact and far > trust * size / np.sqrt(y.shape[1]):
                inexact = far > trust * largest(y[b])
        chosen[b] = 1.0 if inexact else 0.0
        count += inexact
    return count


@compiled
def loses_digits(point: Tile, least: float) -> bool:
    """``0 < max |y| < least``: whether the terms of a point ``(n,)`` fall below the smallest number of the dtype."""
    moves = False
    for j in range(point.shape[0]):
        if not abs(point[j]) < least:  # nearly always true at the first entry
            return False
        moves |= point[j] != 0.0
    return moves


@compiled
def confirm(y: Tile, product: Tile, raw: Tile, excess: Tile, facts: Tile, A: Tile, lower: Tile, upper: Tile) -> int:
    """Set samples with a row that is not `at_bounds` to NaN; return how many these are.

    Samples whose terms lose digits become NaN too, since neither product nor excess can be trusted.

    Args:
        y: ``(B, n)``; overwritten with NaN where a sample is lost, and with the bits of raw where it has no excess.
        product: ``A y``, ``(B, m)``.
        raw: ``(B, n)``.
        excess: ``(B, m)``, at raw.
        facts: ``(m + 2,)``, from `survey`.
        A: ``(m, n)``.
        lower: ``(B, m)``, ``(1, m)`` for all samples, or ``(0, m)`` for none.
        upper: Like `lower`.
    """
    lost, rounding, weights = 0, np.finfo(A.dtype).eps, np.empty(A.shape[0])
    for i in range(A.shape[0]):
        weights[i] = weight(A[i])
    for b in range(y.shape[0]):
        bad = loses_digits(raw[b], facts[-1]) or loses_digits(y[b], facts[-1])
        if holds(excess[b]) and not bad:
            y[b] = raw[b]
            continue
        most = largest(y[b])
        for i in range(A.shape[0]):
            low, high = bound_of(lower, b, i, -np.inf), bound_of(upper, b, i, np.inf)
            bad |= not at_bounds(product[b, i], low, high, weights[i], most, rounding)
        if bad:
            y[b] = np.nan
            lost += 1
    return lost


@compiled
def is_mostly_nonzero(A: Tile) -> bool:
    """Whether no entry of A is negligible: all are larger than `SMALL_ENTRY` times the largest."""
    least, most = np.inf, 0.0
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            least, most = min(least, abs(A[i, j])), max(most, abs(A[i, j]))
    return least > SMALL_ENTRY * most


@compiled
def split(w: Tile, above: Tile, below: Tile, excess: Tile) -> int:
    """``w`` ``(B, m)`` for rows above their upper and rows below their lower bound; w keeps both, zero elsewhere."""
    for b in range(w.shape[0]):
        for i in range(w.shape[1]):
            side = w[b, i] if excess[b, i] == excess[b, i] else np.nan
            above[b, i] = side if not excess[b, i] <= 0.0 else 0.0
            below[b, i] = side if not excess[b, i] >= 0.0 else 0.0
            w[b, i] = side if excess[b, i] != 0.0 else 0.0
    return 0


def _survey(facts: Any, A: Any, P: Any, m: int, n: int) -> int:
    """`survey`, called with addresses."""
    return survey(carray(facts, (m + 2,)), carray(A, (m, n)), carray(P, (m, n)))


def _excess(
    product: Any, chosen: Any, lower: Any, upper: Any,
    samples: int, m: int, marks: int, lowers: int, uppers: int, regular: int,
) -> int:  # fmt: skip
    """`excess`, called with addresses."""
    return excess(
        carray(product, (samples, m)), carray(chosen, (marks,)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)), regular != 0,
    )  # fmt: skip


def _settle(y: Any, chosen: Any, raw: Any, excess: Any, facts: Any, samples: int, m: int, n: int) -> int:
    """`settle`, called with addresses."""
    return settle(
        carray(y, (samples, n)), carray(chosen, (samples,)), carray(raw, (samples, n)),
        carray(excess, (samples, m)), carray(facts, (m + 2,)),
    )  # fmt: skip


def _confirm(
    y: Any, product: Any, raw: Any, excess: Any, facts: Any, A: Any, lower: Any, upper: Any,
    samples: int, m: int, n: int, lowers: int, uppers: int,
) -> int:  # fmt: skip
    """`confirm`, called with addresses."""
    return confirm(
        carray(y, (samples, n)), carray(product, (samples, m)), carray(raw, (samples, n)),
        carray(excess, (samples, m)), carray(facts, (m + 2,)), carray(A, (m, n)),
        carray(lower, (lowers, m)), carray(upper, (uppers, m)),
    )  # fmt: skip


def _split(w: Any, above: Any, below: Any, excess: Any, samples: int, m: int) -> int:
    """`split`, called with addresses."""
    shape = (samples, m)
    return split(carray(w, shape), carray(above, shape), carray(below, shape), carray(excess, shape))


ENTRIES = (_survey, _excess, _settle, _confirm, _split)
"""The entry points to compile, in the order of a call; they take addresses."""
