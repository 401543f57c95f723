"""The closed form on a CPU, compiled by numba: few rows in one pass, or one A for all samples with its factor.

A small A, shared or not, takes one pass (`affine_few`); a larger shared one has a factor ``P = A⁺'``, and torch
multiplies between the passes of `affine_shared`. Samples that do not reach their bounds are returned as NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.kernels.cpu import launch as host
from hardnet.kernels.cpu.launch import count, launch, sizes
from hardnet.kernels.cpu.ready import entries, ready
from hardnet.kernels.limits import MOST_NUMBERS, MOST_ROWS, MOST_SHARED_NUMBERS
from hardnet.rows import REALS, Batch, dense

SHRUNK = 1 / 8
"""If y is shorter than this fraction of raw, it is corrected; this test is used where A has no small entries."""
SMALL_ENTRY = 1e-6
"""Relative to the largest entry of A: a row with a smaller entry may not depend on the outputs that stayed large."""

Kept = tuple[Tensor, ...]
Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


class CompiledPath:
    """The closed form of the CPU backend; `hardnet.functional.affine.Path` documents the methods."""

    name, retries = "cpu", True

    def takes(self, rows: Batch) -> bool:
        """Whether the numbers are on a CPU, float32 or float64, and A is few rows ``(B, m, n)`` or any ``(m, n)``."""
        if not (host.HAS_NUMBA and rows.raw.is_cpu and rows.raw.dtype in REALS):
            return False
        m, n = rows.A.shape[-2:]
        fits = rows.A.dim() == 2 or (m <= MOST_ROWS and m * n <= MOST_NUMBERS)
        return fits and ready("affine_shared" if self.wants_factor(rows.A) else "affine_few", rows.raw.dtype)

    def wants_factor(self, A: Tensor) -> bool:
        """Whether both directions need the factor of A: shared rows that torch multiplies."""
        return A.dim() == 2 and A.numel() > MOST_SHARED_NUMBERS

    def forward(self, rows: Batch) -> tuple[Tensor, Kept, int]:
        """Y ``(B, n)``, the tensors `backward` reads, and how many samples have no answer and are NaN."""
        raw, A, lower, upper, factor = rows[:5]
        if factor is not None and self.wants_factor(A):
            y, excess, lost = _forward_large(raw, A, lower, upper, factor)
            return y, (excess,), lost
        raw = dense(raw, raw)
        y = torch.empty_like(raw)
        return y, (), launch(entries("affine_few", raw.dtype)[0], [y], [raw, A], (lower, upper), *sizes(raw, A))

    def backward(self, gradient: Tensor, rows: Batch, kept: Kept, wants_matrix: bool) -> Gradients:
        """The gradients of raw, A (if wanted; summed over the batch if shared), lower and upper ``(B, m)``."""
        raw, A, lower, upper, factor = rows[:5]
        if factor is not None and self.wants_factor(A):
            return _backward_large(gradient, raw, A, factor, kept[0], wants_matrix)
        return _backward_few(gradient, raw, A, lower, upper, wants_matrix)


def _backward_few(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, wants_matrix: bool
) -> Gradients:
    """The gradients in one pass, from the inputs alone."""
    shape, matrices = sizes(raw, A)
    grad_raw, grad_lower, grad_upper = raw.new_empty(raw.shape), raw.new_empty(shape[:2]), raw.new_empty(shape[:2])
    grad_A = raw.new_empty(shape) if wants_matrix else None
    outputs = [grad_raw, grad_raw if grad_A is None else grad_A, grad_lower, grad_upper]
    wanted = len(raw) if wants_matrix else 0
    launch(entries("affine_few", raw.dtype)[1], outputs, [gradient, raw, A], (lower, upper), shape, wanted, matrices)
    if grad_A is not None and A.dim() == 2:
        grad_A = grad_A.sum(0)
    return grad_raw, grad_A, grad_lower, grad_upper


def _forward_large(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, P: Tensor
) -> tuple[Tensor, Tensor, int]:
    """``y = raw - P' e`` with the excess ``e = A raw - clamp(A raw, lower, upper)``, repeated at y where needed."""
    raw, A = dense(raw, raw), dense(A, A)
    facts, regular = _survey(A, P)
    excess = raw @ A.mT
    lost = _excess_(excess, lower, upper, regular)
    y = torch.addmm(raw, excess, P, alpha=-1)
    chosen = _settle_(y, raw, excess, facts)
    if chosen is not None:
        rest = y @ A.mT
        _excess_(rest, lower, upper, regular, chosen)
        y.addmm_(rest, P, alpha=-1)
        lost = _confirm_(y, raw, excess, facts, A, lower, upper)
    return y, excess, lost


