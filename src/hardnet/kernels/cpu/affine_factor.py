"""The closed form on a CPU for rows that all samples share, by compiled code, with the factor ``P = A⁺'``.

A small A takes one pass (`cpu_constant`); a larger one is multiplied by the library between passes of `cpu_shared`.
All arguments are what `hardnet.kernels.cpu.launch.takes` accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from hardnet.kernels.arguments import dense
from hardnet.kernels.cpu.launch import count

MOST_NUMBERS = 64
"""Numbers of A up to which one pass without the library's products is faster."""

SHRUNK = 1 / 8
"""An output shorter than this share of the raw one is corrected, where A has no small entries."""
SMALL_ENTRY = 1e-6
"""Relative to the largest entry of A: a row with such an entry may not feel the outputs that stayed large."""


def small(A: Tensor) -> bool:
    """Whether the single pass is for this A ``(m, n)``."""
    return A.numel() <= MOST_NUMBERS


def factorise(A: Tensor) -> Tensor:
    """``A⁺'`` of a small A ``(m, n)``, NaN where its rows are dependent to rounding."""
    P, A = A.new_empty(A.shape), dense(A, A)
    _kernels(A.dtype)[2](P.data_ptr(), A.data_ptr(), *A.shape)
    return P


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, P: Tensor) -> tuple[Tensor, int]:
    """``y = raw + P' s`` for a small A, and how many samples have no answer and are NaN."""
    raw, A, P = dense(raw, raw), dense(A, raw), dense(P, raw)
    low, high, y = dense(lower, raw), dense(upper, raw), torch.empty_like(raw)
    return y, _kernels(raw.dtype)[0](
        y.data_ptr(), raw.data_ptr(), A.data_ptr(), P.data_ptr(), low.data_ptr(), high.data_ptr(),
        *raw.shape[:1], *A.shape, count(lower), count(upper),
    )  # fmt: skip


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, P: Tensor, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A (if wanted), lower and upper ``(B, m)`` from that of y ``(B, n)``, for a small A."""
    grad_raw, shape = raw.new_empty(raw.shape), (len(raw), len(A))
    grad_lower, grad_upper = raw.new_empty(shape), raw.new_empty(shape)
    grad_A = raw.new_empty(A.shape) if wants_matrix else None
    outputs = [grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper]
    parts = [*outputs, *[dense(part, raw) for part in (gradient, raw, A, P, lower, upper)]]
    counts = int(wants_matrix), len(raw), *A.shape, count(lower), count(upper)
    _kernels(raw.dtype)[1](*[part.data_ptr() for part in parts], *counts)
    return grad_raw, grad_A, grad_lower, grad_upper


def excess_(
    product: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None, chosen: Tensor | None = None
) -> int:
    """``p - clamp(p, lower, upper)`` in place of p ``(B, m)``; how many samples have no answer and are NaN.

    Args:
        product: ``A raw``, just computed, and so dense.
        P: The factor ``(m, n)``.
        lower: ``(B, m)`` or ``(m,)`` or None.
        upper: Like `lower`.
        chosen: ``(B,)``: zero for samples whose excess counts as zero.
    """
    low, high, P = dense(lower, product), dense(upper, product), dense(P, product)
    marks = product if chosen is None else chosen
    return _passes(product.dtype)[0](
        product.data_ptr(), marks.data_ptr(), P.data_ptr(), low.data_ptr(), high.data_ptr(),
        *product.shape, P.shape[1], 0 if chosen is None else len(chosen), count(lower), count(upper),
    )  # fmt: skip


def settle_(y: Tensor, raw: Tensor, excess: Tensor, A: Tensor) -> Tensor | None:
    """The bits of raw for samples without excess; which others need the closed form again, at y, if there are any."""
    raw, A, chosen = dense(raw, y), dense(A, y), y.new_empty(len(y))
    numbers = (y.data_ptr(), chosen.data_ptr(), raw.data_ptr(), excess.data_ptr(), A.data_ptr())
    return chosen if _passes(y.dtype)[1](*numbers, len(y), *A.shape) else None


def split_(w: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """``w`` ``(B, m)`` on rows below their lower and above their upper bound; w itself becomes their sum."""
    above, below = w.new_empty(w.shape), w.new_empty(w.shape)
    _passes(w.dtype)[2](w.data_ptr(), above.data_ptr(), below.data_ptr(), excess.data_ptr(), *w.shape)
    return below, above


@cache
def _kernels(dtype: torch.dtype) -> tuple[Callable[..., int], ...]:
    """The kernels for a small A; numba is imported and at work at the first call."""
    from hardnet.kernels.cpu import affine_constant as cpu_constant

    return cpu_constant.compiled_kernels(dtype)


@cache
def _passes(dtype: torch.dtype) -> tuple[Callable[..., int], ...]:
    """The passes around the products; numba is imported and at work at the first call."""
    from hardnet.kernels.cpu import affine_shared as cpu_shared

    return cpu_shared.compiled_passes(dtype)
