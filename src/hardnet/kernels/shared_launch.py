"""Launch the closed form for one A that all samples share, with its factor at hand: what it takes, and its tiles.

Every choice depends on the shape and dtype of A alone, never on the batch, so that a sample comes out the same in any
company. Triton is imported at the first launch.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.affine as gpu

SAMPLES, CHUNK, WARPS, STAGES = 16, 32, 4, 2
"""Samples of one program, columns that it takes at a time, its warps, and the chunks that are on their way at once.

Each warp then has one tile of 16 x 8 of y, and nothing is spilled in either direction, dtype or size.
"""
CORRECTIONS = 3
"""How often a sample that its rounded factor leaves off its bounds is moved again, at most."""


class Plan(NamedTuple):
    """The arguments of both kernels that are fixed at compilation, and those of the forward alone."""

    shared: dict[str, Any]
    forward: dict[str, Any]


def available(A: Tensor) -> bool:
    """Whether the kernels take this shared A ``(m, n)``: more rows than are unrolled, float32 or float64, a GPU."""
    if A.device.type != "cuda" or A.dim() != 2 or not gpu.HAS_TRITON or A.dtype not in (torch.float32, torch.float64):
        return False
    fits = gpu.MOST_SHARED_ROWS < A.shape[0] <= gpu.MOST_ROWS and A.shape[1] <= gpu.MOST_COLUMNS
    return fits and gpu._supported(A.device)


@cache
def plan(m: int, n: int, dtype: torch.dtype) -> Plan:
    """The tiles for an A of this shape and dtype: its rows and columns rounded up to powers of two, at least 16."""
    height, width = (max(16, 1 << (size - 1).bit_length()) for size in (m, n))
    sizes = {"m": m, "n": n, "S": SAMPLES, "M": height, "K": min(CHUNK, width)}
    shared = sizes | {"num_warps": WARPS, "num_stages": STAGES}
    return Plan(shared, {"ROUNDING": torch.finfo(dtype).eps, "CORRECTIONS": CORRECTIONS})


def launch_forward(raw: Tensor, A: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``y = raw + s P`` for raw ``(B, n)``, A and its factor ``P = A^+'`` ``(m, n)``, bounds ``(B, m)`` or ``(m,)``."""
    from hardnet.kernels import affine_shared

    raw, A, P = raw.contiguous(), A.contiguous(), P.contiguous()
    y, how = torch.empty_like(raw), plan(*A.shape, A.dtype)
    _launch(affine_shared.forward, (y, raw, A, P), raw, lower, upper, how.shared | how.forward)
    return y


def launch_backward(
    gradient: Tensor, raw: Tensor, A: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of raw, lower and upper, the last two ``(B, m)``, from that of y ``(B, n)``."""
    from hardnet.kernels import affine_shared

    gradient, raw, A, P = gradient.contiguous(), raw.contiguous(), A.contiguous(), P.contiguous()
    shape = (raw.shape[0], A.shape[0])
    outputs = torch.empty_like(raw), raw.new_empty(shape), raw.new_empty(shape)
    how = plan(*A.shape, A.dtype)
    _launch(affine_shared.backward, (*outputs, gradient, raw, A, P), raw, lower, upper, how.shared)
    return outputs


def _launch(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    raw: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    constants: dict[str, Any],
) -> None:
    """One launch over all samples; the bounds are absent (0), shared (1) or per sample (2)."""
    from hardnet.kernels.affine_launch import _bound

    (low, low_kind), (high, high_kind) = _bound(lower, raw), _bound(upper, raw)
    grid = (-(-raw.shape[0] // SAMPLES),)
    kernel[grid](*tensors, low, high, raw.shape[0], LOWER=low_kind, UPPER=high_kind, **constants)
