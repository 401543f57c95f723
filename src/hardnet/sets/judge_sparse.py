"""How far y violates sparse rows: summed over their entries, and again in twice the precision where that decides."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hardnet.rows import bound_size
from hardnet.sets.judge_records import Tolerance
from hardnet.sets.sparse import SparseNumbers, product
from hardnet.solvers.algebra.compensated import Excess, excess_of_sums, long_excess
from hardnet.tolerances import terms

PAIRS = 1 << 18
"""Entries of rows that are added up again at a time."""


def judge_sparse(numbers: SparseNumbers, y: Tensor, allowed: Tensor) -> Excess:
    """``max(A y - upper, lower - A y, 0)`` ``(*batch, m)`` and a bound on its error.

    Args:
        numbers: Finite entries and bounds in float64; absent bounds are infinite or None.
        y: ``(*batch, n)`` float64, finite.
        allowed: What counts as satisfied, ``(*batch, m)``: a row violated by clearly more is not added up again.
    """
    counts, flat = numbers.crow.diff(), y.reshape(-1, y.shape[-1])
    absent = y.new_full((len(counts),), torch.inf)
    lower = (-absent if numbers.lower is None else numbers.lower).expand(allowed.shape).reshape(-1, len(counts))
    upper = (absent if numbers.upper is None else numbers.upper).expand(allowed.shape).reshape(-1, len(counts))
    size = product(numbers, numbers.values.abs(), torch.ones_like(flat[:1])) * flat.abs().amax(-1, keepdim=True)
    found = excess_of_sums(product(numbers, numbers.values, flat), lower, upper, size, counts)
    inside = found.value < -found.rounding
    left = ~(inside | (found.value > allowed.reshape(-1, len(counts)) + found.rounding))
    found.rounding.masked_fill_(inside, 0)
    for sample, row in _pieces(left, counts):
        a, place = _entries(numbers, row)
        points = flat[sample.unsqueeze(-1), place]
        again = long_excess(a, lower[sample, row], upper[sample, row], points)
        for field, value in zip(found, again, strict=True):
            field[sample, row] = value
    return Excess(*(field.reshape(allowed.shape) for field in (found.value.clamp_min(0), found.rounding)))


def sparse_size(numbers: SparseNumbers, y: Tensor, tolerance: Tolerance) -> Tensor:
    """``sum_j |a_j| max(|y_j|, size_j) + |bound|``, ``(*batch, m)``, by the rule of `hardnet.tolerances`."""
    reach, size = y.abs(), numbers.values.abs()
    weight = product(numbers, size, torch.ones_like(y[..., :1]).expand_as(y))
    bounds = torch.zeros_like(weight)
    if numbers.lower is not None or numbers.upper is not None:
        bounds = bound_size(numbers.lower, numbers.upper, weight)
    if tolerance.units is not None:
        return product(numbers, size, torch.maximum(reach, tolerance.units)) + bounds
    read, largest = torch.zeros_like(weight), reach.amax(-1, keepdim=True)
    row = torch.repeat_interleave(torch.arange(read.shape[-1], device=y.device), numbers.crow.diff())
    for place in range(0, len(row), PAIRS):  # the entries of one sample at a time may be many
        own = slice(place, place + PAIRS)
        found = torch.where(size[own] > 0, reach[..., numbers.col[own].long()], 0)
        read.scatter_reduce_(-1, row[own].expand(found.shape), found, "amax")
    return terms(weight, read, largest, bounds, tolerance.eps)


def _pieces(left: Tensor, counts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs of a sample and a row that the mask ``(B, m)`` names, the shortest rows first, a piece at a time."""
    sample, row = left.nonzero(as_tuple=True)
    order = counts[row].argsort(stable=True)
    longest = int(counts.max()) if len(counts) else 0
    step = max(1, PAIRS // max(longest, 1))
    yield from zip(sample[order].split(step), row[order].split(step), strict=True)


def _entries(numbers: SparseNumbers, row: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of K rows and the outputs they multiply, filled up with zeros: ``(K, most entries)`` each."""
    start, end = numbers.crow[row].unsqueeze(-1), numbers.crow[row + 1].unsqueeze(-1)
    place = start + torch.arange(max(int((end - start).max()), 1), device=row.device) if len(row) else start
    there = place < end
    if not bool(there.any()):
        return numbers.values.new_zeros(place.shape), torch.zeros_like(place, dtype=torch.long)
    place = torch.where(there, place, 0)
    return torch.where(there, numbers.values[place], 0), numbers.col[place].long()
