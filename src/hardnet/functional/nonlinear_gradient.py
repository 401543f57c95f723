"""The derivative of a nearest point on nonlinear rows, by the implicit function theorem.

At ``y - raw + J'dual = 0``, ``g_A(y) = bound_A`` on the active rows A, with ``W = I + sum_i dual_i Hess g_i`` and C the
gradients of the active rows, let ``[W C'; C 0] (p, q) = (cotangent of y, 0)``. Then

    raw receives p,    the bound of active row i receives q_i,
    every number z of g receives  -d/dz [ p . sum_i dual_i grad_y g_i + q . g_A ]  with y, dual, p and q held fixed.

``gradient="projector"`` puts W = I and dual = 0: ``p = (I - C^+ C) cotangent``, the projection onto the tangent space.

Called by `hardnet.functional.nonlinear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.functional.nonlinear_active import sides, working
from hardnet.functional.nonlinear_again import differentiable
from hardnet.functional.nonlinear_call import Call, Saved
from hardnet.modes import may_look
from hardnet.solvers.nonlinear_kkt import solve_kkt
from hardnet.solvers.nonlinear_status import NonlinearStatus


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
        *inputs, y, dual, status = ctx.saved_tensors
        saved = Saved(tuple(inputs), y.detach(), dual, status)  # an output is saved with its own history
        derivative = differentiable if torch.is_grad_enabled() else _once
        return None, *derivative(ctx.problem, grad, saved, ctx.needs_input_grad[1:])


def _once(problem: Call, grad: Tensor, saved: Saved, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """The first derivative."""
    (raw, lower, upper, A, *leaves), y, dual, status = saved
    rows = problem.rows(lower, upper, A)
    at, dual, active, sound = working(problem, rows, raw, y, dual, status)
    grad = torch.where(sound & ~grad.isnan(), grad, 0.0)
    look = problem.iterations is None and may_look(grad)
    p, q = solve_kkt(at, active, grad, status == NonlinearStatus.DEGENERATE, look)
    count = problem.count
    below, above = sides(rows, dual, at.value)
    found: list[Tensor | None] = [p, q * below, q * above, None, *(None for _ in leaves)]
    if needed[3] and A.shape[-2]:
        matrix = -(dual[:, count:, None] * p.unsqueeze(-2) + q[:, count:, None] * y.unsqueeze(-2))
        found[3] = matrix.sum(0) if A.dim() == 2 else matrix
    if any(needed[4:]):
        found[4:] = _of_numbers(problem, leaves, y, dual[:, :count], p, q[:, :count], needed[4:])
    return [part if need else None for part, need in zip(found, needed, strict=True)]


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
