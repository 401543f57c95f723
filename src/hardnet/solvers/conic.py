"""Exact Euclidean projection onto intersections of curved sets: ``min 1/2 |y - raw|^2  s.t.  G(y) in K``.

An augmented Lagrangian with semismooth Newton steps gets near from anywhere (its inner problem is strongly
convex, whatever the rank or the interior of the set); Newton on the optimality conditions

    y - raw + DG(y)' dual = 0,      G(y) = P_K(G(y) + dual)

finishes to rounding, and is kept only where it lowers the residual. Splitting methods were left out: they need
thousands of iterations for the accuracy at which this finish sets in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.blocks import Block
from hardnet.solvers.solution import Solution, Status
from hardnet.solvers.stack import Saddle, Stack

PHASES = (1e-5, 1e-7, 1e-9)
"""Accuracies at which the augmented Lagrangian hands over to Newton, in turn for the samples still open."""
TARGET = 1e-15
"""Newton stops here: a few units of rounding."""
FAR = 1e5
"""A sample is infeasible where no point of the set can lie within FAR (1 + |raw|) of it."""


class State(NamedTuple):
    """The iterate of a batch: point ``(B, n)``, multipliers ``(B, r)``, penalty ``(B, 1)``, residual ``(B,)``."""

    y: Tensor
    dual: Tensor
    penalty: Tensor
    residual: Tensor


class Point(NamedTuple):
    """The augmented Lagrangian at a point: ``z = G(y) + dual / penalty``, its excess over K, the gradient."""

    z: Tensor
    excess: Tensor
    gradient: Tensor


def project_intersection(
    raw: Tensor,
    blocks: Sequence[Block],
    *,
    tolerance: float = 1e-9,
    rounding: float = 2.0**-52,
    max_iterations: int = 120,
) -> Solution:
    """``argmin |y - raw|`` subject to every block, sample by sample, in float64.

    Args:
        raw: ``(B, n)``.
        blocks: What the set is made of; tensors lead with B or 1.
        tolerance: Scale-free KKT residual below which a sample counts as solved.
        rounding: The epsilon of the dtype that raw was given in: violations of a few of these count as none.
        max_iterations: Newton steps of the augmented Lagrangian in each of its phases.

    Returns:
        Solution whose `dual` ``(B, r)`` holds the multipliers of the blocks in order.
    """
    raw = raw.detach().double()
    stack = Stack([type(block)(*(field.detach().double() for field in block)) for block in blocks], raw)
    valid = _valid(raw, stack)
    y, dual = raw.clone(), raw.new_zeros(raw.shape[0], sum(stack.sizes))
    status = torch.where(valid, Status.SOLVED, Status.INVALID).to(torch.int8)
    iterations, residual = torch.zeros_like(status, dtype=torch.int64), torch.zeros_like(raw[:, 0])
    residual[~valid] = torch.nan
    y[~valid] = torch.nan
    for index in (valid & ~inside(raw, stack, rounding)).nonzero().squeeze(-1).split(_chunk(stack, raw)):
        part = _solve(raw[index], stack.select(raw[index], index), tolerance, max_iterations)
        y[index], dual[index], status[index], iterations[index], residual[index] = part
    return Solution(y, dual, status, iterations, residual)


def inside(raw: Tensor, stack: Stack, rounding: float) -> Tensor:
    """Which samples satisfy every block to rounding, ``(B,)``: they are their own projection."""
    value = _finite(stack.value(raw))
    return ((value - stack.project(value)).abs() <= 4 * rounding * stack.size(raw)).all(-1)


def _valid(raw: Tensor, stack: Stack) -> Tensor:
    """Samples whose numbers describe a convex set, ``(B,)``."""
    ok = raw.isfinite().all(-1)
    for block in stack.blocks:
        ok = ok & block.valid()
    return ok


def _finite(v: Tensor) -> Tensor:
    """NaN and infinities of bad samples as zero, so that an eigendecomposition does not refuse the batch."""
    return torch.where(v.isfinite(), v, torch.zeros_like(v))


def _chunk(stack: Stack, raw: Tensor) -> int:
    """Samples per pass, so that Jacobians and Hessians stay near 256 MB."""
    n = raw.shape[-1]
    return max(1, 2**25 // (n * n + 4 * n * sum(stack.sizes)))


def _solve(raw: Tensor, stack: Stack, tolerance: float, max_iterations: int) -> Solution:
    """All samples are outside: alternate the globally convergent phase and the fast one until each is solved."""
    factor = stack.factor(raw)
    unit = stack.scaled(raw)
    state = _start(raw, unit)
    iterations = torch.zeros_like(state.residual, dtype=torch.int64)
    lost = torch.zeros_like(state.residual, dtype=torch.bool)
    for accuracy in PHASES:
        index = ((state.residual > max(tolerance * 1e-3, 1e-13)) & ~lost).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        part, own = unit.select(raw[index], index), State(*(field[index] for field in state))
        own, spent, gone = _lagrange(raw[index], part, own, accuracy, max_iterations)
        own, steps = _finish(raw[index], part, own)
        for field, new in zip(state, own, strict=True):
            field[index] = new
        iterations[index] += spent + steps
        lost[index] = gone & (own.residual > tolerance)
    y = _repair(raw, stack, unit, state)
    status = torch.where(state.residual <= tolerance, Status.SOLVED, Status.NOT_CONVERGED)
    status = torch.where(lost, Status.INFEASIBLE, status).to(torch.int8)
    return Solution(y, state.dual / factor, status, iterations, state.residual)


def _start(raw: Tensor, stack: Stack) -> State:
    """From raw itself, without multipliers."""
    dual = raw.new_zeros(raw.shape[0], sum(stack.sizes))
    penalty = raw.new_full((raw.shape[0], 1), 10.0)
    return State(raw.clone(), dual, penalty, _residual(raw, stack, raw, dual))


def _scale(raw: Tensor) -> Tensor:
    """``1 + max |raw|``, ``(B,)``."""
    return 1 + raw.abs().amax(-1)


def _residual(raw: Tensor, stack: Stack, y: Tensor, dual: Tensor) -> Tensor:
    """``max(|y - raw + DG'dual|, |G - P_K(G + dual)|) / (1 + |raw|)``, ``(B,)``; NaN counts as infinite."""
    first, second = _conditions(raw, stack, y, dual)
    size = torch.maximum(first.abs().amax(-1), second.abs().amax(-1)) / _scale(raw)
    return torch.where(size.isnan(), torch.inf, size)


def _conditions(raw: Tensor, stack: Stack, y: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
    """The two optimality conditions, ``(B, n)`` and ``(B, r)``."""
    value = stack.value(y)
    first = y - raw + (stack.jacobian(y).mT @ dual.unsqueeze(-1)).squeeze(-1)
    return first, value - stack.project(_finite(value + dual))


def _look(raw: Tensor, stack: Stack, state: State, y: Tensor) -> Point:
    """Evaluate the augmented Lagrangian at y with the multipliers of `state`."""
    z = stack.value(y) + state.dual / state.penalty
    excess = z - stack.project(z)
    gradient = y - raw + state.penalty * (stack.jacobian(y).mT @ excess.unsqueeze(-1)).squeeze(-1)
    return Point(z, excess, gradient)


def _lagrange(raw: Tensor, stack: Stack, state: State, accuracy: float, limit: int) -> tuple[State, Tensor, Tensor]:
    """Newton steps on the augmented Lagrangian, multipliers updated as soon as a step is good enough."""
    scale = _scale(raw)
    open_, spent = torch.ones_like(scale, dtype=torch.bool), torch.zeros_like(scale, dtype=torch.int64)
    gone = torch.zeros_like(open_)
    for _ in range(limit):
        here = _look(raw, stack, state, state.y)
        gap = (here.excess - state.dual / state.penalty).abs().amax(-1)
        slope = here.gradient.abs().amax(-1)
        good = slope <= torch.maximum(0.1 * gap, 0.1 * accuracy * scale)
        gone = gone | (open_ & good & _hopeless(raw, stack, state.y))
        residual = torch.maximum(slope, gap) / scale
        moved = _advance(state, here, good & open_, residual)
        open_ = open_ & ~gone & ~(good & (residual <= accuracy))
        if not bool(open_.any()):
            return moved, spent, gone
        spent = spent + open_
        state = moved._replace(y=_descend(raw, stack, state, here, open_ & ~good))
    return state, spent, gone


def _advance(state: State, here: Point, good: Tensor, residual: Tensor) -> State:
    """``dual = penalty excess`` where the inner problem is solved well enough, and a tenfold penalty up to 1e7."""
    good = good.unsqueeze(-1)
    dual = torch.where(good, state.penalty * here.excess, state.dual)
    slow = good & (residual > 0.1 * state.residual).unsqueeze(-1)
    penalty = torch.where(slow, (10 * state.penalty).clamp_max(1e7), state.penalty)
    return State(state.y, dual, penalty, torch.where(good.squeeze(-1), residual, state.residual))


def _descend(raw: Tensor, stack: Stack, state: State, here: Point, move: Tensor) -> Tensor:
    """One Newton step with a line search on the slope, for the samples `move`."""
    linear, _ = stack.linear(state.y, here.z, torch.zeros_like(state.penalty))
    bend = state.penalty * (1 - linear.delta)
    H = stack.curvature(state.y, state.penalty * here.excess) + linear.rows.mT @ (bend.unsqueeze(-1) * linear.rows)
    L, _ = torch.linalg.cholesky_ex(H)
    direction = -torch.cholesky_solve(here.gradient.unsqueeze(-1), L).squeeze(-1)
    direction = torch.where(move.unsqueeze(-1) & direction.isfinite(), direction, torch.zeros_like(direction))
    return state.y + _step(raw, stack, state, here, direction).unsqueeze(-1) * direction


def _step(raw: Tensor, stack: Stack, state: State, here: Point, direction: Tensor) -> Tensor:
    """A step at which the slope along `direction`, increasing by convexity, has lost half of its size.

    Only slopes are compared: near the solution differences of values drown in rounding long before slopes do.
    """
    start = (here.gradient * direction).sum(-1)
    low, high = torch.zeros_like(start), torch.full_like(start, torch.inf)
    step, open_ = torch.ones_like(start), start < 0
    for _ in range(12):
        slope = (_look(raw, stack, state, state.y + step.unsqueeze(-1) * direction).gradient * direction).sum(-1)
        open_ = open_ & (slope.abs() > -0.5 * start)
        if not bool(open_.any()):
            break
        low, high = torch.where(slope < 0, step, low), torch.where(slope > 0, step, high)
        middle = torch.where(high.isinf(), 2 * step, (low + high) / 2)
        step = torch.where(open_, middle, step)
    return step


def _hopeless(raw: Tensor, stack: Stack, y: Tensor) -> Tensor:
    """Samples whose set has no point within FAR of raw, by convexity of ``f(y) = 1/2 dist(G(y), K)^2``.

    ``0 = f(point) >= f(y) + grad f . (point - y)`` puts every feasible point at least ``f / |grad f|`` away.
    """
    value = stack.value(y)
    excess = value - stack.project(value)
    half = (excess * excess).sum(-1) / 2
    gradient = torch.linalg.vector_norm((stack.jacobian(y).mT @ excess.unsqueeze(-1)).squeeze(-1), dim=-1)
    return (half > FAR * _scale(raw) * gradient) & (excess.abs().amax(-1) > 1e-7 * _scale(raw))


def _finish(raw: Tensor, stack: Stack, state: State, limit: int = 12) -> tuple[State, Tensor]:
    """Newton on the optimality conditions, kept where it lowers the residual; returns the steps kept too."""
    residual = _residual(raw, stack, state.y, state.dual)
    state, steps = state._replace(residual=residual), torch.zeros_like(residual, dtype=torch.int64)
    open_ = residual > TARGET
    for _ in range(limit):
        if not bool(open_.any()):
            break
        y, dual = _newton(raw, stack, state)
        residual = _residual(raw, stack, y, dual)
        better = open_ & (residual < state.residual)
        keep = better.unsqueeze(-1)
        open_ = better & (residual > TARGET) & (residual < 0.5 * state.residual)
        y, dual = torch.where(keep, y, state.y), torch.where(keep, dual, state.dual)
        state = State(y, dual, state.penalty, torch.where(better, residual, state.residual))
        steps = steps + better
    return state, steps


def _newton(raw: Tensor, stack: Stack, state: State) -> tuple[Tensor, Tensor]:
    """One semismooth Newton step on ``y - raw + DG'dual = 0``, ``G = P_K(G + dual)``."""
    first, second = _conditions(raw, stack, state.y, state.dual)
    z = stack.value(state.y) + state.dual
    linear, frames = stack.linear(state.y, z, torch.zeros_like(state.penalty))
    saddle = Saddle(stack.curvature(state.y, state.dual), linear)
    second = stack.rotate(frames, second)
    shift = saddle.inverse * second  # what the free and bent rows add to the multipliers
    force = -first - (linear.rows.mT @ shift.unsqueeze(-1)).squeeze(-1)
    move, pull = saddle.reduce(force)
    onto, push = saddle.lift(torch.where(saddle.tight, -second, torch.zeros_like(second)))
    move = move + onto
    change = saddle.bend * (linear.rows @ move.unsqueeze(-1)).squeeze(-1) + shift + pull - push
    return state.y + move, state.dual + stack.restore(frames, change)


def _repair(raw: Tensor, stack: Stack, unit: Stack, state: State) -> Tensor:
    """Where the answer still misses a row by more than rounding: project onto the set tightened by that much."""
    y = state.y
    value = unit.value(y)
    miss = (value - unit.project(value)).abs()
    slack = 8 * torch.finfo(y.dtype).eps * unit.size(y)
    index = ((miss > slack).any(-1) & (state.residual < 1e-4)).nonzero().squeeze(-1)
    if index.numel() == 0:
        return y
    margin = 2 * miss[index].amax(-1, keepdim=True) + slack[index]
    part = unit.select(y[index], index).tightened(y[index], margin)
    own, _ = _finish(raw[index], part, State(*(field[index] for field in state)))
    whole, wanted = unit.select(y[index], index), own.y
    value = whole.value(wanted)
    better = (value - whole.project(value)).abs().amax(-1) < miss[index].amax(-1)
    y = y.clone()
    y[index] = torch.where(better.unsqueeze(-1), wanted, y[index])
    return y
