"""The excess of rows shared by all points, in twice the precision of float64, by ordinary matrix products.

Rows and points are written as sums of slices of so few bits that every sum of products of two slices is exact, in any
order. The certificate (`sets/judge_rows.py`) uses this where many samples share their rows: a slice of a point costs
two passes over it, whereas products with their errors (`compensated.py`) cost twenty-five.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import power
from hardnet.solvers.algebra.compensated import Excess, against_bounds, exact_sum, largest, moderate_exponent, shift

POINT_BITS = 27
"""Bits of a slice of a point: two slices hold all bits of a float64 number as large as the largest output."""
CACHE = 1 << 15
"""Entries of points that are sliced at a time on a CPU, so that the slices stay in its cache."""
WIDEST = 1 << 22
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
    """The slices of finite rows ``(m, n)``, with n up to `WIDEST`."""
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
