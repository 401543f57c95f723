"""The closed form for few rows on a CPU, compiled by numba, under the signatures of `hardnet.functional.affine_core`.

Nothing is kept from the forward but its inputs. The compiled code reads memory behind torch's back, so it is for plain
tensors in eager mode alone: what traces, transforms or fakes tensors takes the formulas in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from threading import Thread

import torch
from torch import Tensor

MOST_ROWS, MOST_NUMBERS = 8, 256
"""The most rows, and the most numbers of A per sample, for which this beats the library's factorisations."""
PLAIN = (Tensor, torch.nn.Parameter)
HAS_NUMBA = find_spec("numba") is not None
NUMBERS_OF_A_THREAD = 1 << 17
"""Numbers of A that are worth a thread of their own: about a millisecond of work."""

Saved = tuple[Tensor | None, Tensor | None]


def available(A: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernels take this per-sample A ``(B, m, n)`` and the other arguments, whatever their values."""
    if not HAS_NUMBA or A.dim() != 3 or not A.is_cpu or A.dtype not in (torch.float64, torch.float32):
        return False
    _, m, n = A.shape
    return m <= MOST_ROWS and m * n <= MOST_NUMBERS and plain(A, *others)


def plain(*tensors: Tensor | None) -> bool:
    """Whether these are memory to read: no subclass, no wrapper, and nobody traces or intercepts operations."""
    return (
        not torch.compiler.is_compiling()  # first: the compiler does not get past the rest
        and not torch._C._is_tracing()  # pyright: ignore[reportAttributeAccessIssue]
        and not torch._C._len_torch_dispatch_stack()  # pyright: ignore[reportAttributeAccessIssue]
        and not torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]
        and all(tensor is None or (type(tensor) in PLAIN and torch._C._has_storage(tensor)) for tensor in tensors)
    )


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + A⁺ s`` for raw ``(B, n)``, A ``(B, m, n)``, bounds ``(B, m)`` or ``(m,)``; NaN where invalid."""
    y = torch.empty(raw.shape, dtype=raw.dtype)
    _launch(_compiled()[0](raw.dtype), (y,), (raw, A), lower, upper)
    return y, (lower, upper)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A (if wanted), lower and upper from that of y ``(B, n)``."""
    grad_raw, grad_lower, grad_upper = (torch.empty(size, dtype=raw.dtype) for size in (raw.shape, *[A.shape[:2]] * 2))
    grad_A = torch.empty(A.shape, dtype=raw.dtype) if wants_matrix else None
    outputs = (grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper)
    _launch(_compiled()[1](raw.dtype), outputs, (gradient, raw, A), *saved, len(A) if wants_matrix else 0)
    return grad_raw, grad_A, grad_lower, grad_upper


@cache
def _compiled() -> tuple[Callable[[torch.dtype], Callable[..., None]], ...]:
    """The kernels; numba is imported at the first call."""
    from hardnet.kernels.cpu_rows import compiled_backward, compiled_forward

    return compiled_forward, compiled_backward


def _launch(
    kernel: Callable[..., None],
    outputs: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    lower: Tensor | None,
    upper: Tensor | None,
    *more: int,
) -> None:
    """All samples, shared out among threads where there is work for them."""
    inputs = tuple(_dense(part) for part in inputs)
    samples, m, n = inputs[-1].shape
    low, high = (None if bound is None else _dense(bound) for bound in (lower, upper))
    absent = inputs[0].data_ptr()
    addresses = [part.data_ptr() for part in (*outputs, *inputs)]
    addresses += [absent if bound is None else bound.data_ptr() for bound in (low, high)]
    counts = [0 if bound is None else 1 if bound.dim() == 1 else len(bound) for bound in (low, high)]
    rounding = (4 * n * torch.finfo(inputs[-1].dtype).eps) ** 2
    _share(lambda begin, end: kernel(*addresses, samples, m, n, *counts, begin, end, rounding, *more), samples, m * n)


def _dense(tensor: Tensor) -> Tensor:
    """The same numbers, one after the other in memory."""
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.resolve_neg().contiguous()


def _share(work: Callable[[int, int], None], samples: int, numbers: int) -> None:
    """The samples in equal parts to as many threads as torch uses, or fewer where each would have too little."""
    threads = min(torch.get_num_threads(), samples * numbers // NUMBERS_OF_A_THREAD)
    if threads < 2:
        return work(0, samples)
    part = -(-samples // threads // 64) * 64  # whole tiles
    team = [Thread(target=work, args=(begin, min(begin + part, samples))) for begin in range(part, samples, part)]
    for member in team:
        member.start()
    work(0, part)
    for member in team:
        member.join()
    return None