def _backward_large(
    gradient: Tensor, raw: Tensor, A: Tensor, P: Tensor, excess: Tensor, wants_matrix: bool
) -> Gradients:
    """The formulas of `hardnet.functional.affine_formulas`, with the excess ``e = -s`` of the forward."""
    w = gradient @ P.mT
    active = w.clone() if wants_matrix else w
    below, above = _split_(active, excess)
    grad_matrix = None
    if wants_matrix:
        step = -(excess @ P)
        q = step @ P.mT
        # q (g - A' w)' without the product A' w of every sample
        grad_matrix = torch.addmm(q.mT @ gradient, w.mT, step, alpha=-1)
        grad_matrix = grad_matrix.addmm_(active.mT, raw, alpha=-1).addmm_((w.mT @ q).mT, A, alpha=-1)
    return torch.addmm(gradient, active, A, alpha=-1), grad_matrix, below, above


def _survey(A: Tensor, P: Tensor) -> tuple[Tensor, int]:
    """The numbers ``(m + 2,)`` that decide which samples need a second pass, and whether A has a factor."""
    facts, P = A.new_empty(len(A) + 2), dense(P, A)
    return facts, entries("affine_shared", A.dtype)[0](facts.data_ptr(), A.data_ptr(), P.data_ptr(), *A.shape)


def _excess_(
    product: Tensor, lower: Tensor | None, upper: Tensor | None, regular: int, chosen: Tensor | None = None
) -> int:
    """Replace p ``(B, m)`` by ``p - clamp(p, lower, upper)``; return how many samples have no answer.

    Samples whose mark in `chosen` ``(B,)`` is zero get an excess of zero.
    """
    low, high, marks = dense(lower, product), dense(upper, product), product if chosen is None else chosen
    return entries("affine_shared", product.dtype)[1](
        product.data_ptr(), marks.data_ptr(), low.data_ptr(), high.data_ptr(),
        *product.shape, 0 if chosen is None else len(chosen), count(lower), count(upper), regular,
    )  # fmt: skip


def _settle_(y: Tensor, raw: Tensor, excess: Tensor, facts: Tensor) -> Tensor | None:
    """Restore the bits of raw for samples without excess; return which others need a second pass, or None."""
    chosen = y.new_empty(len(y))
    parts = (y, chosen, raw, excess, facts)
    needs = entries("affine_shared", y.dtype)[2](
        *[part.data_ptr() for part in parts], len(y), excess.shape[1], y.shape[1]
    )
    return chosen if needs else None


def _confirm_(
    y: Tensor, raw: Tensor, excess: Tensor, facts: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None
) -> int:
    """Set samples that miss their bounds by more than rounding, or have no answer, to NaN; return how many."""
    parts = (y, y @ A.mT, raw, excess, facts, A, dense(lower, y), dense(upper, y))
    counts = len(y), *A.shape, count(lower), count(upper)
    return entries("affine_shared", y.dtype)[3](*[part.data_ptr() for part in parts], *counts)


def _split_(w: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """``w`` ``(B, m)`` for rows below their lower and rows above their upper bound; w itself becomes their sum."""
    above, below = w.new_empty(w.shape), w.new_empty(w.shape)
    entries("affine_shared", w.dtype)[4](w.data_ptr(), above.data_ptr(), below.data_ptr(), excess.data_ptr(), *w.shape)
    return below, above
