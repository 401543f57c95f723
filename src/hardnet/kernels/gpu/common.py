"""Functions that the kernels share: loads and stores that convert, and ``L D L'`` unrolled over few rows.

Tuples represent small matrices whose entries are vectors over samples; lower triangles are packed by rows, without
their diagonal, so entry (i, j) is number ``i (i - 1) / 2 + j``.

Products are added by explicit `tl.fma`. Left to itself, the compiler would fuse either product of ``a b + c d``,
depending on the surrounding code, and two kernels that compute the same number would round it differently.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widen(value, COMPUTE: tl.constexpr):
    """Convert to ``COMPUTE``; half types go through float32, the only conversion the interpreter supports."""
    if value.dtype.primitive_bitwidth < 32:
        value = value.to(tl.float32)
    return value.to(COMPUTE)


@triton.jit
def load_as(pointer, mask, COMPUTE: tl.constexpr):
    """Load as ``COMPUTE``, zero where masked."""
    return widen(tl.load(pointer, mask=mask, other=0.0), COMPUTE)


@triton.jit
def store_from(pointer, value, mask):
    """Store in the dtype of the memory; half types go through float32."""
    if pointer.dtype.element_ty.primitive_bitwidth < 32:
        value = value.to(tl.float32)
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def factor(squares, gram, mask, tolerance, m: tl.constexpr):
    """``G = L D L'``: L below its unit diagonal, 1 / D, whether each sample has full rank, and its least pivot.

    ``L D L'`` does not depend on the scale of the rows, but the test of a pivot does, so each pivot (the squared
    distance of a row from the span of those before it) is compared with the squared length of its own row.

    Args:
        squares: Diagonal of G, m vectors.
        gram: G below its diagonal, packed.
        mask: Which samples exist.
        tolerance: Smallest ratio of a pivot to its diagonal entry.
        m: Number of rows.
    """
    scaled = ()  # L D, packed like L
    lower = ()
    inverse = ()
    regular = mask
    least = squares[0] * 0.0 + 1.0
    for i in tl.static_range(m):
        pivot = squares[i]
        for j in tl.static_range(i):
            entry = gram[i * (i - 1) // 2 + j]
            for k in tl.static_range(j):
                entry = tl.fma(-lower[i * (i - 1) // 2 + k], scaled[j * (j - 1) // 2 + k], entry)
            scaled = scaled + (entry,)
            lower = lower + (entry * inverse[j],)
            pivot = tl.fma(-entry, lower[i * (i - 1) // 2 + j], pivot)
        clear = pivot > tolerance * squares[i]  # false for NaN
        regular = regular & clear
        inverse = inverse + (1.0 / tl.where(clear, pivot, 1.0),)
        least = tl.minimum(least, tl.where(clear, pivot / squares[i], 0.0))
    return lower, inverse, regular, least


@triton.jit
def solve(lower, inverse, right, m: tl.constexpr):
    """``(L D L')^-1 r`` as a tuple of m vectors."""
    half = ()
    for i in tl.static_range(m):
        entry = right[i]
        for j in tl.static_range(i):
            entry = tl.fma(-lower[i * (i - 1) // 2 + j], half[j], entry)
        half = half + (entry,)
    solution = ()
    for back in tl.static_range(m):
        entry = half[m - 1 - back] * inverse[m - 1 - back]
        for row in tl.static_range(m - back, m):  # solution[0] belongs to row m - back
            entry = tl.fma(-lower[row * (row - 1) // 2 + m - 1 - back], solution[row + back - m], entry)
        solution = (entry,) + solution
    return solution


@triton.jit
def violations(products, low, high, mask, m: tl.constexpr):
    """``s = relu(lower - A f) - relu(A f - upper)`` row by row, and whether the numbers of each sample are valid."""
    signed = ()
    valid = mask
    for i in tl.static_range(m):
        step = tl.maximum(low[i] - products[i], 0.0) - tl.maximum(products[i] - high[i], 0.0)
        valid = valid & (low[i] <= high[i]) & (tl.abs(products[i]) < float("inf")) & (tl.abs(step) < float("inf"))
        signed = signed + (step,)
    return signed, valid


@triton.jit
def missing(products, signed, low, high, at_y, m: tl.constexpr):
    """``clamp(A f, lower, upper) - A y`` row by row: the residual that rounding left at y."""
    rest = ()
    for i in tl.static_range(m):
        goal = tl.where(signed[i] > 0.0, low[i], tl.where(signed[i] < 0.0, high[i], products[i]))
        rest = rest + (goal - at_y[i],)
    return rest


VERIFIED = tl.constexpr(12.0)
"""Roundings of a row's size by which y may miss its bound; the same number as in `hardnet.functional.affine_formulas`.
"""


CORRECTIONS = tl.constexpr(2)
"""Corrections of a doubtful point; a float64 point always gets them."""
TRUSTED = tl.constexpr(1e-5)
"""Squared distance of a unit row from those before it, and ratio of the sizes of y and raw, above which rounding is
harmless."""


@triton.jit
def doubtful(least, before, after):
    """Whether some sample of this program has rows so nearly dependent, or shrank so much, that y must be verified."""
    return tl.max(tl.where((least < TRUSTED) | (after < TRUSTED * before), 1, 0), axis=0) > 0


@triton.jit
def bound_size(lower, upper, weight):
    """``|lower| + |upper|`` of the finite ones, at most twice the smaller plus ``|a|_1``: `hardnet.rows.bound_size`."""
    first, second = tl.abs(lower), tl.abs(upper)
    infinity = float("inf")
    total = tl.where(first < infinity, first, 0.0) + tl.where(second < infinity, second, 0.0)
    most = 2.0 * tl.minimum(first, second) + weight
    return tl.where(most < total, most, total)


@triton.jit
def reached(at_y, low, high, lengths, largest, ROUNDING: tl.constexpr, m: tl.constexpr):
    """Whether every row of a sample is within its bounds to `VERIFIED` roundings of ``|a|_1 max |y| + |bound|``."""
    good = largest == largest
    for i in tl.static_range(m):
        outside = tl.maximum(tl.maximum(low[i] - at_y[i], at_y[i] - high[i]), 0.0)
        bound = tl.where(at_y[i] < low[i], tl.abs(low[i]), tl.where(at_y[i] > high[i], tl.abs(high[i]), 0.0))
        floor = tl.where(bound > 0.0, bound, ROUNDING * lengths[i])  # as in a certificate
        limit = VERIFIED * ROUNDING * (lengths[i] * largest + floor)
        good = good & (outside <= limit) & (limit < float("inf"))
    return good


@triton.jit
def some_nonzero(values, m: tl.constexpr):
    """Whether some row of each sample is violated."""
    found = values[0] != 0.0
    for i in tl.static_range(1, m):
        found = found | (values[i] != 0.0)
    return found


@triton.jit
def split_by_side(values, signed, m: tl.constexpr):
    """``w`` for violated rows, for rows below their bounds, and for rows above; zero elsewhere."""
    active = ()
    below = ()
    above = ()
    for i in tl.static_range(m):
        active = active + (tl.where(signed[i] != 0.0, values[i], 0.0),)
        below = below + (tl.where(signed[i] > 0.0, values[i], 0.0),)
        above = above + (tl.where(signed[i] < 0.0, values[i], 0.0),)
    return active, below, above


@triton.jit
def add(first, second, sign: tl.constexpr, m: tl.constexpr):
    """``first + sign second``, vector by vector."""
    total = ()
    for i in tl.static_range(m):
        total = total + (first[i] + sign * second[i],)
    return total
