"""The closed form on a CPU by compiled code: which arguments it takes, and few rows per sample in one pass.

The compiled code reads memory behind torch's back, so it is for plain tensors in eager mode alone: what traces,
transforms, fakes or broadcasts tensors takes the formulas in torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from threading import Thread

import torch
from torch import Tensor
from torch.autograd import forward_ad

MOST_ROWS, MOST_NUMBERS = 8, 256
"""The most rows, and the most numbers of A per sample, for which this beats the library's factorisations."""
HAS_NUMBA = find_spec("numba") is not None and os.environ.get("HARDNET_NUMBA") != "0"
"""Whether to compile at all: ``HARDNET_NUMBA=0`` in the environment leaves everything to torch."""
PLAIN = (Tensor, torch.nn.Parameter)
REALS = (torch.float64, torch.float32)
TILE = 512
"""The most samples that a kernel computes side by side: parts of a batch are whole multiples."""
NUMBERS_OF_A_THREAD = 1 << 17
"""Numbers of A that are worth a thread of their own: about a millisecond of work."""


def plain(*tensors: Tensor | None) -> bool:
    """Whether these are memory to read: no subclass, no wrapper, and nobody traces or intercepts operations."""
    if (
        torch.compiler.is_compiling()  # first: the compiler does not get past the rest
        or torch._C._is_tracing()  # pyright: ignore[reportAttributeAccessIssue]
        or torch._C._len_torch_dispatch_stack()  # pyright: ignore[reportAttributeAccessIssue]
        or torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]
        or forward_ad._current_level >= 0
    ):
        return False
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in PLAIN or not torch._C._has_storage(tensor) or tensor._is_zerotensor()
        ):
            return False
    return True


def takes(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> bool:
    """Whether compiled code takes these arguments as they are; anything odd about them is for others to judge.

    That is raw ``(B, n)``, A ``(B, m, n)`` (but for one long row), or ``(m, n)`` with a factor of its shape or none,
    bounds ``(B, m)`` or ``(m,)`` or one None, of one dtype on a CPU.
    """
    if not HAS_NUMBA or not plain(raw, A, lower, upper, factor) or (lower is None and upper is None):
        return False
    dtype, size, rows = raw.dtype, raw.shape, A.shape
    if dtype not in REALS or len(size) != 2 or not 2 <= len(rows) <= 3 or not raw.is_cpu or 0 in size:
        return False
    m, n = rows[-2:]
    if not 0 < m <= n or n != size[1] or (factor is not None and (factor.shape != rows or A.requires_grad)):
        return False
    if len(rows) == 3 and (rows[0] != size[0] or factor is not None or (m == 1 and n > MOST_NUMBERS)):
        return False
    for bound in (lower, upper):
        if bound is not None and bound.shape not in ((size[0], m), (m,)):
            return False
    for part in (A, lower, upper, factor):
        if part is not None and (part.dtype != dtype or not part.is_cpu):
            return False
    return True


def few_rows(A: Tensor) -> bool:
    """Whether the single pass is for this A ``(B, m, n)``."""
    _, m, n = A.shape
    return m <= MOST_ROWS and m * n <= MOST_NUMBERS


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, int]:
    """``y = raw + A⁺ s`` for few rows per sample, and how many samples have no answer and are NaN."""
    raw = dense(raw, raw)
    y = torch.empty_like(raw)
    return y, launch(_rows(raw.dtype)[0], [y], [raw, A], (lower, upper), A.shape)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A (if wanted), lower and upper ``(B, m)`` from that of y ``(B, n)``."""
    grad_raw, shape = raw.new_empty(raw.shape), A.shape[:2]
    grad_lower, grad_upper = raw.new_empty(shape), raw.new_empty(shape)
    grad_A = raw.new_empty(A.shape) if wants_matrix else None
    outputs = [grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper]
    launch(_rows(raw.dtype)[1], outputs, [gradient, raw, A], (lower, upper), A.shape, len(A) if wants_matrix else 0)
    return grad_raw, grad_A, grad_lower, grad_upper


@cache
def _rows(dtype: torch.dtype) -> tuple[Callable[..., int], Callable[..., int]]:
    """The kernels for an A per sample; numba is imported and at work at the first call."""
    from hardnet.kernels import cpu_rows

    return cpu_rows.compiled_forward(dtype), cpu_rows.compiled_backward(dtype)


def launch(
    kernel: Callable[..., int],
    outputs: list[Tensor],
    inputs: list[Tensor],
    bounds: tuple[Tensor | None, ...],
    shape: torch.Size,
    *counts: int,
    tile: int = TILE,
) -> int:
    """All samples, shared out among threads where there is work for them; how many have no answer.

    Args:
        kernel: Takes addresses of outputs, inputs and bounds, then counts: these, B, m, n, of bounds, and two samples.
        outputs: Dense tensors to write.
        inputs: Tensors to read.
        bounds: ``(B, m)`` or ``(m,)`` or None each.
        shape: That of A, ``(B, m, n)``.
        *counts: What the kernel counts besides.
        tile: Of how many samples the parts must be whole multiples.
    """
    parts = [*outputs, *[dense(part, outputs[0]) for part in (*inputs, *bounds)]]  # copies live until the end
    addresses = [part.data_ptr() for part in parts]
    samples, m, n = shape
    work = partial(kernel, *addresses, *counts, samples, m, n, *[count(bound) for bound in bounds])
    threads = min(torch.get_num_threads(), samples * m * n // NUMBERS_OF_A_THREAD)
    return work(0, samples) if threads < 2 else _share(work, samples, threads, tile)


def dense(tensor: Tensor | None, absent: Tensor) -> Tensor:
    """The same numbers, one after the other in memory; some memory for no tensor."""
    if tensor is None:
        return absent
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.resolve_neg().contiguous()


def count(bound: Tensor | None) -> int:
    """How many samples a bound has numbers for: none, one for all, or every one."""
    return 0 if bound is None else 1 if bound.dim() == 1 else bound.shape[0]


def _share(work: Callable[[int, int], int], samples: int, threads: int, tile: int) -> int:
    """The samples in equal parts of whole tiles to so many threads; the sum of what these return."""
    part, results = -(-samples // threads // tile) * tile, []
    report = lambda begin: results.append(work(begin, min(begin + part, samples)))
    team = [Thread(target=report, args=(begin,)) for begin in range(part, samples, part)]
    for member in team:
        member.start()
    report(0)
    for member in team:
        member.join()
    return sum(results)
