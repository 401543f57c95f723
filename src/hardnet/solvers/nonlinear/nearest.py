"""The nearest point: sequential quadratic programming from a feasible point to a KKT point of ``min |y - raw|^2 / 2``.

Each pass tries the step of `plan_step`. A full step that is refused is tried again with a second-order correction, then
shorter; where no length is accepted, once with the step of the plain projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import DEPENDENT
from hardnet.solvers.algebra.small import KERNEL, compiles, product, products, solve_definite
from hardnet.solvers.nonlinear.rows import (
    EVERY_PASS,
    SUFFICIENT,
    Derivatives,
    Pace,
    Rows,
    chooser,
    elastic_rows,
    relative_error,
    row_norms,
    run,
)
from hardnet.solvers.nonlinear.step import Metric, StepRows, solve_step
from hardnet.solvers.solution import choose, take

# Steps towards the nearest point: the exact Hessian of the Lagrangian, dense or as products with vectors.
#
# ``W = I + sum_i dual_i Hess g_i``. Where W is not positive definite, curvature along the active rows' gradients is
# added, which does not change the step where these rows hold; negative curvature along the rows is replaced by its
# absolute value.


FLATTEST = 1e-4
"""Least curvature that the Hessian of the Lagrangian may have; a smaller or negative one is replaced."""
SMALL_STEP = 3e-11
"""A step of at most this fraction of the sample's size is the last one: the remaining error is at most as large, and
usually its square."""
DISTANT = 1e-3
"""Weight of the distance to raw in the size of a sample; where y is near 0 it is the only term left."""
MERIT_ROUNDING = 1e-15
"""Fraction of the merit's terms by which rounding may raise it."""

SEARCH_CUT = 0.1
"""Least fraction of a rejected step length toward the nearest point that is tried next."""
SHORTEST_SEARCH = 2.0**-12
"""Length below which such a step is given up."""
FAR_STEP = 0.3
"""Largest relative violation that such a step may lead to, however near to raw: beyond it the solver might not return
to the set."""
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
    own = StepRows(at.jacobian, low, high, soft, at.dual)
    found = solve_step(own, metric, tight=rows.tight, look=look, guess=at.dual)
    return Direction(*found, flat)


def first_multipliers(rows: Rows, value: Tensor, jacobian: Tensor, away: Tensor, look: bool = True) -> Tensor:
    """The multipliers of the step with W = I; the least-squares multipliers where all rows are equalities."""
    metric, soft = Metric(None, jacobian.mT, -away), elastic_rows(rows, jacobian)
    low, high = rows.lower - value, rows.upper - value
    return solve_step(StepRows(jacobian, low, high, soft), metric, tight=rows.tight, look=look)[1]


def _convex(rows: Rows, at: Derivatives, gradient: Tensor) -> tuple[Metric, Tensor]:
    """W made positive definite, with ``W^-1 J'`` and ``-W^-1 gradient``; and where it is flat along the rows."""
    W = _lagrangian(at)
    solved, pivot = solve_definite(W, torch.cat([at.jacobian.mT, -gradient.unsqueeze(-1)], dim=-1))
    bad = (~(pivot > FLATTEST)).nonzero().squeeze(-1)
    flat = torch.zeros_like(pivot, dtype=torch.bool)
    if len(bad):
        own, right, least = _convexified(rows.take(bad), take(at, bad), W[bad], gradient[bad])
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


# One step towards the nearest point, and the merit function that decides whether it is accepted.
#
# The step d and the multipliers come from the quadratic program of the Lagrangian (`direction`). The merit is
# ``|y - raw|^2 / 2 + sum_i weight_i violation_i``, with weights above the rows' multipliers, so that d is a descent
# direction.


