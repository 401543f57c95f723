"""Linear algebra on the active rows J of each sample: ``(A_J A_J')^+`` without ragged shapes.

Rows are scaled to length one first, so that the pseudo-inverse does not depend on how a row is scaled. Samples are
grouped by their number of active rows, rounded up to a fixed ladder of sizes: the work is proportional to the active
rows, and a sample's answer depends only on its own size. Independent rows are solved by a Cholesky factor; if one of
its pivots shows that rows are nearly dependent, by a singular value decomposition of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import ALIGNMENT, times, times_aligned, times_rowwise

NEARLY_DEPENDENT = 1e-8
"""The smallest squared Cholesky pivot of unit rows for which the factor is trusted."""
SMALL = 8
"""The most rows for which all samples are solved at full size: more groups would cost more than they save."""
GRAM_RIDGE, RIDGE_STEPS = 1e-10, 5
"""The ridge added to the Gram matrix of unit rows where its rank may not be read, and how many steps undo it."""
CHUNK_ENTRIES = {"cpu": 1 << 19, "cuda": 1 << 27}
"""The most entries of one gathered block of rows: what fits the cache of a CPU, or the memory of a GPU."""


def split(vector: Tensor, A: Tensor, active: Tensor, *, unit: bool = False) -> tuple[Tensor, Tensor]:
    """``v = u + A_J'w`` with ``A_J u = 0``: the tangent u and the multipliers ``w = (A_J')^+ v``, zero off J.

    Args:
        vector: v, ``(B, n)``.
        A: ``(m, n)`` or ``(B, m, n)``.
        active: J as a mask, ``(B, m)``.
        unit: Whether the rows have the lengths in which dependent ones are to share w, as columns were left out.
    """
    product = times_aligned(A, vector)

    def exact(rows: Tensor, samples: Tensor, _: Tensor) -> Tensor:
        U, S, Vh = _decompose(rows)
        return times_aligned(U, _inverse(S, rows) * times_aligned(Vh, vector[samples]))

    multiplier = _solve(A, active, product, exact, unit=unit)
    return vector - times_aligned(A.mT, multiplier), multiplier


def solve_active(A: Tensor, active: Tensor, target: Tensor) -> Tensor:
    """``w = (A_J A_J')^+ target_J`` for unit rows, zero off J: ``(B, m)``; arguments as in `split`."""

    def exact(rows: Tensor, _: Tensor, right: Tensor) -> Tensor:
        U, S, _ = _decompose(rows)
        return times_aligned(U, _inverse(S, rows).square() * times_aligned(U.mT, right))

    return _solve(A, active, target, exact)


def solve_unseen(A: Tensor, active: Tensor, target: Tensor) -> Tensor:
    """`solve_active` for rows of any length, without reading values: ``(A_J A_J')^+ target_J``, ``(*batch, m)``.

    Proximal steps ``w + (K + r I)^-1 (target - K w)`` from zero converge to the pseudo-inverse of the unit rows'
    Gram matrix K, r is `GRAM_RIDGE`. The factor and the triangular solves can run inside a CUDA graph; batched LU and
    `cholesky_solve` cannot, since they allocate memory on the device.
    """
    both = active.unsqueeze(-1) & active.unsqueeze(-2)
    gram = torch.where(both, A @ A.mT, 0.0)
    scale = _unit_scale(gram.detach(), active)
    K = gram * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    L = torch.linalg.cholesky_ex(K + torch.diag_embed(torch.where(active, GRAM_RIDGE, 1.0).to(K))).L
    right = torch.where(active, target, 0.0) * scale
    w = torch.zeros_like(right)
    for _ in range(RIDGE_STEPS):
        half = torch.linalg.solve_triangular(L, (right - times(K, w)).unsqueeze(-1), upper=False)
        w = w + torch.linalg.solve_triangular(L.mT, half, upper=True).squeeze(-1)
    return w * scale


def _solve(
    A: Tensor,
    active: Tensor,
    target: Tensor,
    exact: Callable[[Tensor, Tensor, Tensor], Tensor],
    *,
    unit: bool = False,
) -> Tensor:
    """Solve group by group; ``exact(unit rows, samples, scaled target)`` solves the nearly dependent samples."""
    if A.shape[-2] == 1:
        squared = A.square().sum(-1)
        return torch.where(active & (squared > 0), target / squared.clamp_min(torch.finfo(A.dtype).tiny), 0.0)
    result = torch.zeros_like(target)
    for samples, size in groups(active, A.shape[-1]):
        index, kept = first_rows(active[samples], size)
        rows = None if A.dim() == 2 else _gather(A, samples, index)
        gram = (A @ A.mT)[index.unsqueeze(-1), index.unsqueeze(-2)] if rows is None else rows @ rows.mT
        scale = _unit_scale(gram.detach(), kept)
        scale = (scale > 0).to(scale) if unit else scale
        gram.mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2)).diagonal(dim1=-2, dim2=-1).add_(scale == 0)
        right = target[samples].gather(-1, index) * scale
        factor, info = torch.linalg.cholesky_ex(gram)
        solved = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
        trusted = (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).square().amin(-1) > NEARLY_DEPENDENT)
        doubtful = (~trusted).nonzero().squeeze(-1)
        if len(doubtful):
            chosen = samples[doubtful]
            block = _gather(A, chosen, index[doubtful]) * scale[doubtful].unsqueeze(-1)
            solved = solved.index_copy(0, doubtful, exact(block, chosen, right[doubtful]))
        spread = torch.zeros_like(result[samples]).scatter_add(-1, index, solved * scale)
        result = result.index_copy(0, samples, spread)
    return result


