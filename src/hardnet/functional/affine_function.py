"""The closed form as a differentiable operation: fast where nothing transforms it, and open to every transform.

`EnforceAffine` is the eager operation: its backward reads what the forward computed. `MappedAffine` is the same under
the transforms of torch.func (vmap, grad, jacrev, ...), which see only inputs and outputs. Where a gradient must itself
be differentiated or mapped it is `AffineGradients`, whose own derivative is that of the formulas in `affine_plain`.
Forward mode (jvp, jacfwd, hessian) runs through these formulas alone, since compiled code takes no operation with a
forward derivative of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.functional import affine_plain
from hardnet.functional.affine_core import choose, enforce
from hardnet.functional.transforms import forward_mode, transformed
from hardnet.kernels import cpu

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


def apply(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> Tensor:
    """``y = raw + A⁺ s`` for the flat shapes of `hardnet.functional.affine_core`."""
    if forward_mode():
        return affine_plain.enforce(raw, A, lower, upper)
    if transformed():
        return MappedAffine.apply(raw, A, lower, upper, factor)
    if torch.is_grad_enabled():
        return EnforceAffine.apply(raw, A, lower, upper, factor)
    return enforce(choose(A, factor, _native(raw, A, lower, upper, factor)), raw, A, lower, upper)[0]


def _native(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> bool:
    """Whether compiled code for a CPU takes these."""
    return factor is None and cpu.available(A, raw, lower, upper)


class EnforceAffine(torch.autograd.Function):
    """``y = raw + A⁺ s`` with the closed-form backward of the path that computed it."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Any) -> Tensor:
        """Y ``(B, n)``; keeps what the path saved."""
        ctx.native = _native(raw, A, lower, upper, factor)
        y, saved = enforce(choose(A, factor, ctx.native), raw, A, lower, upper)
        ctx.save_for_backward(raw, A, lower, upper, factor, *saved)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper, factor, *saved = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed():
            grads = AffineGradients.apply(gradients[0], raw, A, lower, upper, factor)
        elif ctx.native and not cpu.plain(gradients[0]):
            grads = affine_plain.gradients(gradients[0], raw, A, lower, upper)
        else:
            grads = choose(A, factor, ctx.native).backward(gradients[0], raw, A, tuple(saved), ctx.needs_input_grad[1])
        return _fit(grads, lower, upper)


class MappedAffine(torch.autograd.Function):
    """``y = raw + A⁺ s`` under transforms: a mapped dimension joins the batch."""

    @staticmethod
    def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> Tensor:
        """Y ``(B, n)``."""
        return enforce(choose(A, factor, _native(raw, A, lower, upper, factor)), raw, A, lower, upper)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper, factor = ctx.saved_tensors
        return _fit(AffineGradients.apply(gradients[0], raw, A, lower, upper, factor), lower, upper)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Join the mapped dimension with the batch."""
        sizes, flat = _join_all(info.batch_size, in_dims, inputs, (1, 2, 1, 1, 2))
        return apply(*flat).unflatten(0, sizes), 0


class AffineGradients(torch.autograd.Function):
    """The gradients of raw, A ``(B, m, n)`` or ``(m, n)``, lower and upper ``(B, m)`` from that of y."""

    @staticmethod
    def forward(
        gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
    ) -> Gradients:
        """Both passes of the path."""
        path = choose(A, factor, _native(raw, A, lower, upper, factor) and cpu.plain(gradient))
        grads = path.backward(gradient, raw, A, path.forward(raw, A, lower, upper)[1], True)
        return grads[0], torch.as_tensor(grads[1]), grads[2], grads[3]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: Gradients) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The second derivative, through the differentiable formulas."""
        *inputs, _ = ctx.saved_tensors
        given = [index for index, part in enumerate(inputs) if part is not None]

        def formulas(*tensors: Tensor) -> Gradients:
            parts: list[Any] = list(inputs)
            for index, tensor in zip(given, tensors, strict=True):
                parts[index] = tensor
            return affine_plain.gradients(*parts)

        pull_back: Any = torch.func.vjp(formulas, *(inputs[index] for index in given))[1]
        second: list[Tensor | None] = [None] * 6
        for index, grad in zip(given, pull_back(gradients), strict=True):
            second[index] = grad
        return tuple(second)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Gradients, tuple[int, int, int, int]]:
        """Join the mapped dimension with the batch; a shared A has one gradient per mapped call."""
        sizes, flat = _join_all(info.batch_size, in_dims, inputs, (1, 1, 2, 1, 1, 2), share=False)
        grads = [grad.unflatten(0, sizes) for grad in AffineGradients.apply(*flat)]
        if inputs[2].dim() - (in_dims[2] is not None) == 2:
            grads[1] = grads[1].sum(1)
        return (grads[0], grads[1], grads[2], grads[3]), (0, 0, 0, 0)


def _fit(grads: Any, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of the arguments: those ``(B, m)`` of the bounds summed over the batch where a bound is shared."""
    bounds = (
        None if bound is None else grad.sum(0) if bound.dim() == 1 else grad
        for grad, bound in zip(grads[2:], (lower, upper), strict=True)
    )
    return grads[0], grads[1], *bounds, None


def _join_all(
    mapped: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...], cores: tuple[int, ...], share: bool = True
) -> tuple[tuple[int, int], list[Any]]:
    """The mapped size and batch of the first argument, and all arguments with these two dimensions joined."""
    samples = inputs[0].shape[0] if in_dims[0] != 0 else inputs[0].shape[1]
    sizes = (mapped, samples)
    return sizes, [_join(*item, sizes, share) for item in zip(inputs, in_dims, cores, strict=True)]


def _join(tensor: Tensor | None, at: int | None, core: int, sizes: tuple[int, int], share: bool) -> Tensor | None:
    """A tensor with `core` trailing dimensions, its mapped and batch dimension made one; shared ones may stay so."""
    if tensor is None or (at is None and tensor.dim() == core and share):
        return tensor
    tensor = tensor.unsqueeze(0) if at is None else tensor.movedim(at, 0)
    if tensor.dim() == core + 1:  # shared by the batch of each mapped call
        tensor = tensor.unsqueeze(1)
    return tensor.expand(*sizes, *tensor.shape[2:]).flatten(0, 1)
