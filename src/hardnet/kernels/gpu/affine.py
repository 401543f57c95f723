"""The closed form on a GPU under the signatures of `hardnet.functional.affine_core`: eager, compiled or captured.

Nothing is kept from the forward but its inputs; the backward computes what it needs from one more read of A. Compiled
code sees two opaque operators; eager code launches the kernels directly, which costs less on the host.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

MOST_ROWS, MOST_COLUMNS = 64, 256
"""The largest matrix of one sample that the kernels take."""
MOST_ROWS_IN_HALF = 8
"""The same for bfloat16 and float16: Triton feeds no float64 product from 16-bit loads, which blocks of rows need."""
MOST_SHARED_ROWS = 8
"""The same for an A that all samples share: with more rows `shared_launch` and its factor are faster."""
HAS_TRITON = find_spec("triton") is not None

Saved = tuple[Tensor | None, Tensor | None]


def available(A: Tensor) -> bool:
    """Whether the kernels take this A, per sample or (a few rows) shared, from its shape, dtype and device alone."""
    if A.device.type != "cuda" or A.dim() not in (2, 3) or not HAS_TRITON or not A.is_floating_point():
        return False
    wide = A.dtype in (torch.float64, torch.float32)
    most_rows = MOST_SHARED_ROWS if A.dim() == 2 else MOST_ROWS if wide else MOST_ROWS_IN_HALF
    return 0 < A.shape[-2] <= most_rows and 0 < A.shape[-1] <= MOST_COLUMNS and _supported(A.device)


def supported(device: torch.device) -> bool:
    """Whether Triton is there, and kernels run on this device."""
    return HAS_TRITON and _supported(device)


def _supported(device: torch.device) -> bool:
    """Whether the device has matrix units for float64, and Triton knows them; a constant for compiled code."""
    return _capable(device)


# what torch.compiler.assume_constant_result does, without importing the compiler together with the library
_supported._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@cache
def _capable(device: torch.device) -> bool:
    """The same, asked of the driver once; and whether Triton is 3.4 or later, which has knobs."""
    recent = HAS_TRITON and find_spec("triton.knobs") is not None
    return recent and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + A^+ s`` for raw ``(B, n)``, A ``(B, m, n)`` or ``(m, n)``, bounds ``(B, m)`` or ``(m,)``, or NaN."""
    run = forward_operator if torch.compiler.is_compiling() else _launches().launch_forward
    return run(raw, A, lower, upper), (lower, upper)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A (if wanted), lower and upper from that of y ``(B, n)``."""
    if not torch.compiler.is_compiling():
        return _launches().launch_backward(gradient, raw, A, *saved, wants_matrix)
    grad_raw, grad_A, grad_lower, grad_upper = backward_operator(gradient, raw, A, *saved, wants_matrix)
    return grad_raw, grad_A if wants_matrix else None, grad_lower, grad_upper


@cache
def _launches() -> ModuleType:
    """The launches; Triton is imported at the first call."""
    from hardnet.kernels.gpu import affine_launch

    return affine_launch


def _forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """One launch, for compiled code."""
    return _launches().launch_forward(raw, A, lower, upper)


def _backward(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, wants_matrix: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same backward; an operator must return tensors, so an unwanted gradient is empty."""
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