class Plan(NamedTuple):
    """The step of a pass and the decrease predicted for it; ``(b,)`` unless stated.

    Attributes:
        step: ``(b, n)``.
        dual: The multipliers of the step, ``(b, m)``.
        weight: The weights of the violations in the merit, ``(b, m)``.
        scale: The scales of the rows, ``(b, m)``.
        current: The merit at y.
        slope: The change of the merit in a full step that the linearized rows predict, at most 0.
        noise: By how much rounding may raise the merit; infinite for a last step.
        last: Whether the step is so small that it is the last one.
        flat: Whether the Lagrangian has zero or negative curvature along the rows.
    """

    step: Tensor
    dual: Tensor
    weight: Tensor
    scale: Tensor
    current: Tensor
    slope: Tensor
    noise: Tensor
    last: Tensor
    flat: Tensor

    def judge(self, violation: Tensor, away: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Whether a step with these violations ``(b, m)``, ``y - raw`` and length is accepted; the next length."""
        reached = merit(violation, away, self.weight)
        good = reached <= self.current + SUFFICIENT * length * self.slope + self.noise
        good = good & ((violation / self.scale).amax(-1) <= FAR_STEP)
        excess = 2 * (reached - self.current - length * self.slope)
        shorter = torch.where(excess > 0, -self.slope * length.square() / excess, 0.5 * length)
        return good, torch.minimum(torch.maximum(shorter, SEARCH_CUT * length), 0.5 * length)


def plan_step(rows: Rows, at: Derivatives, y: Tensor, raw: Tensor, weight: Tensor, look: bool = True) -> Plan:
    """The step from y ``(b, n)`` with the derivatives and multipliers there; `weight` ``(b, m)`` is the last step's."""
    away, violation = y - raw, rows.violation(at.value)
    step, dual, flat = direction(rows, y, away, at, look)
    scale = relative_error(rows, at, y, raw)[1]
    last = step.abs().amax(-1) <= SMALL_STEP * (y.abs().amax(-1) + DISTANT * away.abs().amax(-1))
    weight = torch.maximum(weight, 1.5 * dual.abs())
    current = merit(violation, away, weight)
    planned = rows.violation(at.value + product(at.jacobian, step))
    slope = ((away * step).sum(-1) + (weight * (planned - violation)).sum(-1)).clamp_max(0.0)
    noise = torch.where(last, torch.inf, MERIT_ROUNDING * (current + (weight * scale).sum(-1)))
    return Plan(step, dual, weight, scale, current, slope, noise, last, flat)


def merit(violation: Tensor, away: Tensor, weight: Tensor) -> Tensor:
    """``|away|^2 / 2 + weight . violation``, ``(b,)``."""
    return away.square().sum(-1) / 2 + (weight * violation).sum(-1)


def step_back(rows: Rows, value: Tensor, J: Tensor, there: Tensor, look: bool = True) -> Tensor:
    """The second-order correction ``(b, n)``: a step back to the rows, whose values after the full step are `there`."""
    there = torch.where(there.isfinite(), there, value)
    soft = elastic_rows(rows, J)
    own = StepRows(J, rows.lower - there, rows.upper - there, soft)
    return solve_step(own, tight=rows.tight, look=look)[0]


class Nearest(NamedTuple):
    """Where the iteration ended: y ``(B, n)``, multipliers ``(B, m)``, and what is known about it, ``(B,)`` each.

    ``settled`` samples ended with a small step; in ``flat`` ones the Lagrangian had zero or negative curvature along
    the rows.
    """

    y: Tensor
    dual: Tensor
    settled: Tensor
    flat: Tensor
    steps: Tensor


class State(NamedTuple):
    """The samples of a batch in progress; ``(b,)`` unless stated.

    Attributes:
        going: Open samples.
        y: The current points, ``(b, n)``.
        raw: ``(b, n)``.
        value: The rows at y, ``(b, m)``.
        jacobian: Their Jacobian there, ``(b, m, n)``.
        hessian: ``sum_i dual_i Hess g_i`` there, ``(b, n, n)``; None where products with it are enough.
        dual: Multipliers ``(b, m)``.
        weight: The weights of the violations in the merit, ``(b, m)``.
        length: The length of the next trial step.
        shift: The second-order correction of the next trial, ``(b, n)``.
        tried: Whether the correction was tried.
        straight: Whether the step ignores the curvature of the rows.
        settled: Whether the last step was small.
        flat: Whether the Lagrangian has zero or negative curvature along the rows.
        steps: Passes so far.
    """

    going: Tensor
    y: Tensor
    raw: Tensor
    value: Tensor
    jacobian: Tensor
    hessian: Tensor | None
    dual: Tensor
    weight: Tensor
    length: Tensor
    shift: Tensor
    tried: Tensor
    straight: Tensor
    settled: Tensor
    flat: Tensor
    steps: Tensor

    @property
    def derivatives(self) -> Derivatives:
        """The rows at y, with no curvature where the step ignores it."""
        bent = self.hessian
        bent = None if bent is None else choose(self.straight, torch.zeros_like(bent), bent)
        return Derivatives(self.value, self.jacobian, bent, self.dual)


def approach(
    rows: Rows, y: Tensor, raw: Tensor, *, iterations: int = 100, going: Tensor | None = None, pace: Pace = EVERY_PASS
) -> Nearest:
    """Iterate from y ``(B, n)``, on or near the set; each sample stops on its own.

    Args:
        rows: The rows.
        y: Where to start.
        raw: ``(B, n)``.
        iterations: The maximum number of steps; where values may not be read, of passes.
        going: Samples that are to move, ``(B,)``; by default all.
        pace: When values may be read.
    """
    dense, look = forms_metric(rows, y), pace.free
    first = lambda value, J: first_multipliers(rows, value, J, y - raw, look)
    at = rows.evaluate(y, first if dense else None)
    dual = first(at.value, at.jacobian) if at.dual is None else at.dual
    none = torch.zeros_like(y[:, 0], dtype=torch.bool)
    still = torch.zeros_like(dual), torch.ones_like(y[:, 0]), torch.zeros_like(y), none, none, none, none, none.long()
    state = State(~none if going is None else going, y, raw, *at[:3], dual, *still)
    plan = lambda some, now: plan_step(some, now.derivatives, now.y, now.raw, now.weight, look)
    end = run(rows, state, plan, lambda some, now, steps: _attempt(some, now, steps, look), iterations, pace)
    return Nearest(end.y, end.dual, end.settled, end.flat, end.steps)


def _attempt(rows: Rows, now: State, plan: Plan, look: bool) -> State:
    """The state after one trial of every open sample; where values may be read, after ever shorter ones.

    A `last` step is tiny and need not decrease the merit.
    """
    bent = now.hessian
    point = now.y + torch.addcmul(now.shift, now.length.unsqueeze(-1), plan.step)
    traced = rows.trace(point)
    good, shorter = plan.judge(rows.violation(traced.value), point - now.raw, now.length)
    accepted, shift = now.going & good, torch.zeros_like(point)
    tried = torch.zeros_like(accepted)
    if look and not bool(accepted.all()):
        point, accepted = _search(rows, now, plan, point, traced.value, accepted)
        traced = rows.trace(point)
    if not look:
        tried = now.going & ~accepted & (now.length == 1) & ~now.tried
        shift = choose(tried, step_back(rows, now.value, now.jacobian, traced.value, look), shift)
    there = rows.derive(traced, None if bent is None else lambda *_: plan.dual)
    length = torch.where(accepted | tried, 1.0, torch.zeros_like(shorter) if look else shorter)
    given_up = now.going & (length < SHORTEST_SEARCH)
    ended = (accepted & plan.last) | (given_up if bent is None else given_up & now.straight)
    pick = chooser(accepted, look)
    return now._replace(
        going=now.going & ~ended,
        y=pick(point, now.y),
        value=pick(there.value, now.value),
        jacobian=pick(there.jacobian, now.jacobian),
        hessian=pick(there.hessian, bent),
        dual=choose(accepted | (now.going & ended), plan.dual, now.dual),
        weight=choose(now.going, plan.weight, now.weight),
        length=torch.where(given_up, 1.0, length),
        shift=shift,
        tried=tried | (now.tried & ~accepted & ~given_up),
        straight=given_up | (now.straight & ~accepted),
        settled=torch.where(now.going, accepted & plan.last, now.settled),
        flat=torch.where(now.going, plan.flat, now.flat),
        steps=now.steps + (now.going & (accepted | given_up)),
    )


def _search(
    rows: Rows, now: State, plan: Plan, point: Tensor, there: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor]:
    """The points and which samples have moved, where those refused are corrected once and then take shorter steps."""
    point, accepted = point.clone(), accepted.clone()
    todo = (~accepted).nonzero().squeeze(-1)
    some, y, steps = rows.take(todo), now.y[todo], take(plan, todo)
    length = torch.ones_like(now.length[todo])
    trial = y + step_back(some, now.value[todo], now.jacobian[todo], there[todo]) + steps.step
    while len(todo):
        good, shorter = steps.judge(some.violation(some.value(trial)), trial - now.raw[todo], length)
        point[todo], accepted[todo] = choose(good, trial, y), good
        left = (~good & (shorter >= SHORTEST_SEARCH)).nonzero().squeeze(-1)
        todo, some, y, steps, length = todo[left], some.take(left), y[left], take(steps, left), shorter[left]
        trial = torch.addcmul(y, length.unsqueeze(-1), steps.step)
    return point, accepted


# ``[W C'; C 0] (p, q) = (cotangent, 0)``: the linear system behind the derivative of a nearest point.


DEFINITE = 1e-4
"""Least pivot for which W is considered positive definite."""


def solve_kkt(
    at: Derivatives, active: Tensor, grad: Tensor, degenerate: Tensor, look: bool = True
) -> tuple[Tensor, Tensor]:
    """``(p, q)`` with ``[W C'; C 0] (p, q) = (grad, 0)``; q is zero for rows that are not active.

    Where W is not positive definite the whole system is solved. At `degenerate` points ``(B,)`` it is singular: there
    dependent rows share q, and zero or negative curvature along the rows is replaced as in the solver. Without `look`
    the active rows' curvature is added for all samples, which does not change p and q, and where the result is not
    positive definite the identity is used for W.
    """
    if look and compiles(at.jacobian, KERNEL) and (at.hessian is None or compiles(at.hessian, KERNEL)):
        from hardnet.kernels.cpu.nonlinear_step import solve_kkt as solve

        p, q, pivot = solve(at.jacobian, at.hessian, active, grad)
        bad = (~(pivot > DEFINITE)).nonzero().squeeze(-1)
        if len(bad):
            p[bad], q[bad] = _in_torch(take(at, bad), active[bad], grad[bad], degenerate[bad], look)
        return p, q
    return _in_torch(at, active, grad, degenerate, look)


def _in_torch(at: Derivatives, active: Tensor, grad: Tensor, degenerate: Tensor, look: bool) -> tuple[Tensor, Tensor]:
    """`solve_kkt` without compiled code, and for samples whose W is not positive definite."""
    norm = row_norms(at.jacobian)
    C = torch.where(active.unsqueeze(-1), at.jacobian / norm.unsqueeze(-1), 0.0)
    right = torch.cat([C.mT, grad.unsqueeze(-1)], dim=-1)
    if at.hessian is None:
        p, q = _by_rows(C, active, right)
        return p, q / norm
    W = at.hessian.clone()
    W.diagonal(dim1=-2, dim2=-1).add_(1.0)
    if not look:
        solved, pivot = solve_definite(W + products(C.mT, added_curvature(W, C, active).unsqueeze(-1) * C), right)
        solved = choose(pivot > 0, solved, right)
        p, q = _by_rows(C, active, solved)
        return p, q / norm
    solved, pivot = solve_definite(W, right)
    p, q = _by_rows(C, active, solved)
    bad = ~(pivot > DEFINITE)
    for samples, solver in ((bad & ~degenerate, _by_system), (bad & degenerate, _by_stiffened)):
        chosen = samples.nonzero().squeeze(-1)
        if len(chosen):
            p[chosen], q[chosen] = solver(W[chosen], C[chosen], active[chosen], right[chosen])
    return p, q / norm


def _by_rows(C: Tensor, active: Tensor, solved: Tensor) -> tuple[Tensor, Tensor]:
    """P and q from ``W^-1 [C', grad]``, by the system of the rows ``C W^-1 C'``."""
    across, free = solved[..., :-1], solved[..., -1]
    gram = products(C, across).clone()
    gram.diagonal(dim1=-2, dim2=-1).add_(torch.where(active, DEPENDENT, 1.0))
    q = solve_definite(gram, product(C, free).unsqueeze(-1))[0].squeeze(-1)
    q = torch.where(active, q, 0.0)
    return free - product(across, q), q


def _by_system(W: Tensor, C: Tensor, active: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """P and q from the whole system, by elimination with pivoting."""
    n = W.shape[-1]
    corner = torch.diag_embed((~active).to(W))
    K = torch.cat([torch.cat([W, C.mT], -1), torch.cat([C, corner], -1)], -2)
    grad = torch.cat([right[..., -1], torch.zeros_like(C[..., 0])], -1)
    solved = torch.linalg.solve_ex(K, grad.unsqueeze(-1)).result.squeeze(-1)
    return solved[:, :n], torch.where(active, solved[:, n:], 0.0)


def _by_stiffened(W: Tensor, C: Tensor, active: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """P and q with W made positive definite."""
    return _by_rows(C, active, solve_definite(stiffened(W, C, active)[0], right)[0])
