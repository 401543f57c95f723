"""What a user gives to nonlinear rows, as the solver takes it: functions in float64, bounds and rows of a flat batch.

Called by `hardnet.functional.nonlinear`; `call` and `jacobian_of` by `hardnet.sets.nonlinear`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.errors import DTypeError, ShapeError, sentence
from hardnet.rows import BoxedRows
from hardnet.solvers.nonlinear_derivatives import Function, require_differentiable
from hardnet.solvers.nonlinear_derivatives import jacobian as differentiate
from hardnet.solvers.nonlinear_input import Input


def call(function: Callable[..., Any] | nn.Module, y: Tensor, x: Any) -> Any:
    """``function(y, x)``, with the parameters and buffers of a module in the dtype of y."""
    if isinstance(function, nn.Module):
        own = [*function.named_parameters(), *function.named_buffers()]
        moved = {name: value.to(y.dtype) for name, value in own if value.is_floating_point() and value.dtype != y.dtype}
        if moved:
            return torch.func.functional_call(function, moved, (y, x))
    try:
        return function(y, x)
    except RuntimeError as error:
        if "dtype" not in str(error):
            raise
        remedy = "write its tensors as A.to(y), or make it a module, whose parameters follow by themselves"
        raise DTypeError(sentence("g", f"a function that follows the dtype of y, {y.dtype}", error, remedy)) from None


def jacobian_of(function: Function, derivative: Function | None, y: Tensor, x: Any) -> Tensor:
    """``d function / d y``, ``(*batch, m, n)``, for samples that do not depend on each other; without a graph."""
    if derivative is not None:
        with torch.no_grad():
            return derivative(y, x)
    return differentiate(function, y, x)


def count(g: Function, point: Tensor, given: Input) -> int:
    """The number of rows of g, which must be differentiable."""
    if point.shape[0] == 0:
        with torch.no_grad():
            return g(point, given.value()).shape[-1]
    first = torch.zeros(1, dtype=torch.long, device=point.device)
    return require_differentiable(g, torch.zeros_like(point[:1]), given.take(first).value())


def dense(rows: BoxedRows | None, raw: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Affine rows and box as one matrix ``(k, n)`` or ``(B, k, n)`` in float64, and its bounds."""
    if rows is None:
        return raw.new_zeros(0, raw.shape[-1], dtype=torch.float64), None, None
    A, lower, upper = rows.dense()
    A = A.double()
    shared = prod(A.shape[:-2]) == 1
    A = A.reshape(A.shape[-2:]) if shared else A.expand(*raw.shape[:-1], *A.shape[-2:]).flatten(0, -3)
    return A, None if lower is None else _spread(lower, raw), None if upper is None else _spread(upper, raw)


def _spread(bound: Tensor, raw: Tensor) -> Tensor:
    """A bound ``(k,)`` or ``(*batch, k)`` as ``(B, k)`` float64."""
    return bound.double().expand(*raw.shape[:-1], bound.shape[-1]).reshape(prod(raw.shape[:-1]), bound.shape[-1])


def flat_box(box: tuple[Tensor | None, Tensor | None] | None, raw: Tensor) -> tuple[Tensor, Tensor] | None:
    """The bounds of the coordinates, ``(B, n)`` each, infinite where absent."""
    if box is None:
        return None
    ends = [
        raw.new_full((raw.shape[-1],), absent) if bound is None else bound.detach()
        for bound, absent in zip(box, (-torch.inf, torch.inf), strict=True)
    ]
    return _spread(ends[0], raw), _spread(ends[1], raw)


def bound(name: str, bound: Tensor | float | None, m: int, raw: Tensor, absent: float) -> Tensor:
    """A bound of the rows of g as ``(B, m)`` float64."""
    value = absent if bound is None else bound
    if not isinstance(value, Tensor):
        value = raw.new_full((), value, dtype=torch.float64)  # a fill, which a CUDA graph can capture
    value = value.to(device=raw.device, dtype=torch.float64)
    if value.dim() and value.shape[-1] != m:
        raise ShapeError(sentence(name, f"shape ({m},) or (*batch, {m}), one entry per row of g", tuple(value.shape)))
    return value.expand(*raw.shape[:-1], m).reshape(prod(raw.shape[:-1]), m)


def join(own: Tensor, other: Tensor | None, point: Tensor, absent: float, k: int) -> Tensor:
    """The bounds of the rows of g and of the affine rows, ``(B, m + k)``."""
    if k == 0:
        return own
    return torch.cat([own, point.new_full((point.shape[0], k), absent) if other is None else other], dim=-1)


def known_tight(lower: Any, upper: Any, rows: BoxedRows | None) -> bool:
    """Whether all rows are seen to be equalities without a look at tensors."""
    if rows is not None or lower is None:
        return False
    return lower is upper or (not isinstance(lower, Tensor) and not isinstance(upper, Tensor) and lower == upper)
