"""The closed form on a CPU by compiled code: few rows in one pass, and what is not a product for rows that are shared.

The compiled code reads memory behind torch's back, so it is for plain tensors in eager mode alone: what traces,
transforms, fakes or broadcasts tensors takes the formulas in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from threading import Thread

import torch
from torch import Tensor
from torch.autograd import forward_ad

MOST_ROWS, MOST_NUMBERS = 8, 256
"""The most rows, and the most numbers of A per sample, for which this beats the library's factorisations."""
HAS_NUMBA = find_spec("numba") is not None
PLAIN = (Tensor, torch.nn.Parameter)
REALS = (torch.float64, torch.float32)
TILE = 64
"""Samples that a kernel computes side by side: parts of a batch are whole multiples."""
NUMBERS_OF_A_THREAD = 1 << 17
"""Numbers of A that are worth a thread of their own: about a millisecond of work."""


def plain(*tensors: Tensor | None) -> bool:
    """Whether these are memory to read: no subclass, no wrapper, and nobody traces or intercepts operations."""
    return (
        not torch.compiler.is_compiling()  # first: the compiler does not get past the rest
        and not torch._C._is_tracing()  # pyright: ignore[reportAttributeAccessIssue]
        and not torch._C._len_torch_dispatch_stack()  # pyright: ignore[reportAttributeAccessIssue]
        and not torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]
        and forward_ad._current_level < 0
        and all(tensor is None or (type(tensor) in PLAIN and torch._C._has_storage(tensor)) for tensor in tensors)
    )


