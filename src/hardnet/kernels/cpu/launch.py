"""The closed form on a CPU by compiled code: which arguments it takes, and few rows per sample in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from threading import Thread

import torch
from torch import Tensor

from hardnet.kernels.arguments import dense, well_formed

MOST_ROWS, MOST_NUMBERS = 8, 256
"""The most rows, and the most numbers of A per sample, for which this beats the library's factorisations."""
HAS_NUMBA = find_spec("numba") is not None and os.environ.get("HARDNET_NUMBA") != "0"
"""Whether to compile at all: ``HARDNET_NUMBA=0`` in the environment leaves everything to torch."""
TILE = 512
"""The most samples that a kernel computes side by side: parts of a batch are whole multiples."""
NUMBERS_OF_A_THREAD = 1 << 17
"""Numbers of A that are worth a thread of their own: about a millisecond of work."""


def takes(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> bool:
    """Whether compiled code takes these arguments as they are: well formed, and of a shape in `compiles`."""
    return HAS_NUMBA and well_formed(raw, A, lower, upper, factor) and compiles(A, factor)


def compiles(A: Tensor, factor: Tensor | None) -> bool:
    """Whether compiled code takes well-formed arguments: A on a CPU, ``(m, n)``, or ``(B, m, n)`` but one long row."""
    if not HAS_NUMBA or not A.is_cpu:
        return False
    return A.dim() == 2 or (factor is None and (A.shape[1] > 1 or A.shape[2] <= MOST_NUMBERS))


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
    from hardnet.kernels.cpu import affine_few as cpu_rows

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
