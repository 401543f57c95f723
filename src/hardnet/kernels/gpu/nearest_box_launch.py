"""Launch the projection onto a box and one row on a GPU: which problems it takes, and one launch for all samples."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from hardnet.kernels.arguments import dense
from hardnet.kernels.gpu import affine as gpu
from hardnet.modes import plain

MOST_COLUMNS = 4096
"""The most coordinates that one program holds."""
PER_WARP, MOST_WARPS = 128, 16
"""Coordinates that a warp takes before another one helps, and the most warps of a program."""

Numbers = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""raw ``(B, n)``, A ``(1 or B, 1, n)``, lower and upper ``(1 or B, 1)``, those of the box ``(1 or B, n)``, float64."""


def takes(flat: Numbers) -> bool:
    """Whether the kernel takes this flat batch: plain memory on a GPU, one row, and coordinates that fit on chip."""
    raw, A = flat[:2]
    fits = raw.is_cuda and A.shape[-2] == 1 and 0 < A.shape[-1] <= MOST_COLUMNS and len(raw) > 0
    return fits and plain(*flat) and gpu.supported(raw.device)


def nearest_in_box(flat: Numbers, rounding: float) -> tuple[Tensor, ...]:
    """Y and place ``(B, n)``, dual and side ``(B, 1)``, status and residual ``(B,)``; codes as int8.

    Args:
        flat: All on one device.
        rounding: That of the dtype which the answer will have.
    """
    raw, *others = (dense(part, part) for part in flat)
    batch, n = raw.shape
    codes = lambda *shape: torch.empty(shape, dtype=torch.int8, device=raw.device)
    found = (
        torch.empty_like(raw), codes(batch, n), raw.new_empty(batch, 1), codes(batch, 1),
        codes(batch), raw.new_empty(batch),
    )  # fmt: skip
    kernel = launcher(1 << (n - 1).bit_length(), *(len(part) > 1 for part in others))
    kernel.launch((batch, 1, 1), (*found, raw, *others), (n, rounding))
    return found


@cache
def launcher(block: int, *each: bool) -> Any:
    """The kernel for up to `block` coordinates; A, lower, upper, low and high are of each sample or of all."""
    from hardnet.kernels.gpu import nearest_box
    from hardnet.kernels.gpu.launching import Launcher

    constants: dict[str, Any] = dict(zip(("ROWS", "LOWER", "UPPER", "LOW", "HIGH"), map(int, each), strict=True))
    warps = min(MOST_WARPS, max(1, block // PER_WARP))
    return Launcher(nearest_box.forward, constants | {"BLOCK": block, "num_warps": warps, "enable_fp_fusion": False})
