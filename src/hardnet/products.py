"""The product of a matrix and a vector, ``A v``, sample by sample: one word, `times`, and what is promised of its bits.

`times` is the fastest, and `times_each` keeps samples apart; their last bits may depend on the size of the batch. Where
a sample must have the same bits in any batch, take one sum for each row or column, arguments that `align` filled up, or
tiles of samples. ``A' v`` is ``times(A.mT, v)``. And the length of a vector of any size, and powers of two as units,
which are exact to divide by.

Called by `hardnet.functional.affine`, `hardnet.solvers.polyhedron.problem`, `hardnet.solvers.conic.images` and others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp

import torch
from torch import Tensor

ALIGNMENT = 8
"""Numbers in 64 bytes: matrix routines of a CPU may add up in another order where a sample starts at another place."""
LARGE = 1 << 12
"""Entries from which a matrix that all samples share is read once for several samples, not once for each."""
TILE = 8
"""So many: a fixed number, so that a sample has the same bits in any batch."""
LARGEST_EXPONENT = 1000
"""Most that an exponent is changed by: twice a power of this size is still a number."""


def times(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(*batch, m, n)`` and v ``(*batch, n)``: ``(*batch, m)``.

    One matrix for all samples is one matrix product.
    """
    return vector @ A.mT if A.dim() == 2 else (vector.unsqueeze(-2) @ A.mT).squeeze(-2)


def times_each(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(*batch, m, n)`` and v ``(*batch, n)``, one product for each sample, also where they share A."""
    return (A @ vector.unsqueeze(-1)).squeeze(-1)


def times_rowwise(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(1 or B, m, n)`` and v ``(B, n)``, one sum for each row."""
    return (A * vector.unsqueeze(-2)).sum(-1)


def times_columnwise(A: Tensor, vector: Tensor) -> Tensor:
    """``A' v`` for A ``(m, n)`` or ``(1 or B, m, n)`` and v ``(B, m)``, one sum for each column."""
    return (A * vector.unsqueeze(-1)).sum(-2)


def times_aligned(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(B, m, n)`` and v ``(B, n)``, both as `align` leaves them on a CPU."""
    if A.dim() == 2 and A.device.type != "cpu":
        return vector @ A.mT
    batch = vector.shape[0]
    if batch == 1:  # a batch of one takes another routine, which adds up in another order
        return times_aligned(A.expand(2, *A.shape[-2:]), vector.expand(2, -1))[:1]
    return torch.bmm(A.expand(batch, *A.shape[-2:]), vector.unsqueeze(-1)).squeeze(-1)


def align(tensor: Tensor, dims: int = 1, absent: float = 0.0) -> Tensor:
    """Fill the last `dims` dimensions up to a multiple of `ALIGNMENT` on a CPU, so that all samples start alike.

    Then a sample has the same bits at any place of a batch, whoever its mates are.
    """
    missing = [-size % ALIGNMENT for size in reversed(tensor.shape[-dims:])]
    if tensor.device.type != "cpu" or not any(missing):
        return tensor
    return torch.nn.functional.pad(tensor, [part for size in missing for part in (0, size)], value=absent)


def product_each(A: Tensor, B: Tensor) -> Tensor:
    """``A B`` for A ``(*batch, m, k)`` and B ``(*batch, k, n)``: ``(*batch, m, n)``, the same bits at any place."""
    if A.device.type != "cpu":
        return A @ B
    if A.shape[:-2].numel() == 1:  # as `times_aligned` does
        return product_each(A.expand(2, *A.shape), B.expand(2, *B.shape))[0]
    return (align(A) @ align(B, 2))[..., : B.shape[-1]]


def gram(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """``A' diag(w) A`` for A ``(B, m, n)`` and w ``(B, m)`` or ones: ``(B, n, n)``, the same bits at any place."""
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
    tiles = torch.nn.functional.pad(v, (0, 0) * (v.dim() - 1) + (0, -B % TILE)).unflatten(0, (-1, TILE))
    return (tiles.movedim(1, -2) @ M).movedim(-2, 1).flatten(0, 1)[:B]


def length(vectors: Tensor) -> Tensor:
    """``|v|`` along the last dimension, kept, of numbers of any size: their squares neither overflow nor vanish."""
    size = vectors.detach().abs().amax(-1, keepdim=True)
    size = torch.where((size > 0) & (size < torch.inf), size, 1.0)
    return size * torch.linalg.vector_norm(vectors / size, dim=-1, keepdim=True)


def power_above(size: Tensor) -> Tensor:
    """The power of two above each size, which is exact to divide by; one where the size is zero or not finite.

    Above the largest power of the dtype there is none: it stands for those too.
    """
    usable = (size > 0) & size.isfinite()
    exponent = torch.frexp(torch.where(usable, size, 0.5)).exponent
    return torch.ldexp(torch.ones_like(size), exponent.clamp_max(largest_power(size.dtype)))


def largest_power(dtype: torch.dtype) -> int:
    """The exponent of the largest power of two of a dtype."""
    return frexp(torch.finfo(dtype).max)[1] - 1


def exponent(size: Tensor) -> Tensor:
    """The e of ``size = f 2^e`` with f in [1/2, 1), kept within the range of `LARGEST_EXPONENT`; 0 for zero."""
    return torch.frexp(size).exponent.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)


def shift(tensor: Tensor, exponent: Tensor) -> Tensor:
    """``tensor 2^exponent`` for exponents up to twice the largest one, in two factors that do not overflow."""
    return shift_each((tensor,), exponent)[0]


def shift_each(tensors: Sequence[Tensor], exponent: Tensor) -> list[Tensor]:
    """`shift` of several tensors by the same exponents, whose powers are made once."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    first, second = power(half), power(exponent - half)
    return [tensor * first * second for tensor in tensors]


def shift_rows(A: Tensor, row: Tensor) -> Tensor:
    """``A_i / 2^r_i``."""
    return A * power(-row).unsqueeze(-1)


def power(exponent: Tensor) -> Tensor:
    """``2^exponent`` in float64, from its bits: exact on every device."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)
