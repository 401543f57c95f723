"""Launch the fused closed form: which kernel, which tile, one launch forward and one backward."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hardnet.kernels import affine_blocks, affine_rows, affine_threads

MOST_ROWS, MOST_COLUMNS = 64, 256
FEW_ROWS = 8
TINY_MATRIX = 64


class Plan(NamedTuple):
    """How one shape is launched."""

    kernels: ModuleType
    samples: int
    constants: dict


def _power(size: int) -> int:
    return triton.next_power_of_2(size)


def plan(
    m: int,
    n: int,
    dtype: torch.dtype,
    kind: str | None = None,
    warps: int | None = None,
    block=None,
    compute=None,
    **more,
) -> Plan:
    compute = compute or tl.float64
    refine = 1 if compute == tl.float32 or dtype == torch.float64 else 0
    kind = kind or ("threads" if _power(m * n) <= TINY_MATRIX else "rows" if m <= FEW_ROWS else "blocks")
    constants = dict(m=m, n=n, COMPUTE=compute, REFINE=refine, **more)
    if kind == "threads":
        samples = block or 32 * (warps or 1)
        constants.update(M=_power(m), N=_power(n), MN=_power(m * n), BLOCK=samples, num_warps=warps or 1)
        return Plan(affine_threads, samples, constants)
    if kind == "rows":
        samples = block or max(1, 128 // _power(n))
        constants.update(N=_power(n), BLOCK=samples, num_warps=warps or 1)
        return Plan(affine_rows, samples, constants)
    constants.update(BLOCKS=triton.cdiv(m, 16), num_warps=warps or 2)
    constants.setdefault("CHUNK", 32)
    return Plan(affine_blocks, 1, constants)


def tolerance(m: int, n: int, dtype: torch.dtype, compute) -> float:
    if compute == tl.float32:
        return 8 * m * torch.finfo(torch.float32).eps
    return max((max(m, n) * min(torch.finfo(dtype).eps, 1.2e-7)) ** 2, 8 * m * torch.finfo(torch.float64).eps)


def _bound(bound: Tensor | None, raw: Tensor) -> tuple[Tensor, int]:
    """A bound's tensor and how it varies: absent 0, shared 1, per sample 2."""
    if bound is None:
        return raw, 0
    if bound.dim() == 1 or bound.shape[0] == 1 or bound.stride(0) == 0:
        return bound.reshape(-1, bound.shape[-1])[0].contiguous(), 1
    return bound.contiguous(), 2


def forward(raw, A, lower, upper, **options):
    batch, m, n = A.shape
    raw, A = raw.contiguous(), A.contiguous()
    y = torch.empty_like(raw)
    how = plan(m, n, raw.dtype, **options)
    (low, low_kind), (high, high_kind) = _bound(lower, raw), _bound(upper, raw)
    grid = (triton.cdiv(batch, how.samples),)
    how.kernels.forward[grid](
        y,
        raw,
        A,
        low,
        high,
        batch,
        tolerance(m, n, raw.dtype, how.constants["COMPUTE"]),
        LOWER=low_kind,
        UPPER=high_kind,
        **how.constants,
    )
    return y


def backward(grad_y, raw, A, lower, upper, needs=(True, True, True, True), **options):
    batch, m, n = A.shape
    raw, A, grad_y = raw.contiguous(), A.contiguous(), grad_y.contiguous()
    how = plan(m, n, raw.dtype, **options)
    (low, low_kind), (high, high_kind) = _bound(lower, raw), _bound(upper, raw)
    shapes = (raw.shape, A.shape, A.shape[:2], A.shape[:2])
    grads = [raw.new_empty(shape) if need else None for shape, need in zip(shapes, needs)]
    grid = (triton.cdiv(batch, how.samples),)
    how.kernels.backward[grid](
        *[raw if g is None else g for g in grads],
        grad_y,
        raw,
        A,
        low,
        high,
        batch,
        tolerance(m, n, raw.dtype, how.constants["COMPUTE"]),
        LOWER=low_kind,
        UPPER=high_kind,
        NEED_RAW=needs[0],
        NEED_A=needs[1],
        NEED_LOWER=needs[2],
        NEED_UPPER=needs[3],
        **how.constants,
    )
    return tuple(grads)