def _unit_scale(gram: Tensor, kept: Tensor) -> Tensor:
    """``1/|a_i|`` for the kept rows, else 0: a constant for autograd, since the solution does not depend on it.

    It is 0 for a row of zeros too, whose multiplier the pseudo-inverse makes 0.
    """
    squared = torch.where(kept, gram.diagonal(dim1=-2, dim2=-1), 0.0)
    return torch.where(squared > 0, squared.clamp_min(torch.finfo(gram.dtype).tiny).rsqrt(), 0.0)


def groups(active: Tensor, n: int) -> Iterator[tuple[Tensor, int]]:
    """Samples with the same rounded number of active rows, in chunks: grouped by size on a CPU, one size on a GPU."""
    m = active.shape[-1]
    sizes = None if m <= SMALL else _ladder(active.sum(-1), m)
    if sizes is not None and active.device.type != "cpu" and len(sizes):
        sizes = sizes.amax().expand_as(sizes)
    for size in [m] if sizes is None else sizes.unique().tolist():
        every = torch.arange(len(active), device=active.device)
        samples = every if sizes is None else (sizes == size).nonzero().squeeze(-1)
        if size:
            for chunk in samples.split(max(1, CHUNK_ENTRIES.get(active.device.type, 1 << 27) // (size * max(size, n)))):
                yield chunk, size


def _ladder(count: Tensor, m: int) -> Tensor:
    """Round up to 0, 8, 16, 24, 32, 48, 64, 96, ..., multiples of `ALIGNMENT`, but at most m."""
    eighths = (count + ALIGNMENT - 1) // ALIGNMENT
    power = torch.ldexp(torch.ones_like(count, dtype=torch.float64), torch.frexp(eighths.double()).exponent)
    rounded = torch.where(
        eighths <= 0.5 * power, 0.5 * power, torch.where(eighths <= 0.75 * power, 0.75 * power, power)
    )
    return (ALIGNMENT * torch.where(eighths <= 2, eighths, rounded.long())).clamp_max(m)


def first_rows(active: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Row indices with the active rows first, ``(b, size)``, and which of them are really active."""
    if size == active.shape[-1]:
        return torch.arange(size, device=active.device).expand(active.shape), active
    index = active.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :size]
    return index, active.gather(-1, index)


def _gather(A: Tensor, samples: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` of the samples: ``(b, size, n)``."""
    if A.dim() == 2:
        return A[index]
    if index.shape[-1] == A.shape[-2]:
        return A if len(samples) == len(A) else A[samples]
    return A[samples.unsqueeze(-1), index]


def _decompose(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.linalg.svd(rows, full_matrices=False)


def _inverse(singular: Tensor, rows: Tensor) -> Tensor:
    """``1/s`` where s is above the rounding of the largest singular value, else 0."""
    cut = max(rows.shape[-2:]) * torch.finfo(rows.dtype).eps * singular[..., :1]
    return torch.where(singular > cut, 1 / singular, 0.0)


# ``C C' x = r`` for a few long rows C in plain operations, which can be differentiated, mapped, compiled and exported:
# with ``C = L Q``, L unit lower triangular and the rows of Q orthogonal (modified Gram-Schmidt), ``C C' = L D L'`` with
# ``D = Q Q'``. The error grows with cond(C), not with its square as for a factor of ``C C'``.

ROW_DEPENDENT = 1e-12
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
        clear = square > ROW_DEPENDENT**2 * size[..., j]
        diagonal.append(torch.where(clear, square, 1.0))
        known.append(clear)
        share = times_rowwise(rows, row) / diagonal[-1].unsqueeze(-1)
        share = torch.where(clear.unsqueeze(-1), share, 0.0)
        rows = rows - share.unsqueeze(-1) * row.unsqueeze(-2)
        below.append(share)
    return Factor(below, torch.stack(diagonal, dim=-1), torch.stack(known, dim=-1))
