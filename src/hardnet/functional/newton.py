"""Completion of smooth equalities by Newton's method, with the derivative of the implicit function theorem.

``h(y, x) = 0`` is solved for the completed coordinates y_O given the predicted y_P; then
``dy_O / dy_P = -(dh/dy_O)^-1 dh/dy_P``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.functional.completion import Partition, matvec
from hardnet.functional.samples import look_is_free

Function = Callable[[Tensor, Any], Tensor]


class Completed(NamedTuple):
    """y ``(*batch, n)`` with the gradient of the implicit function, and which samples reached the tolerance."""

    y: Tensor
    converged: Tensor


def jacobian(function: Function, y: Tensor, x: Any) -> Tensor:
    """``d function / d y``, ``(*batch, rows, n)``, sample by sample; differentiable itself."""
    return _per_sample(torch.func.jacrev(function), y, x)


def gradient(function: Function, y: Tensor, x: Any) -> Tensor:
    """The gradient of a scalar function of one sample, ``(*batch, n)``; differentiable itself."""
    return _per_sample(torch.func.grad(function), y, x)


def join(predicted: Tensor, completed: Tensor, partition: Partition) -> Tensor:
    """The coordinates in their own order."""
    order = torch.cat([partition.predicted, partition.completed]).argsort()
    return torch.cat([predicted, completed], dim=-1).index_select(-1, order)


def complete_smooth(
    z: Tensor, x: Any, equality: Function, partition: Partition, start: Tensor, tolerance: float, iterations: int
) -> Completed:
    """Newton on the completed coordinates from `start` ``(*batch, e)``; each sample stops by itself.

    A last Newton step, taken with gradients and a fixed Jacobian, carries the derivative of the implicit function to z
    and x.
    """
    with torch.no_grad():
        completed = start
        for _ in range(iterations):
            y = join(z, completed, partition)
            residual = equality(y, x)
            active = residual.abs().amax(dim=-1, keepdim=True) > tolerance
            if look_is_free(active) and not bool(active.any()):
                break
            step = _solve(jacobian(equality, y, x).index_select(-1, partition.completed), residual)
            completed = torch.where(active, completed - step, completed)
        y = join(z, completed, partition)
        converged = equality(y, x).abs().amax(dim=-1) <= tolerance
        J = jacobian(equality, y, x).index_select(-1, partition.completed)
    implicit = completed - _solve(J, equality(join(z, completed, partition), x))
    return Completed(join(z, implicit, partition), converged)


def reduce_gradient(full: Tensor, J: Tensor, partition: Partition) -> Tensor:
    """The gradient along the equalities, ``g_P - J_P' J_O^-T g_O``, in the predicted coordinates."""
    own = full.index_select(-1, partition.completed)
    multiplier = _solve(J.index_select(-1, partition.completed).mT, own)
    return full.index_select(-1, partition.predicted) - matvec(J.index_select(-1, partition.predicted).mT, multiplier)


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` without a look at singular samples, whose answer is not finite."""
    return torch.linalg.solve_ex(matrix, right.unsqueeze(-1)).result.squeeze(-1)


def _per_sample(function: Callable[..., Tensor], y: Tensor, x: Any) -> Tensor:
    """Map a function of one sample over the batch dimensions of y, and of x where x is a tensor."""
    batch = y.shape[:-1]
    if not batch:
        return function(y, x)
    mapped = isinstance(x, Tensor)
    flat = x.expand(*batch, x.shape[-1]).reshape(batch.numel(), -1) if mapped else x
    result = torch.func.vmap(function, in_dims=(0, 0 if mapped else None))(y.reshape(batch.numel(), -1), flat)
    return result.reshape(*batch, *result.shape[1:])
