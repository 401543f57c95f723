"""Launch compiled code on a CPU: addresses and counts in, samples shared out among threads.

Called by `hardnet.functional.simplex`, `hardnet.solvers.small` and others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from threading import Thread

import torch
from torch import Tensor

from hardnet.rows import dense

HAS_NUMBA = find_spec("numba") is not None and os.environ.get("HARDNET_NUMBA") != "0"
"""Whether to compile at all: ``HARDNET_NUMBA=0`` in the environment leaves everything to torch."""
TILE = 512
"""The most samples that a kernel computes side by side: parts of a batch are whole multiples."""
NUMBERS_OF_A_THREAD = 1 << 17
"""Numbers of A that are worth a thread of their own: about a millisecond of work."""


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
