"""One call of the nonlinear layer as a record: the function, its input, how its rows are to be met; and its solution.

Called by `hardnet.functional.nonlinear` and by the derivative, `hardnet.functional.nonlinear_gradient`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear import solve_nonlinear
from hardnet.solvers.nonlinear_derivatives import Function
from hardnet.solvers.nonlinear_input import Input
from hardnet.solvers.nonlinear_measure import FINE, relative_error
from hardnet.solvers.nonlinear_rows import Rows
from hardnet.solvers.nonlinear_status import NonlinearSolution, NonlinearStatus

ROUNDINGS = 16
"""Roundings of y's dtype, relative to its scale, by which a row may be violated after y was rounded to it."""


@dataclass(frozen=True)
class Call:
    """One call: the function, its input, and how its rows are to be met.

    Attributes:
        function: g.
        derivative: Its Jacobian, or None.
        x: The input.
        count: m.
        mode: ``"nearest"`` or ``"retract"``.
        gradient: ``"exact"`` or ``"projector"``.
        tolerance: The relative violation that is allowed.
        start: ``(B, n)`` or None.
        dtype: That of raw, which y is rounded to.
        box: The bounds of the coordinates, ``(B, n)`` each, which hold exactly; or None.
        iterations: Passes of a fixed program, or None to stop where all samples have ended.
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
        """The rows; `inputs` take the place of the real tensors of x."""
        x = self.x
        if inputs is not None:
            found = iter(inputs)
            x = x._replace(leaves=tuple(next(found) if _real(leaf) else leaf for leaf in x.leaves))
        return Rows(self.function, self.derivative, x, self.count, A, lower, upper, tight=self.tight)

    def leaves(self, point: Tensor) -> list[Tensor]:
        """The real tensors of x, and then every tensor that g holds and that asks for a gradient."""
        own = [leaf for leaf in self.x.leaves if _real(leaf)]
        if not torch.is_grad_enabled() or len(point) == 0:
            return own
        first = torch.zeros(1, dtype=torch.long, device=point.device)
        x = self.x._replace(leaves=tuple(leaf.detach() if _real(leaf) else leaf for leaf in self.x.leaves))
        values = [self.function(point[:1].detach(), x.take(first).value())]
        if self.derivative is not None:
            values.append(self.derivative(point[:1].detach(), x.take(first).value()))
        return own + _held_by(values)

    @property
    def inputs(self) -> int:
        """How many of the leaves are tensors of x."""
        return sum(_real(leaf) for leaf in self.x.leaves)

    def solve(self, rows: Rows, raw: Tensor) -> NonlinearSolution:
        """The solution, clamped to the box and rounded to the dtype of raw, then judged again."""
        inside = FINE if self.dtype == torch.float64 else 4 * torch.finfo(self.dtype).eps
        common = {"mode": self.mode, "tolerance": self.tolerance, "start": self.start}
        found = solve_nonlinear(rows, raw, inside=inside, iterations=self.iterations, **common)
        return found if self.box is None and self.dtype == torch.float64 else self._rounded(rows, raw, found)

    def _rounded(self, rows: Rows, raw: Tensor, found: NonlinearSolution) -> NonlinearSolution:
        """The solution in the dtype of raw and in the box, which may cost it its status."""
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
    """What a call leaves to its derivative: raw, bounds, A and the leaves, as they were given, and the solution."""

    inputs: tuple[Tensor, ...]
    y: Tensor
    dual: Tensor
    status: Tensor


def _real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _held_by(values: list[Tensor]) -> list[Tensor]:
    """The leaf tensors with a gradient that the graphs of these values lead back to."""
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
