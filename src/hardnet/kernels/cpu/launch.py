"""Launch compiled code on a CPU: pass addresses and counts, and split the samples among threads.

This file has the operations of the nearest point, one launch per direction: few rows, a box and rows, any rows. The
closed form has its own file, `affine`. An operation takes rows once its kernel is `ready`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from hardnet.kernels.cpu.ready import entries, ready
from hardnet.kernels.limits import MOST_NUMBERS, MOST_ROWS_TO_AN_OUTPUT, Tolerances
from hardnet.rows import REALS, Batch, BoxedBatch, dense

HAS_NUMBA = find_spec("numba") is not None and os.environ.get("HARDNET_NUMBA") != "0"
"""Whether to compile at all: ``HARDNET_NUMBA=0`` in the environment leaves everything to torch."""
TILE = 512
"""The most samples that a kernel computes side by side; threads get whole multiples of it."""
NUMBERS_OF_A_THREAD = 1 << 17
"""Numbers of A that justify another thread: about a millisecond of work."""

Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


def launch(
    kernel: Callable[..., int],
    outputs: list[Tensor],
    inputs: list[Tensor],
    bounds: tuple[Tensor | None, ...],
    shape: torch.Size,
    *counts: int,
    tile: int = TILE,
) -> int:
    """Run a kernel on all samples, in threads if there is enough work; return how many samples have no answer.

    Args:
        kernel: Takes the addresses of outputs, inputs and bounds, then integers: `counts`, B, m, n, the counts of the
            bounds, and the first and last sample (exclusive).
        outputs: Tensors to write; one that is not dense (`empty_like` of transposed numbers) is written through a copy.
        inputs: Tensors to read.
        bounds: ``(B, m)``, ``(m,)`` or None each.
        shape: ``(B, m, n)``.
        *counts: Further integers for the kernel.
        tile: The samples of each thread are a whole multiple of this.
    """
    parts = [dense(part, outputs[0]) for part in (*outputs, *inputs, *bounds)]  # keeps the copies alive until the end
    addresses = [part.data_ptr() for part in parts]
    samples, m, n = shape
    work = partial(kernel, *addresses, *counts, samples, m, n, *[count(bound) for bound in bounds])
    threads = min(torch.get_num_threads(), samples * m * n // NUMBERS_OF_A_THREAD)
    found = work(0, samples) if threads < 2 else _share(work, samples, threads, tile)
    for output, written in zip(outputs, parts, strict=False):
        if output is not written:
            output.copy_(written)
    return found


def count(bound: Tensor | None) -> int:
    """How many samples a bound has numbers for: 0 if absent, 1 if shared, else the size of its batch."""
    return 0 if bound is None else 1 if bound.dim() == 1 else bound.shape[0]


def sizes(raw: Tensor, A: Tensor) -> tuple[torch.Size, int]:
    """``(B, m, n)`` of a flat batch, and how many matrices A ``(B, m, n)`` or ``(m, n)`` has."""
    return torch.Size((raw.shape[0], *A.shape[-2:])), 1 if A.dim() == 2 else raw.shape[0]


def _share(work: Callable[[int, int], int], samples: int, threads: int, tile: int) -> int:
    """Split the samples into equal parts of whole tiles, one per thread; return the sum of the results."""
    part, results = -(-samples // threads // tile) * tile, []
    report = lambda begin: results.append(work(begin, min(begin + part, samples)))
    team = [Thread(target=report, args=(begin,)) for begin in range(part, samples, part)]
    for member in team:
        member.start()
    report(0)
    for member in team:
        member.join()
    return sum(results)


class FewRows:
    """The nearest point of few rows (`nearest_few`); `hardnet.kernels.backends` describes the methods."""

    def takes(self, rows: Batch) -> bool:
        """Whether the numbers are on a CPU and few enough."""
        m, n = rows.A.shape[-2:]
        fits = rows.raw.shape[0] > 0 and 0 < m * n <= MOST_NUMBERS and rows.raw.dtype in REALS
        return HAS_NUMBA and rows.raw.is_cpu and fits and ready("nearest_few", rows.raw.dtype)

    def answer(self, rows: Batch) -> Tensor:
        """Y ``(B, n)`` alone, NaN where it is not solved."""
        return self.forward(rows)[0]

    def forward(self, rows: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Y ``(B, n)``, dual ``(B, m)``, status and residual ``(B,)`` in the dtype of raw."""
        raw, A, lower, upper = rows.numbers
        shape, matrices = sizes(raw, A)
        raw = dense(raw, raw)
        y, dual, ended = torch.empty_like(raw), raw.new_empty(shape[:2]), raw.new_empty((2, shape[0]))
        status, residual = ended.unbind()
        outputs = [y, dual, status, residual]
        launch(entries("nearest_few", raw.dtype)[0], outputs, [raw, A], (lower, upper), shape, matrices)
        return y, dual, status, residual

    def backward(
        self, gradient: Tensor, rows: Batch, found: tuple[Tensor, ...], wants_matrix: bool, tangent: bool
    ) -> Gradients:
        """The gradients of raw, A (if wanted; summed over the batch if shared), lower and upper ``(B, m)``."""
        raw, A, lower, upper = rows.numbers
        shape, matrices = sizes(raw, A)
        grad_raw, grad_lower, grad_upper = raw.new_empty(raw.shape), raw.new_empty(shape[:2]), raw.new_empty(shape[:2])
        grad_A = raw.new_empty(shape) if wants_matrix else None
        outputs = [grad_raw, grad_raw if grad_A is None else grad_A, grad_lower, grad_upper]
        counts = (shape[0] if wants_matrix else 0, int(tangent), matrices)
        launch(
            entries("nearest_few", raw.dtype)[1], outputs, [gradient, raw, A, *found], (lower, upper), shape, *counts
        )
        if grad_A is not None and A.dim() == 2:
            grad_A = grad_A.sum(0)
        return grad_raw, grad_A, grad_lower, grad_upper


