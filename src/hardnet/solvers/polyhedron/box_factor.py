"""``C C' x = r`` for a few long rows C: orthogonalize the rows, then two triangular solves.

With ``C = L Q``, L unit lower triangular and the rows of Q orthogonal (modified Gram-Schmidt), ``C C' = L D L'`` with
``D = Q Q'``. The error grows with cond(C), not with its square as for a factor of ``C C'``. Everything is plain tensor
operations, so that it can be differentiated, mapped, compiled and exported.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times_rowwise

DEPENDENT = 1e-12
"""A row is dependent if its part outside the span of the rows before it is below this fraction of its length."""


class Factor(NamedTuple):
    """``C C' = L D L'``.

    Attributes:
        below: Column j of L under its diagonal, ``(*batch, k - 1 - j)``, for each j.
        diagonal: D, ``(*batch, k)``; 1 for rows that depend on the rows before them.
        clear: Which rows do not depend on the rows before them, ``(*batch, k)``.
    """

    below: list[Tensor]
    diagonal: Tensor
    clear: Tensor

    def solve(self, right: Tensor) -> Tensor:
        """``x`` with ``C C' x = right``, ``(*batch, k)``; zero for dependent rows, exact for a consistent system."""
        parts = list(right.unbind(-1))
        k = len(parts)
        for j in range(k):
            for i in range(j + 1, k):
                parts[i] = parts[i] - self.below[j][..., i - j - 1] * parts[j]
        for j in reversed(range(k)):
            value = parts[j] / self.diagonal[..., j]
            for i in range(j + 1, k):
                value = value - self.below[j][..., i - j - 1] * parts[i]
            # a dependent row stays zero whatever the rows after it contribute
            parts[j] = torch.where(self.clear[..., j], value, 0.0)
        return torch.stack(parts, dim=-1)


def factorize_rows(C: Tensor) -> Factor:
    """The factor of C ``(*batch, k, n)``; rows that are zero or dependent get no pivot."""
    below, diagonal, known, rows = [], [], [], C
    size = C.square().sum(-1)
    for j in range(C.shape[-2]):
        row, rows = rows[..., 0, :], rows[..., 1:, :]
        square = row.square().sum(-1)
        clear = square > DEPENDENT**2 * size[..., j]
        diagonal.append(torch.where(clear, square, 1.0))
        known.append(clear)
        share = times_rowwise(rows, row) / diagonal[-1].unsqueeze(-1)
        share = torch.where(clear.unsqueeze(-1), share, 0.0)
        rows = rows - share.unsqueeze(-1) * row.unsqueeze(-2)
        below.append(share)
    return Factor(below, torch.stack(diagonal, dim=-1), torch.stack(known, dim=-1))
