"""The product of a matrix and a vector, ``A v``, sample by sample, in variants with different guarantees on the bits.

`times` is the fastest, and `times_each` computes each sample separately; their last bits may depend on the size of the
batch. Where a sample must have the same bits in any batch, use one sum per row or column, arguments padded by `align`,
or tiles of samples. ``A' v`` is ``times(A.mT, v)``. This file also has the length of a vector of any magnitude, and
powers of two as units, by which division is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp

import torch
from torch import Tensor

ALIGNMENT = 8
"""Float64 numbers in 64 bytes: CPU matrix routines may sum in another order if a sample is aligned differently."""
LARGE = 1 << 12
"""Number of entries from which a shared matrix is read once for several samples instead of once for each."""
ALIGNED_TILE = 8
"""Samples per tile; fixed, so that a sample has the same bits in any batch."""
LARGEST_EXPONENT = 1000
"""Largest absolute exponent: twice a power of two of this size is still finite."""


def times(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(*batch, m, n)`` and v ``(*batch, n)``: ``(*batch, m)``.

    A matrix shared by all samples takes a single matrix product.
    """
    return vector @ A.mT if A.dim() == 2 else (vector.unsqueeze(-2) @ A.mT).squeeze(-2)


def times_each(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(*batch, m, n)`` and v ``(*batch, n)``, one product for each sample, even if they share A."""
    return (A @ vector.unsqueeze(-1)).squeeze(-1)


def times_rowwise(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(1 or B, m, n)`` and v ``(B, n)``, one sum for each row."""
    return (A * vector.unsqueeze(-2)).sum(-1)


def times_columnwise(A: Tensor, vector: Tensor) -> Tensor:
    """``A' v`` for A ``(m, n)`` or ``(1 or B, m, n)`` and v ``(B, m)``, one sum for each column."""
    return (A * vector.unsqueeze(-1)).sum(-2)


def times_aligned(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(B, m, n)`` and v ``(B, n)``, on a CPU both padded by `align`."""
    if A.dim() == 2 and A.device.type != "cpu":
        return vector @ A.mT
    batch = vector.shape[0]
    if batch == 1:  # a batch of one uses another routine, which sums in another order
        return times_aligned(A.expand(2, *A.shape[-2:]), vector.expand(2, -1))[:1]
    return torch.bmm(A.expand(batch, *A.shape[-2:]), vector.unsqueeze(-1)).squeeze(-1)


def align(tensor: Tensor, dims: int = 1, absent: float = 0.0) -> Tensor:
    """Pad the last `dims` dimensions to a multiple of `ALIGNMENT` on a CPU, so that all samples are aligned alike.

    Then a sample has the same bits at any position of a batch, whatever the other samples of the batch are.
    """
    missing = [-size % ALIGNMENT for size in reversed(tensor.shape[-dims:])]
    if tensor.device.type != "cpu" or not any(missing):
        return tensor
    return torch.nn.functional.pad(tensor, [part for size in missing for part in (0, size)], value=absent)


def product_each(A: Tensor, B: Tensor) -> Tensor:
    """``A B`` for A ``(*batch, m, k)`` and B ``(*batch, k, n)``: ``(*batch, m, n)``, same bits at any position."""
    if A.device.type != "cpu":
        return A @ B
    if A.shape[:-2].numel() == 1:  # as `times_aligned` does
        return product_each(A.expand(2, *A.shape), B.expand(2, *B.shape))[0]
    return (align(A) @ align(B, 2))[..., : B.shape[-1]]


def gram(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """``A' diag(w) A`` for A ``(B, m, n)`` and w ``(B, m)`` or ones: ``(B, n, n)``, same bits at any position."""
    return product_each(rows.mT, rows if weight is None else weight.unsqueeze(-1) * rows)


def outer_sum(A: Tensor, left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
    """``sum_k l_k r_k'`` in the shape of A: per sample, or summed over the batch where A is ``(m, n)``."""
    if A.dim() == 2:
        total = left[0].mT @ right[0]
        for first, second in zip(left[1:], right[1:], strict=True):
            total = torch.addmm(total, first.mT, second)
        return total
    return torch.bmm(torch.stack(left, -1), torch.stack(right, -2))


def times_tiled(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(*batch, m, n)`` and v ``(*batch, n)``; a large A ``(1, m, n)`` in tiles of samples."""
    if A.dim() == 3 and A.shape[0] == 1 and vector.dim() == 2 and A.numel() >= LARGE:
        return tiled_product(vector, A.mT)
    return times_each(A, vector)


def tiled_product(v: Tensor, M: Tensor) -> Tensor:
    """``v M`` for ``(B, *groups, k)`` and a shared ``(1, *groups, k, m)``, in tiles of samples."""
    B = v.shape[0]
    tiles = torch.nn.functional.pad(v, (0, 0) * (v.dim() - 1) + (0, -B % ALIGNED_TILE)).unflatten(0, (-1, ALIGNED_TILE))
    return (tiles.movedim(1, -2) @ M).movedim(-2, 1).flatten(0, 1)[:B]


def length(vectors: Tensor) -> Tensor:
    """``|v|`` along the last dimension, which is kept, without overflow or underflow of the squares."""
    size = vectors.detach().abs().amax(-1, keepdim=True)
    size = torch.where((size > 0) & (size < torch.inf), size, 1.0)
    return size * torch.linalg.vector_norm(vectors / size, dim=-1, keepdim=True)


def power_above(size: Tensor) -> Tensor:
    """The power of two above each size, by which division is exact; 1 where the size is zero or not finite.

    For sizes above the largest power of two of the dtype, it is that largest power.
    """
    usable = (size > 0) & size.isfinite()
    exponent = torch.frexp(torch.where(usable, size, 0.5)).exponent
    return torch.ldexp(torch.ones_like(size), exponent.clamp_max(largest_power(size.dtype)))


def largest_power(dtype: torch.dtype) -> int:
    """The exponent of the largest power of two of a dtype."""
    return frexp(torch.finfo(dtype).max)[1] - 1


def power_near(size: Tensor) -> Tensor:
    """A power of two near a size, 1 for zero, so that dividing by it is exact; uses operations that every graph has."""
    exponent = torch.log2(torch.where(size > 0, size, 1.0)).round()
    return torch.exp2(exponent.clamp_max(largest_power(size.dtype)))


def exponent(size: Tensor) -> Tensor:
    """The e of ``size = f 2^e`` with f in [1/2, 1), clamped to ±`LARGEST_EXPONENT`; 0 for zero."""
    return torch.frexp(size).exponent.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)


def shift(tensor: Tensor, exponent: Tensor) -> Tensor:
    """``tensor 2^exponent`` for exponents up to twice `LARGEST_EXPONENT`, as two factors that do not overflow."""
    return shift_each((tensor,), exponent)[0]


def shift_each(tensors: Sequence[Tensor], exponent: Tensor) -> list[Tensor]:
    """`shift` of several tensors by the same exponents, whose powers are computed once."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    first, second = power(half), power(exponent - half)
    return [tensor * first * second for tensor in tensors]


def shift_rows(A: Tensor, row: Tensor) -> Tensor:
    """``A_i / 2^r_i``."""
    return A * power(-row).unsqueeze(-1)


def power(exponent: Tensor) -> Tensor:
    """``2^exponent`` in float64, built from its bits: exact on every device."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)
