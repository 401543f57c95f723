"""The derivative of a nearest point on nonlinear rows, by the implicit function theorem.

At ``y - raw + J'dual = 0``, ``g_A(y) = bound_A`` on the active rows A, with ``W = I + sum_i dual_i Hess g_i`` and C the
gradients of the active rows, let ``[W C'; C 0] (p, q) = (cotangent of y, 0)``. Then

    raw receives p,    the bound of active row i receives q_i,
    every number z of g receives  -d/dz [ p . sum_i dual_i grad_y g_i + q . g_A ]  with y, dual, p and q held fixed.

``gradient="projector"`` sets W = I and dual = 0: ``p = (I - C^+ C) cotangent``, the projection onto the tangent space.

Where the backward pass is itself differentiated, the derivative is that of two Newton steps on the KKT system
(`differentiable`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.functional.derivatives import last_derivative
from hardnet.functional.nonlinear_call import Call, Saved
from hardnet.modes import may_look
from hardnet.products import times_each
from hardnet.solvers.nonlinear.derivatives import batched_gradient
from hardnet.solvers.nonlinear.kkt import solve_kkt
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.status import NonlinearStatus

TOUCHING = 1e-8
"""Part of a row's scale within which it counts as active, where there is no multiplier to tell."""


class NonlinearProjection(torch.autograd.Function):
    """Y and the rest of the solution, from raw, bounds, A, the tensors of x and those in g."""

    @staticmethod
    def forward(
        ctx: Any, problem: Call, raw: Tensor, lower: Tensor, upper: Tensor, A: Tensor, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        """Solve, and save what the derivative needs."""
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
        """The implicit derivative; if it is differentiated again, the derivative of Newton steps on the KKT system."""
        grad = grads[0]
        *inputs, y, dual, status = ctx.saved_tensors
        saved = Saved(tuple(inputs), y.detach(), dual, status)  # a saved output comes with its autograd graph
        if torch.is_grad_enabled() and ctx.problem.gradient == "exact":
            return None, *differentiable(ctx.problem, grad, saved, ctx.needs_input_grad[1:])
        with torch.no_grad():
            found = _once(ctx.problem, grad, saved, ctx.needs_input_grad[1:])
        return None, *last_derivative("gradient='projector', which is no derivative", found, [grad, *inputs])


def _once(problem: Call, grad: Tensor, saved: Saved, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """The first derivative."""
    (raw, lower, upper, A, *leaves), y, dual, status = saved
    rows = problem.rows(lower, upper, A)
    at, dual, active, sound = working(problem, rows, raw, y, dual, status)
    grad, y = torch.where(sound & ~grad.isnan(), grad, 0.0), stand_in(y, sound)
    look = problem.iterations is None and may_look(grad)
    p, q = solve_kkt(at, active, grad, status == NonlinearStatus.DEGENERATE, look)
    count = problem.count
    below, above = sides(rows, dual, at.value)
    found: list[Tensor | None] = [p, q * below, q * above, None, *(None for _ in leaves)]
    if needed[3] and A.shape[-2]:
        matrix = -(dual[:, count:, None] * p.unsqueeze(-2) + q[:, count:, None] * y.unsqueeze(-2))
        found[3] = matrix.sum(0) if A.dim() == 2 else matrix
    if any(needed[4:]):
        at_y = _Held(y, dual[:, :count], p, q[:, :count], sound.squeeze(-1))
        found[4:] = _of_numbers(problem, leaves, at_y, needed[4:])
    return [part if need else None for part, need in zip(found, needed, strict=True)]


class _Held(NamedTuple):
    """What is held fixed while numbers move: y ``(B, n)``, the multipliers of g, p, q, and which samples are sound."""

    y: Tensor
    dual: Tensor
    p: Tensor
    q: Tensor
    sound: Tensor


def _of_numbers(problem: Call, leaves: list[Tensor], at: _Held, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """``-d/dz [p . sum_i dual_i grad_y g_i + q . g]`` for the tensors z of x and those in g."""
    count, (y, dual, p, q, sound) = problem.inputs, at
    chosen = None if not may_look(y) or bool(sound.all()) else sound.nonzero().squeeze(-1)
    with torch.enable_grad():
        inputs = tuple(leaf.detach().requires_grad_(need) for leaf, need in zip(leaves[:count], needed, strict=False))
        none = y.new_zeros(len(y), 0)
        rows = problem.rows(none, none, y.new_zeros(0, y.shape[-1]), inputs)
        if chosen is not None:  # g at bad samples may not be finite
            rows, y, dual, p, q = rows.take(chosen), y[chosen], dual[chosen], p[chosen], q[chosen]
        point = y.detach().requires_grad_()
        value, slope = rows.slope(point, dual)
        total = -(p * slope).sum() - (q * value).sum()
    wanted = [*inputs, *leaves[count:]]
    asked = [leaf for leaf, need in zip(wanted, needed, strict=True) if need]
    if not total.requires_grad or not asked:
        return [None] * len(leaves)
    found = iter(torch.autograd.grad(total, asked, allow_unused=True, retain_graph=True))
    return [next(found) if need else None for need in needed]


def stand_in(y: Tensor, sound: Tensor) -> Tensor:
    """Y with that of the first sound sample in place of those of samples ``(B, 1)`` that are not; zeros without any."""
    first = sound.long().argmax(0, keepdim=True).expand(1, y.shape[-1])
    instead = torch.where(sound.any(), y.gather(0, first), 0.0) if len(y) else y[:0].sum(0)
    return torch.where(sound, y, instead)


def working(
    problem: Call, rows: Rows, raw: Tensor, y: Tensor, dual: Tensor, status: Tensor
) -> tuple[Derivatives, Tensor, Tensor, Tensor]:
    """Derivatives at y, the multipliers to use, the active rows ``(B, M)``, and which samples have a derivative."""
    exact = ((status == NonlinearStatus.OK) | (status == NonlinearStatus.DEGENERATE)).unsqueeze(-1)
    exact = exact if problem.gradient == "exact" else torch.zeros_like(exact)
    sound = (exact | (status <= NonlinearStatus.FEASIBLE_ONLY).unsqueeze(-1)) | (
        status == NonlinearStatus.DEGENERATE
    ).unsqueeze(-1)
    point = stand_in(y, sound)
    used = torch.where(exact, dual, 0.0)
    at = rows.evaluate(point, (lambda *_: used) if problem.gradient == "exact" else None)
    hessian = None if at.hessian is None else at.hessian.nan_to_num()
    at = Derivatives(at.value.nan_to_num(), at.jacobian.nan_to_num(), hessian)
    scale = rows.scale(at.jacobian, 1 + y.abs().amax(-1, keepdim=True))
    near = torch.minimum((at.value - rows.lower).abs(), (rows.upper - at.value).abs()) <= TOUCHING * scale
    moved = (y != raw).any(-1, keepdim=True)
    active = (rows.equality | torch.where(exact, dual != 0, near & moved)) & sound
    return at, used, active, sound


def sides(rows: Rows, dual: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of q that the lower and the upper bound receive; for an equality half each."""
    at_upper = torch.where(dual == 0, rows.upper - value <= value - rows.lower, dual > 0).to(value)
    at_upper = torch.where(rows.equality, 0.5, at_upper)
    return 1 - at_upper, at_upper


def differentiable(problem: Call, grad: Tensor, saved: Saved, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """The first derivative as a function that can itself be differentiated.

    A Newton step on the KKT system from the solution, with the matrix held fixed, has the correct first derivative; one
    more step, with the matrix differentiated too, then has the correct second derivative.
    """
    (raw, lower, upper, A, *leaves), y, dual, status = saved
    with torch.no_grad():
        rows = problem.rows(lower, upper, A)
        at, used, active, sound = working(problem, rows, raw, y, dual, status)
    attached = problem.rows(lower, upper, A, tuple(leaves[: problem.inputs]))
    curved = problem.gradient == "exact"
    side = sides(rows, used, at.value)
    clean = torch.where(sound & ~grad.isnan(), grad, 0.0)
    with torch.enable_grad():
        if may_look(y) and not bool(sound.all()):  # the sound samples alone: others are not finite somewhere
            index = sound.squeeze(-1).nonzero().squeeze(-1)
            rows, attached = rows.take(index), attached.take(index)
            raw, y, used, active, sound = (part[index] for part in (raw, y, used, active, sound))
            lower, upper, clean = lower[index], upper[index], clean[index]
            side = side[0][index], side[1][index]
        bound = torch.where(active, side[0] * lower.nan_to_num(0, 0, 0) + side[1] * upper.nan_to_num(0, 0, 0), 0.0)
        with torch.no_grad():
            K = _system(rows, y, used, active, curved)[0]
        point, multiplier = _newton(attached, K, raw, bound, y, used, active, curved)
        K, _ = _system(attached, point, multiplier, active, curved)
        point, _ = _newton(attached, K, raw, bound, point, multiplier, active, curved)
        point = torch.where(sound, point, 0.0)
    asked = [part for part, need in zip(saved.inputs, needed, strict=True) if need]
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
    """One Newton step on the KKT system from (y, dual); with `curved` False the multipliers do not act on y."""
    with torch.enable_grad():
        point = y if y.requires_grad else y.detach().requires_grad_()
        value, slope = rows.slope(point, dual[:, : rows.curved])
    affine = rows.A.expand(len(y), *rows.A.shape[-2:])
    value = torch.cat([value, times_each(affine, y)], dim=-1)
    slope = slope + times_each(affine.mT, dual[:, rows.curved :])
    off = raw - raw.detach() if not curved else None
    first = y - raw + slope if off is None else -off
    second = torch.where(active, value - bound, 0.0)
    second = second - second.detach()  # the solution is taken as exact: only derivatives are needed
    first = first - first.detach()
    step = torch.linalg.solve_ex(K, torch.cat([first, second], -1).unsqueeze(-1)).result.squeeze(-1)
    n = y.shape[-1]
    return y - step[:, :n], dual - torch.where(active, step[:, n:], 0.0)
