"""The nearest point on a CPU by compiled code: which problems the kernels take, and one launch each way.

Few rows (`nearest_few`), and a box with one row (`nearest_box`) or several (`nearest_box_rows`).

Called by `hardnet.functional.box_rows` and `hardnet.functional.nearest`; numba is imported at the first launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from hardnet.kernels.cpu.launch import HAS_NUMBA, launch
from hardnet.kernels.limits import MOST_NUMBERS
from hardnet.modes import plain
from hardnet.rows import MOST_BOX_ROWS, REALS, Batch, BoxedBatch, dense

Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


def takes(rows: Batch) -> bool:
    """Whether compiled code takes these rows: plain memory on a CPU, and of a small size."""
    if not (HAS_NUMBA and rows.memory and rows.raw.is_cpu and rows.raw.dtype in REALS):
        return False
    m, n = rows.A.shape[-2:]
    return rows.raw.shape[0] > 0 and 0 < m * n <= MOST_NUMBERS


def forward(rows: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Y ``(B, n)``, dual ``(B, m)``, status and residual ``(B,)`` in the dtype of raw."""
    raw, A, lower, upper = rows[:4]
    shape = torch.Size((raw.shape[0], *A.shape[-2:]))
    raw = dense(raw, raw)
    y, dual, ended = torch.empty_like(raw), raw.new_empty(shape[:2]), raw.new_empty((2, shape[0]))
    status, residual = ended.unbind()
    outputs = [y, dual, status, residual]
    launch(_kernel(raw.dtype, False), outputs, [raw, A], (lower, upper), shape, _matrices(A, shape))
    return y, dual, status, residual


def backward(
    gradient: Tensor, rows: Batch, found: tuple[Tensor, Tensor, Tensor], wants_matrix: bool, tangent: bool
) -> Gradients:
    """The gradients of raw, A (if wanted; summed over the batch if shared), lower and upper ``(B, m)``."""
    raw, A, lower, upper = rows[:4]
    shape = torch.Size((raw.shape[0], *A.shape[-2:]))
    grad_raw, grad_lower, grad_upper = raw.new_empty(raw.shape), raw.new_empty(shape[:2]), raw.new_empty(shape[:2])
    grad_A = raw.new_empty(shape) if wants_matrix else None
    outputs = [grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper]
    counts = (shape[0] if wants_matrix else 0, int(tangent), _matrices(A, shape))
    launch(_kernel(raw.dtype, True), outputs, [gradient, raw, A, *found], (lower, upper), shape, *counts)
    if grad_A is not None and A.dim() == 2:
        grad_A = grad_A.sum(0)
    return grad_raw, grad_A, grad_lower, grad_upper


def _matrices(A: Tensor, shape: torch.Size) -> int:
    """How many matrices there are."""
    return 1 if A.dim() == 2 else shape[0]


@cache
def _kernel(dtype: torch.dtype, back: bool) -> Callable[..., int]:
    """The kernel of one direction; numba is imported and at work at the first call."""
    from hardnet.kernels.cpu import compiling, nearest_few

    return compiling.compile_addresses(nearest_few.ENTRIES[back], dtype)


def takes_box(flat: BoxedBatch) -> bool:
    """Whether compiled code takes this flat batch: plain memory on a CPU, few rows, and not empty."""
    raw, A = flat[:2]
    return HAS_NUMBA and raw.is_cpu and 0 < A.shape[-2] <= MOST_BOX_ROWS and raw.numel() > 0 and plain(*flat)


def nearest_in_box(flat: BoxedBatch, rounding: float) -> tuple[Tensor, ...]:
    """Y and place ``(B, n)``, dual and side ``(B, k)``, status and residual ``(B,)``; codes as int8.

    Args:
        flat: All in float64.
        rounding: That of the dtype which the answer will have.
    """
    raw, A, lower, upper, *box = flat
    (batch, n), k = raw.shape, A.shape[-2]
    y, place, found = torch.empty_like(raw), torch.empty_like(raw), raw.new_empty(batch, 2 * k + 2)
    inputs, shape = [raw, A, raw.new_tensor([rounding])], torch.Size((batch, k, n))
    launch(_box_kernel(k > 1), [y, place, found], inputs, (lower, upper, *box), shape, A.shape[0], tile=1)
    dual, side = found[:, :k].clone(), found[:, k : 2 * k].to(torch.int8)
    return y, place.to(torch.int8), dual, side, found[:, 2 * k].to(torch.int8), found[:, 2 * k + 1].clone()


@cache
def _box_kernel(several: bool) -> Callable[..., int]:
    """The kernel of a box and one row, or several; numba is imported and at work at the first call."""
    from hardnet.kernels.cpu import compiling, nearest_box, nearest_box_rows

    entry = (nearest_box_rows if several else nearest_box).ENTRIES[0]
    return compiling.compile_addresses(entry, torch.float64)
