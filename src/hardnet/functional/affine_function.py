"""The closed form as a differentiable operation: fast where nothing transforms it, and open to every transform.

`EnforceAffine` is the eager operation: its backward reads what the forward computed. `FusedAffine` is its short form
for the kernels of a GPU, where a detour takes the host longer than the answer takes the device. `MappedAffine` is the
same under the transforms of torch.func (vmap, grad, jacrev, ...), which see only inputs and outputs. On a CPU
`affine_compiled` goes before all where it can. Forward mode (jvp, jacfwd, hessian) runs through the formulas of
`affine_plain` alone, since compiled code takes no operation with a forward derivative of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.functional import affine_compiled, affine_plain
from hardnet.functional.affine_core import choose, enforce
from hardnet.functional.affine_gradients import AffineGradients, fit, join_all, pull_back
from hardnet.functional.transforms import forward_mode, full_precision, transformed
from hardnet.kernels.cpu import launch as cpu


def apply(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> Tensor:
    """``y = raw + A⁺ s`` for the flat shapes of `hardnet.functional.affine_core`."""
    if cpu.takes(raw, A, lower, upper, factor):
        return affine_compiled.enforce(raw, A, lower, upper, factor)[0]
    if forward_mode():
        return affine_plain.enforce(raw, A, lower, upper)
    if transformed():
        return MappedAffine.apply(raw, A, lower, upper, factor)
    if _records(raw, A, lower, upper):
        return EnforceAffine.apply(raw, A, lower, upper, factor)
    return enforce(choose(A, factor), raw, A, lower, upper)[0]


def apply_eager(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> Tensor:
    """The same in eager code where nothing transforms it."""
    if not _records(raw, A, lower, upper):
        return enforce(choose(A, factor), raw, A, lower, upper)[0]
    if gpu.available(A):
        return FusedAffine.apply(raw, A, lower, upper)
    return EnforceAffine.apply(raw, A, lower, upper, factor)


def _records(*parts: Tensor | None) -> bool:
    """Whether somebody will ask for a gradient."""
    if torch.is_grad_enabled():
        for part in parts:
            if part is not None and part.requires_grad:
                return True
    return False


class EnforceAffine(torch.autograd.Function):
    """``y = raw + A⁺ s`` with the closed-form backward of the path that computed it."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Any) -> Tensor:
        """Y ``(B, n)``; keeps what the path saved."""
        y, saved = enforce(choose(A, factor), raw, A, lower, upper)
        ctx.save_for_backward(raw, A, lower, upper, factor, *saved)
        ctx.compiling = torch.compiler.is_compiling()
        return y

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper, factor, *saved = ctx.saved_tensors
        kept, wants_matrix = tuple(saved), ctx.needs_input_grad[1]
        compute = lambda gradient: choose(A, factor).backward(gradient, raw, A, kept, wants_matrix)
        # compiled autograd after an eager forward would choose another path, and misread what this one saved
        return *pull_back(
            compute, gradients[0], (raw, A, lower, upper), factor, ctx.needs_input_grad, traceable=ctx.compiling
        ), None


class FusedAffine(torch.autograd.Function):
    """The same by the kernels of a GPU, with nothing on the way to them: one launch each way takes microseconds."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        """Y ``(B, n)``; keeps the inputs alone."""
        ctx.save_for_backward(raw, A, lower, upper)
        return gpu.forward(raw, A, lower, upper)[0]

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper = ctx.saved_tensors
        compute = lambda gradient: gpu.backward(gradient, raw, A, (lower, upper), ctx.needs_input_grad[1])
        return pull_back(compute, gradients[0], (raw, A, lower, upper), None, ctx.needs_input_grad, traceable=True)


class MappedAffine(torch.autograd.Function):
    """``y = raw + A⁺ s`` under transforms: a mapped dimension joins the batch."""

    @staticmethod
    def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> Tensor:
        """Y ``(B, n)``."""
        return enforce(choose(A, factor), raw, A, lower, upper)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper, factor = ctx.saved_tensors
        grads = AffineGradients.apply(gradients[0], raw, A, lower, upper, factor)
        return *fit(grads, lower, upper), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Join the mapped dimension with the batch."""
        sizes, flat = join_all(info.batch_size, in_dims, inputs, (1, 2, 1, 1, 2))
        return apply(*flat).unflatten(0, sizes), 0
