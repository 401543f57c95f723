"""The derivative of a nearest point on nonlinear rows, by the implicit function theorem.

At ``y - raw + J'dual = 0``, ``g_A(y) = bound_A`` on the active rows A, with ``W = I + sum_i dual_i Hess g_i`` and C the
gradients of the active rows, let ``[W C'; C 0] (p, q) = (cotangent of y, 0)``. Then

    raw receives p,    the bound of active row i receives q_i,
    every number z of g receives  -d/dz [ p . sum_i dual_i grad_y g_i + q . g_A ]  with y, dual, p and q held fixed.

``gradient="projector"`` puts W = I and dual = 0: ``p = (I - C^+ C) cotangent``, the projection onto the tangent space.

Called by `hardnet.functional.nonlinear`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hardnet.modes import may_look
from hardnet.solvers.nonlinear import solve_nonlinear
from hardnet.solvers.nonlinear_kkt import solve_kkt
from hardnet.solvers.nonlinear_measure import FINE, relative_error
from hardnet.solvers.nonlinear_rows import Derivatives, Function, Input, Rows, batched_gradient
from hardnet.solvers.nonlinear_status import NonlinearSolution, NonlinearStatus

ROUNDINGS = 16
"""Roundings of y's dtype, relative to its scale, by which a row may be violated after y was rounded to it."""
TOUCHING = 1e-8
"""Part of a row's scale within which it touches its bound, where no multiplier says so."""


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
        rounding = torch.finfo(self.dtype).eps
        inside = FINE if self.dtype == torch.float64 else 4 * rounding
        found = solve_nonlinear(
            rows,
            raw,
            mode=self.mode,
            tolerance=self.tolerance,
            start=self.start,
            inside=inside,
            iterations=self.iterations,
        )
        if self.box is None and self.dtype == torch.float64:
            return found
        y = found.y.to(self.dtype).double()
        if self.box is not None:
            moved = (found.iterations > 0).unsqueeze(-1)
            y = torch.where(moved, torch.minimum(torch.maximum(y, self.box[0]), self.box[1]), y)
        error, _ = relative_error(rows, rows.evaluate(y), y, raw)
        allowed = max(self.tolerance, ROUNDINGS * rounding)
        lost = ~(error <= allowed) & (found.violation <= self.tolerance)
        status = torch.where(lost, int(NonlinearStatus.NOT_CONVERGED), found.status.long()).to(torch.int8)
        return found._replace(y=y, status=status, violation=error)


