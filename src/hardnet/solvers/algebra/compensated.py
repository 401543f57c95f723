"""``a'y`` minus its bounds, with a bound on the rounding error: in float64, or in twice its precision where needed.

The extended arithmetic writes a product as the rounded value and its exact error (Dekker), splits the values into
layers whose sums are exact, and adds up the errors separately. Very large and very small rows and outputs are first
scaled by powers of two, which is exact, so that nothing overflows.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import power, times

UNIT = 2.0**-53
"""The largest relative error of one float64 operation."""
LEAST_SUBNORMAL = 2.0**-1074
"""The largest absolute error of a float64 operation that underflows."""
MODERATE = 300
"""Rows and outputs below 2^300 and above 2^-300 need no scaling: everything computed from two of them is in range."""


class Excess(NamedTuple):
    """How far rows are beyond their bounds.

    Attributes:
        value: ``max(a'y - upper, lower - a'y)``: negative inside.
        rounding: A bound on the error of `value`.
    """

    value: Tensor
    rounding: Tensor


def plain_excess(A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, size: Tensor) -> Excess:
    """The excess of all rows at all points by one matrix product in float64.

    A sum of n products in any order has an error of at most ``n u sum |a_i y_i| <= n u |a|_1 |y|_inf``; each use of
    `UNIT` leaves room for the second-order terms.

    Args:
        A: ``(m, n)`` or ``(B, m, n)``, finite.
        lower: ``(m,)`` or ``(B, m)``, -inf where absent.
        upper: Like `lower`, inf where absent.
        y: ``(B, n)``, finite.
        size: ``|a|_1 |y|_inf``, ``(B, m)``.
    """
    return excess_of_sums(times(A, y), lower, upper, size, y.shape[-1])


def excess_of_sums(value: Tensor, lower: Tensor, upper: Tensor, size: Tensor, n: int | Tensor) -> Excess:
    """The excess of sums `value` of n products added up in float64; `size` is ``|a|_1 |y|_inf``."""
    excess = torch.maximum(value - upper, lower - value)
    return Excess(excess, (n + 4) * (UNIT * size + LEAST_SUBNORMAL) + 2 * UNIT * _finite_size(excess))


def long_excess(a: Tensor, lower: Tensor, upper: Tensor, y: Tensor) -> Excess:
    """The excess of row k at point k in twice the precision of float64.

    Args:
        a: ``(K, n)``, finite.
        lower: ``(K,)``, -inf where absent.
        upper: ``(K,)``, inf where absent.
        y: ``(K, n)``, finite.
    """
    row_exponent, point_exponent = moderate_exponent(a), moderate_exponent(y)
    exponent, n = row_exponent + point_exponent, a.shape[-1]
    a, y = shift(a, -row_exponent.unsqueeze(-1)), shift(y, -point_exponent.unsqueeze(-1))
    lost = n * (1 + largest(a) + largest(y)) if bool(exponent.any()) else n  # scaling and products may underflow
    return against_bounds(_dot(a, y), lower, upper, exponent, n, lost)


def against_bounds(
    total: tuple[Tensor, Tensor, Tensor], lower: Tensor, upper: Tensor, exponent: Tensor, n: int, lost: Tensor | float
) -> Excess:
    """The excess of sums ``(high + low) 2^exponent`` of n terms.

    The errors of n products are at most ``u size`` together, the remainder after two layers is less; both are added in
    plain float64, with a relative error of ``n u``. Four times that covers the terms of higher order.

    Args:
        total: The sums as high and low, and the size of their terms.
        lower: -inf where absent.
        upper: inf where absent.
        exponent: The exponent of the scaling of the sums.
        n: How many terms a sum has.
        lost: The largest error of the sums by underflow, in units of `LEAST_SUBNORMAL`.
    """
    high, low, size = total
    own_lower, own_upper = shift(lower, -exponent), shift(upper, -exponent)
    above = torch.where(upper.isfinite(), _add(high, low, -own_upper), -upper)
    below = torch.where(lower.isfinite(), _add(-high, -low, own_lower), lower)
    excess = torch.maximum(above, below)
    for bound, own in ((lower, own_lower), (upper, own_upper)):
        size = size + torch.where(bound.isfinite(), own.abs(), 0)
    relative = 4 * (n + 8) * UNIT**2
    rounding = relative * size + 2 * UNIT * _finite_size(excess) + 16 * (lost + 4) * LEAST_SUBNORMAL
    return Excess(shift(excess, exponent), shift(rounding, exponent) + 4 * LEAST_SUBNORMAL)


def _dot(a: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``a'y`` of rows ``(K, n)`` as the unevaluated sum of two numbers, and ``sum |a_i y_i|``: each ``(K,)``."""
    return exact_sum(*two_product(a, y))


