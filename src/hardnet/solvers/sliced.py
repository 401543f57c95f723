"""Rows that all points share against their bounds, in twice the precision of float64, by ordinary matrix products.

Rows and points are written as sums of slices of so few bits that every sum of products of two slices is exact, in any
order. The certificate (`sets/judge_rows.py`) asks for it where many samples share their rows: a slice of a point costs
two passes over it, where products with their errors (`compensated.py`) cost twenty-five. Called by
`hardnet.sets.judge_rows`.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.compensated import Excess, against_bounds, exact_sum, largest, moderate_exponent, power, shift

POINT_BITS = 27
"""Bits of a slice of a point: two of them hold what float64 does, beside the largest output."""
CACHE = 1 << 15
"""Entries of points that are sliced at a time on a CPU, so that the slices stay in its cache."""
WIDEST = 1 << 22
"""Outputs up to which slices of rows keep four bits or more."""


class SlicedRows(NamedTuple):
    """Rows ``A 2^-exponent`` as the sum of slices; what is left is the last of them.

    Attributes:
        slices: ``(slices, m, n)``.
        weight: ``|a|_1`` of the scaled rows, ``(m,)``.
        exponent: By which they are scaled, ``(m,)``.
    """

    slices: Tensor
    weight: Tensor
    exponent: Tensor

    def some(self, rows: Tensor) -> SlicedRows:
        """The rows with these numbers; no copy where that is all of them."""
        if len(rows) == len(self.weight):
            return self
        return SlicedRows(self.slices[:, rows], self.weight[rows], self.exponent[rows])


def slice_count(n: int) -> int:
    """How many slices a row of n entries is written as: the last is below ``u / (4 n)`` of its largest entry."""
    return ceil((55 + log2(n)) / (_row_bits(n) + 1)) + 1


def slice_rows(A: Tensor) -> SlicedRows:
    """The slices of finite rows ``(m, n)``, with n up to `WIDEST`."""
    exponent, n = moderate_exponent(A), A.shape[-1]
    scaled = shift(A, -exponent.unsqueeze(-1))
    slices = _slice(scaled, largest(scaled), slice_count(n), _row_bits(n))
    return SlicedRows(slices, scaled.abs().sum(-1), exponent)


def sliced_excess(rows: SlicedRows, lower: Tensor, upper: Tensor, y: Tensor, size: Tensor) -> Excess:
    """The excess of all m rows at all points, ``(b, m)``.

    Sums of n products of two slices are exact, since ``n 2^(bits of both) <= 2^53`` units. What is left of a point is
    below ``u/4`` of its size, what is left of a row below ``u/(4 n)`` of its largest entry; a plain sum of their
    products loses ``n u`` of that, less than the bound that `against_bounds` states, relative to ``|a|_1 |y|_inf``.

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
    step = max(1, CACHE // n) if y.device.type == "cpu" else b
    products = [
        (_slice(some, own, 3, POINT_BITS) @ flat).reshape(3, -1, count, m)
        for some, own in zip(y.split(step), size.squeeze(-1).split(step), strict=True)
    ]
    terms = torch.cat(products, dim=1).permute(1, 3, 0, 2).reshape(b, m, 3 * count)
    high, low, _ = exact_sum(terms)
    own = exponent.unsqueeze(-1) + rows.exponent
    return against_bounds((high, low, rows.weight * size), lower, upper, own, n, 3 * count * n)


def _row_bits(n: int) -> int:
    """Bits of a slice of a row, so that n products with a slice of a point add up exactly."""
    return 53 - POINT_BITS - ceil(log2(n))


def _slice(whole: Tensor, size: Tensor, count: int, bits: int) -> Tensor:
    """``(k, n)`` of the sizes ``(k,)`` as the exact sum of `count` slices, all but the last of `bits` bits.

    Adding and subtracting 1.5 times a power of two rounds to a multiple of its last digit. The difference to what was
    there is exact and at most half of that digit, so that the next slice begins one bit below.
    """
    slices = whole.new_empty(count, *whole.shape)
    top, rest = torch.frexp(size).exponent.long().unsqueeze(-1), slices[-1]
    for k, own in enumerate(slices[:-1]):
        digit = 1.5 * power(top + 52 - bits - k * (bits + 1))
        torch.add(whole, digit, out=own).sub_(digit)
        whole = torch.sub(whole, own, out=rest)
    return slices
