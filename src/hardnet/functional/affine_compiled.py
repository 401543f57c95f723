"""HardNet-Aff by compiled code for a CPU, as differentiable operations: few and many rows per sample, and a shared A.

`hardnet.kernels.cpu.launch.takes` says for which arguments. What differentiates or maps a gradient takes the same
roads as for every other path.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.functional import affine_many
from hardnet.functional.affine_bounds import outer_sum
from hardnet.functional.affine_gradients import pull_back
from hardnet.functional.affine_many import Factor
from hardnet.functional.affine_pinv import pseudo_inverse
from hardnet.functional.transforms import full_precision
from hardnet.kernels.cpu import affine_factor as cpu_factor
from hardnet.kernels.cpu import launch as cpu
from hardnet.kernels.cpu.affine_finish import Finished


def enforce(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
) -> tuple[Tensor, int]:
    """``y = raw + A⁺ s`` for what `hardnet.kernels.cpu` takes, and how many samples have no answer and are NaN."""
    if A.dim() == 3:
        return per_sample(raw, A, lower, upper)
    if torch.is_grad_enabled():
        return SharedAffine.apply(raw, A, lower, upper, factor)
    y, _, lost = shared(raw, A, lower, upper, factor_of(A) if factor is None else factor)
    return y, lost


def per_sample(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, int]:
    """The same for A ``(B, m, n)``."""
    if torch.is_grad_enabled():
        return (RowsAffine if cpu.few_rows(A) else ManyAffine).apply(raw, A, lower, upper)
    if cpu.few_rows(A):
        return cpu.forward(raw, A, lower, upper)
    done = affine_many.forward(raw, A, lower, upper)[0]
    return done.y, done.lost


def factor_of(A: Tensor) -> Tensor:
    """``P = A⁺'`` of a shared A."""
    return cpu_factor.factorise(A) if cpu_factor.small(A) else pseudo_inverse(A)


def shared(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, P: Tensor
) -> tuple[Tensor, Tensor | None, int]:
    """``y = raw - P' e`` with the excess ``e = A raw - clamp(A raw, lower, upper)``; e, if kept; how many have no y."""
    if cpu_factor.small(A):
        y, lost = cpu_factor.forward(raw, A, lower, upper, P)
        return y, None, lost
    excess = raw @ A.mT
    lost = cpu_factor.excess_(excess, P, lower, upper)
    y = torch.addmm(raw, excess, P, alpha=-1)
    chosen = cpu_factor.settle_(y, raw, excess, A)
    if chosen is not None:
        rest = y @ A.mT
        cpu_factor.excess_(rest, P, lower, upper, chosen)
        y.addmm_(rest, P, alpha=-1)
        cpu_factor.settle_(y, raw, excess, A)
    return y, excess, lost


class RowsAffine(torch.autograd.Function):
    """``y = raw + A⁺ s`` for an A per sample, and the number of samples without an answer."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, int]:
        """Y ``(B, n)``; keeps the inputs alone."""
        ctx.save_for_backward(raw, A, lower, upper)
        return cpu.forward(raw, A, lower, upper)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper = ctx.saved_tensors
        compiled = lambda gradient: cpu.backward(gradient, raw, A, lower, upper, ctx.needs_input_grad[1])
        return pull_back(compiled, gradients[0], (raw, A, lower, upper), None, ctx.needs_input_grad)


class ManyAffine(torch.autograd.Function):
    """The same for many rows per sample."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, int]:
        """Y ``(B, n)``; keeps the inputs, the factor and what was computed with it."""
        done, factor, saved = affine_many.forward(raw, A, lower, upper)
        ctx.save_for_backward(raw, A, lower, upper, *factor, *done[:3], *saved)
        return done.y, done.lost

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper, F, swaps, doubtful, y, violation, q, *saved = ctx.saved_tensors
        factor, done, wants_matrix = Factor(F, swaps, doubtful), Finished(y, violation, q, 0), ctx.needs_input_grad[1]
        compiled = lambda gradient: affine_many.backward(gradient, raw, A, factor, done, tuple(saved), wants_matrix)
        return pull_back(compiled, gradients[0], (raw, A, lower, upper), None, ctx.needs_input_grad)


class SharedAffine(torch.autograd.Function):
    """The same for an A that all samples share, with its factor if that is at hand."""

    @staticmethod
    def forward(
        ctx: Any, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
    ) -> tuple[Tensor, int]:
        """Y ``(B, n)``; keeps the inputs, the factor, the excess and y."""
        P = factor_of(A) if factor is None else factor
        y, excess, lost = shared(raw, A, lower, upper, P)
        ctx.save_for_backward(raw, A, lower, upper, factor, P, excess, y)
        return y, lost

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper, factor, P, excess, y = ctx.saved_tensors
        wants_matrix = ctx.needs_input_grad[1]
        if excess is None:
            compiled = lambda gradient: cpu_factor.backward(gradient, raw, A, lower, upper, P, wants_matrix)
        else:
            compiled = lambda gradient: shared_backward(gradient, raw, A, P, excess, y, wants_matrix)
        return *pull_back(compiled, gradients[0], (raw, A, lower, upper), factor, ctx.needs_input_grad), None


def shared_backward(
    gradient: Tensor, raw: Tensor, A: Tensor, P: Tensor, excess: Tensor, y: Tensor, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A (if wanted), lower and upper: see `hardnet.functional.affine_plain.gradients`."""
    w = gradient @ P.mT
    active = w.clone() if wants_matrix else w
    below, above = cpu_factor.split_(active, excess)
    grad_matrix = None
    if wants_matrix:
        step = y - raw
        q = step @ P.mT
        # q (g - A' w)' without the product A' w of every sample
        grad_matrix = outer_sum(A, (q, -w, -active, -(w.mT @ q)), (gradient, step, raw, A))
    return torch.addmm(gradient, active, A, alpha=-1), grad_matrix, below, above
