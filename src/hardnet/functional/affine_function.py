"""The closed form as one differentiable operation: fast forward and backward, and every transform of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.functional import affine_plain
from hardnet.functional.affine_core import choose


def transformed() -> bool:
    """Whether a function transform (vmap, grad, jacrev, ...) of torch.func is at work."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]


class EnforceAffine(torch.autograd.Function):
    """``y = raw + A⁺ s`` with the closed-form backward; outputs y, then what the backward reads.

    The backward takes the fast path of the forward, except where a derivative of it is asked for or a transform is
    at work: then it is the same formulas in differentiable operations.
    """

    @staticmethod
    def forward(
        raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Y ``(B, n)`` and the saved tensors of the path."""
        y, saved = choose(A, factor).forward(raw, A, lower, upper)
        return y, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the inputs and what the path saved."""
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        gradient = gradients[0]
        if gradient is None:
            return None, None, None, None, None
        raw, A, lower, upper, factor, *saved = ctx.saved_tensors
        wants = ctx.needs_input_grad[1]
        if not saved or torch.is_grad_enabled() or transformed():
            grads = affine_plain.gradients(gradient, raw, A, lower, upper, wants)
        else:
            grads = choose(A, factor).backward(gradient, raw, A, tuple(saved), wants)
        return *grads[:2], _fit(grads[2], lower), _fit(grads[3], upper), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], raw: Tensor, *others: Tensor | None
    ) -> tuple[tuple[Tensor], tuple[int]]:
        """Join the mapped dimension with the batch; the backward of a transform needs nothing saved."""
        samples = raw.shape[0] if in_dims[0] is None else raw.movedim(in_dims[0], 0).shape[1]
        sizes = (info.batch_size, samples)
        cores = (1, 2, 1, 1, 2)
        flat = [_join(*item, sizes) for item in zip((raw, *others), in_dims, cores, strict=True)]
        y = EnforceAffine.apply(*flat)[0]
        return (y.unflatten(0, sizes),), (0,)


def _fit(gradient: Tensor, bound: Tensor | None) -> Tensor | None:
    """The gradient ``(B, m)`` of a bound, summed over the batch where the bound is shared."""
    return None if bound is None else gradient.sum(0) if bound.dim() == 1 else gradient


def _join(tensor: Tensor | None, mapped: int | None, core: int, sizes: tuple[int, int]) -> Tensor | None:
    """A tensor with `core` trailing dimensions, its mapped and batch dimension made one; shared ones stay shared."""
    if tensor is None or (mapped is None and tensor.dim() == core):
        return tensor
    if mapped is None:
        return tensor.expand(sizes[0], *tensor.shape).flatten(0, 1)
    tensor = tensor.movedim(mapped, 0)
    if tensor.dim() == core + 1:  # shared by the batch of each mapped call
        tensor = tensor.unsqueeze(1).expand(*sizes, *tensor.shape[1:])
    return tensor.flatten(0, 1)
