"""Launch the closed form for one A that all samples share, with its factor at hand: what it takes, and its tiles.

Every choice depends on the shape and dtype of A alone, never on the batch, so that a sample comes out the same in any
batch. Triton is imported at the first launch.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import padded
from hardnet.rows import dense


class Tiles(NamedTuple):
    """Samples of one program, columns that it takes at a time, its warps, and the chunks on their way at once."""

    samples: int
    columns: int
    warps: int
    stages: int


TILES = {
    (16, False): Tiles(16, 32, 1, 2),
    (16, True): Tiles(16, 32, 1, 2),
    (32, False): Tiles(16, 64, 2, 2),
    (32, True): Tiles(16, 32, 2, 2),
    (64, False): Tiles(32, 32, 4, 3),
    (64, True): Tiles(32, 32, 4, 3),
}
"""By the rows of A, rounded up to a power of two, forward and backward: the fastest of those tried on an H200."""
CORRECTIONS = 3
"""How often a sample that its rounded factor leaves off its bounds is moved again, at most."""


@cache
def plan(m: int, n: int, dtype: torch.dtype, backward: bool) -> dict[str, Any]:
    """What the kernel for an A of this shape and dtype is compiled with; sizes are powers of two, of at least 16."""
    height, width = padded(m), padded(n)
    tiles = TILES[height, backward]
    sizes = {"m": m, "n": n, "S": tiles.samples, "M": height, "K": min(tiles.columns, width)}
    limits = {} if backward else {"ROUNDING": torch.finfo(dtype).eps, "CORRECTIONS": CORRECTIONS}
    return sizes | limits | {"num_warps": tiles.warps, "num_stages": tiles.stages}


@cache
def _launcher(m: int, n: int, dtype: torch.dtype, backward: bool, lower: int, upper: int) -> tuple[Any, int]:
    """The kernel for an A of this shape and dtype and bounds of these kinds, and the samples of one program."""
    from hardnet.kernels.gpu import affine_shared
    from hardnet.kernels.gpu.launching import Launcher

    constants = plan(m, n, dtype, backward) | {"LOWER": lower, "UPPER": upper}
    return Launcher(affine_shared.backward if backward else affine_shared.forward, constants), constants["S"]


def launch_forward(raw: Tensor, A: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``y = raw + s P`` for raw ``(B, n)``, A and its factor ``P = A^+'`` ``(m, n)``, bounds ``(B, m)`` or ``(m,)``."""
    raw = dense(raw, raw)
    y = torch.empty_like(raw)
    _launch((y,), (raw, dense(A, raw), dense(P, raw)), lower, upper, False)
    return y


def launch_backward(
    gradient: Tensor, raw: Tensor, A: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of raw, lower and upper, the last two ``(B, m)``, from that of y ``(B, n)``."""
    raw = dense(raw, raw)
    grad_raw, grad_lower = torch.empty_like(raw), raw.new_empty(raw.shape[0], A.shape[0])
    outputs = grad_raw, grad_lower, torch.empty_like(grad_lower)
    _launch((*outputs, dense(gradient, raw)), (raw, dense(A, raw), dense(P, raw)), lower, upper, True)
    return outputs


def _launch(
    first: tuple[Tensor, ...],
    inputs: tuple[Tensor, Tensor, Tensor],
    lower: Tensor | None,
    upper: Tensor | None,
    backward: bool,
) -> None:
    """One launch over all samples; the bounds are absent (0), shared (1) or per sample (2)."""
    from hardnet.kernels.gpu.affine_launch import _bound

    raw, A, _ = inputs
    (low, low_kind), (high, high_kind) = _bound(lower, raw), _bound(upper, raw)
    kernel, samples = _launcher(*A.shape, A.dtype, backward, low_kind, high_kind)
    kernel.launch((-(-raw.shape[0] // samples), 1, 1), (*first, *inputs, low, high), (raw.shape[0],))
