"""The closed form on a CPU for many rows per sample: what `cpu_many` makes of the library's factorisation.

All arguments are what `hardnet.kernels.cpu.launch.takes` accepts. The factor F is U ``(B, m, m)`` of ``A A' = U' U``,
or, with the row swaps of LU, ``(L - I + U)'`` ``(B, n, n)`` of ``A' = S L U``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.cpu.launch import launch


class Finished(NamedTuple):
    """``y``, the violation ``s`` of raw (NaN without an answer), ``q = (A A')⁻¹ s``, and how many have no answer."""

    y: Tensor
    violation: Tensor
    q: Tensor
    lost: int


def forward(
    raw: Tensor, A: Tensor, F: Tensor, swaps: Tensor | None, lower: Tensor | None, upper: Tensor | None
) -> Finished:
    """``y = raw + A⁺ s``, corrected at y."""
    y, shape = raw.new_empty(raw.shape), A.shape[:2]
    violation, q = raw.new_empty(shape), raw.new_empty(shape)
    inputs = [raw, A, F, A if swaps is None else swaps]
    bounds = (lower, upper)
    lost = launch(_kernels(raw.dtype)[0], [y, violation, q], inputs, bounds, A.shape, int(swaps is not None), tile=1)
    return Finished(y, violation, q, lost)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, F: Tensor, swaps: Tensor | None, done: Finished, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A (if wanted), lower and upper ``(B, m)`` from that of y ``(B, n)``."""
    grad_raw, shape = raw.new_empty(raw.shape), A.shape[:2]
    grad_lower, grad_upper = raw.new_empty(shape), raw.new_empty(shape)
    grad_A = raw.new_empty(A.shape) if wants_matrix else None
    outputs = [grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper]
    inputs = [gradient, raw, done.y, done.violation, done.q, A, F, A if swaps is None else swaps]
    counts = (len(A) if wants_matrix else 0, int(swaps is not None))
    launch(_kernels(raw.dtype)[1], outputs, inputs, (), A.shape, *counts, tile=1)
    return grad_raw, grad_A, grad_lower, grad_upper


@cache
def _kernels(dtype: torch.dtype) -> tuple[Callable[..., int], Callable[..., int]]:
    """The kernels; numba is imported and at work at the first call."""
    from hardnet.kernels.cpu import affine_many as cpu_many

    return cpu_many.compiled_kernels(dtype)
