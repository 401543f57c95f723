"""``K_JJ w = target_J`` for each sample's own rows J of one matrix K: batched Cholesky factors in blocks.

The active rows come first and are padded with rows of the identity: to their number rounded up to a ladder of sizes
where values may be read, else to all rows. A diagonal of `RIDGE` keeps dependent rows factorizable; corrections remove
its effect on the answer. If the answer is not unique, it is the one nearest to the starting point: from zero, duplicate
rows share evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times_aligned
from hardnet.solvers.polyhedron.active import CHUNK_ENTRIES, first_rows, groups

RIDGE = 1e-11
"""Added to the unit diagonal: above rounding of a factor, below any angle that the answer could resolve."""
BLOCK = {"cpu": 1 << 30, "cuda": 64}
"""Columns that are factorized at once: on a GPU most of the time is then spent in products of blocks."""
PART_OF_MEMORY = 32
"""One chunk of factors takes at most one part in this many of the memory of a GPU."""
SOLVES = 3
"""The number of solves: one solution and two corrections."""


class Blocks(NamedTuple):
    """``K_JJ + RIDGE I = L L'``; L is ``(B, size, size)``, with its diagonal blocks replaced by their inverses."""

    L: Tensor
    width: int

    def spans(self) -> list[tuple[int, int]]:
        """First and last column of each block."""
        size = self.L.shape[-1]
        return [(first, min(first + self.width, size)) for first in range(0, size, self.width)]

    def solve(self, right: Tensor) -> Tensor:
        """``(L L')^-1 right``: ``(B, size)``."""
        found = right.unsqueeze(-1).clone()
        for first, last in self.spans():
            row = found[:, first:last]
            if first:
                row = torch.baddbmm(row, self.L[:, first:last, :first], found[:, :first], alpha=-1)
            found[:, first:last] = torch.bmm(self.L[:, first:last, first:last], row)
        for first, last in reversed(self.spans()):
            row = found[:, first:last]
            if last < found.shape[1]:
                row = torch.baddbmm(row, self.L[:, last:, first:last].mT, found[:, last:], alpha=-1)
            found[:, first:last] = torch.bmm(self.L[:, first:last, first:last].mT, row)
        return found.squeeze(-1)


def factorize(K: Tensor, index: Tensor | None, kept: Tensor) -> Blocks:
    """Factorize the rows and columns `index` ``(B, size)`` of K ``(k, k)``; the identity where they are not `kept`.

    Without an index these are all rows in order.

    The factorization is left-looking: a block of columns is read from K, corrected by one product with the blocks
    before it, and written once.
    """
    size, width = kept.shape[-1], min(BLOCK.get(K.device.type, 64), kept.shape[-1])
    blocks = Blocks(K.new_empty(len(kept), size, size), width)
    L = blocks.L
    for first, last in blocks.spans():
        panel = _columns(K, index, kept, first, last)
        if first:
            panel = torch.baddbmm(panel, L[:, first:, :first], L[:, first:last, :first].mT, alpha=-1)
        corner = torch.linalg.cholesky_ex(panel[:, : last - first]).L
        eye = torch.eye(last - first, dtype=K.dtype, device=K.device).expand_as(corner)
        inverse = torch.linalg.solve_triangular(corner, eye, upper=False)
        L[:, first:last, first:last] = inverse
        if last < size:
            L[:, last:, first:last] = torch.bmm(panel[:, last - first :], inverse.mT)
    return blocks


def solve_shared(
    K: Tensor, active: Tensor, target: Tensor, look: bool, start: Tensor | None = None, solves: int = SOLVES
) -> Tensor:
    """``w`` with ``K_JJ w_J = target_J``, zero off J: ``(B, k)``.

    Args:
        K: ``(k, k)``, unit diagonal.
        active: J as a mask, ``(B, k)``.
        target: ``(B, k)``.
        look: Whether the number of active rows may be read to decide the size of the factors.
        start: A first answer, ``(B, k)``; zero by default.
        solves: The number of solves: one solution and its corrections.
    """
    result = torch.zeros_like(target)
    start = result if start is None else torch.where(active, start, 0.0)
    for samples, size in groups(active, 1) if look else _whole(active):
        found = _solve(K, active[samples], target[samples], start[samples], size, solves)
        result = result.index_copy(0, samples, found)
    return result


def _solve(K: Tensor, active: Tensor, target: Tensor, found: Tensor, size: int, solves: int) -> Tensor:
    if len(active) == 1:  # a batch of one uses other routines, which sum in another order
        return _solve(K, active.expand(2, -1), target.expand(2, -1), found.expand(2, -1), size, solves)[:1]
    index, kept = (None, active) if size == active.shape[-1] else first_rows(active, size)
    factor = factorize(K, index, kept)
    for _ in range(solves):
        left = torch.where(active, target - times_aligned(K, found), 0.0)
        if index is None:
            found = found + factor.solve(left)
        else:
            found = found.scatter_add(-1, index, factor.solve(left.gather(-1, index)))
    return found


def _columns(K: Tensor, index: Tensor | None, kept: Tensor, first: int, last: int) -> Tensor:
    """Rows from `first` on and columns from `first` to `last` of the matrix to factorize."""
    both = kept[:, first:, None] & kept[:, None, first:last]
    own = K[first:, first:last] if index is None else K[index[:, first:, None], index[:, None, first:last]]
    panel = torch.where(both, own, 0.0)
    corner = panel[:, : last - first].diagonal(dim1=-2, dim2=-1)
    corner.copy_(torch.where(kept[:, first:last], corner + RIDGE, 1.0))
    return panel


def _whole(active: Tensor) -> Iterator[tuple[Tensor, int]]:
    """All samples at full size, in chunks that fit the memory."""
    batch, size = active.shape
    every = torch.arange(batch, device=active.device)
    for chunk in every.split(max(1, _entries(active.device) // size**2)):
        yield chunk, size


def _entries(device: torch.device) -> int:
    """The most numbers in one chunk of factors: on a GPU a part of its memory, since small chunks leave it idle."""
    if device.type != "cuda":
        return CHUNK_ENTRIES["cpu"]
    return torch.cuda.get_device_properties(device).total_memory // (8 * PART_OF_MEMORY)
