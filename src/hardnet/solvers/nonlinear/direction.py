"""Steps towards the nearest point: the exact Hessian of the Lagrangian, dense or as products with vectors.

``W = I + sum_i dual_i Hess g_i``. Where W is not positive definite, curvature along the active rows' gradients is
added, which does not change the step where these rows hold; negative curvature along the rows is replaced by its
absolute value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import FLATTEST
from hardnet.solvers.algebra.small import product, products, solve_definite
from hardnet.solvers.nonlinear.measure import elastic_rows
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.step import Metric, solve_step
from hardnet.solvers.solution import choose

DENSE = 40
"""Largest number of outputs for which W is formed where all rows are equalities."""
HEAVY = 10.0
"""Curvature added along the rows' gradients, relative to the largest entry of W."""
TURNED = 1e-2
"""Least curvature by which a negative one is replaced."""
JITTER = 1e-14
"""Added to the diagonal of the Gram matrix, relative to it, to keep it definite for nearly dependent rows."""
INEXACT = 60
"""Most products with W in one step."""

DEGENERATE = 1e-7
"""Curvature along the rows below which the nearest point is not isolated, to rounding of its derivative."""


class Direction(NamedTuple):
    """The step ``(b, n)``, the multipliers ``(b, m)``, and where W is flat, ``(b,)``."""

    step: Tensor
    dual: Tensor
    flat: Tensor


def forms_metric(rows: Rows, y: Tensor) -> bool:
    """Whether W is formed: not for many outputs with only equalities, where products with it are enough."""
    return y.shape[-1] <= DENSE or not rows.tight


def direction(rows: Rows, y: Tensor, away: Tensor, at: Derivatives, look: bool = True) -> Direction:
    """The next step from y, given the derivatives and multipliers there; ``away = y - raw``."""
    if at.hessian is None:
        return _by_products(rows, y, away, at, look)
    metric, flat = (_convex if look else _convex_for_all)(rows, at, away)
    soft = elastic_rows(rows, at.jacobian)
    low, high = rows.lower - at.value, rows.upper - at.value
    found = solve_step(at.jacobian, low, high, soft, metric, at.dual, tight=rows.tight, look=look, guess=at.dual)
    return Direction(*found, flat)


def first_multipliers(rows: Rows, value: Tensor, jacobian: Tensor, away: Tensor, look: bool = True) -> Tensor:
    """The multipliers of the step with W = I; the least-squares multipliers where all rows are equalities."""
    metric, soft = Metric(None, jacobian.mT, -away), elastic_rows(rows, jacobian)
    low, high = rows.lower - value, rows.upper - value
    return solve_step(jacobian, low, high, soft, metric, tight=rows.tight, look=look)[1]


def _convex(rows: Rows, at: Derivatives, gradient: Tensor) -> tuple[Metric, Tensor]:
    """W made positive definite, with ``W^-1 J'`` and ``-W^-1 gradient``; and where it is flat along the rows."""
    W = _lagrangian(at)
    solved, pivot = solve_definite(W, torch.cat([at.jacobian.mT, -gradient.unsqueeze(-1)], dim=-1))
    bad = (~(pivot > FLATTEST)).nonzero().squeeze(-1)
    flat = torch.zeros_like(pivot, dtype=torch.bool)
    if len(bad):
        own, right, least = _convexified(rows.take(bad), at.take(bad), W[bad], gradient[bad])
        W[bad], solved[bad], flat[bad] = own, solve_definite(own, right)[0], ~(least > DEGENERATE)
    return Metric(W, solved[..., :-1], solved[..., -1]), flat


def _convex_for_all(rows: Rows, at: Derivatives, gradient: Tensor) -> tuple[Metric, Tensor]:
    """The same without reading values: W, else W with the active rows' curvature, else that shifted by its size."""
    W = _lagrangian(at)
    across = at.jacobian.mT
    solved, pivot = solve_definite(W, torch.cat([across, -gradient.unsqueeze(-1)], dim=-1))
    bad = ~(pivot > FLATTEST)
    active, missing = _active(rows, at)
    added = choose(bad, added_curvature(W, at.jacobian, active), torch.zeros_like(missing))
    right = torch.cat([across, (product(across, added * missing) - gradient).unsqueeze(-1)], dim=-1)
    own = W + products(across, added.unsqueeze(-1) * at.jacobian)
    stiff, least = solve_definite(own, right)
    worse = bad & ~(least > FLATTEST)
    shift = torch.where(worse, W.abs().sum(-1).amax(-1), 0.0)
    own = own + torch.diag_embed(shift.unsqueeze(-1).expand_as(gradient))
    solved = choose(worse, solve_definite(own, right)[0], choose(bad, stiff, solved))
    return Metric(own, solved[..., :-1], solved[..., -1]), bad & ~(least > DEGENERATE)


