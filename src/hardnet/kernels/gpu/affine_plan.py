"""Launch the fused closed form: choose the kernel and its tiles for each shape. One launch per direction.

Rows per sample and few shared rows are summed in float64 whatever their dtype: the kernels are memory-bound, an H200
adds doubles at half the rate of floats, and the Gram matrix of float32 rows then costs no accuracy. More shared rows
come with their factor. Every choice depends on the shape of one sample alone, never on the batch, so that a sample
gets the same result in any batch.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from hardnet.kernels.gpu import affine_blocks, affine_few, affine_shared
from hardnet.kernels.gpu.launch import Launcher
from hardnet.kernels.limits import padded
from hardnet.rows import dense

FEW_ROWS = 8
"""The most rows that are unrolled; more are processed in blocks of 16."""
TINY, TINY_BACKWARD = 64, 16
"""The most numbers of A (rounded up to a power of two) that one thread holds, forward and backward."""
TINY_COLUMNS = 16
"""The most columns that one thread holds: a 1 x 64 A takes one thread three times as long as a 2 x 64 A takes the
threads of a warp."""
REFINEMENTS = 2
"""Corrections by the residual for float64 numbers, whose Gram matrix is rounded; each reduces the error by the factor
cond(A)^2 eps."""
FREE_REGISTERS = 128
"""Registers per thread that leave room for enough samples to hide latencies, for up to 32 rows of float32."""
LARGEST_PART = 1 << 26
"""The most numbers in the per-sample gradients of a shared A that are held at a time."""

Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


class Tiles(NamedTuple):
    """Samples of one program, columns it processes at a time, its warps, and its pipeline stages."""

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
"""By the rows of A, rounded up to a power of two, and whether backward: the fastest of those tried on an H200."""
SHARED_CORRECTIONS = 3
"""The most corrections of a sample that the rounded factor leaves off its bounds."""


class Plan(NamedTuple):
    """The kernels for a shape, the samples of one program, the compile-time arguments, and the rank tolerance."""

    kernels: ModuleType
    samples: int
    constants: dict[str, Any]
    tolerance: float


@cache
def plan(m: int, n: int, dtype: torch.dtype, backward: bool, each: bool = True) -> Plan:
    """The plan for samples of this shape in one direction, with an A per sample (`each`) or one for all."""
    constants: dict[str, Any] = {
        "m": m,
        "n": n,
        "COMPUTE": tl.float64,
        "REFINE": REFINEMENTS if dtype == torch.float64 else 0,
        "ROUNDING": torch.finfo(dtype).eps,
    }
    tiny = _power(m * n) <= (TINY_BACKWARD if backward else TINY) and n <= TINY_COLUMNS
    if m > FEW_ROWS and not tiny:
        light = not backward and dtype != torch.float64
        constants |= {"BLOCKS": -(-m // 16), "CHUNK": 16, "WIDE": min(64, _power(n)) if light else 16, "num_warps": 1}
        if m <= 32 and dtype != torch.float64:
            constants["maxnreg"] = FREE_REGISTERS
        return Plan(affine_blocks, 1, constants, rank_tolerance(m, n, dtype))
    samples, layout = _threads(m, n) if tiny else _tiles(n, dtype)
    constants |= layout | {"M": _power(m), "N": _power(n), "MN": _power(m * n), "BLOCK": samples, "EACH": int(each)}
    return Plan(affine_few, samples, constants, rank_tolerance(m, n, dtype))


def _threads(m: int, n: int) -> tuple[int, dict[str, Any]]:
    """The samples of one program and its constants where each thread holds one sample."""
    warps = 4 if m * n <= 16 else 1
    # the kernel says itself where a product is fused; in the other layouts this option would cost 2-5 %
    return 32 * warps, {"THREADS": True, "num_warps": warps, "enable_fp_fusion": False}


def _tiles(n: int, dtype: torch.dtype) -> tuple[int, dict[str, Any]]:
    """The samples of one program and its constants where the threads of a warp share the columns of a sample."""
    vector = math.gcd(n, 16 // dtype.itemsize)  # numbers that a thread can load at once
    return max(1, 32 * vector // _power(n)), {"THREADS": False, "num_warps": 1}


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def rank_tolerance(m: int, n: int, dtype: torch.dtype) -> float:
    """Smallest squared distance of a unit row from the span of the rows before it that is more than rounding.

    ``(max(m, n) eps)^2``, with the eps of float32 for narrower dtypes, but no less than a float64 Gram matrix can
    resolve.
    """
    coarse = max(m, n) * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    return max(coarse**2, 8 * m * torch.finfo(torch.float64).eps)


@cache
def launcher(
    m: int, n: int, dtype: torch.dtype, backward: bool, each: bool, lower: int, upper: int, matrix: bool
) -> tuple[Launcher, int, float]:
    """The kernel for this shape and these kinds of bounds, the samples of one program, and the rank tolerance.

    `matrix` says whether a backward kernel computes the gradient of A; a forward kernel ignores it.
    """
    how = plan(m, n, dtype, backward, each)
    constants = how.constants | {"LOWER": lower, "UPPER": upper} | ({"MATRIX": matrix} if backward else {})
    return Launcher(how.kernels.backward if backward else how.kernels.forward, constants), how.samples, how.tolerance


def launch_forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """`affine_reference.forward` in one launch, for A ``(B, m, n)`` or few shared rows ``(m, n)``."""
    raw, A = dense(raw, raw), dense(A, raw)
    y = torch.empty_like(raw)
    _launch((y, raw, A), lower, upper, False, False)
    return y


def launch_backward(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, wants_matrix: bool
) -> Gradients:
    """`affine_reference.backward` in one launch, with the gradient of A only if it is wanted.

    The gradient of a shared A is summed over the samples, in parts of the batch that fit into memory.
    """
    gradient, raw, A = dense(gradient, raw), dense(raw, raw), dense(A, raw)
    grad_raw, grad_lower = torch.empty_like(raw), raw.new_empty(raw.shape[0], A.shape[-2])
    grad_upper = torch.empty_like(grad_lower)
    outputs = (grad_raw, grad_lower, grad_upper)
    if A.dim() == 3 or not wants_matrix:
        grad_A = torch.empty_like(A) if wants_matrix else None
        _launch_backward(outputs, grad_A, gradient, raw, A, lower, upper)
        return grad_raw, grad_A, grad_lower, grad_upper
    total, part = torch.zeros_like(A), max(1, LARGEST_PART // A.numel())
    for start in range(0, raw.shape[0], part):
        here = slice(start, start + part)
        asked = A.new_empty(raw[here].shape[0], *A.shape)
        low, high = (side if side is None or side.dim() == 1 else side[here] for side in (lower, upper))
        _launch_backward(tuple(side[here] for side in outputs), asked, gradient[here], raw[here], A, low, high)
        total += asked.sum(0)
    return grad_raw, total, grad_lower, grad_upper


def _launch_backward(
    outputs: tuple[Tensor, ...],
    grad_A: Tensor | None,
    gradient: Tensor,
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
) -> None:
    """Write the gradients of raw, lower and upper, and the gradient of A per sample unless `grad_A` is None."""
    grad_raw, grad_lower, grad_upper = outputs
    written = (grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper)
    _launch((*written, gradient, raw, A), lower, upper, True, grad_A is not None)


def _launch(
    tensors: tuple[Tensor, ...], lower: Tensor | None, upper: Tensor | None, backward: bool, matrix: bool
) -> None:
    """One launch over all samples; the bounds are absent (0), shared (1) or per sample (2)."""
    raw, shape = tensors[-2], tensors[-1].shape
    (low, low_kind), (high, high_kind) = _bound(lower, raw), _bound(upper, raw)
    kernel, samples, tolerance = launcher(
        shape[-2], shape[-1], raw.dtype, backward, len(shape) == 3, low_kind, high_kind, matrix
    )
    batch = raw.shape[0]
    kernel.launch((-(-batch // samples), 1, 1), (*tensors, low, high), (batch, tolerance))


def _bound(bound: Tensor | None, raw: Tensor) -> tuple[Tensor, int]:
    """A bound's numbers (raw as a placeholder for an absent one) and its kind: absent 0, shared 1, per sample 2."""
    if bound is None:
        return raw, 0
    return dense(bound, raw), 1 if bound.dim() == 1 or bound.shape[0] == 1 else 2