def takes(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> bool:
    """Whether compiled code takes these arguments as they are; anything odd about them is for others to judge.

    That is raw ``(B, n)``, few rows A ``(B, m, n)``, or any ``(m, n)`` with a factor of its shape or none, bounds
    ``(B, m)`` or ``(m,)`` or one None, of one dtype on a CPU.
    """
    if not HAS_NUMBA or not plain(raw, A, lower, upper, factor) or raw.dim() != 2 or A.dim() not in (2, 3):
        return False
    (samples, n), shared, m = raw.shape, A.dim() == 2, A.shape[-2]
    return (
        0 < m <= n
        and samples > 0
        and (shared or (m <= MOST_ROWS and m * n <= MOST_NUMBERS))
        and A.shape == ((m, n) if shared else (samples, m, n))
        and (factor is None or (shared and factor.shape == A.shape and not A.requires_grad))
        and (lower is not None or upper is not None)
        and all(bound is None or bound.shape == (samples, m) or bound.shape == (m,) for bound in (lower, upper))
        and raw.dtype in REALS
        and all(part is None or (part.is_cpu and part.dtype == raw.dtype) for part in (raw, A, lower, upper, factor))
    )


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, int]:
    """``y = raw + A⁺ s`` for an A per sample that `takes` accepts, and how many samples have no answer and are NaN."""
    y = torch.empty(raw.shape, dtype=raw.dtype)
    return y, _launch(_rows(raw.dtype)[0], [y], [raw, A], lower, upper, A.shape)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A (if wanted), lower and upper ``(B, m)`` from that of y ``(B, n)``."""
    grad_raw, shape = torch.empty(raw.shape, dtype=raw.dtype), A.shape[:2]
    grad_lower, grad_upper = torch.empty(shape, dtype=raw.dtype), torch.empty(shape, dtype=raw.dtype)
    grad_A = torch.empty(A.shape, dtype=raw.dtype) if wants_matrix else None
    outputs = [grad_raw, raw if grad_A is None else grad_A, grad_lower, grad_upper]
    _launch(_rows(raw.dtype)[1], outputs, [gradient, raw, A], lower, upper, A.shape, len(A) if wants_matrix else 0)
    return grad_raw, grad_A, grad_lower, grad_upper


def excess_(
    product: Tensor, P: Tensor, lower: Tensor | None, upper: Tensor | None, chosen: Tensor | None = None
) -> int:
    """``p - clamp(p, lower, upper)`` in place of p ``(B, m)``; how many samples have no answer and are NaN.

    Args:
        product: ``A raw``, just computed, and so dense.
        P: The factor ``(m, n)``.
        lower: ``(B, m)`` or ``(m,)`` or None.
        upper: Like `lower`.
        chosen: ``(B,)``: zero for samples whose excess counts as zero.
    """
    low, high, P = _dense(lower, product), _dense(upper, product), _dense(P, product)
    marks = product if chosen is None else chosen
    return _passes(product.dtype)[0](
        product.data_ptr(), marks.data_ptr(), P.data_ptr(), low.data_ptr(), high.data_ptr(),
        *product.shape, P.shape[1], 0 if chosen is None else len(chosen), _count(lower), _count(upper),
    )  # fmt: skip


def settle_(y: Tensor, raw: Tensor, excess: Tensor, A: Tensor) -> Tensor | None:
    """The bits of raw for samples without excess; which others need the closed form again, at y, if there are any."""
    raw, A, chosen = _dense(raw, y), _dense(A, y), torch.empty(len(y), dtype=y.dtype)
    numbers = (y.data_ptr(), chosen.data_ptr(), raw.data_ptr(), excess.data_ptr(), A.data_ptr())
    return chosen if _passes(y.dtype)[1](*numbers, len(y), *A.shape) else None


def split_(w: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """``w`` ``(B, m)`` on rows below their lower and above their upper bound; w itself becomes their sum."""
    above, below = torch.empty(w.shape, dtype=w.dtype), torch.empty(w.shape, dtype=w.dtype)
    _passes(w.dtype)[2](w.data_ptr(), above.data_ptr(), below.data_ptr(), excess.data_ptr(), *w.shape)
    return below, above


@cache
def _rows(dtype: torch.dtype) -> tuple[Callable[..., int], Callable[..., int]]:
    """The kernels for an A per sample; numba is imported and at work at the first call."""
    from hardnet.kernels import cpu_rows

    return cpu_rows.compiled_forward(dtype), cpu_rows.compiled_backward(dtype)


@cache
def _passes(dtype: torch.dtype) -> tuple[Callable[..., int], ...]:
    """The passes for a shared A; numba is imported and at work at the first call."""
    from hardnet.kernels import cpu_shared

    return cpu_shared.compiled_passes(dtype)


def _launch(
    kernel: Callable[..., int],
    outputs: list[Tensor],
    inputs: list[Tensor],
    lower: Tensor | None,
    upper: Tensor | None,
    shape: torch.Size,
    *counts: int,
) -> int:
    """All samples, shared out among threads where there is work for them; how many have no answer.

    Args:
        kernel: Takes addresses of outputs, inputs and bounds, then counts: these, B, m, n, of bounds, and two samples.
        outputs: Dense tensors to write.
        inputs: Tensors to read.
        lower: ``(B, m)`` or ``(m,)`` or None.
        upper: Like `lower`.
        shape: That of A, ``(B, m, n)``.
        *counts: What the kernel counts besides.
    """
    dense = [*outputs, *[_dense(part, outputs[0]) for part in (*inputs, lower, upper)]]  # copies live until the end
    addresses = [part.data_ptr() for part in dense]
    samples, m, n = shape
    work = partial(kernel, *addresses, *counts, samples, m, n, _count(lower), _count(upper))
    threads = min(torch.get_num_threads(), samples * m * n // NUMBERS_OF_A_THREAD)
    return work(0, samples) if threads < 2 else _share(work, samples, threads)


def _dense(tensor: Tensor | None, absent: Tensor) -> Tensor:
    """The same numbers, one after the other in memory; some memory for no tensor."""
    if tensor is None:
        return absent
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.resolve_neg().contiguous()


def _count(bound: Tensor | None) -> int:
    """How many samples a bound has numbers for: none, one for all, or every one."""
    return 0 if bound is None else 1 if bound.dim() == 1 else len(bound)


def _share(work: Callable[[int, int], int], samples: int, threads: int) -> int:
    """The samples in equal parts of whole tiles to so many threads; the sum of what these return."""
    part, results = -(-samples // threads // TILE) * TILE, []
    report = lambda begin: results.append(work(begin, min(begin + part, samples)))
    team = [Thread(target=report, args=(begin,)) for begin in range(part, samples, part)]
    for member in team:
        member.start()
    report(0)
    for member in team:
        member.join()
    return sum(results)
