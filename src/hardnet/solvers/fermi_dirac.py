"""Multipliers that balance weighted sums of sigmoids: LinSATNet (Wang et al., 2023) written as equations.

For each sample, with one multiplier per row,

    weights x + dummy beta = target,   x = link(scores + slope' dual),   beta = sigmoid(dummy_slope dual),

where ``link`` is the sigmoid, or for the first published variant the solution of ``log x - crowd log(1 - x) = score``.
With ``slope = weights`` the equations are the optimality conditions of a convex problem, the Fermi-Dirac entropy on a
polyhedron in the unit cube, and have a solution whenever its interior is not empty.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hardnet.errors import UnsupportedSetError, sentence
from hardnet.solvers.algebra.small import solve_square
from hardnet.solvers.solution import Solution, Status

SOLVER = "linsat, whose iterations end by a look at their values"
"""Its name in error messages."""

ROUGH = 1e-2
"""Residual at which a sample moves on to larger scores; the tolerance applies only at the full scores."""

FIRST_SCORE = 4.0
"""Largest score to start from: sigmoids of larger scores are flat, and Newton steps are useless there."""

LINK_STEPS = 16
"""Newton steps for the link of the first variant; they converge quadratically from above, in about ten."""

LONGEST_STEP = 20.0
"""Largest change of a score in one step, for the same reason."""

ARMIJO = 1e-4
"""Part of the first-order decrease that a step must achieve."""

REGULARIZATION = 1e-12
"""Added to the unit diagonal of the scaled Jacobian, so that it can be solved even with dependent rows."""

SMALLEST_DIAGONAL = 1e-200
"""Least diagonal entry of the Jacobian, for rows where every sigmoid is flat: steps stay finite and are then cut."""


class Balance(NamedTuple):
    """The equations above, in float64, for B samples.

    Attributes:
        weights: ``(k, n)``, each row summing to 1.
        slope: ``(k, n)``: the weights, or the pattern of their non-zeros.
        dummy: Weight of each row's own slack variable, ``(B, k)``; 0 for an equality.
        dummy_slope: ``(B, k)``: the same, or the pattern of its non-zeros.
        target: ``(B, k)``.
        active: ``(B, k)`` bool: rows that constrain this sample.
        crowd: The number of rows that each variable appears in, ``(B, n)``; None for the sigmoid.
        row_scale: ``weights = row_scale * slope`` for each row, ``(k,)``, if such a scale exists: then the equations
            are the gradient of a convex function of the multipliers; else None.
    """

    weights: Tensor
    slope: Tensor
    dummy: Tensor
    dummy_slope: Tensor
    target: Tensor
    active: Tensor
    crowd: Tensor | None
    row_scale: Tensor | None

    def detach(self) -> Balance:
        """The same numbers, detached from the autograd graph."""
        crowd = None if self.crowd is None else self.crowd.detach()
        shared, own = (self.weights.detach(), self.slope.detach()), (self.dummy.detach(), self.dummy_slope.detach())
        return Balance(*shared, *own, self.target.detach(), self.active, crowd, self.row_scale)


class Point(NamedTuple):
    """The state at given multipliers.

    Attributes:
        x: ``(B, n)``.
        x_slope: Derivative of each x by its score, ``(B, n)``.
        dummy: The slack variables, ``(B, k)``.
        residual: ``weights x + dummy beta - target``, ``(B, k)``; 0 for rows that are not active.
    """

    x: Tensor
    x_slope: Tensor
    dummy: Tensor
    residual: Tensor


def evaluate(balance: Balance, scores: Tensor, dual: Tensor) -> Point:
    """The state at multipliers `dual` ``(B, k)`` and scores ``(B, n)``."""
    logits = _link(scores + dual @ balance.slope, balance.crowd)
    x, beta = logits.sigmoid(), (balance.dummy_slope * dual).sigmoid()
    slope = x * (-logits).sigmoid() / (1 if balance.crowd is None else 1 + (balance.crowd - 1) * x)
    residual = x @ balance.weights.mT + balance.dummy * beta - balance.target
    return Point(x, slope, beta, torch.where(balance.active, residual, 0))


def newton_step(balance: Balance, point: Point, residual: Tensor) -> Tensor:
    """``-J⁻¹ residual`` with the Jacobian ``J = weights diag(x') slope' + diag(dummy beta' dummy_slope)``.

    The Jacobian is scaled to a unit diagonal; rows that are not active keep their multiplier.
    """
    own = balance.dummy * balance.dummy_slope * point.dummy * (1 - point.dummy)
    J = (balance.weights * point.x_slope.unsqueeze(-2)) @ balance.slope.mT + torch.diag_embed(own)
    both = balance.active.unsqueeze(-1) & balance.active.unsqueeze(-2)
    size = J.diagonal(dim1=-2, dim2=-1).clamp_min(SMALLEST_DIAGONAL).sqrt()
    identity = torch.eye(J.shape[-1], dtype=J.dtype, device=J.device)
    scaled = torch.where(both, J / size.unsqueeze(-1) / size.unsqueeze(-2), identity) + REGULARIZATION * identity
    return -solve_square(scaled, residual / size) / size


def balance_by_newton(balance: Balance, scores: Tensor, *, tolerance: float, max_iterations: int) -> Solution:
    """Damped Newton steps on growing scores: each sample starts where sigmoids are not flat and doubles its scores."""
    fraction = (FIRST_SCORE / scores.abs().amax(dim=-1, keepdim=True)).clamp(max=1)
    dual = torch.zeros_like(balance.target)
    done = ~scores.isfinite().all(dim=-1)
    iterations = torch.zeros_like(done, dtype=torch.long)
    for _ in range(max_iterations):
        point = evaluate(balance, fraction * scores, dual)
        error = point.residual.abs().amax(dim=-1)
        done = done | ((error <= tolerance) & (fraction[:, 0] == 1))
        if _all_hold(done):
            break
        grow = (error.unsqueeze(-1) <= ROUGH) & (fraction < 1)
        larger = torch.where(grow, (2 * fraction).clamp(max=1), fraction)
        dual, fraction = torch.where(grow, dual * larger / fraction, dual), larger
        dual = torch.where(done.unsqueeze(-1), dual, _damped_step(balance, fraction * scores, dual, done))
        iterations = iterations + ~done
    return _solution(balance, scores, dual, iterations, tolerance)


def balance_by_sweeps(balance: Balance, scores: Tensor, *, tolerance: float, max_iterations: int) -> Solution:
    """The published sweeps: one row after another, rescale the weighted sums of x and of 1 - x to their targets.

    Every sweep keeps a complement of x: one shared by all rows where `crowd` is None (the second published variant),
    else a separate one for each row (the first). A multiplier sums up the logarithms of the scalings.
    """
    shared = balance.crowd is None
    dual = torch.zeros_like(balance.target)
    top, bottom = scores, torch.zeros_like(scores).unsqueeze(-2).expand(*dual.shape, -1)
    done = ~scores.isfinite().all(dim=-1)
    iterations = torch.zeros_like(done, dtype=torch.long)
    for _ in range(max_iterations):
        before = dual
        for row in range(dual.shape[-1]):
            dual = _rescale_shared(balance, scores, dual, row) if shared else dual
            if not shared:
                dual, top, bottom = _rescale_own(balance, dual, top, bottom, row)
        dual = torch.where(done.unsqueeze(-1), before, dual)
        error = evaluate(balance, scores, dual).residual.abs().amax(dim=-1)
        iterations = iterations + ~done
        done = done | (error <= tolerance)
        if _all_hold(done):
            break
    return _solution(balance, scores, dual, iterations, tolerance)


def proves_infeasible(balance: Balance, direction: Tensor) -> Tensor:
    """Whether ``direction . target > max over the cube of direction . (weights x + dummy beta)``, ``(B,)``.

    Then no x in the unit cube satisfies the rows (Farkas). Diverging multipliers are such a direction, and so is the
    negative of the smallest residual.
    """
    direction = torch.where(balance.active, direction, 0)
    reach = (direction @ balance.weights).clamp_min(0).sum(dim=-1)
    reach = reach + (direction * balance.dummy).clamp_min(0).sum(dim=-1)
    size = direction.abs().sum(dim=-1)
    return (direction * balance.target).sum(dim=-1) > reach + 1e-9 * size


def _link(score: Tensor, crowd: Tensor | None) -> Tensor:
    """The logit q of x with ``q + (crowd - 1) softplus(q) = score``: convex and increasing, so Newton from above."""
    if crowd is None:
        return score
    q = score.detach()
    for _ in range(LINK_STEPS):
        # Each step detaches q, so that only the last one carries the implicit derivative.
        q = q.detach()
        q = q - (q + (crowd - 1) * softplus(q) - score) / (1 + (crowd - 1) * q.sigmoid())
    return q


def _damped_step(balance: Balance, scores: Tensor, dual: Tensor, done: Tensor) -> Tensor:
    """The multipliers after one Newton step, halved for each sample until its `_value` or residual decreases."""
    point = evaluate(balance, scores, dual)
    step = newton_step(balance, point, point.residual)
    change = torch.cat([step @ balance.slope, step * balance.dummy_slope], dim=-1).abs().amax(dim=-1, keepdim=True)
    step = step * (LONGEST_STEP / change).clamp(max=1)
    error = torch.linalg.vector_norm(point.residual, dim=-1)
    value, fall = _value(balance, scores, dual), error
    if balance.row_scale is not None:
        fall = -(point.residual / balance.row_scale * step).sum(dim=-1)
    length = torch.ones_like(error)
    for _ in range(30):
        trial = dual + length.unsqueeze(-1) * step
        shorter = _residual_length(balance, scores, trial) <= (1 - ARMIJO * length) * error
        lower = _value(balance, scores, trial) <= value - ARMIJO * length * fall
        good = done | lower | (shorter & (error <= ROUGH))
        if _all_hold(good):
            break
        length = torch.where(good, length, length / 2)
    return dual + length.unsqueeze(-1) * step


def _residual_length(balance: Balance, scores: Tensor, dual: Tensor) -> Tensor:
    """``|residual|``, ``(B,)``."""
    return torch.linalg.vector_norm(evaluate(balance, scores, dual).residual, dim=-1)


def _value(balance: Balance, scores: Tensor, dual: Tensor) -> Tensor:
    """The function that a step must decrease, ``(B,)``.

    Where the equations are the gradient of a convex function it is this function, which leads out of regions where all
    sigmoids are flat and the residual does not change; else the length of the residual. (Close to the solution the
    decrease of the convex function is lost in rounding, and a shorter residual is enough.)
    """
    if balance.row_scale is None:
        return _residual_length(balance, scores, dual)
    return _potential(balance, balance.row_scale, scores, dual)


def _potential(balance: Balance, row_scale: Tensor, scores: Tensor, dual: Tensor) -> Tensor:
    """The convex function with gradient ``residual / row_scale``: the sum of the integrals of x over the scores."""
    logits = _link(scores + dual @ balance.slope, balance.crowd)
    extra = 0 if balance.crowd is None else (balance.crowd - 1) * (softplus(logits) - logits.sigmoid())
    slack = balance.dummy / torch.where(balance.dummy_slope > 0, balance.dummy_slope, 1)
    own = slack * softplus(balance.dummy_slope * dual) - balance.target * dual
    return (softplus(logits) + extra).sum(dim=-1) + (own / row_scale).sum(dim=-1)


def _rescale_shared(balance: Balance, scores: Tensor, dual: Tensor, row: int) -> Tensor:
    """One row of a sweep with a shared complement: add ``log(target / sum) - log(co-target / co-sum)``."""
    logits = torch.cat([scores + dual @ balance.slope, dual[:, row, None]], dim=-1)
    up = _log_scale(balance, row, -softplus(-logits), top=True)
    down = _log_scale(balance, row, -softplus(logits), top=False)
    return _moved(balance, dual, row, up - down)


def _rescale_own(
    balance: Balance, dual: Tensor, top: Tensor, bottom: Tensor, row: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One row of a sweep with its own complement; `top` and `bottom` hold logarithms."""
    slack = dual[:, row, None]
    up = _log_scale(balance, row, torch.cat([top, -softplus(-slack)], dim=-1), top=True)
    down = _log_scale(balance, row, torch.cat([bottom[:, row], -softplus(slack)], dim=-1), top=False)
    total = torch.logaddexp(top + up.unsqueeze(-1), bottom[:, row] + down.unsqueeze(-1))
    inside = (balance.slope[row] > 0) & balance.active[:, row, None]
    lowered = torch.where(inside, bottom[:, row] + down.unsqueeze(-1) - total, bottom[:, row])
    top = torch.where(inside, top + up.unsqueeze(-1) - total, top)
    bottom = torch.cat([bottom[:, :row], lowered.unsqueeze(1), bottom[:, row + 1 :]], dim=1)
    return _moved(balance, dual, row, up - down), top, bottom


def _log_scale(balance: Balance, row: int, logs: Tensor, *, top: bool) -> Tensor:
    """``log(goal / weighted sum)`` of one row over the variables and its slack, whose logarithms are ``(B, n + 1)``."""
    dummy, target = balance.dummy[:, row], balance.target[:, row]
    weights = torch.cat([balance.weights[row].expand(len(dummy), -1), dummy[:, None]], dim=-1)
    goal = target if top else 1 + dummy - target
    return goal.clamp_min(REGULARIZATION).log() - torch.logsumexp(logs + weights.log(), dim=-1)


def _moved(balance: Balance, dual: Tensor, row: int, move: Tensor) -> Tensor:
    """The multipliers with `move` added to one of them, where its row is active."""
    chosen = balance.active & (torch.arange(dual.shape[-1], device=dual.device) == row)
    return dual + torch.where(chosen, move.unsqueeze(-1), 0)


def _solution(balance: Balance, scores: Tensor, dual: Tensor, iterations: Tensor, tolerance: float) -> Solution:
    """The last point with its status; failed samples are INFEASIBLE where their residual or multipliers prove it."""
    point = evaluate(balance, scores, dual)
    error = point.residual.abs().amax(dim=-1)
    solved = error <= tolerance
    empty = ~solved & (proves_infeasible(balance, -point.residual) | proves_infeasible(balance, dual))
    status = torch.full_like(solved, Status.NOT_CONVERGED, dtype=torch.int8)
    status = status.masked_fill(solved, Status.SOLVED).masked_fill(empty, Status.INFEASIBLE)
    status = status.masked_fill(~scores.isfinite().all(dim=-1), Status.INVALID)
    return Solution(point.x, dual, status, iterations, error)


def _all_hold(mask: Tensor) -> bool:
    """Whether a loop has ended for all samples; this reads values, which works under transforms other than vmap."""
    try:
        return bool(mask.all())
    except RuntimeError:  # values cannot be read under vmap
        remedy = "batch dimensions need no vmap: call it with all samples"
        raise UnsupportedSetError(sentence("torch.func", f"no vmap around {SOLVER}", "one", remedy)) from None
