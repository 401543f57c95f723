"""The operations of the nearest point on a GPU, one launch per direction: few rows, a box and one row, any rows.

Triton is imported at the first launch.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hardnet.kernels.gpu import affine as gpu
from hardnet.kernels.limits import (
    MOST_ACTIVE_COLUMNS,
    MOST_BOX_COLUMNS,
    MOST_BOX_ROWS,
    MOST_BOXED_NUMBERS,
    MOST_COLUMNS_OF_A_THREAD,
    MOST_NUMBERS_OF_A_THREAD,
    MOST_ON_CHIP,
    Tolerances,
)
from hardnet.rows import REALS, Batch, BoxedBatch, dense

PER_WARP, MOST_WARPS = 512, 16
"""Coordinates per warp, and the most warps of a program."""
MANY_ROWS, MOST_REGISTERS = 16, 255
"""From so many rows on, the registers of a thread are asked for."""
NUMBERS_PER_WARP, COLUMNS_PER_WARP = 1024, 128
"""Numbers of the rows beside a box per warp, and the most coordinates per warp where each is used once."""
SHARE = 4
"""Samples per program of the second launch, which finishes in float64 where float32 was not enough."""


class Kernel(Enum):
    """The kernels for few rows: y alone, all results of the forward, the gradients without or with that of A."""

    ANSWER = 0
    FORWARD = 1
    BACKWARD = 2
    BACKWARD_MATRIX = 3


Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


class FewRows:
    """The nearest point of few rows (`nearest_few`); `hardnet.kernels.backends` describes the methods."""

    def takes(self, rows: Batch) -> bool:
        """Whether the numbers are on a GPU and few enough."""
        raw, (m, n) = rows.raw, rows.A.shape[-2:]
        if not raw.is_cuda or raw.dtype not in REALS:
            return False
        fits = 0 < m * n <= MOST_NUMBERS_OF_A_THREAD and n <= MOST_COLUMNS_OF_A_THREAD and raw.shape[0] > 0
        return fits and gpu.supported(raw.device)

    def answer(self, rows: Batch) -> Tensor:
        """Y ``(B, n)`` alone, NaN where it is not solved: nothing else is computed, allocated or written."""
        raw, A, lower, upper = rows.numbers
        raw, A = dense(raw, raw), dense(A, raw)
        y = torch.empty_like(raw)
        _launch((y, y, y, y, raw, A), lower, upper, torch.finfo(raw.dtype).eps, Kernel.ANSWER)
        return y

    def forward(self, rows: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Y ``(B, n)``, dual ``(B, m)``, status int8 and residual ``(B,)``."""
        raw, A, lower, upper = rows.numbers
        raw, A = dense(raw, raw), dense(A, raw)
        batch, m = raw.shape[0], A.shape[-2]
        y, dual, residual = torch.empty_like(raw), raw.new_empty(batch, m), raw.new_empty(batch)
        status = torch.empty(batch, dtype=torch.int8, device=raw.device)
        outputs = (y, dual, status, residual)
        _launch((*outputs, raw, A), lower, upper, torch.finfo(raw.dtype).eps, Kernel.FORWARD)
        return outputs

    def backward(
        self, gradient: Tensor, rows: Batch, found: tuple[Tensor, ...], wants_matrix: bool, tangent: bool
    ) -> Gradients:
        """The gradients of raw, A (if wanted; summed over the batch if shared), lower and upper ``(B, m)``."""
        raw, A, lower, upper = rows.numbers
        raw, A = dense(raw, raw), dense(A, raw)
        shape = (raw.shape[0], *A.shape[-2:])
        grad_raw, grad_lower, grad_upper = torch.empty_like(raw), raw.new_empty(shape[:2]), raw.new_empty(shape[:2])
        grad_A = raw.new_empty(shape) if wants_matrix else None
        outputs = (grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper)
        kernel = Kernel.BACKWARD_MATRIX if wants_matrix else Kernel.BACKWARD
        _launch((*outputs, dense(gradient, raw), *found, raw, A), lower, upper, int(tangent), kernel)
        if grad_A is not None and A.dim() == 2:
            grad_A = grad_A.sum(0)
        return grad_raw, grad_A, grad_lower, grad_upper