def exact_sum(rest: Tensor, error: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of terms ``(..., count)`` and their errors as two numbers, and the sum of their sizes: each ``(...)``.

    Adding and subtracting a power of two rounds every term to a multiple of the same unit; where the power is above
    twice the sum of their sizes, all sums of the rounded terms are exact, in any order. After two such layers the
    remainder is so small that its rounding errors do not matter.
    """
    size = rest.abs().sum(-1)
    layer = power(torch.frexp(size).exponent.long().clamp_min(-900) + 2).unsqueeze(-1)
    sums = []
    for unit in (layer, layer * 2.0 ** (ceil(log2(rest.shape[-1])) - 50)):
        rounded = (rest + unit).sub_(unit)
        rest = rest - rounded
        sums.append(rounded.sum(-1))
    low = (rest if error is None else rest.add_(error)).sum(-1)
    high, carry = two_sum(*sums)
    return high, carry + low, size


def _add(high: Tensor, low: Tensor, other: Tensor) -> Tensor:
    """``high + low + other``, rounded once where the first and the last cancel."""
    value, error = two_sum(high, other)
    return value + (error + low)


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``a + b`` as the rounded sum and its exact error."""
    value = a + b
    part = value - a
    return value, (a - (value - part)) + (b - part)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor | None]:
    """``a b`` as the rounded product and its error, exact unless it underflows; None where a is all powers of two."""
    value = a * b
    if len(a) == 1 and bool(((torch.frexp(a).mantissa.abs() == 0.5) | (a == 0)).all()):
        return value, None
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    error = (a_high * b_high).sub_(value).add_(a_low * b_high).add_(a_high * b_low).add_(a_low * b_low)
    return value, error


def _split(a: Tensor) -> tuple[Tensor, Tensor]:
    """``a`` as the sum of two numbers of 26 bits, whose products are exact."""
    scaled = a * (2.0**27 + 1)
    high = scaled - (scaled - a)
    return high, a - high


def moderate_exponent(rows: Tensor) -> Tensor:
    """The exponent e of each row's largest entry, below ``2^e`` in absolute value: ``(K,)``; 0 where it is moderate."""
    exponent = torch.frexp(largest(rows)).exponent.long()
    return torch.where(exponent.abs() < MODERATE, 0, exponent)


def largest(rows: Tensor) -> Tensor:
    """``|row|_inf`` of each row, without the copy that abs makes; NaN where a row contains NaN."""
    return torch.maximum(rows.amax(-1), -rows.amin(-1))


def shift(a: Tensor, exponent: Tensor) -> Tensor:
    """``a 2^exponent`` in three steps, since float64 has no powers of two above 2^1023; exact unless it underflows."""
    if not bool(exponent.any()):
        return a
    third = torch.div(exponent, 3, rounding_mode="floor")
    small, rest = power(third), power(exponent - 2 * third)
    return a * small * small * rest


def _finite_size(a: Tensor) -> Tensor:
    """``|a|``, and 0 for infinities."""
    return torch.where(a.isinf(), 0, a.abs())


# The excess of rows shared by all points, in twice the precision of float64, by ordinary matrix products.
#
# Rows and points are written as sums of slices of so few bits that every sum of products of two slices is exact, in any
# order. The certificate (`sets/judgment.py`) uses this where many samples share their rows: a slice of a point costs
# two passes over it, whereas products with their errors (`compensated.py`) cost twenty-five.


POINT_BITS = 27
"""Bits of a slice of a point: two slices hold all bits of a float64 number as large as the largest output."""
CACHE = 1 << 15
"""Entries of points that are sliced at a time on a CPU, so that the slices stay in its cache."""
WIDEST_SUM = 1 << 22
"""Largest number of outputs for which slices of rows have at least four bits."""


