"""The gradients of the closed form as an operation that can itself be differentiated and mapped.

Where a gradient must be differentiated once more or mapped it is `AffineGradients`, whose own derivative is that of the
formulas in `affine_plain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hardnet.functional import affine_plain
from hardnet.functional.affine_core import choose
from hardnet.functional.transforms import full_precision, transformed
from hardnet.kernels.arguments import plain

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


class AffineGradients(torch.autograd.Function):
    """The gradients of raw, A ``(B, m, n)`` or ``(m, n)``, lower and upper ``(B, m)`` from that of y."""

    @staticmethod
    def forward(
        gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
    ) -> Gradients:
        """Both passes of the path."""
        path = choose(A, factor)
        grads = path.backward(gradient, raw, A, path.forward(raw, A, lower, upper)[1], True)
        return grads[0], torch.as_tensor(grads[1]), grads[2], grads[3]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: Gradients) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    @full_precision
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
        sizes, flat = join_all(info.batch_size, in_dims, inputs, (1, 1, 2, 1, 1, 2), share=False)
        grads = [grad.unflatten(0, sizes) for grad in AffineGradients.apply(*flat)]
        if inputs[2].dim() - (in_dims[2] is not None) == 2:
            grads[1] = grads[1].sum(1)
        return (grads[0], grads[1], grads[2], grads[3]), (0, 0, 0, 0)


def fit(grads: Any, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of the arguments: those ``(B, m)`` of the bounds summed over the batch where a bound is shared."""
    bounds = (
        None if bound is None else grad.sum(0) if bound.dim() == 1 else grad
        for grad, bound in zip(grads[2:], (lower, upper), strict=True)
    )
    return grads[0], grads[1], *bounds


def pull_back(
    compute: Callable[[Tensor], Any],
    gradient: Tensor,
    inputs: Sequence[Any],
    factor: Tensor | None,
    needs: Sequence[bool],
    traceable: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of raw, A, lower and upper: computed, unless they are themselves differentiated or mapped.

    Batched gradients are no memory to read, and take the plain formulas; so does a compiler, unless the computation is
    `traceable`. A bound that needs no gradient gets none: where the batch shares it, that would be a sum.
    """
    if torch.is_grad_enabled() or transformed():
        grads = AffineGradients.apply(gradient, *inputs, factor)
    elif plain(gradient) or (traceable and torch.compiler.is_compiling()):
        grads = compute(gradient)
    else:
        grads = affine_plain.gradients(gradient, *inputs)
    return fit(grads, *(bound if needed else None for bound, needed in zip(inputs[2:], needs[2:4], strict=True)))


def join_all(
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