def _launch(
    tensors: tuple[Tensor, ...], lower: Tensor | None, upper: Tensor | None, number: float, kernel: Kernel
) -> None:
    """One launch over all samples; the bounds are absent (0), shared (1) or per sample (2)."""
    raw, A = tensors[-2:]
    bounds = [raw if bound is None else dense(bound, raw) for bound in (lower, upper)]
    kinds = [0 if bound is None else bound.dim() for bound in (lower, upper)]
    launched, samples = launcher(kernel, *A.shape[-2:], A.dim() == 3, *kinds)
    launched.launch((-(-raw.shape[0] // samples), 1, 1), (*tensors, *bounds), (raw.shape[0], number))


@cache
def launcher(kernel: Kernel, m: int, n: int, each: bool, lower: int, upper: int) -> tuple[Any, int]:
    """The kernel for samples of this shape and bounds of these kinds, and the samples of one program."""
    from hardnet.kernels.gpu import nearest_few
    from hardnet.kernels.gpu.launch import Launcher

    forward = kernel in (Kernel.ANSWER, Kernel.FORWARD)
    warps = 2 if m * n <= 4 else 1
    constants: dict[str, Any] = {"m": m, "n": n, "M": _power(m), "N": _power(n), "MN": _power(m * n)}
    constants |= {"BLOCK": 32 * warps, "LOWER": lower, "UPPER": upper, "EACH": int(each), "num_warps": warps}
    constants["enable_fp_fusion"] = False  # the kernel says itself where a product is fused
    if forward:
        return Launcher(nearest_few.forward, constants | {"ANSWER_ONLY": kernel is Kernel.ANSWER}), 32 * warps
    return Launcher(nearest_few.backward, constants | {"MATRIX": kernel is Kernel.BACKWARD_MATRIX}), 32 * warps


class BoxRows:
    """The nearest point of a box with one row (`nearest_box`) or several."""

    def takes(self, rows: Batch) -> bool:
        """Whether the numbers are on a GPU, and a sample fits on chip."""
        raw, (k, n) = rows.raw, rows.A.shape[-2:]
        fits = (
            0 < n <= MOST_BOX_COLUMNS if k == 1 else 0 < k <= MOST_BOX_ROWS and 0 < n <= MOST_BOXED_NUMBERS // _power(k)
        )
        return raw.is_cuda and fits and len(raw) > 0 and gpu.supported(raw.device)

    def answer(self, flat: BoxedBatch) -> Tensor:
        """Y ``(B, n)`` alone, in the dtype of all numbers, NaN where it is not in the set.

        One row of float32 numbers takes two launches: the first finishes nearly all samples, reading raw once and
        writing y once.
        """
        raw, others, kinds = _arguments(flat)
        (batch, n), y, rounding = raw.shape, torch.empty_like(raw), torch.finfo(raw.dtype).eps
        if others[0].shape[-2] > 1 or raw.dtype != torch.float32:
            self._solve((*[y] * 6, raw, *others), kinds, rounding, answer_only=True)
            return y
        left = torch.empty(batch, dtype=torch.int8, device=raw.device)
        tensors, vector = (y, left, raw, *others), math.gcd(n, 4)
        box_launcher("short", n, kinds, vector).launch((batch, 1, 1), tensors, (n // vector,))
        box_launcher("finish", n, kinds, SHARE).launch((-(-batch // SHARE), 1, 1), tensors, (batch, n, rounding))
        return y

    def forward(self, flat: BoxedBatch, rounding: float) -> tuple[Tensor, ...]:
        """Y and place ``(B, n)``, dual and side ``(B, k)``, status and residual ``(B,)``; codes as int8.

        Y has the dtype of raw; dual and residual are in float64.

        Args:
            flat: All on one device.
            rounding: Rounding of the dtype of the answer.
        """
        raw, others, kinds = _arguments(flat)
        (batch, n), k = raw.shape, others[0].shape[-2]
        new = lambda kind, *shape: torch.empty(shape, dtype=kind, device=raw.device)
        found = (
            torch.empty_like(raw), new(torch.int8, batch, n), new(torch.float64, batch, k),
            new(torch.int8, batch, k), new(torch.int8, batch), new(torch.float64, batch),
        )  # fmt: skip
        self._solve((*found, raw, *others), kinds, rounding, answer_only=False)
        return found

    def backward(
        self, gradient: Tensor, flat: BoxedBatch, found: tuple[Tensor, ...], needed: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the six inputs, in their dtype; summed over the samples where all share an input.

        Args:
            gradient: The cotangent of y, ``(B, n)``.
            flat: The inputs of `forward`.
            found: Its results.
            needed: Which gradients are wanted.
        """
        raw, A = flat[:2]
        (batch, n), k = raw.shape, A.shape[-2]
        shapes = (batch, n), (batch, k, n), (batch, k), (batch, k), (batch, n), (batch, n)
        box, matrix = needed[4] or needed[5], needed[1]
        written = (True, matrix, True, True, box, box)
        made = [raw.new_empty(shape) if wanted else None for shape, wanted in zip(shapes, written, strict=True)]
        outputs = tuple(raw if part is None else part for part in made)
        inputs = tuple(dense(part, raw) for part in (gradient, A, *found[:5]))
        rows_back_launcher(k, n, len(A) > 1, matrix, box).launch((batch, 1, 1), (*outputs, *inputs), (k, n))
        shared = (len(part) < batch for part in flat)
        summed = (part.sum(0, keepdim=True) if part is not None and one else part
                  for part, one in zip(made, shared, strict=True))  # fmt: skip
        return tuple(part if wanted else None for part, wanted in zip(summed, needed, strict=True))

    def _solve(
        self, tensors: tuple[Tensor, ...], kinds: tuple[int, ...], rounding: float, *, answer_only: bool
    ) -> None:
        """One launch of the float64 kernel for this number of rows."""
        (batch, n), k = tensors[0].shape, tensors[7].shape[-2]
        kernel = box_launcher("forward", n, kinds, answer_only) if k == 1 else rows_launcher(k, n, kinds, answer_only)
        kernel.launch((batch, 1, 1), tensors, (n, rounding) if k == 1 else (k, n, rounding))


class AnyRows:
    """The nearest point of any rows: on chip where they fit, else from memory (`polyhedron`)."""

    def takes(self, rows: Batch) -> bool:
        """Whether the numbers are on a GPU, and the vectors of a sample fit on chip."""
        fits = rows.raw.shape[-1] <= MOST_ACTIVE_COLUMNS and 0 not in rows.A.shape and rows.raw.shape[0] > 0
        return rows.raw.is_cuda and fits and gpu.supported(rows.raw.device)

    def forward(self, rows: Batch, limit: int, tolerances: Tolerances) -> tuple[Tensor, ...]:
        """Y, dual, side, steps, residual, which samples are open, and which are met: float64, bounds ``(B, m)``."""
        from hardnet.kernels.gpu.polyhedron import project_from_memory, project_on_chip

        project = project_on_chip if max(rows.A.shape[-2:]) <= MOST_ON_CHIP else project_from_memory
        raw, A, lower, upper = (part.contiguous() for part in rows.numbers if part is not None)
        return project(raw, A, lower, upper, limit, tolerances)


def _arguments(flat: BoxedBatch) -> tuple[Tensor, list[Tensor], tuple[int, ...]]:
    """Raw, the other numbers, and the kind of each: shared (0), per sample (1), or one number for all outputs (2)."""
    raw, *rows, low, high = flat
    box, kinds = [], [int(len(part) > 1) for part in rows]
    for bound in (low, high):
        alone = len(bound) == 1 and bound.stride(-1) == 0
        box.append(bound[:, :1] if alone else bound)
        kinds.append(2 if alone else int(len(bound) > 1))
    return dense(raw, raw), [dense(part, part) for part in (*rows, *box)], tuple(kinds)


@cache
def box_launcher(what: str, n: int, kinds: tuple[int, ...], option: int) -> Any:
    """A kernel for n coordinates.

    Args:
        what: "forward" for float64, "short" for y where float32 is enough, "finish" for y of the remaining samples.
        n: The number of coordinates.
        kinds: The kinds of A, lower, upper, low and high, see `_arguments`.
        option: "forward": whether y alone is wanted. "short": numbers loaded at a time. "finish": samples per program.
    """
    from hardnet.kernels.gpu import nearest_box
    from hardnet.kernels.gpu.launch import Launcher

    kernel, name = {
        "forward": (nearest_box.forward, "ANSWER_ONLY"),
        "short": (nearest_box.forward_short, "VECTOR"),
        "finish": (nearest_box.finish, "SHARE"),
    }[what]
    constants: dict[str, Any] = dict(zip(("ROWS", "LOWER", "UPPER", "LOW", "HIGH"), kinds, strict=True))
    block = _power(n)
    warps = min(MOST_WARPS, max(1, block // PER_WARP))
    constants |= {name: option, "BLOCK": block, "num_warps": warps, "enable_fp_fusion": False}
    return Launcher(kernel, constants)


def _power(size: int) -> int:
    """The smallest power of two that holds a size."""
    return 1 << (size - 1).bit_length()


def _sizes(k: int, n: int) -> dict[str, int]:
    """Rows and coordinates of a sample padded to powers of two, and the warps of its program."""
    K, N = _power(k), max(16, _power(n))
    sizes = {"K": K, "N": N, "num_warps": min(MOST_WARPS, max(1, K * N // NUMBERS_PER_WARP))}
    # left to itself, the assembler puts nearly all numbers of many rows into memory
    return sizes | ({"maxnreg": MOST_REGISTERS} if K >= MANY_ROWS and sizes["num_warps"] <= 8 else {})


@cache
def rows_launcher(k: int, n: int, kinds: tuple[int, ...], answer_only: bool) -> Any:
    """The kernel of a box and k rows, for n coordinates and numbers of these kinds, see `_arguments`."""
    from hardnet.kernels.gpu import nearest_box
    from hardnet.kernels.gpu.launch import Launcher

    constants: dict[str, Any] = dict(zip(("ROWS", "LOWER", "UPPER", "LOW", "HIGH"), kinds, strict=True))
    constants |= {"ANSWER_ONLY": answer_only, "enable_fp_fusion": False}
    return Launcher(nearest_box.forward_rows, constants | _sizes(k, n))


@cache
def rows_back_launcher(k: int, n: int, each: bool, matrix: bool, box: bool) -> Any:
    """The kernel of the gradients, of those of A and of the box if they are wanted."""
    from hardnet.kernels.gpu import nearest_box
    from hardnet.kernels.gpu.launch import Launcher

    constants: dict[str, Any] = {"ROWS": int(each), "MATRIX": matrix, "BOX": box}
    sizes = _sizes(k, n)
    sizes["num_warps"] = min(MOST_WARPS, max(sizes["num_warps"], sizes["N"] // COLUMNS_PER_WARP))
    return Launcher(nearest_box.backward, constants | sizes)
