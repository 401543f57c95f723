"""The nearest point for few rows by kernels, as a differentiable operation.

One pass each way. What differentiates or maps a gradient goes through the formulas of `nearest_plain`, which have
derivatives of any order.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hardnet.functional import nearest_plain
from hardnet.functional.nearest_plain import Nearest
from hardnet.kernels.cpu import nearest_launch as cpu
from hardnet.modes import plain, transformed


def nearest(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, tangent: bool, backend: ModuleType = cpu
) -> Nearest:
    """The same as `nearest_plain.nearest`, for arguments that the backend takes.

    Args:
        raw: ``(B, n)``.
        A: ``(B, m, n)`` or ``(m, n)``.
        lower: ``(B, m)`` or ``(m,)`` or None.
        upper: Like `lower`.
        tangent: Whether raw gets back what would pull it inside.
        backend: A module with `forward` and `backward`.
    """
    if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (raw, A, lower, upper)):
        y, dual, status, residual = CompiledNearest.apply(raw, A, lower, upper, tangent, backend)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        y, dual, status, residual = backend.forward(raw, A, lower, upper)
    return Nearest(y, dual, status.squeeze(-1).to(torch.int8), residual.squeeze(-1))


class CompiledNearest(torch.autograd.Function):
    """y, and without derivative dual, status and residual; keeps them beside the inputs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """One pass."""
        raw, A, lower, upper, ctx.tangent, ctx.backend = inputs
        y, dual, status, residual = ctx.backend.forward(raw, A, lower, upper)
        ctx.save_for_backward(raw, A, lower, upper, y, dual, status)
        ctx.mark_non_differentiable(dual, status, residual)
        ctx.set_materialize_grads(False)
        return y, dual, status, residual

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper, which may themselves be differentiated or mapped."""
        raw, A, lower, upper, *found = ctx.saved_tensors
        gradient, needs = gradients[0], ctx.needs_input_grad
        if gradient is None:
            return (None,) * 6
        if torch.is_grad_enabled() or transformed() or not plain(gradient):
            return *_through_formulas(gradient, (raw, A, lower, upper), needs, ctx.tangent), None, None
        grads = ctx.backend.backward(gradient, raw, A, lower, upper, tuple(found), needs[1], ctx.tangent)
        bounds = (
            grad.sum(0) if needed and bound.dim() == 1 else grad if needed else None
            for grad, bound, needed in zip(grads[2:], (lower, upper), needs[2:4], strict=True)
        )
        return grads[0], grads[1], *bounds, None, None


def _through_formulas(
    gradient: Tensor, inputs: tuple[Tensor | None, ...], needs: tuple[bool, ...], tangent: bool
) -> tuple[Tensor | None, ...]:
    """The gradients by differentiating the plain formulas, with a graph of their own if one is asked for."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        parts = [
            part if again or part is None else part.detach().requires_grad_(needed)
            for part, needed in zip(inputs, needs, strict=False)
        ]
        raw, A, lower, upper = parts
        y = nearest_plain.nearest(raw, A, lower, upper, tangent).y  # pyright: ignore[reportArgumentType]
        wanted = [part for part, needed in zip(parts, needs, strict=False) if part is not None and needed]
        found = iter(torch.autograd.grad(y, wanted, gradient, create_graph=again))  # pyright: ignore[reportArgumentType]
    return tuple(
        next(found) if part is not None and needed else None for part, needed in zip(parts, needs, strict=False)
    )
