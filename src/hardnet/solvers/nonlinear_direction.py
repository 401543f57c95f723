"""Steps towards the nearest point: the exact Hessian of the Lagrangian, dense or by its products.

``W = I + sum_i dual_i Hess g_i``. Where W is not positive definite, curvature along the active rows' gradients is
added, which does not change the step where these rows hold; what is negative along the rows is turned round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear_retract import elastic_rows
from hardnet.solvers.nonlinear_rows import Derivatives, Rows
from hardnet.solvers.nonlinear_step import Metric, solve_step
from hardnet.solvers.small import product, products, solve_definite

DENSE = 40
"""Most outputs for which W is formed where all rows are equalities."""
HEAVY = 10.0
"""Curvature added along the rows' gradients, relative to the largest entry of W."""
FLATTEST = 1e-4
"""Least curvature that W may have; a smaller or negative one is replaced."""
TURNED = 1e-2
"""Least curvature that a negative one is replaced by."""
JITTER = 1e-14
"""What keeps the Gram matrix of nearly dependent rows definite, relative to its diagonal."""
INEXACT = 60
"""Most products with W in one step."""

DEGENERATE = 1e-7
"""Curvature along the rows at which the nearest point is no longer isolated, to rounding of its derivative."""


class Direction(NamedTuple):
    """The derivatives at y, the step ``(b, n)``, the multipliers ``(b, m)``, and where W is flat, ``(b,)``."""

    at: Derivatives
    step: Tensor
    dual: Tensor
    flat: Tensor


def direction(rows: Rows, y: Tensor, raw: Tensor, dual: Tensor | None) -> Direction:
    """The next step from y with the last multipliers; None asks for those of least squares."""
    if y.shape[-1] > DENSE and bool(rows.equality.all()):
        return _by_products(rows, y, raw, dual)
    return _dense(rows, y, raw, dual)


def _dense(rows: Rows, y: Tensor, raw: Tensor, dual: Tensor | None) -> Direction:
    """The quadratic program with W itself."""
    gradient = y - raw

    def last(value: Tensor, jacobian: Tensor) -> Tensor:
        return _least_squares(rows, value, jacobian, gradient) if dual is None else dual

    at = rows.evaluate(y, last)
    metric, flat = _convex(rows, at, gradient)
    soft = elastic_rows(rows, at.jacobian)
    step, new = solve_step(at.jacobian, rows.lower - at.value, rows.upper - at.value, soft, metric, at.dual)
    return Direction(at, step, new, flat)


def _least_squares(rows: Rows, value: Tensor, jacobian: Tensor, gradient: Tensor) -> Tensor:
    """The multipliers of the step in the metric of the identity."""
    metric = Metric(None, jacobian.mT, -gradient)
    return solve_step(jacobian, rows.lower - value, rows.upper - value, elastic_rows(rows, jacobian), metric)[1]


def _convex(rows: Rows, at: Derivatives, gradient: Tensor) -> tuple[Metric, Tensor]:
    """W made positive definite where it is not, with what is solved by it; and where that took turning it round."""
    W: Tensor = at.hessian.clone()  # pyright: ignore[reportOptionalMemberAccess]
    W.diagonal(dim1=-2, dim2=-1).add_(1.0)
    solved, pivot = solve_definite(W, torch.cat([at.jacobian.mT, -gradient.unsqueeze(-1)], dim=-1))
    bad = (~(pivot > FLATTEST)).nonzero().squeeze(-1)
    flat = torch.zeros_like(pivot, dtype=torch.bool)
    if len(bad):
        own, right, least = _convexified(rows.take(bad), at.take(bad), W[bad], gradient[bad])
        W[bad], solved[bad], flat[bad] = own, solve_definite(own, right)[0], ~(least > DEGENERATE)
    return Metric(W, solved[..., :-1], solved[..., -1]), flat


