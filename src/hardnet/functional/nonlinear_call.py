"""One call of nonlinear rows: the user's arguments in the form the solver takes, and its solution.

`call` evaluates a user's function. `Call` holds the function, its input and the options of the solver; bounds and rows
are converted to those of a flat batch in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.errors import DTypeError, ShapeError, UnsupportedSetError, sentence
from hardnet.solvers.nonlinear.derivatives import Function, require_differentiable
from hardnet.solvers.nonlinear.derivatives import jacobian as differentiate
from hardnet.solvers.nonlinear.input import Input
from hardnet.solvers.nonlinear.measure import FINE, relative_error
from hardnet.solvers.nonlinear.rows import Rows
from hardnet.solvers.nonlinear.solve import solve_nonlinear
from hardnet.solvers.nonlinear.status import NonlinearSolution, NonlinearStatus
from hardnet.structure import BoxedRows

ROUNDINGS = 16
"""Roundings of y's dtype, relative to a row's scale, by which the row may be violated after y is rounded to it."""


@dataclass(frozen=True)
class Call:
    """One call: the function, its input, and the options of the solver.

    Attributes:
        function: g.
        derivative: Its Jacobian, or None.
        x: The input.
        count: m.
        mode: ``"nearest"`` or ``"retract"``.
        gradient: ``"exact"`` or ``"projector"``.
        tolerance: The allowed relative violation.
        start: ``(B, n)`` or None.
        dtype: The dtype of raw, to which y is rounded.
        box: The bounds of the coordinates, ``(B, n)`` each, which hold exactly; or None.
        iterations: Passes of a fixed program, or None to stop when all samples have ended.
        tight: Whether all rows are known to be equalities.
    """

    function: Function
    derivative: Function | None
    x: Input
    count: int
    mode: Any
    gradient: str
    tolerance: float
    start: Tensor | None
    dtype: torch.dtype
    box: tuple[Tensor, Tensor] | None
    iterations: int | None = None
    tight: bool = False

    def rows(self, lower: Tensor, upper: Tensor, A: Tensor, inputs: tuple[Tensor, ...] | None = None) -> Rows:
        """The rows; `inputs` replace the floating-point tensors of x."""
        x = self.x if inputs is None else self.x.replaced(inputs)
        return Rows(self.function, self.derivative, x, self.count, A, lower, upper, tight=self.tight)

    @property
    def inputs(self) -> int:
        """How many floating-point tensors x has."""
        return len(self.x.numbers)

    def solve(self, rows: Rows, raw: Tensor) -> NonlinearSolution:
        """The solution, rounded to the dtype of raw and clamped to the box, then checked again."""
        inside = FINE if self.dtype == torch.float64 else 4 * torch.finfo(self.dtype).eps
        common = {"mode": self.mode, "tolerance": self.tolerance, "start": self.start}
        found = solve_nonlinear(rows, raw, inside=inside, iterations=self.iterations, **common)
        return found if self.box is None and self.dtype == torch.float64 else self._rounded(rows, raw, found)

    def _rounded(self, rows: Rows, raw: Tensor, found: NonlinearSolution) -> NonlinearSolution:
        """The solution in the dtype of raw and in the box; its status changes where the rows no longer hold."""
        y = found.y.to(self.dtype).double()
        if self.box is not None:
            moved = (found.iterations > 0).unsqueeze(-1)
            y = torch.where(moved, torch.minimum(torch.maximum(y, self.box[0]), self.box[1]), y)
        error, _ = relative_error(rows, rows.evaluate(y), y, raw)
        allowed = max(self.tolerance, ROUNDINGS * torch.finfo(self.dtype).eps)
        lost = ~(error <= allowed) & (found.violation <= self.tolerance)
        status = torch.where(lost, int(NonlinearStatus.NOT_CONVERGED), found.status.long()).to(torch.int8)
        return found._replace(y=y, status=status, violation=error)


class Saved(NamedTuple):
    """What a call saves for its derivative: raw, bounds, A and the leaves, as given, and the solution."""

    inputs: tuple[Tensor, ...]
    y: Tensor
    dual: Tensor
    status: Tensor


def _held_by(values: list[Tensor]) -> list[Tensor]:
    """The leaf tensors that require a gradient in the autograd graphs of these values."""
    found: dict[int, Tensor] = {}
    pending: list[Any] = [value.grad_fn for value in values if value.grad_fn is not None]
    found.update({id(value): value for value in values if value.requires_grad and value.grad_fn is None})
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        pending.extend(following for following, _ in node.next_functions)
    return list(found.values())


def call(function: Callable[..., Any] | nn.Module, y: Tensor, x: Any) -> Any:
    """``function(y, x)``, with the parameters and buffers of a module converted to the dtype of y."""
    if isinstance(function, nn.Module):
        own = [*function.named_parameters(), *function.named_buffers()]
        moved = {name: value.to(y.dtype) for name, value in own if value.is_floating_point() and value.dtype != y.dtype}
        if moved:
            return torch.func.functional_call(function, moved, (y, x))
    try:
        return function(y, x)
    except RuntimeError as error:
        if "graph capture" in str(error):
            remedy = "make its constants tensors on the device before, as buffers of a module or in its closure"
            raise UnsupportedSetError(sentence("g", "a function that a CUDA graph can record", error, remedy)) from None
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


def probe(g: Function, jacobian: Function | None, point: Tensor, given: Input) -> tuple[int, list[Tensor]]:
    """The number of rows of g, which must be differentiable, and the tensors in g that require a gradient."""
    if point.shape[0] == 0:
        with torch.no_grad():
            return given.call(g, point).shape[-1], []
    x = given.replaced(tuple(leaf.detach() for leaf in given.numbers))
    at = torch.where(point.isfinite(), point.detach(), 0.0).requires_grad_()
    values = [require_differentiable(g, at, x)]
    if not torch.is_grad_enabled():
        return values[0].shape[-1], []
    if jacobian is not None:
        values.append(x.call(jacobian, at))
    return values[0].shape[-1], [held for held in _held_by(values) if held is not at]


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
        value = raw.new_full((), value, dtype=torch.float64)  # a CUDA graph can capture a fill
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
    """Whether all rows are known to be equalities without reading tensors."""
    if rows is not None or lower is None:
        return False
    return lower is upper or (not isinstance(lower, Tensor) and not isinstance(upper, Tensor) and lower == upper)