class NonlinearProjection(torch.autograd.Function):
    """Y and the rest of the solution, from raw, bounds, A, the tensors of x and those that g holds."""

    @staticmethod
    def forward(
        ctx: Any, problem: Call, raw: Tensor, lower: Tensor, upper: Tensor, A: Tensor, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        """Solve; keep what the derivative needs."""
        numbers = [part.detach() for part in (lower, upper, A)]
        inputs = tuple(leaf.detach() for leaf in leaves[: problem.inputs])
        found = problem.solve(problem.rows(numbers[0], numbers[1], numbers[2], inputs), raw.detach())
        y = found.y.clone() if found.y is raw else found.y
        ctx.problem = problem
        ctx.save_for_backward(raw, lower, upper, A, *leaves, y, found.dual, found.status)
        ctx.mark_non_differentiable(*found[1:])
        return y, *found[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The implicit derivative; where it is differentiated again, that of Newton's method on the KKT system."""
        grad = grads[0]
        raw, lower, upper, A, *leaves, y, dual, status = ctx.saved_tensors
        y = y.detach()  # an output is saved with its own history
        inputs, needed = (raw, lower, upper, A, *leaves), ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *_again(ctx.problem, grad, inputs, needed, y, dual, status)
        return None, *_once(ctx.problem, grad, inputs, needed, y, dual, status)


def _once(
    problem: Call,
    grad: Tensor,
    inputs: tuple[Tensor, ...],
    needed: tuple[bool, ...],
    y: Tensor,
    dual: Tensor,
    status: Tensor,
) -> list[Tensor | None]:
    """The first derivative."""
    raw, lower, upper, A, *leaves = inputs
    rows = problem.rows(lower, upper, A)
    at, dual, active, sound = _working(problem, rows, raw, y, dual, status)
    grad = torch.where(sound & ~grad.isnan(), grad, 0.0)
    look = problem.iterations is None and may_look(grad)
    p, q = solve_kkt(at, active, grad, status == NonlinearStatus.DEGENERATE, look)
    count = problem.count
    below, above = _sides(rows, dual, at.value)
    found: list[Tensor | None] = [p, q * below, q * above, None, *(None for _ in leaves)]
    if needed[3] and A.shape[-2]:
        matrix = -(dual[:, count:, None] * p.unsqueeze(-2) + q[:, count:, None] * y.unsqueeze(-2))
        found[3] = matrix.sum(0) if A.dim() == 2 else matrix
    if any(needed[4:]):
        found[4:] = _of_numbers(problem, leaves, y, dual[:, :count], p, q[:, :count], needed[4:])
    return [part if need else None for part, need in zip(found, needed, strict=True)]


def _working(
    problem: Call, rows: Rows, raw: Tensor, y: Tensor, dual: Tensor, status: Tensor
) -> tuple[Derivatives, Tensor, Tensor, Tensor]:
    """Derivatives at y, the multipliers to use, the active rows ``(B, M)``, and which samples have a derivative."""
    exact = ((status == NonlinearStatus.OK) | (status == NonlinearStatus.DEGENERATE)).unsqueeze(-1)
    exact = exact if problem.gradient == "exact" else torch.zeros_like(exact)
    sound = (exact | (status <= NonlinearStatus.FEASIBLE_ONLY).unsqueeze(-1)) | (
        status == NonlinearStatus.DEGENERATE
    ).unsqueeze(-1)
    point = torch.where(sound, y, 0.0)
    used = torch.where(exact, dual, 0.0)
    at = rows.evaluate(point, (lambda *_: used) if problem.gradient == "exact" else None)
    hessian = None if at.hessian is None else at.hessian.nan_to_num()
    at = Derivatives(at.value.nan_to_num(), at.jacobian.nan_to_num(), hessian)
    scale = rows.scale(at.jacobian, 1 + y.abs().amax(-1, keepdim=True))
    near = torch.minimum((at.value - rows.lower).abs(), (rows.upper - at.value).abs()) <= TOUCHING * scale
    moved = (y != raw).any(-1, keepdim=True)
    active = (rows.equality | torch.where(exact, dual != 0, near & moved)) & sound
    return at, used, active, sound


def _sides(rows: Rows, dual: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Which share of q the lower and the upper bound receive: an equality half each."""
    at_upper = torch.where(dual == 0, rows.upper - value <= value - rows.lower, dual > 0).to(value)
    at_upper = torch.where(rows.equality, 0.5, at_upper)
    return 1 - at_upper, at_upper


def _of_numbers(
    problem: Call,
    leaves: list[Tensor],
    y: Tensor,
    dual: Tensor,
    p: Tensor,
    q: Tensor,
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """``-d/dz [p . sum_i dual_i grad_y g_i + q . g]`` for the tensors z of x and those that g holds."""
    count = problem.inputs
    with torch.enable_grad():
        inputs = tuple(leaf.detach().requires_grad_(need) for leaf, need in zip(leaves[:count], needed, strict=False))
        none = y.new_zeros(len(y), 0)
        rows = problem.rows(none, none, y.new_zeros(0, y.shape[-1]), inputs)
        point = y.detach().requires_grad_()
        value, slope = rows.slope(point, dual)
        total = -(p * slope).sum() - (q * value).sum()
    wanted = [*inputs, *leaves[count:]]
    asked = [leaf for leaf, need in zip(wanted, needed, strict=True) if need]
    if not total.requires_grad or not asked:
        return [None] * len(leaves)
    found = iter(torch.autograd.grad(total, asked, allow_unused=True, retain_graph=True))
    return [next(found) if need else None for need in needed]


def _again(
    problem: Call,
    grad: Tensor,
    inputs: tuple[Tensor, ...],
    needed: tuple[bool, ...],
    y: Tensor,
    dual: Tensor,
    status: Tensor,
) -> list[Tensor | None]:
    """The first derivative as a function that can be differentiated itself.

    A Newton step on the KKT system from the solution, with the system held fixed, has the right first derivative; one
    more step, with everything moving, then has the right second one.
    """
    raw, lower, upper, A, *leaves = inputs
    with torch.no_grad():
        rows = problem.rows(lower, upper, A)
        at, used, active, sound = _working(problem, rows, raw, y, dual, status)
    attached = problem.rows(lower, upper, A, tuple(leaves[: problem.inputs]))
    curved = problem.gradient == "exact"
    side = _sides(rows, used, at.value)
    with torch.enable_grad():
        bound = torch.where(active, side[0] * lower.nan_to_num(0, 0, 0) + side[1] * upper.nan_to_num(0, 0, 0), 0.0)
        with torch.no_grad():
            K = _system(rows, y, used, active, curved)[0]
        point, multiplier = _newton(attached, K, raw, bound, y, used, active, curved)
        K, _ = _system(attached, point, multiplier, active, curved)
        point, _ = _newton(attached, K, raw, bound, point, multiplier, active, curved)
        point = torch.where(sound, point, 0.0)
    asked = [part for part, need in zip(inputs, needed, strict=True) if need]
    clean = torch.where(sound & ~grad.isnan(), grad, 0.0)
    found = iter(torch.autograd.grad(point, asked, clean, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _system(rows: Rows, y: Tensor, dual: Tensor, active: Tensor, curved: bool) -> tuple[Tensor, Tensor]:
    """``[W C'; C 0]`` with ones for the inactive rows, ``(B, n + M, n + M)``, and the Jacobian; differentiable."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        point = y if y.requires_grad else y.detach().requires_grad_()
        value, slope = rows.slope(point, dual[:, : rows.curved])
        J = batched_gradient(value, point, create_graph=again)
        H = batched_gradient(slope, point, create_graph=again) if curved else 0.0
    J = torch.cat([J, rows.A.expand(len(y), *rows.A.shape[-2:])], dim=-2)
    C = torch.where(active.unsqueeze(-1), J, 0.0)
    W = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device) + H
    corner = torch.diag_embed((~active).to(y))
    K = torch.cat([torch.cat([W.expand(len(y), -1, -1), C.mT], -1), torch.cat([C, corner], -1)], -2)
    return K, J


def _newton(
    rows: Rows, K: Tensor, raw: Tensor, bound: Tensor, y: Tensor, dual: Tensor, active: Tensor, curved: bool
) -> tuple[Tensor, Tensor]:
    """One Newton step on the KKT system from (y, dual); with `curved` False the multipliers have no pull on y."""
    with torch.enable_grad():
        point = y if y.requires_grad else y.detach().requires_grad_()
        value, slope = rows.slope(point, dual[:, : rows.curved])
    affine = rows.A.expand(len(y), *rows.A.shape[-2:])
    value = torch.cat([value, (affine @ y.unsqueeze(-1)).squeeze(-1)], dim=-1)
    slope = slope + (affine.mT @ dual[:, rows.curved :].unsqueeze(-1)).squeeze(-1)
    off = raw - raw.detach() if not curved else None
    first = y - raw + slope if off is None else -off
    second = torch.where(active, value - bound, 0.0)
    second = second - second.detach()  # the solution counts as exact: only derivatives are wanted
    first = first - first.detach()
    step = torch.linalg.solve_ex(K, torch.cat([first, second], -1).unsqueeze(-1)).result.squeeze(-1)
    n = y.shape[-1]
    return y - step[:, :n], dual - torch.where(active, step[:, n:], 0.0)


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