class BoxRows:
    """The nearest point of a box with one row (`nearest_box`) or any number of them (`polyhedron`)."""

    def takes(self, rows: Batch) -> bool:
        """Whether the numbers are on a CPU, with a row and a sample."""
        fits = rows.A.shape[-2] > 0 and rows.raw.numel() > 0
        return HAS_NUMBA and rows.raw.is_cpu and fits and ready(self._kernel(rows.A)) and ready("polyhedron")

    def answer(self, flat: BoxedBatch) -> Tensor:
        """Y ``(B, n)`` alone, in the dtype of all numbers, NaN where it is not in the set."""
        raw, *others = flat
        wide: Any = (raw.double(), *(part.double() for part in others))
        y, _, _, _, status, _ = self.forward(wide, torch.finfo(raw.dtype).eps)
        met = (status == 0) | (status == 4)  # SOLVED or FEASIBLE
        return torch.where(met.unsqueeze(-1), y, torch.nan).to(raw.dtype)

    def forward(self, flat: BoxedBatch, rounding: float) -> tuple[Tensor, ...]:
        """Y and place ``(B, n)``, dual and side ``(B, k)``, status and residual ``(B,)``; codes as int8.

        Args:
            flat: All in float64.
            rounding: Rounding of the dtype of the answer.
        """
        raw, A, lower, upper, *box = flat
        (batch, n), k = raw.shape, A.shape[-2]
        y, place, found = (
            torch.empty_like(raw),
            torch.empty_like(raw),
            raw.new_empty(batch, 2 * k + (3 if k > 1 else 2)),
        )
        inputs, shape = [raw, A, raw.new_full((1,), rounding)], torch.Size((batch, k, n))
        kernel = entries(self._kernel(A))[0]
        launch(kernel, [y, place, found], inputs, (lower, upper, *box), shape, A.shape[0], tile=1)
        dual, side = found[:, :k].clone(), found[:, k : 2 * k].to(torch.int8)
        return y, place.to(torch.int8), dual, side, found[:, 2 * k].to(torch.int8), found[:, 2 * k + 1].clone()

    def pull_back(self, gradient: Tensor, A: Tensor, place: Tensor, side: Tensor) -> Tensor:
        """``w = (A_JF')^+ g_F`` ``(B, k)`` over the free coordinates F and active rows J, least in unit rows."""
        shape = torch.Size((*gradient.shape[:1], *A.shape[-2:]))
        w = gradient.new_empty(shape[:2])
        inputs = [gradient, place.double(), side.double(), A]
        launch(entries("polyhedron")[1], [w], inputs, (), shape, A.shape[0], tile=1)
        return w

    @staticmethod
    def _kernel(A: Tensor) -> str:
        return "polyhedron" if A.shape[-2] > 1 else "nearest_box"


class AnyRows:
    """The nearest point of any rows (`projection`), sample by sample."""

    def takes(self, rows: Batch) -> bool:
        """Whether the numbers are on a CPU, values may be read, and the Gram matrices are not much larger than A."""
        m, n = rows.A.shape[-2:]
        fits = rows.A.numel() > 0 and m <= MOST_ROWS_TO_AN_OUTPUT * n
        return HAS_NUMBA and rows.raw.is_cpu and rows.look and fits and ready("projection")

    def forward(self, rows: Batch, limit: int, tolerances: Tolerances) -> tuple[Tensor, ...]:
        """Y, dual, side, steps, residual, which samples are open, and which are met: float64, bounds ``(B, m)``."""
        raw, A, lower, upper = rows.numbers
        assert lower is not None
        assert upper is not None
        y, dual, side, ended = (raw.new_empty(len(raw), size) for size in (raw.shape[-1], *lower.shape[-1:] * 2, 3))
        known = (tolerances.feasible, tolerances.solved, tolerances.strict, tolerances.certain)
        limits, matrices = torch.tensor([*known, limit], dtype=raw.dtype), 1 if A.dim() == 2 else len(A)
        shape = torch.Size((len(raw), *A.shape[-2:]))
        launch(
            entries("projection")[0],
            [y, dual, side, ended],
            [raw, A, lower, upper, limits],
            (),
            shape,
            matrices,
            tile=1,
        )
        left = ended[:, 2] > 0
        return y, dual, side, ended[:, 0].long(), ended[:, 1], left, ~left
