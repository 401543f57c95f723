"""Launch the nearest point for few rows on a GPU: which shapes it takes, and one launch each way."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from hardnet.kernels.arguments import REALS, dense
from hardnet.kernels.gpu import affine as gpu
from hardnet.modes import plain

MOST_NUMBERS, MOST_COLUMNS = 64, 16
"""The most numbers of A (rounded up to a power of two) and the most columns that one thread holds."""

Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


def takes(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> bool:
    """Whether the kernels take arguments whose shapes fit together: plain memory on a GPU, and of a small size."""
    if raw.device.type != "cuda" or raw.dtype not in REALS or not plain(raw, A, lower, upper):
        return False
    m, n = A.shape[-2:]
    fits = 0 < m * n <= MOST_NUMBERS and n <= MOST_COLUMNS and raw.shape[0] > 0
    return fits and gpu.supported(raw.device)


def forward(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Y ``(B, n)``, dual ``(B, m)``, status int8 and residual ``(B, 1)``; see `hardnet.kernels.cpu.nearest_launch`."""
    raw, A = dense(raw, raw), dense(A, raw)
    batch, m = raw.shape[0], A.shape[-2]
    y, dual, residual = torch.empty_like(raw), raw.new_empty(batch, m), raw.new_empty(batch, 1)
    status = torch.empty(batch, 1, dtype=torch.int8, device=raw.device)
    outputs = (y, dual, status, residual)
    _launch((*outputs, raw, A), lower, upper, torch.finfo(raw.dtype).eps, False, False)
    return outputs


def backward(
    gradient: Tensor,
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    found: tuple[Tensor, Tensor, Tensor],
    wants_matrix: bool,
    tangent: bool,
) -> Gradients:
    """The gradients of raw, A (if wanted; summed over the batch if shared), lower and upper ``(B, m)``."""
    raw, A = dense(raw, raw), dense(A, raw)
    shape = (raw.shape[0], *A.shape[-2:])
    grad_raw, grad_lower, grad_upper = torch.empty_like(raw), raw.new_empty(shape[:2]), raw.new_empty(shape[:2])
    grad_A = raw.new_empty(shape) if wants_matrix else None
    outputs = (grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper)
    _launch((*outputs, dense(gradient, raw), *found, raw, A), lower, upper, int(tangent), True, wants_matrix)
    if grad_A is not None and A.dim() == 2:
        grad_A = grad_A.sum(0)
    return grad_raw, grad_A, grad_lower, grad_upper


def _launch(
    tensors: tuple[Tensor, ...],
    lower: Tensor | None,
    upper: Tensor | None,
    number: float,
    backward: bool,
    matrix: bool,
) -> None:
    """One launch over all samples; the bounds are absent (0), shared (1) or per sample (2)."""
    raw, A = tensors[-2:]
    bounds = [raw if bound is None else dense(bound, raw) for bound in (lower, upper)]
    kinds = [0 if bound is None else bound.dim() for bound in (lower, upper)]
    kernel, samples = launcher(*A.shape[-2:], A.dim() == 3, *kinds, backward, matrix)  # pyright: ignore[reportCallIssue]
    kernel.launch((-(-raw.shape[0] // samples), 1, 1), (*tensors, *bounds), (raw.shape[0], number))


@cache
def launcher(m: int, n: int, each: bool, lower: int, upper: int, backward: bool, matrix: bool) -> tuple[Any, int]:
    """The kernel for samples of this shape and bounds of these kinds, and the samples of one program."""
    from hardnet.kernels.gpu import nearest_few
    from hardnet.kernels.gpu.launching import Launcher

    warps = 4 if m * n <= 16 else 1
    power = lambda size: 1 << (size - 1).bit_length()
    constants: dict[str, Any] = {"m": m, "n": n, "M": power(m), "N": power(n), "MN": power(m * n)}
    constants |= {"BLOCK": 32 * warps, "LOWER": lower, "UPPER": upper, "EACH": int(each), "num_warps": warps}
    constants["enable_fp_fusion"] = False  # the kernel says where a product is fused
    if backward:
        return Launcher(nearest_few.backward, constants | {"MATRIX": matrix}), 32 * warps
    return Launcher(nearest_few.forward, constants), 32 * warps