def _convexified(rows: Rows, at: Derivatives, W: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``W + added J'J`` on the active rows, with the pull to their bounds; right-hand sides; the least pivot before.

    ``added |J d - missing|^2 / 2`` vanishes where the active rows hold after the step, so that it only helps W to be
    positive definite across them.
    """
    dual: Tensor = at.dual  # pyright: ignore[reportAssignmentType]
    active = rows.equality | (dual != 0)
    bound = torch.where((dual >= 0) & rows.upper.isfinite() | ~rows.lower.isfinite(), rows.upper, rows.lower)
    missing = torch.where(active, bound - at.value, 0.0)
    own, added, least = stiffened(W, at.jacobian, active)
    gradient = gradient - product(at.jacobian.mT, added * missing)
    return own, torch.cat([at.jacobian.mT, -gradient.unsqueeze(-1)], dim=-1), least


def stiffened(W: Tensor, jacobian: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``W + J' diag(added) J`` on the active rows, positive definite; ``added (b, m)``; its least pivot ``(b,)``.

    Where that is still flat or bent down, along the rows, its eigenvalues w are replaced by ``max(|w|, TURNED)``.
    """
    squared = jacobian.square().sum(-1)
    heavy = HEAVY * W.abs().amax((-1, -2)).unsqueeze(-1)
    added = torch.where(active & (squared > 0), heavy / torch.where(squared > 0, squared, 1.0), 0.0)
    own = W + products(jacobian.mT, added.unsqueeze(-1) * jacobian)
    least = solve_definite(own, torch.zeros_like(own[..., :1]))[1]
    worse = (~(least > FLATTEST)).nonzero().squeeze(-1)
    if len(worse):
        own[worse] = _turned(own[worse])
    return own, added, least


def _turned(W: Tensor) -> Tensor:
    """W with eigenvalues ``max(|w|, TURNED)``."""
    values, vectors = torch.linalg.eigh(W)
    turned = (vectors * values.abs().clamp_min(TURNED).unsqueeze(-2)) @ vectors.mT
    return (turned + turned.mT) / 2


def _by_products(rows: Rows, y: Tensor, raw: Tensor, dual: Tensor | None) -> Direction:
    """Equalities alone: back to the linearised rows, then conjugate gradients along them, without W itself."""
    at, gradient = rows.evaluate(y), y - raw
    J = at.jacobian
    gram = products(J, J.mT).clone()
    gram.diagonal(dim1=-2, dim2=-1).mul_(1 + JITTER)
    inverse = solve_definite(gram, J)[0]  # (J J')^-1 J
    if dual is None:
        dual = -product(inverse, gradient)
    curved = rows.lagrangian(y, dual)
    normal = product(inverse.mT, rows.upper - at.value)
    along = _conjugate_gradients(
        lambda vector: vector + curved(vector),
        lambda vector: vector - product(inverse.mT, product(J, vector)),
        gradient + normal + curved(normal),
        2 * torch.linalg.vector_norm(gradient, dim=-1),
    )
    step = normal + along
    dual = -product(inverse, gradient + step + curved(step))
    return Direction(at, step, dual, torch.zeros_like(step[:, 0], dtype=torch.bool))


def _conjugate_gradients(
    apply: Callable[[Tensor], Tensor], project: Callable[[Tensor], Tensor], slope: Tensor, radius: Tensor
) -> Tensor:
    """Minimise ``1/2 t'W t + slope't`` along the rows within `radius`; stops at negative curvature, or exact enough.

    No point nearer to raw is farther from y than twice its distance to raw. Exact enough is a part of the first
    residual that falls with its root, so that steps converge faster than linearly.
    """
    residual = project(slope)
    first = torch.linalg.vector_norm(residual, dim=-1)
    enough = first * first.sqrt().clamp_max(0.1)
    point, search = torch.zeros_like(slope), -residual
    square, going = first.square(), first > 0
    for count in range(INEXACT):
        bent = apply(search)
        curvature = (search * bent).sum(-1)
        length = torch.where(curvature > FLATTEST * search.square().sum(-1), square / curvature, torch.inf)
        following = point + torch.where(going, length, 0.0).unsqueeze(-1) * search
        outside = going & ~(torch.linalg.vector_norm(following, dim=-1) <= radius)
        if count == 0:
            shortest = (radius / first).clamp_max(1.0).unsqueeze(-1) * search
            point = torch.where(outside.unsqueeze(-1), shortest, point)
        going = going & ~outside
        point = torch.where(going.unsqueeze(-1), following, point)
        residual = project(residual + torch.where(going, length, 0.0).unsqueeze(-1) * bent)
        new = residual.square().sum(-1)
        going = going & (new.sqrt() > enough)
        if not bool(going.any()):
            break
        search = torch.where(going.unsqueeze(-1), -residual + (new / square).unsqueeze(-1) * search, 0.0)
        square = new
    return point