def _lagrangian(at: Derivatives) -> Tensor:
    """``W = I + sum_i dual_i Hess g_i``."""
    W: Tensor = at.hessian.clone()  # pyright: ignore[reportOptionalMemberAccess]
    W.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return W


def _convexified(rows: Rows, at: Derivatives, W: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``W + added J'J`` on the active rows; the right-hand sides, with a pull to their bounds; the least pivot.

    ``added |J d - missing|^2 / 2`` vanishes where the active rows hold after the step, so that it only makes W positive
    definite across them.
    """
    active, missing = _active(rows, at)
    own, added, least = stiffened(W, at.jacobian, active)
    gradient = gradient - product(at.jacobian.mT, added * missing)
    return own, torch.cat([at.jacobian.mT, -gradient.unsqueeze(-1)], dim=-1), least


def _active(rows: Rows, at: Derivatives) -> tuple[Tensor, Tensor]:
    """The rows with a multiplier, and the differences to their bounds, ``(b, m)`` each."""
    dual: Tensor = at.dual  # pyright: ignore[reportAssignmentType]
    active = rows.equality | (dual != 0)
    bound = torch.where((dual >= 0) & rows.upper.isfinite() | ~rows.lower.isfinite(), rows.upper, rows.lower)
    return active, torch.where(active, bound - at.value, 0.0)


def stiffened(W: Tensor, jacobian: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``W + J' diag(added) J`` on the active rows, positive definite; ``added (b, m)``; its least pivot ``(b,)``.

    Where that still has zero or negative curvature along the rows, its eigenvalues w are replaced by
    ``max(|w|, TURNED)``; the least pivot is that before the replacement.
    """
    added = added_curvature(W, jacobian, active)
    own = W + products(jacobian.mT, added.unsqueeze(-1) * jacobian)
    least = solve_definite(own, torch.zeros_like(own[..., :1]))[1]
    worse = (~(least > FLATTEST)).nonzero().squeeze(-1)
    if len(worse):
        own[worse] = _turned(own[worse])
    return own, added, least


def added_curvature(W: Tensor, jacobian: Tensor, active: Tensor) -> Tensor:
    """The curvature to add along the gradient of each active row, ``(b, m)``."""
    squared = jacobian.square().sum(-1)
    heavy = HEAVY * W.abs().amax((-1, -2)).unsqueeze(-1)
    return torch.where(active & (squared > 0), heavy / torch.where(squared > 0, squared, 1.0), 0.0)


def _turned(W: Tensor) -> Tensor:
    """W with eigenvalues ``max(|w|, TURNED)``."""
    values, vectors = torch.linalg.eigh(W)
    turned = (vectors * values.abs().clamp_min(TURNED).unsqueeze(-2)) @ vectors.mT
    return (turned + turned.mT) / 2


def _by_products(rows: Rows, y: Tensor, gradient: Tensor, at: Derivatives, look: bool) -> Direction:
    """For equalities only: a step to the linearized rows, then conjugate gradients along them, without forming W."""
    J, dual = at.jacobian, at.dual
    gram = products(J, J.mT).clone()
    gram.diagonal(dim1=-2, dim2=-1).mul_(1 + JITTER)
    inverse = solve_definite(gram, J)[0]  # (J J')^-1 J
    curved = rows.lagrangian(y, dual)  # pyright: ignore[reportArgumentType]
    normal = product(inverse.mT, rows.upper - at.value)
    along = _conjugate_gradients(
        lambda vector: vector + curved(vector),
        lambda vector: vector - product(inverse.mT, product(J, vector)),
        gradient + normal + curved(normal),
        2 * torch.linalg.vector_norm(gradient, dim=-1),
        look,
    )
    step = normal + along
    dual = -product(inverse, gradient + step + curved(step))
    return Direction(step, dual, torch.zeros_like(step[:, 0], dtype=torch.bool))


def _conjugate_gradients(
    apply: Callable[[Tensor], Tensor], project: Callable[[Tensor], Tensor], slope: Tensor, radius: Tensor, look: bool
) -> Tensor:
    """Minimize ``1/2 t'W t + slope't`` along the rows within `radius`; stop at negative curvature, or when accurate.

    The radius is twice the distance from y to raw: no point outside it is nearer to raw than y. The residual must fall
    below a fraction of the first one that shrinks with its square root, so that steps converge superlinearly.
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
        if look and not bool(going.any()):
            break
        search = torch.where(going.unsqueeze(-1), -residual + (new / square).unsqueeze(-1) * search, 0.0)
        square = new
    return point
