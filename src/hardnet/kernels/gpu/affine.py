"""The closed form on a GPU by fused Triton kernels: eager, captured, and compiled, where they are custom operators.

For an A per sample, or few shared rows, the forward keeps nothing but its inputs, and the backward recomputes what it
needs from one more read of A. More shared rows have a factor ``P = A^+'``, which their kernels read.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import (
    MOST_FUSED_COLUMNS,
    MOST_FUSED_ROWS,
    MOST_FUSED_ROWS_IN_HALF,
    MOST_ROWS_OF_COMPILER,
    MOST_SHARED_ROWS,
)
from hardnet.rows import REALS, Batch

HAS_TRITON = find_spec("triton") is not None

Kept = tuple[Tensor, ...]
Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


class FusedPath(NamedTuple):
    """The closed form of the GPU backend; `hardnet.functional.affine.Path` documents the methods.

    Attributes:
        operators: Whether the kernels are operators of a graph that torch.compile records.
        name: The name by which the backward looks it up.
    """

    operators: bool = False
    name: str = "gpu"
    retries = False

    def takes(self, rows: Batch) -> bool:
        """Whether A is on a GPU and of a size that the kernels hold."""
        return available(rows.A) or reads_factor(rows.A)

    @staticmethod
    def takes_as_operator(rows: Batch) -> bool:
        """Whether a compiled graph calls the kernels as operators; torch.compile fuses fewer rows better itself."""
        return available(rows.A) and rows.A.shape[-2] > MOST_ROWS_OF_COMPILER

    def wants_factor(self, A: Tensor) -> bool:
        """Whether both directions need the factor of A: shared rows in float64."""
        return A.dtype == torch.float64 and not available(A)

    def forward(self, rows: Batch) -> tuple[Tensor, Kept, int]:
        """Y ``(B, n)``, NaN where there is no answer, the tensors `backward` reads, and 0: NaNs are not counted."""
        raw, A, lower, upper, factor = rows[:5]
        if self.operators:
            return forward_operator(raw, A, lower, upper), (), 0
        if available(A):
            return _launches().launch_forward(raw, A, lower, upper), (), 0
        P = _make_factor(A) if factor is None else factor
        y = _launches().launch_shared_forward(raw, A, P, lower, upper)
        return y, (P,) if factor is None else (), 0

    def backward(self, gradient: Tensor, rows: Batch, kept: Kept, wants_matrix: bool) -> Gradients:
        """The gradients of raw, A (if wanted), lower and upper ``(B, m)``."""
        raw, A, lower, upper, factor = rows[:5]
        if self.operators:
            grads = backward_operator(gradient, raw, A, lower, upper, wants_matrix)
            return grads[0], grads[1] if wants_matrix else None, grads[2], grads[3]
        if available(A):
            return _launches().launch_backward(gradient, raw, A, lower, upper, wants_matrix)
        P = kept[0] if factor is None else factor
        return _backward_shared(gradient, raw, A, lower, upper, P, wants_matrix)


def available(A: Tensor) -> bool:
    """Whether the kernels take this A, per sample or with few shared rows, judging by shape, dtype and device alone."""
    if A.device.type != "cuda" or A.dim() not in (2, 3) or not HAS_TRITON or not A.is_floating_point():
        return False
    wide = A.dtype in (torch.float64, torch.float32)
    most_rows = MOST_SHARED_ROWS if A.dim() == 2 else MOST_FUSED_ROWS if wide else MOST_FUSED_ROWS_IN_HALF
    return 0 < A.shape[-2] <= most_rows and 0 < A.shape[-1] <= MOST_FUSED_COLUMNS and _supported(A.device)


def supported(device: torch.device) -> bool:
    """Whether Triton is installed and the kernels run on this device."""
    return HAS_TRITON and _supported(device)


def _supported(device: torch.device) -> bool:
    """Whether the device has float64 matrix units that Triton supports; a constant for compiled code."""
    return _capable(device)


# does what torch.compiler.assume_constant_result does, without importing the compiler with the library
_supported._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@cache
def _capable(device: torch.device) -> bool:
    """The same, queried from the driver once; requires Triton 3.4 or later, which has knobs."""
    recent = HAS_TRITON and find_spec("triton.knobs") is not None
    return recent and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def reads_factor(A: Tensor) -> bool:
    """Whether the kernels take this shared A ``(m, n)`` with its factor, because it has too many rows to unroll."""
    if A.device.type != "cuda" or A.dim() != 2 or A.dtype not in REALS:
        return False
    return MOST_SHARED_ROWS < A.shape[0] <= MOST_FUSED_ROWS and A.shape[1] <= MOST_FUSED_COLUMNS and supported(A.device)


def _make_factor(A: Tensor) -> Tensor:
    """``A^+'`` of float32 rows without reading a value on the host; NaN if they are dependent.

    Row i is ``A^+ e_i``, the closed form for raw = 0 and the equality ``A y = e_i``: one launch of the fused kernel,
    whose float64 Gram matrix loses no accuracy on float32 numbers.
    """
    unit = torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
    return _launches().launch_forward(torch.zeros_like(A), A.expand(A.shape[0], *A.shape), unit, unit)


def _backward_shared(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, P: Tensor, wants_matrix: bool
) -> Gradients:
    """The gradients in one launch; that of a learned A is computed by matrix products over the whole batch."""
    grad_raw, below, above = _launches().launch_shared_backward(gradient, raw, A, P, lower, upper)
    if not wants_matrix:
        return grad_raw, None, below, above
    step = _launches().launch_shared_forward(raw, A, P, lower, upper) - raw
    active, w, q = below + above, gradient @ P.mT, step @ P.mT  # a row is violated on one side at most
    across = gradient - w @ A
    return grad_raw, q.mT @ across - w.mT @ step - active.mT @ raw, below, above


@cache
def _launches() -> ModuleType:
    """The module that launches the kernels; Triton is imported at the first call."""
    from hardnet.kernels.gpu import affine_kernels

    return affine_kernels


def _forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """The forward as one launch, for compiled code."""
    return _launches().launch_forward(raw, A, lower, upper)


def _backward(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, wants_matrix: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The backward for compiled code; an operator must return tensors, so an unwanted gradient is empty."""
    grads = _launches().launch_backward(gradient, raw, A, lower, upper, wants_matrix)
    return grads[0], A.new_empty(0) if grads[1] is None else grads[1], grads[2], grads[3]


forward_operator = torch.library.custom_op("hardnet::affine_forward", _forward, mutates_args=())
backward_operator = torch.library.custom_op("hardnet::affine_backward", _backward, mutates_args=())


@forward_operator.register_fake
def _(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    return torch.empty_like(raw, memory_format=torch.contiguous_format)


@backward_operator.register_fake
def _(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, wants_matrix: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    matrix = A.new_empty(A.shape) if wants_matrix else A.new_empty(0)
    shape = (raw.shape[0], A.shape[-2])
    return raw.new_empty(raw.shape), matrix, A.new_empty(shape), A.new_empty(shape)
