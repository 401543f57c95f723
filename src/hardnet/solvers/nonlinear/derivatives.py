"""Derivatives, by autograd, of functions ``(y, x) -> values`` whose samples do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import DTypeError, sentence
from hardnet.modes import mode
from hardnet.solvers.nonlinear.input import Input

Function = Callable[[Tensor, Any], Tensor]
"""``(y, x) -> values``: y ``(*batch, n)``, values ``(*batch, m)``."""


def gradient(scalar: Tensor, point: Tensor, *, create_graph: bool = False) -> Tensor:
    """The gradient of a sum over samples; zeros if the sum does not depend on the point."""
    if not scalar.requires_grad:
        return torch.zeros_like(point)
    found = torch.autograd.grad(scalar, point, allow_unused=True, retain_graph=True, create_graph=create_graph)[0]
    return torch.zeros_like(point) if found is None else found


def batched_gradient(values: Tensor, point: Tensor, *, create_graph: bool = False) -> Tensor:
    """``d values / d point``, ``(b, m, n)``, of values ``(b, m)`` whose samples do not depend on each other."""
    b, m = values.shape
    if not values.requires_grad or m == 0:
        return point.new_zeros(b, m, point.shape[-1])
    if m == 1:
        return gradient(values.sum(), point, create_graph=create_graph).unsqueeze(1)
    if mode() == "export":  # batched backward passes use vmap, which does not accept symbolic sizes
        each = [gradient(values[:, row].sum(), point, create_graph=create_graph) for row in range(m)]
        return torch.stack(each, dim=1)
    unit = torch.eye(m, dtype=values.dtype, device=values.device).unsqueeze(1).expand(m, b, m)
    found = torch.autograd.grad(
        values, point, unit, allow_unused=True, is_grads_batched=True, retain_graph=True, create_graph=create_graph
    )[0]
    return point.new_zeros(b, m, point.shape[-1]) if found is None else found.transpose(0, 1)


def jacobian(function: Function, y: Tensor, x: Any) -> Tensor:
    """``d function / d y``, ``(*batch, m, n)``, without a graph; y keeps its batch dimensions and its dtype."""
    with torch.enable_grad():
        point = y.detach().requires_grad_()
        values = function(point, x)
        flat = values.reshape(-1, values.shape[-1])
        unit = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
        unit = unit.unsqueeze(1).expand(-1, len(flat), -1).reshape(len(unit), *values.shape)
        if not values.requires_grad:
            return y.new_zeros(*values.shape, y.shape[-1])
        found = torch.autograd.grad(values, point, unit, allow_unused=True, is_grads_batched=True)[0]
    return y.new_zeros(*values.shape, y.shape[-1]) if found is None else found.movedim(0, -2)


def require_differentiable(function: Function, y: Tensor, x: Input) -> Tensor:
    """The values of g at y, which requires a gradient; a g that is not differentiable in y is refused."""
    with torch.enable_grad():
        value = x.call(function, y)
    if not isinstance(value, Tensor) or not (value.requires_grad or value.shape[-1] == 0):
        got = "values without a derivative" if isinstance(value, Tensor) else type(value).__name__
        raise DTypeError(sentence("g", "a function of torch operations that can be differentiated", got))
    return value