@cache
def plan_shared(m: int, n: int, dtype: torch.dtype, backward: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel for an A of this shape and dtype; sizes are powers of two, at least 16."""
    height, width = padded(m), padded(n)
    tiles = TILES[height, backward]
    sizes = {"m": m, "n": n, "S": tiles.samples, "M": height, "K": min(tiles.columns, width)}
    limits = {} if backward else {"ROUNDING": torch.finfo(dtype).eps, "CORRECTIONS": SHARED_CORRECTIONS}
    return sizes | limits | {"num_warps": tiles.warps, "num_stages": tiles.stages}


@cache
def _shared_launcher(m: int, n: int, dtype: torch.dtype, backward: bool, lower: int, upper: int) -> tuple[Any, int]:
    """The kernel for an A of this shape and dtype and bounds of these kinds, and the samples of one program."""
    constants = plan_shared(m, n, dtype, backward) | {"LOWER": lower, "UPPER": upper}
    return Launcher(affine_shared.backward if backward else affine_shared.forward, constants), constants["S"]


def launch_shared_forward(raw: Tensor, A: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``y = raw + s P`` for raw ``(B, n)``, A and its factor ``P = A^+'`` ``(m, n)``, bounds ``(B, m)`` or ``(m,)``."""
    raw = dense(raw, raw)
    y = torch.empty_like(raw)
    _launch_shared((y,), (raw, dense(A, raw), dense(P, raw)), lower, upper, False)
    return y


def launch_shared_backward(
    gradient: Tensor, raw: Tensor, A: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of raw ``(B, n)``, lower and upper ``(B, m)``, from the gradient of y ``(B, n)``."""
    raw = dense(raw, raw)
    grad_raw, grad_lower = torch.empty_like(raw), raw.new_empty(raw.shape[0], A.shape[0])
    outputs = grad_raw, grad_lower, torch.empty_like(grad_lower)
    _launch_shared((*outputs, dense(gradient, raw)), (raw, dense(A, raw), dense(P, raw)), lower, upper, True)
    return outputs


def _launch_shared(
    first: tuple[Tensor, ...],
    inputs: tuple[Tensor, Tensor, Tensor],
    lower: Tensor | None,
    upper: Tensor | None,
    backward: bool,
) -> None:
    """One launch over all samples; the bounds are absent (0), shared (1) or per sample (2)."""
    raw, A, _ = inputs
    (low, low_kind), (high, high_kind) = _bound(lower, raw), _bound(upper, raw)
    kernel, samples = _shared_launcher(*A.shape, A.dtype, backward, low_kind, high_kind)
    kernel.launch((-(-raw.shape[0] // samples), 1, 1), (*first, *inputs, low, high), (raw.shape[0],))