class SlicedRows(NamedTuple):
    """Rows ``A 2^-exponent`` as the sum of slices; the last slice is the remainder.

    Attributes:
        slices: ``(slices, m, n)``.
        weight: ``|a|_1`` of the scaled rows, ``(m,)``.
        exponent: The exponent of their scaling, ``(m,)``.
    """

    slices: Tensor
    weight: Tensor
    exponent: Tensor

    def some(self, rows: Tensor) -> SlicedRows:
        """The rows with these indices; no copy where all are selected."""
        if len(rows) == len(self.weight):
            return self
        return SlicedRows(self.slices[:, rows], self.weight[rows], self.exponent[rows])


def slice_count(n: int) -> int:
    """The number of slices for a row of n entries: the last is below ``u / (4 n)`` of its largest entry."""
    return ceil((55 + log2(n)) / (_row_bits(n) + 1)) + 1


def slice_rows(A: Tensor) -> SlicedRows:
    """The slices of finite rows ``(m, n)``, with n up to `WIDEST_SUM`."""
    exponent, n = moderate_exponent(A), A.shape[-1]
    scaled = shift(A, -exponent.unsqueeze(-1))
    slices = scaled.new_empty(slice_count(n), *A.shape)
    _slice(scaled, _digits(largest(scaled), _row_bits(n), len(slices)), slices)
    used = slices.flatten(1).any(1)  # simple rows, such as rows of ones, need only one slice
    used[0] = True
    return SlicedRows(slices[used], scaled.abs().sum(-1), exponent)


def sliced_excess(rows: SlicedRows, lower: Tensor, upper: Tensor, y: Tensor, size: Tensor) -> Excess:
    """The excess of all m rows at all points, ``(b, m)``.

    Sums of n products of two slices are exact, since ``n 2^(bits of both) <= 2^53`` units. The remainder of a point is
    below ``u/4`` of its size, that of a row below ``u/(4 n)`` of its largest entry; a plain sum of their products has a
    relative error of ``n u``, which is less than the bound of `against_bounds`, relative to ``|a|_1 |y|_inf``.

    Args:
        rows: The rows.
        lower: ``(m,)`` or ``(b, m)``, -inf where absent.
        upper: Like `lower`, inf where absent.
        y: ``(b, n)``, finite.
        size: ``|y|_inf``, ``(b, 1)``.
    """
    (b, n), (count, m) = y.shape, rows.slices.shape[:2]
    exponent = moderate_exponent(size)
    size = shift(size, -exponent.unsqueeze(-1))
    y = shift(y, -exponent.unsqueeze(-1))
    flat = rows.slices.reshape(count * m, n).mT
    digits = _digits(size.squeeze(-1), POINT_BITS, 3)
    step = min(b, max(1, CACHE // n)) if y.device.type == "cpu" else b
    slices, products = y.new_empty(3, step, n), y.new_empty(3, b, count * m)
    for start in range(0, b, step):
        some = y[start : start + step]
        own, end = slices[:, : len(some)], start + len(some)
        _slice(some, digits[:, start:end], own)
        products[:, start:end] = own @ flat
    high, low, _ = exact_sum(products.reshape(3, b, count, m).permute(1, 3, 0, 2).reshape(b, m, 3 * count))
    own = exponent.unsqueeze(-1) + rows.exponent
    return against_bounds((high, low, rows.weight * size), lower, upper, own, n, 3 * count * n)


def _row_bits(n: int) -> int:
    """Bits of a slice of a row, so that n products with a slice of a point add up exactly."""
    return 53 - POINT_BITS - ceil(log2(n))


def _digits(size: Tensor, bits: int, count: int) -> Tensor:
    """The numbers that round rows of the sizes ``(k,)`` to each slice but the last, ``(count - 1, k, 1)``.

    Adding and subtracting 1.5 times a power of two rounds to a multiple of its last digit. The remainder is exact and
    at most half of that digit, so that the next slice begins one bit lower.
    """
    top = torch.frexp(size).exponent.long() + 52 - bits
    below = torch.arange(count - 1, device=size.device).unsqueeze(-1) * (bits + 1)
    return (1.5 * power(top - below)).unsqueeze(-1)


def _slice(whole: Tensor, digits: Tensor, slices: Tensor) -> None:
    """Write ``(k, n)`` as the exact sum of slices ``(count, k, n)``; the last is the remainder."""
    rest = slices[-1]
    for digit, own in zip(digits, slices[:-1], strict=True):
        torch.add(whole, digit, out=own).sub_(digit)
        whole = torch.sub(whole, own, out=rest)
