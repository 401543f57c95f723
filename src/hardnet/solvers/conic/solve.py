"""Exact Euclidean projection onto intersections of curved sets: ``min 1/2 |y - raw|^2  s.t.  G(y) in K``.

A fixed program, an interior point method and Newton on the active set, solves all samples; on a GPU and in graphs that
is all. Where values may be read, the samples that it leaves (sets without interior, extreme units) go on to an
augmented Lagrangian that gets near from anywhere and to Newton steps that are kept only where they lower the residual.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import CURVED, ROUNDINGS
from hardnet.modes import may_look
from hardnet.products import LARGE, gram, power_above, tiled_product, times_tiled
from hardnet.solvers.conic.blocks import (
    Block,
    Feet,
    Image,
    IntervalImage,
    Linear,
    SecondOrderImage,
    SemiDefiniteImage,
    Stack,
    finite,
    images,
    in_units,
    order,
    pack_symmetric,
    unpack,
    valid,
)
from hardnet.solvers.solution import Solution, Status, choose, place, solve_open, solved, take, verdict

# Projections from near and from far: the same problem in the unit of raw, and then in the unit of the answer.
#
# Far away from a small set, rounding relative to raw is no accuracy at y. But ``y = P(raw)`` is also the projection of
# every point between y and raw. So a first answer names a point on the way, a hundred sizes of the set away; its
# projection is exact at the size of the set; and Newton, with the distance weighted so that the multipliers are of that
# size too, carries it over to raw itself.


# The task of a projection onto blocks, its iterate, and how far it is from optimal.


class Task(NamedTuple):
    """``min weight/2 |y - raw|^2  s.t.  G(y) in K``, in units in which y and ``weight (y - raw)`` are of size one.

    Attributes:
        raw: ``(B, n)``; may be long where its weight is small.
        weight: ``(B, 1)``; it moves no minimizer, only the length of the multipliers.
        stack: The constraints.
    """

    raw: Tensor
    weight: Tensor
    stack: Stack

    def slope(self, y: Tensor) -> Tensor:
        """The gradient of the distance, ``(B, n)``."""
        return self.weight * (y - self.raw)

    def select(self, index: Tensor) -> Task:
        """The samples `index`, which are in order, alone."""
        if len(index) == len(self.raw):
            return self
        return Task(self.raw[index], self.weight[index], self.stack.select(index))


class State(NamedTuple):
    """The iterate of a batch: point ``(B, n)``, multipliers ``(B, r)``, penalty ``(B, 1)``, residual ``(B,)``."""

    y: Tensor
    dual: Tensor
    penalty: Tensor
    residual: Tensor


def start(task: Task, y: Tensor, dual: Tensor) -> State:
    """From y and multipliers."""
    return State(y, dual, torch.full_like(task.weight, CURVED.first_penalty), optimality(task, y, dual))


def pull(stack: Stack, y: Tensor, dual: Tensor) -> Tensor:
    """``DG(y)' dual``, ``(B, n)``."""
    pieces = zip(stack.images, stack.split(dual), strict=True)
    pulls = [times_tiled(image.jacobian(y).mT, own) for image, own in pieces]
    return pulls[0] if len(pulls) == 1 else torch.stack(pulls).sum(0)


def conditions(task: Task, y: Tensor, dual: Tensor) -> tuple[Tensor, Tensor, Feet]:
    """``weight (y - raw) + DG'dual`` and ``G - P_K(G + dual)``: ``(B, n)`` and ``(B, r)``, both zero at the projection.

    And the feet of ``G + dual``.
    """
    value = task.stack.value(y)
    feet = task.stack.feet(finite(value + dual))
    return task.slope(y) + pull(task.stack, y, dual), value - feet.onto, feet


def optimality(task: Task, y: Tensor, dual: Tensor) -> Tensor:
    """The largest entry of both conditions, ``(B,)``; NaN counts as infinite."""
    first, second, _ = conditions(task, y, dual)
    return largest(first, second)


def largest(first: Tensor, second: Tensor) -> Tensor:
    """The largest entry of both, ``(B,)``; NaN counts as infinite."""
    size = torch.maximum(first.abs().amax(-1), second.abs().amax(-1))
    return torch.where(size.isnan(), torch.inf, size)


# The globally convergent phase: an augmented Lagrangian minimized by semismooth Newton steps.
#
# For multipliers and a penalty rho it minimizes ``weight/2 |y - raw|^2 + rho/2 dist(G(y) + dual / rho, K)^2``, which is
# strongly convex whatever the rank or the interior of the set, and then sets ``dual = rho (z - P_K(z))``.


FAR_RAW = 1e6
"""Iterations stop where no point of the set lies within FAR times the size of raw and of the set's numbers."""
BEYOND_REACH = 1e2
"""The same for a sample that did not converge: it is called infeasible, and not merely unfinished."""
FADING, FADING_STEPS = (1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 1e-18), 8
"""Weights of the distance beside the violation on the way to the least violated point, and Newton steps with each."""


class Point(NamedTuple):
    """The augmented Lagrangian at y ``(B, n)``: the feet of ``G(y) + dual / penalty``, and the gradient ``(B, n)``."""

    y: Tensor
    feet: Feet
    gradient: Tensor


class Outcome(NamedTuple):
    """Where the phase ended: the iterate, the Newton steps spent ``(B,)`` and which samples are infeasible ``(B,)``."""

    state: State
    spent: Tensor
    gone: Tensor


def approach(task: Task, state: State, accuracy: float, limit: int) -> Outcome:
    """Newton steps until the residual is below `accuracy`; multipliers move as soon as a step is good enough."""
    running = torch.ones_like(state.residual, dtype=torch.bool)
    spent = torch.zeros_like(running, dtype=torch.int64)
    here = evaluate(task, state, state.y)
    for _ in range(limit):
        gap = (here.feet.excess - state.dual / state.penalty).abs().amax(-1)
        slope = here.gradient.abs().amax(-1)
        good = running & (slope <= (0.1 * gap).clamp_min(0.1 * accuracy))
        residual = torch.maximum(slope, gap)
        if bool(good.any()):
            state = _advance(state, here, good, residual)
            running = running & ~(good & (residual <= accuracy))
            if not bool(running.any()):
                break
            here = evaluate(task, state, state.y)
        spent = spent + running
        here = _descend(task, state, here, running)
        state = state._replace(y=here.y)
    return Outcome(state, spent, running & out_of_reach(task.stack, state.y, FAR_RAW))


def evaluate(task: Task, state: State, y: Tensor) -> Point:
    """Evaluate the augmented Lagrangian at y with the multipliers of `state`."""
    found = task.stack.feet(finite(task.stack.value(y) + state.dual / state.penalty))
    return Point(y, found, task.slope(y) + state.penalty * pull(task.stack, y, found.excess))


def _advance(state: State, here: Point, good: Tensor, residual: Tensor) -> State:
    """``dual = penalty excess`` where the inner problem is solved well enough; a tenfold penalty where that is slow."""
    dual = torch.where(good.unsqueeze(-1), state.penalty * here.feet.excess, state.dual)
    slow = (good & (residual > 0.1 * state.residual)).unsqueeze(-1)
    penalty = torch.where(slow, (10 * state.penalty).clamp_max(CURVED.largest_penalty), state.penalty)
    return State(state.y, dual, penalty, torch.where(good, residual, state.residual))


def _descend(task: Task, state: State, here: Point, move: Tensor) -> Point:
    """One Newton step with a line search, for the samples `move` ``(B,)``."""
    linear, _ = task.stack.linear(here.y, here.feet, torch.zeros_like(state.penalty))
    bend = state.penalty * (1 - linear.delta)
    H = task.stack.curvature(task.weight, state.penalty * here.feet.excess)
    L, _ = torch.linalg.cholesky_ex(H + gram(linear.rows, bend))
    direction = -torch.cholesky_solve(here.gradient.unsqueeze(-1), L).squeeze(-1)
    direction = torch.where(move.unsqueeze(-1) & direction.isfinite(), direction, torch.zeros_like(direction))
    return _search(task, state, here, direction)


def _search(task: Task, state: State, here: Point, direction: Tensor) -> Point:
    """The full step, or a shorter one where it overshoots: where the slope along `direction` has turned and is steep.

    The slope increases along the way by convexity, so its secant tells where it vanishes. Only slopes are compared:
    near the solution differences of values are lost in rounding long before slopes do.
    """
    first = -(here.gradient * direction).sum(-1)
    step, running = torch.ones_like(first), first > 0
    there = evaluate(task, state, here.y + direction)
    for _ in range(CURVED.trials):
        slope = (there.gradient * direction).sum(-1)
        running = running & (slope > 0.5 * first)
        if not bool(running.any()):
            break
        step = torch.where(running, step * (first / (first + slope)).clamp_min(0.1), step)
        there = evaluate(task, state, here.y + step.unsqueeze(-1) * direction)
    return there


def proved_empty(task: Task, state: State, reach: float) -> Tensor:
    """Samples whose set has no point within `reach`, ``(B,)``, as their least violated point proves.

    There the slope of the violation vanishes, however narrow the gap. The distance to raw fades away on the way, so
    that it only chooses among points of the same violation.
    """
    plain = State(state.y, torch.zeros_like(state.dual), torch.ones_like(state.penalty), state.residual)
    found, everyone = out_of_reach(task.stack, state.y, reach), torch.ones_like(state.residual, dtype=torch.bool)
    for weight in FADING:
        light = task._replace(weight=weight * task.weight)
        here = evaluate(light, plain, plain.y)
        for _ in range(FADING_STEPS):
            here = _descend(light, plain, here, everyone)
        plain = plain._replace(y=torch.where(here.y.isfinite().all(-1, keepdim=True), here.y, plain.y))
        found = found | out_of_reach(task.stack, plain.y, reach)
        if bool(found.all()):
            break
    return found


def out_of_reach(stack: Stack, y: Tensor, reach: float) -> Tensor:
    """Samples whose set has no point within `reach` units of y, by convexity of ``f(y) = 1/2 dist(G(y), K)^2``.

    ``0 = f(point) >= f(y) + grad f . (point - y)`` puts every feasible point at least ``f / |grad f|`` away.
    """
    excess = stack.feet(finite(stack.value(y))).excess
    half = (excess * excess).sum(-1) / 2
    gradient = torch.linalg.vector_norm(pull(stack, y, excess), dim=-1)
    size = 1 + stack.size(y).amax(-1)
    return (half > reach * size * gradient) & (excess.abs().amax(-1) > 1e-7 * size)


# The saddle system of the tight rows that Newton steps and gradients share, solved with a look and without.
#
# `Saddle` takes rows of any rank by a singular value decomposition. `StiffSaddle` is a fixed program for GPUs and large
# sets: one Cholesky factor of n x n however many rows are tight.


STIFFNESS = 1e5
"""How much stiffer than W the tight rows are made: each round then leaves about this part of their residual."""
SADDLE_REFINEMENTS = 6
"""Rounds; rows that are independent to 1e-3 are met to rounding."""


class Saddle:
    """Solve ``[W C'; C 0] (d, v) = (b, q)`` for the tight rows C of a `Linear`, whatever their rank.

    With ``W = L L'`` and the thin SVD ``L^-1 C' = U S V'``: ``d = L^-T ((I - UU') L^-1 b + U S^+ V' q)`` and
    ``v = V S^+ (U' L^-1 b - S^+ V' q)``.

    Args:
        W: Symmetric positive definite, ``(B, n, n)``.
        linear: The rows, of which only the tight ones count.
    """

    L: Tensor
    U: Tensor
    Vt: Tensor

    def __init__(self, W: Tensor, linear: Linear) -> None:
        self.L, _ = torch.linalg.cholesky_ex(W)
        C = torch.where(linear.tight.unsqueeze(-1), linear.rows, 0.0)
        reduced = torch.linalg.solve_triangular(self.L, C.mT, upper=False)
        usable = reduced.isfinite().all(-1).all(-1)[:, None, None]  # LAPACK refuses a whole batch for one NaN
        self.U, S, self.Vt = torch.linalg.svd(torch.where(usable, reduced, 0.0), full_matrices=False)
        cut = max(reduced.shape[-2:]) * 8 * torch.finfo(S.dtype).eps * S.amax(-1, keepdim=True)
        self.pseudo: Tensor = torch.where(cut < S, 1 / S.clamp_min(torch.finfo(S.dtype).tiny), 0.0)
        self.basis: Tensor = torch.where((cut < S).unsqueeze(-2), self.U, 0.0)

    def down(self, b: Tensor) -> Tensor:
        """``L^-1 b``."""
        return torch.linalg.solve_triangular(self.L, b.unsqueeze(-1), upper=False)

    def up(self, b: Tensor) -> Tensor:
        """``L^-T b``."""
        return torch.linalg.solve_triangular(self.L.mT, b, upper=True).squeeze(-1)

    def solve(self, b: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """``(d, v)``; v is zero on rows that are not tight."""
        half = self.down(b)
        inner = self.pseudo.unsqueeze(-1) * (self.Vt @ q.unsqueeze(-1))
        d = self.up(half - self.basis @ (self.basis.mT @ half) + self.U @ inner)
        v = self.Vt.mT @ (self.pseudo.unsqueeze(-1) * (self.U.mT @ half - inner))
        return d, v.squeeze(-1)


class StiffSaddle:
    """The same system by the method of multipliers: ``d = (W + t C'C)^-1 (b - C'v + t C'q)``, ``v += t (C d - q)``.

    Each round shrinks ``C d - q`` by ``1 / (1 + t sigma)`` for the eigenvalues sigma of ``C W^-1 C'``; dependent rows
    share v by the pseudo-inverse, since v stays in the range of C.
    """

    def __init__(self, W: Tensor, linear: Linear) -> None:
        self.C: Tensor = torch.where(linear.tight.unsqueeze(-1), linear.rows, 0.0)
        largest = W.diagonal(dim1=-2, dim2=-1).amax(-1)
        self.stiffness: Tensor = (STIFFNESS * largest).unsqueeze(-1)
        L, _ = torch.linalg.cholesky_ex(W + self.stiffness.unsqueeze(-1) * gram(self.C))
        eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
        self.inverse: Tensor = torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False)

    def solve(self, b: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """``(d, v)``; v is zero on rows that are not tight."""
        d, v = torch.zeros_like(b), torch.zeros_like(q)
        for _ in range(SADDLE_REFINEMENTS):
            right = b - times_tiled(self.C.mT, v - self.stiffness * q)
            d = (self.inverse.mT @ (self.inverse @ right.unsqueeze(-1))).squeeze(-1)
            v = v + self.stiffness * (times_tiled(self.C, d) - q)
        return d, v


# The fast phase: Newton on ``y - raw + DG'dual = 0``, ``G = P_K(G + dual)``, and the final repair.


NEWTON_STEPS = 12
"""The most Newton steps after the globally convergent phase."""


def polish(task: Task, state: State, limit: int, free: int, saddle: type[Saddle | StiffSaddle]) -> tuple[State, Tensor]:
    """The best of at most `limit` Newton steps, and which ``(B,)``; a sample stops at the target residual.

    From step `free` on a step must halve the least residual for another to follow; before, it may raise it to change
    the active set.
    """
    best, kept, running = state, torch.zeros_like(state.residual, dtype=torch.int64), state.residual > CURVED.target
    for number in range(1, limit + 1):
        if may_look(kept):
            state = solve_open(state, running, partial(_stepped, task, state, saddle))
        else:
            state = _moved(task, state, saddle)
        better = running & (state.residual < best.residual)
        running = running & ((state.residual < 0.5 * best.residual) | (number < free))
        best = State(*(choose(better, new, old) for new, old in zip(state, best, strict=True)))
        kept, running = torch.where(better, number, kept), running & (best.residual > CURVED.target)
        if may_look(kept) and not bool(running.any()):
            break
    return best, kept


def _stepped(task: Task, state: State, saddle: type[Saddle | StiffSaddle], index: Tensor) -> State:
    """Some samples after a Newton step."""
    return _moved(task.select(index), take(state, index), saddle)


def _moved(task: Task, state: State, saddle: type[Saddle | StiffSaddle]) -> State:
    """All samples after a Newton step."""
    y, dual = step(task, state, torch.zeros_like(state.penalty), saddle)
    return State(y, dual, state.penalty, optimality(task, y, dual))


def step(task: Task, state: State, noise: Tensor, saddle: type[Saddle | StiffSaddle] = Saddle) -> tuple[Tensor, Tensor]:
    """One semismooth Newton step to ``(y, dual)``; multipliers below `noise` ``(B, 1)`` count as zero.

    In the eigenbasis of the cone projection's derivative, tight rows get ``C dy = -residual``, the others
    ``d dual = ((1 - delta) rows dy + residual) / delta``, which leaves one saddle system in dy.
    """
    stack = task.stack
    first, second, feet = conditions(task, state.y, state.dual)
    linear, frames = stack.linear(state.y, feet, noise)
    system = saddle(linear.hessian(stack.curvature(task.weight, state.dual)), linear)
    second = stack.rotate(frames, second)
    shift = linear.inverse * second
    right = -first - times_tiled(linear.rows.mT, shift)
    move, force = system.solve(right, torch.where(linear.tight, -second, torch.zeros_like(second)))
    change = linear.bend * times_tiled(linear.rows, move) + shift + force
    return state.y + move, state.dual + stack.restore(frames, change)


def repair(task: Task, state: State) -> Tensor:
    """Where the answer still misses a row by more than rounding: Newton steps towards the set tightened by it."""
    if not may_look(state.y):
        return _repair_all(task, state)
    for _ in range(CURVED.repairs):
        over = task.stack.overshoot(state.y)
        index = (over > 1).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        part, own = task.select(index), take(state, index)
        moved = _inward(part, own)
        better = (part.stack.overshoot(moved) < over[index]).unsqueeze(-1)
        state = state._replace(y=state.y.index_copy(0, index, torch.where(better, moved, own.y)))
    return state.y


def _repair_all(task: Task, state: State) -> Tensor:
    """The same without a look: all samples take every step, and keep what helps those that need it."""
    over = task.stack.overshoot(state.y)
    for _ in range(CURVED.repairs):
        moved = _inward(task, state, StiffSaddle)
        left = task.stack.overshoot(moved)
        better = (over > 1) & (left < over)
        state, over = state._replace(y=choose(better, moved, state.y)), torch.where(better, left, over)
    return state.y


def _inward(task: Task, state: State, saddle: type[Saddle | StiffSaddle] = Saddle) -> Tensor:
    """One Newton step to the set tightened by four times the worst miss."""
    missed = task.stack.outside(state.y)
    least = 4 * torch.finfo(missed.dtype).eps  # below it a margin drowns in rounding
    margin = (4 * missed.amax(-1, keepdim=True) + least).expand_as(missed)
    noise = 1e-10 * (1 + state.dual.abs().amax(-1, keepdim=True))
    return step(task._replace(stack=task.stack.tightened(margin)), state, noise, saddle)[0]


ROUNDS = tuple(accuracy for accuracy in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-11) for _ in range(4))
"""Accuracies at which the augmented Lagrangian hands over to Newton; each round takes the samples still open."""
LAGRANGIAN_STEPS = 8
"""Newton steps of the augmented Lagrangian in one round: then solved samples leave the batch."""


class Guess(NamedTuple):
    """Where to start: point ``(B, n)``, multipliers ``(B, r)`` in plain numbers, and the unit to work in ``(B, 1)``."""

    y: Tensor
    dual: Tensor
    unit: Tensor


class Answer(NamedTuple):
    """Point, multipliers and residual of each sample, the unit that the residual is relative to, and the effort.

    Attributes:
        y: ``(B, n)``.
        dual: ``(B, r)``, of the rows as they were given.
        unit: ``(B, 1)``.
        residual: Largest violation of an optimality condition, ``(B,)``.
        iterations: ``(B,)``.
        lost: Whether the set has no point within reach, ``(B,)``.
    """

    y: Tensor
    dual: Tensor
    unit: Tensor
    residual: Tensor
    iterations: Tensor
    lost: Tensor


def settle(raw: Tensor, stack: Stack, guess: Guess, weight: Tensor, tolerance: float) -> Answer:
    """The projection in `guess.unit`, with the distance weighted by ``(B, 1)`` numbers: Newton first, then all."""
    task, factor = scaled_task(raw, stack, guess, weight)
    first, lean = guess.y / guess.unit, guess.dual * factor
    state, steps = _recall(task, start(task, first, lean))
    state, iterations, lost = _alternate(task, state, tolerance)
    iterations = iterations + steps
    y = torch.where((iterations > 0).unsqueeze(-1), state.y * guess.unit, guess.y)
    return Answer(y, state.dual / factor, guess.unit, state.residual, iterations, lost)


def _recall(task: Task, state: State) -> tuple[State, Tensor]:
    """Newton alone where multipliers are known, and its steps ``(B,)``."""
    known = (state.dual != 0).any(-1).nonzero().squeeze(-1)
    near, steps = polish(task.select(known), take(state, known), NEWTON_STEPS, 0, Saddle)
    none = torch.zeros_like(state.residual, dtype=torch.int64)
    return place(state, known, near), none.index_add(0, known, steps)


def scaled_task(raw: Tensor, stack: Stack, guess: Guess, weight: Tensor) -> tuple[Task, Tensor]:
    """The scaled task, and what to multiply plain multipliers by to get its own."""
    factors = stack.factors(guess.y)
    task = Task(raw / guess.unit, weight, stack.scaled(factors, guess.unit))
    return task, stack.spread(factors, raw) * weight / guess.unit


def _alternate(task: Task, state: State, tolerance: float) -> tuple[State, Tensor, Tensor]:
    """Alternate the globally convergent phase and the fast one until each sample is solved.

    Returns the state, the steps spent ``(B,)``, and which samples have no point within reach ``(B,)``.
    """
    iterations = torch.zeros_like(state.residual, dtype=torch.int64)
    lost = torch.zeros_like(state.residual, dtype=torch.bool)
    for accuracy in ROUNDS:
        index = ((state.residual > max(tolerance * 1e-3, 1e-13)) & ~lost).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        part, spent, gone = _round(task.select(index), take(state, index), accuracy)
        state = place(state, index, part)
        iterations = iterations.index_add(0, index, spent)
        lost = lost.index_copy(0, index, gone & (part.residual > tolerance))
    index = ((state.residual > tolerance) & ~lost).nonzero().squeeze(-1)
    if index.numel() > 0:
        lost = lost.index_copy(0, index, proved_empty(task.select(index), take(state, index), BEYOND_REACH))
    return state, iterations, lost


def _round(task: Task, state: State, accuracy: float) -> tuple[State, Tensor, Tensor]:
    """One round of both phases: the state, the steps spent ``(B,)`` and which samples look empty ``(B,)``."""
    found = approach(task, state, accuracy, LAGRANGIAN_STEPS)
    near = (found.state.residual <= accuracy).nonzero().squeeze(-1)  # from further away Newton may diverge
    part, own = task.select(near), take(found.state, near)
    own = own._replace(residual=optimality(part, own.y, own.dual))
    polished, steps = polish(part, own, NEWTON_STEPS, 0, Saddle)
    return place(found.state, near, polished), found.spent.index_add(0, near, steps), found.gone


def come_closer(raw: Tensor, stack: Stack, answer: Answer, tolerance: float) -> Answer:
    """The answer at the accuracy of y: by the projection of a point on the way, and Newton from there."""
    unit = local_unit(raw, stack, answer.y, answer.dual)
    part = (CURVED.halfway * unit / _length(raw - answer.y)).clamp_max(1)
    near = answer.y + part * (raw - answer.y)
    guess = Guess(answer.y, answer.dual * part, CURVED.halfway * unit)
    middle = settle(near, stack, guess, torch.ones_like(unit), tolerance)
    further = _length(raw - middle.y) / _length(near - middle.y)
    found = settle(raw, stack, *near_y(raw, stack, middle.y, middle.dual * further), tolerance)
    iterations = answer.iterations + middle.iterations + found.iterations
    return found._replace(iterations=iterations, lost=middle.lost & found.lost)


def tidy(raw: Tensor, stack: Stack, answer: Answer) -> Answer:
    """Newton with rows of unit size at y, and steps inwards where a row is still missed by more than rounding.

    Where no value may be looked at, steps inwards alone.
    """
    guess, weight = near_y(raw, stack, answer.y, answer.dual)
    force = (guess.dual * scaled_task(raw, stack, guess, weight)[1]).abs().amax(-1, keepdim=True)
    # rows are known to rounding of their multipliers, which are long where the set is thin
    task, factor = scaled_task(raw, stack, guess, weight / power_above(force).clamp_min(1))
    state, steps = start(task, guess.y / guess.unit, guess.dual * factor), 0
    if may_look(raw):
        state, steps = polish(task, state, NEWTON_STEPS, 0, Saddle)
    y, iterations = repair(task, state) * guess.unit, answer.iterations + steps
    return answer._replace(y=y, dual=state.dual / factor, unit=guess.unit, iterations=iterations)


def near_y(raw: Tensor, stack: Stack, y: Tensor, dual: Tensor) -> tuple[Guess, Tensor]:
    """Start from y in its own unit, and the weight that makes multipliers of that size."""
    unit = local_unit(raw, stack, y, dual)
    return Guess(y, dual, unit), power_above((unit / _length(raw - y)).clamp_max(1))


def _length(v: Tensor) -> Tensor:
    """The largest entry, ``(B, 1)``; one for zero, so that it divides."""
    size = v.abs().amax(-1, keepdim=True)
    return torch.where(size > 0, size, 1.0)


def local_unit(raw: Tensor, stack: Stack, y: Tensor, dual: Tensor) -> Tensor:
    """The power of two above y and above the terms of the rows that hold it, over their slopes, ``(B, 1)``."""
    factor = stack.factor(y)
    force = (dual * factor).abs()
    holds = force > 1e-6 * force.amax(-1, keepdim=True)
    terms = torch.where(holds, stack.size(y) / factor, 0.0).amax(-1, keepdim=True)
    least = 2.0**-60 * raw.abs().amax(-1, keepdim=True)
    size = torch.maximum(torch.maximum(terms, y.abs().amax(-1, keepdim=True)), least)
    return power_above(size)


# Rows and quadratics in an interior point method: ``G(y) = s > 0`` with multipliers z and ``s z = mu``.
#
# Every barrier eliminates its slack and multiplier from the Newton system by a linear map and a vector,
#
# ds = DG dy + gap,      dz = drive - weigh(DG dy),
#
# so that the method sees one positive definite system in dy. An equality has a constant weight and no slack.


LEAST_NUMBER = 1e-300
STIFF = 1e7
"""Weight of an equality: each step leaves about this part of its residual."""


class Pair(NamedTuple):
    """Slack s and multiplier z of one barrier, of one shape that leads with B."""

    s: Tensor
    z: Tensor


class Barrier(ABC):
    """One image in an interior point method: its pair, and where the pair stands at y."""

    @abstractmethod
    def start(self, y: Tensor) -> Pair:
        """A pair inside, whatever y is."""

    @abstractmethod
    def at(self, y: Tensor, pair: Pair) -> Local:
        """Linearize at y."""

    @abstractmethod
    def dual(self, pair: Pair) -> Tensor:
        """The multipliers as the rest of the library knows them, ``(B, r)``."""

    @abstractmethod
    def degree(self) -> Tensor | int:
        """How many products s z there are, ``(B,)`` or a number."""


class Local(ABC):
    """A barrier linearized at one point."""

    pair: Pair
    gap: Tensor
    """``G(y) - s``, zero once the slack is that of y."""

    @abstractmethod
    def hessian(self) -> Tensor:
        """What it adds to the system in dy, ``(B, n, n)``."""

    @abstractmethod
    def pull(self, v: Tensor) -> Tensor:
        """``DG'v``, ``(B, n)``."""

    @abstractmethod
    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """What dz is without dy, for ``s z = target`` ``(B,)``, corrected by a guess of both moves."""

    @abstractmethod
    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """``(ds, dz)``."""

    @abstractmethod
    def reach(self, move: Pair) -> Tensor:
        """The longest step that stays inside, ``(B,)``."""

    def product(self) -> Tensor:
        """``s . z``, ``(B,)``."""
        return (self.pair.s * self.pair.z).flatten(1).sum(-1)

    def missed(self) -> Tensor:
        """The largest entry of `gap`, ``(B,)``."""
        return self.gap.abs().flatten(1).amax(-1)


class RowsLocal(Local):
    """Rows with slacks of their own: weight ``z / s``."""

    def __init__(self, J: Tensor, value: Tensor, pair: Pair, held: Tensor, fixed: Tensor, bend: Tensor | None) -> None:
        self.J, self.pair, self.bend, self.held = J, pair, bend, held
        self.gap: Tensor = torch.where(held | fixed, value - pair.s, 0.0)
        self.weight: Tensor = torch.where(fixed, STIFF, torch.where(held, pair.z / pair.s, 0.0))

    def hessian(self) -> Tensor:
        """``J' diag(weight) J`` and the curvature of the rows."""
        total = self.J.mT @ (self.weight.unsqueeze(-1) * self.J)
        return total if self.bend is None else total + self.bend

    def pull(self, v: Tensor) -> Tensor:
        """``J'v``."""
        return times_tiled(self.J.mT, v)

    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """``(target - guess_s guess_z) / s - z - weight gap``; an equality takes the last term alone."""
        aim = target.unsqueeze(-1) if guess is None else target.unsqueeze(-1) - guess.s * guess.z
        return torch.where(self.held, aim / self.pair.s - self.pair.z, 0.0) - self.weight * self.gap

    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """An equality keeps its slack of zero."""
        change = times_tiled(self.J, dy)
        return Pair(torch.where(self.held, change + self.gap, 0.0), drive - self.weight * change)

    def reach(self, move: Pair) -> Tensor:
        """Where the first slack or multiplier vanishes."""
        shrink = torch.maximum(-move.s / self.pair.s, -move.z / self.pair.z.clamp_min(LEAST_NUMBER))
        return 1 / torch.where(self.held, shrink, 0.0).amax(-1).clamp_min(LEAST_NUMBER)


class IntervalBarrier(Barrier):
    """``upper - A y > 0`` and ``A y - lower > 0`` where finite; rows with ``lower == upper`` are equalities."""

    def __init__(self, image: IntervalImage) -> None:
        lower, upper = torch.broadcast_tensors(image.lower, image.upper)
        self.image, equal = image, lower == upper
        self.held: Tensor = torch.cat([upper.isfinite() & ~equal, lower.isfinite() & ~equal], -1)
        self.fixed: Tensor = torch.cat([equal, torch.zeros_like(equal)], -1)
        bounds = [torch.where(bound.isfinite(), bound, 0.0) for bound in (upper, -lower)]
        self.bound: Tensor = torch.cat(bounds, -1)

    def _value(self, y: Tensor) -> Tensor:
        product = self.image.value(y)
        return self.bound - torch.cat([product, -product], -1)

    def start(self, y: Tensor) -> Pair:
        """At least one unit inside."""
        value = self._value(y)
        held, fixed = self.held.expand_as(value), self.fixed.expand_as(value)
        s = torch.where(held, value.clamp_min(1.0), 1.0)
        return Pair(torch.where(fixed, 0.0, s), torch.where(held, 1 / s, 0.0))

    def at(self, y: Tensor, pair: Pair) -> Local:
        """Constant rows."""
        J = torch.cat([-self.image.A, self.image.A], -2)
        return RowsLocal(J, self._value(y), pair, self.held, self.fixed, None)

    def dual(self, pair: Pair) -> Tensor:
        """Positive at the upper bound, negative at the lower."""
        up, down = pair.z.chunk(2, -1)
        return up - down

    def degree(self) -> Tensor:
        """One for each finite side."""
        return self.held.sum(-1)


class ValueBarrier(Barrier):
    """``-G(y) > 0`` for the values of convex functions, each one row."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def start(self, y: Tensor) -> Pair:
        """At least one unit inside."""
        s = (-self.image.value(y)).clamp_min(1.0)
        return Pair(s, 1 / s)

    def at(self, y: Tensor, pair: Pair) -> Local:
        """The gradients, and the curvature that the multipliers give."""
        every = torch.ones_like(pair.s, dtype=torch.bool)
        value, J, bend = -self.image.value(y), -self.image.jacobian(y), self.image.curvature(pair.z)
        return RowsLocal(J, value, pair, every, ~every, bend)

    def dual(self, pair: Pair) -> Tensor:
        """Z itself."""
        return pair.z

    def degree(self) -> int:
        """One for each row."""
        return self.image.rows


# Second-order cones in an interior point method, with Nesterov and Todd's scaling, g cones of one size at a time.
#
# The scaling W is the symmetric map with ``W z = W^-1 s = lam``; it stretches along one axis of the cone, so that it is
# kept as a number `stretch` and a point `axis` of unit determinant.


def _mirrored(v: Tensor) -> Tensor:
    """``J v``: the flat part with the other sign."""
    return torch.cat([-v[..., :-1], v[..., -1:]], -1)


def _determinant(v: Tensor) -> Tensor:
    """``t^2 - |u|^2`` without cancellation."""
    size, t = torch.linalg.vector_norm(v[..., :-1], dim=-1, keepdim=True), v[..., -1:]
    return (t - size) * (t + size)


def _jordan(a: Tensor, b: Tensor) -> Tensor:
    """The product of the cone: ``(a_t b_u + b_t a_u, a . b)``."""
    flat = a[..., -1:] * b[..., :-1] + b[..., -1:] * a[..., :-1]
    return torch.cat([flat, (a * b).sum(-1, keepdim=True)], -1)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """The x with ``a o x = b``."""
    flat, t = a[..., :-1], a[..., -1:]
    height = (t * b[..., -1:] - (flat * b[..., :-1]).sum(-1, keepdim=True)) / _determinant(a).clamp_min(LEAST_NUMBER)
    return torch.cat([(b[..., :-1] - height * flat) / t, height], -1)


class ConeBarrier(Barrier):
    """``K_i y + k_i = s_i`` in second-order cones; pairs are ``(B, g, r)``."""

    def __init__(self, image: SecondOrderImage) -> None:
        self.image = image
        self.gram: Tensor | None = None
        if image.K.shape[0] == 1 and image.K.numel() >= LARGE:
            flat, height = image.K[..., :-1, :], image.K[..., -1:, :]
            self.gram = flat.mT @ flat - height.mT @ height

    def start(self, y: Tensor) -> Pair:
        """The value lifted into the cone, and the axis."""
        s = self.image.each(self.image.value(y))
        size = torch.linalg.vector_norm(s[..., :-1], dim=-1, keepdim=True)
        s = torch.cat([s[..., :-1], torch.maximum(s[..., -1:], size + 1)], -1)
        return Pair(s, torch.cat([torch.zeros_like(s[..., :-1]), torch.ones_like(size)], -1))

    def at(self, y: Tensor, pair: Pair) -> Local:
        """With the scaling of this pair."""
        return ConeLocal(self, y, pair)

    def dual(self, pair: Pair) -> Tensor:
        """In the polar cone."""
        return -pair.z.flatten(-2)

    def degree(self) -> int:
        """One for each cone."""
        return self.image.K.shape[-3]


class ConeLocal(Local):
    """The scaling at one pair."""

    def __init__(self, barrier: ConeBarrier, y: Tensor, pair: Pair) -> None:
        image = barrier.image
        self.image, self.gram, self.pair = image, barrier.gram, pair
        self.gap: Tensor = image.each(image.value(y)) - pair.s
        self.inner: Tensor = _determinant(pair.s).clamp_min(LEAST_NUMBER)
        outer = _determinant(pair.z).clamp_min(LEAST_NUMBER)
        one, other = pair.s / self.inner.sqrt(), pair.z / outer.sqrt()
        angle = ((1 + (one * other).sum(-1, keepdim=True)) / 2).sqrt()
        self.axis: Tensor = (one + _mirrored(other)) / (2 * angle)
        self.stretch: Tensor = (self.inner / outer).sqrt().sqrt()
        self.lam: Tensor = self.scale(pair.z)

    def scale(self, v: Tensor) -> Tensor:
        """``W v``."""
        flat, t = self.axis[..., :-1], self.axis[..., -1:]
        along = (flat * v[..., :-1]).sum(-1, keepdim=True)
        moved = v[..., :-1] + flat * (along / (1 + t) + v[..., -1:])
        return self.stretch * torch.cat([moved, along + t * v[..., -1:]], -1)

    def unscale(self, v: Tensor) -> Tensor:
        """``W^-1 v``, the same with the mirrored axis."""
        return _mirrored(self.scale(_mirrored(v))) / self.stretch.square()

    def _weigh(self, v: Tensor) -> Tensor:
        """``W^-2 v``."""
        return self.unscale(self.unscale(v))

    def hessian(self) -> Tensor:
        """``sum K'W^-2 K`` with ``W^-2 = (2 a a' - J) / stretch^2`` for the mirrored axis a."""
        K, share = self.image.K, self.stretch.square().reciprocal()
        if self.gram is None:
            axis = (_mirrored(self.axis).unsqueeze(-2) @ K).squeeze(-2)
            signed = _mirrored(torch.ones_like(self.axis)) * share
            bent = -K.flatten(-3, -2).mT @ (signed.flatten(-2).unsqueeze(-1) * K.flatten(-3, -2))
        else:
            axis = tiled_product(_mirrored(self.axis), K)
            bent = tiled_product(share.squeeze(-1), self.gram.flatten(-2)).unflatten(-1, self.gram.shape[-2:])
        return bent + 2 * axis.mT @ (share * axis)

    def pull(self, v: Tensor) -> Tensor:
        """``K'v``."""
        return times_tiled(self.image.K.flatten(-3, -2).mT, v.flatten(-2))

    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """``target s^-1 - z - W^-2 gap``, less the product of the guessed moves in the scaled cone."""
        aim = target[:, None, None] * _mirrored(self.pair.s) / self.inner - self.pair.z - self._weigh(self.gap)
        if guess is None:
            return aim
        return aim - self.unscale(_divide(self.lam, _jordan(self.unscale(guess.s), self.scale(guess.z))))

    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """Along K dy."""
        change = self.image.each(times_tiled(self.image.K.flatten(-3, -2), dy))
        return Pair(change + self.gap, drive - self._weigh(change))

    def reach(self, move: Pair) -> Tensor:
        """The first root of the determinant along each move."""
        return torch.minimum(_first_root(self.pair.s, move.s), _first_root(self.pair.z, move.z))


def _first_root(v: Tensor, move: Tensor) -> Tensor:
    """The smallest positive root of ``a t^2 + 2 b t + c``, the determinant along the move, over all cones ``(B,)``."""
    c, mirrored = _determinant(v), _mirrored(move)
    b, a = (v * mirrored).sum(-1, keepdim=True), (move * mirrored).sum(-1, keepdim=True)
    root = c / ((b * b - a * c).clamp_min(0).sqrt() - b).clamp_min(LEAST_NUMBER)
    return root.flatten(1).amin(-1)


# Semidefinite cones in an interior point method by factors alone, no eigenvalue: g matrices of one order at a time.
#
# ``S = F(y)`` and Z are linearized as ``Z S + dZ S + Z dS = mu I``, made symmetric (Helmberg, Kojima and Monteiro).


SQUARINGS = 6
"""The bound of the largest eigenvalue takes the power 2^6: for k = 4 it is at most 2 % too large, for k = 30 6 %."""


def _symmetric(X: Tensor) -> Tensor:
    return (X + X.mT) / 2


def _trace(X: Tensor) -> Tensor:
    return X.diagonal(dim1=-2, dim2=-1).sum(-1)


class MatrixBarrier(Barrier):
    """``F0_i + sum_j y_j F_ij = S_i`` positive definite; pairs are ``(B, g, k, k)``."""

    def __init__(self, image: SemiDefiniteImage) -> None:
        self.image = image
        self.k: int = order(image.K.shape[-2])
        self.F: Tensor = unpack(image.K.mT, self.k)
        self.eye: Tensor = torch.eye(self.k, dtype=self.F.dtype, device=self.F.device)

    def matrices(self, z: Tensor) -> Tensor:
        """Packed rows ``(B, g r)`` as matrices."""
        return unpack(self.image.each(z), self.k)

    def start(self, y: Tensor) -> Pair:
        """The value with its diagonal raised until it dominates (Gershgorin), and the identity."""
        S = self.matrices(self.image.value(y))
        diagonal = S.diagonal(dim1=-2, dim2=-1)
        short = (S.abs().sum(-1) - diagonal.abs() - diagonal).amax(-1)
        return Pair(S + (1 + short).clamp_min(0)[..., None, None] * self.eye, self.eye.expand_as(S))

    def at(self, y: Tensor, pair: Pair) -> Local:
        """With the factors of this pair."""
        return MatrixLocal(self, y, pair)

    def dual(self, pair: Pair) -> Tensor:
        """In the polar cone, packed."""
        return -pack_symmetric(pair.z).flatten(-2)

    def degree(self) -> int:
        """The order of each matrix."""
        return self.F.shape[-4] * self.k


class MatrixLocal(Local):
    """The factors at one pair."""

    def __init__(self, barrier: MatrixBarrier, y: Tensor, pair: Pair) -> None:
        self.barrier, self.pair = barrier, pair
        self.gap: Tensor = barrier.matrices(barrier.image.value(y)) - pair.s
        factors, _ = torch.linalg.cholesky_ex(torch.stack(pair))
        self.factors: Tensor = torch.linalg.solve_triangular(factors, barrier.eye.expand_as(factors), upper=False)
        self.root: Tensor = factors[1]
        self.inverse: Tensor = self.factors[0].mT @ self.factors[0]

    def hessian(self) -> Tensor:
        """``tr(F_i Z F_j S^-1)``, as products of ``L^-1 F_i R``."""
        each = self.factors[0].unsqueeze(-3) @ self.barrier.F @ self.root.unsqueeze(-3)
        rows = each.flatten(-2).transpose(1, 2).flatten(2)
        return gram(rows.mT)

    def pull(self, v: Tensor) -> Tensor:
        """``tr(F_j V)``."""
        return times_tiled(self.barrier.image.K.flatten(-3, -2).mT, pack_symmetric(v).flatten(-2))

    def _weigh(self, X: Tensor) -> Tensor:
        return _symmetric(self.pair.z @ X @ self.inverse)

    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """``target S^-1 - Z - Z gap S^-1``, less the product of the guessed moves."""
        aim = target[:, None, None, None] * self.inverse - self.pair.z - self._weigh(self.gap)
        return aim if guess is None else aim - _symmetric(guess.z @ guess.s @ self.inverse)

    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """Along ``sum_j dy_j F_j``."""
        change = self.barrier.matrices(times_tiled(self.barrier.image.K.flatten(-3, -2), dy))
        return Pair(change + self.gap, drive - self._weigh(change))

    def reach(self, move: Pair) -> Tensor:
        """One over a bound of the largest eigenvalue of ``-L^-1 dS L^-T`` and its like for Z: never too long."""
        bounds = self._largest(-self.factors @ torch.stack(move) @ self.factors.mT)
        return 1 / bounds.amax(0).flatten(1).amax(-1).clamp_min(LEAST_NUMBER)

    def _largest(self, X: Tensor) -> Tensor:
        """At least the largest eigenvalue of symmetric X: ``c + tr((X - c I)^p)^(1/p)`` with c below all of them."""
        k, sizes = X.shape[-1], []
        mean = _trace(X) / k
        spread = ((X * X).sum((-2, -1)) / k - mean * mean).clamp_min(0).sqrt()
        least = mean - (k - 1) ** 0.5 * spread
        X = X - least[..., None, None] * self.barrier.eye
        for _ in range(SQUARINGS):
            sizes.append(_trace(X).clamp_min(LEAST_NUMBER))
            X = X / sizes[-1][..., None, None]
            X = X @ X
        root = _trace(X).clamp_min(LEAST_NUMBER)
        for size in reversed(sizes):
            root = size * root.sqrt()
        return least + root


# ``min 1/2 |y - raw|^2  s.t.  G(y) in K`` by a primal-dual interior point method: a fixed program, no look at a value.
#
# Predictor and corrector (Mehrotra) share one Cholesky factor of n x n a step. A sample that has arrived, or whose step
# fails, keeps its best point. Where a look is free the loop ends with the last sample.


ARRIVED = 1e-12
"""Mean product of slacks and multipliers, in units of size one, from which Newton on the active set goes on."""
SLOPE, MISS = 1e-4, 1e-2
"""What a residual of the slope and of the slacks counts beside it: Newton makes these exact from further away."""
SHORT_OF_BOUNDARY = 0.99
"""Part of the way to the boundary that a step takes."""


class Interior(NamedTuple):
    """Point ``(B, n)``, multipliers ``(B, r)``, how far from optimal ``(B,)``, and the steps spent ``(B,)``."""

    y: Tensor
    dual: Tensor
    residual: Tensor
    iterations: Tensor


def barrier(image: Image) -> Barrier:
    """The barrier of an image."""
    if isinstance(image, IntervalImage):
        return IntervalBarrier(image)
    if isinstance(image, SecondOrderImage):
        return ConeBarrier(image)
    return MatrixBarrier(image) if isinstance(image, SemiDefiniteImage) else ValueBarrier(image)


def follow_path(task: Task, steps: int) -> Interior:
    """At most `steps` steps from ``y = raw``."""
    barriers = [barrier(image) for image in task.stack.images]
    y, pairs = task.raw, [one.start(task.raw) for one in barriers]
    degree = torch.zeros_like(y[:, 0])
    for one in barriers:
        degree = degree + one.degree()
    count = torch.zeros_like(y[:, 0], dtype=torch.int64)
    best = Interior(y, _duals(barriers, pairs), torch.full_like(y[:, 0], torch.inf), count)
    for _ in range(steps + 1):
        here = [one.at(y, pair) for one, pair in zip(barriers, pairs, strict=True)]
        slope = task.slope(y) - _total([one.pull(pair.z) for one, pair in zip(here, pairs, strict=True)])
        mean = _total([one.product() for one in here]) / degree.clamp_min(1)
        parts = [SLOPE * slope.abs().amax(-1), mean, *(MISS * one.missed() for one in here)]
        worst = torch.stack(parts).amax(0)
        best = _keep(best, y, _duals(barriers, pairs), worst, count)
        running = (best.residual > ARRIVED) & worst.isfinite()
        if may_look(y) and not bool(running.any()):
            break
        dy, moves, length = _step(task, here, slope, mean)
        length = torch.where(running & length.isfinite(), length, 0.0)
        y, count = _along(y, dy, length), count + running
        pairs = [Pair(*map(_along, pair, move, (length, length))) for pair, move in zip(pairs, moves, strict=True)]
    return best


def _duals(barriers: list[Barrier], pairs: list[Pair]) -> Tensor:
    """The multipliers of all images, ``(B, r)``."""
    return torch.cat([one.dual(pair) for one, pair in zip(barriers, pairs, strict=True)], -1)


def _keep(best: Interior, y: Tensor, dual: Tensor, residual: Tensor, count: Tensor) -> Interior:
    """The better of two points, sample by sample."""
    better = residual < best.residual
    choose = better.unsqueeze(-1)
    return Interior(
        torch.where(choose, y, best.y),
        torch.where(choose, dual, best.dual),
        torch.where(better, residual, best.residual),
        torch.where(better, count, best.iterations),
    )


def _step(task: Task, here: list[Local], slope: Tensor, mean: Tensor) -> tuple[Tensor, list[Pair], Tensor]:
    """The direction ``(dy, moves)`` and how far to go: predict with target zero, then aim and correct."""
    weight = torch.diag_embed(task.weight.expand_as(task.raw))
    L, _ = torch.linalg.cholesky_ex(weight + _total([one.hessian() for one in here]))
    inverse = torch.linalg.solve_triangular(
        L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L), upper=False
    )
    _, moves = _direction(here, inverse, slope, torch.zeros_like(mean), None)
    target = (1 - _reach(here, moves).clamp_max(1)) ** 3 * mean
    dy, moves = _direction(here, inverse, slope, target, moves)
    return dy, moves, (SHORT_OF_BOUNDARY * _reach(here, moves)).clamp_max(1)


def _direction(
    here: list[Local], inverse: Tensor, slope: Tensor, target: Tensor, guess: list[Pair] | None
) -> tuple[Tensor, list[Pair]]:
    """One Newton direction from the inverse factor of its system."""
    guesses = [None] * len(here) if guess is None else guess
    drives = [one.drive(target, own) for one, own in zip(here, guesses, strict=True)]
    right = _total([one.pull(drive) for one, drive in zip(here, drives, strict=True)]) - slope
    dy = (inverse.mT @ (inverse @ right.unsqueeze(-1))).squeeze(-1)
    return dy, [one.move(dy, drive) for one, drive in zip(here, drives, strict=True)]


def _reach(here: list[Local], moves: list[Pair]) -> Tensor:
    """The longest step that stays inside of every cone, ``(B,)``."""
    return torch.stack([one.reach(move) for one, move in zip(here, moves, strict=True)]).amin(0)


def _along(v: Tensor, move: Tensor, length: Tensor) -> Tensor:
    """``v + length move``, and v itself where the length is zero, whatever the move is."""
    length = length.reshape(-1, *[1] * (v.dim() - 1))
    return torch.where(length > 0, v + length * move, v)


def _total(parts: list[Tensor]) -> Tensor:
    """The sum of all."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


# The projection onto blocks as a fixed program: so many interior point steps, then Newton on the active set.
#
# No value is looked at, so that CUDA graphs take it; what it did not solve says so in its status. Where a look is free,
# both loops end early, and the rest goes to a solver that needs no interior.


BARRIER_STEPS = 20
"""Interior point steps; problems of the benchmarks take 9 to 16."""
POLISHING_STEPS = 5
"""Newton steps on the active set; most samples need two."""


FREE = 3
"""From this step on one must halve the residual for another to follow."""


def follow_and_polish(raw: Tensor, stack: Stack, unit: Tensor, steps: int = BARRIER_STEPS) -> Answer:
    """The projection of raw ``(B, n)`` after at most `steps` interior point steps, in lengths of `unit` ``(B, 1)``."""
    origin = Guess(raw, raw.new_zeros(raw.shape[0], sum(stack.sizes)), unit)
    task, factor = scaled_task(raw, stack, origin, torch.ones_like(unit))
    found = follow_path(task, steps)
    lost = beyond_reach(task, found.y, found.dual)
    guess, weight = near_y(raw, stack, found.y * unit, found.dual / factor)
    task, factor = scaled_task(raw, stack, guess, weight)
    origin = start(task, guess.y / guess.unit, guess.dual * factor)
    state, more = polish(task, origin, POLISHING_STEPS, FREE, StiffSaddle)
    iterations = found.iterations + more
    y, dual = state.y * guess.unit, state.dual / factor
    return Answer(y, dual, guess.unit, state.residual, iterations, lost & (state.residual > 1e-9))


def beyond_reach(task: Task, y: Tensor, dual: Tensor) -> Tensor:
    """Samples whose multipliers prove that the set has no point near y, ``(B,)``.

    ``dual . G`` is convex and not positive at a point z of the set, so ``|z - y| >= dual . G(y) / |DG'dual|``, where
    intervals count from the bound that the sign of the multiplier picks.
    """
    stack = task.stack
    height = torch.stack(
        [image.height(y, own) for image, own in zip(stack.images, stack.split(dual), strict=True)]
    ).sum(0)
    slope = torch.linalg.vector_norm(pull(stack, y, dual), dim=-1)
    size = 1 + y.abs().amax(-1)
    return (height > BEYOND_REACH * size * slope) & (height > 1e-7 * size * dual.abs().amax(-1))


LOOSE_DISTANCE = 1e-4
"""Residual up to which rows that are missed by more than rounding are worth a last step."""
LIKE = 64.0
"""Units of outputs that are no further apart than this are no reason for having missed a point."""
WAY = tuple(1 - step / 16 for step in range(1, 17))
"""Powers of these units, on the way from them to none."""
SMALL_BATCH = 512
"""Outputs times rows up to which the alternating solver is the faster one on a CPU."""


class Limits(NamedTuple):
    """What a solved sample may be off: the scale-free KKT residual, and rows in parts of their terms."""

    residual: float
    violation: float


def project_intersection(
    raw: Tensor,
    blocks: Sequence[Block],
    *,
    tolerance: float = 1e-9,
    dtype: torch.dtype = torch.float64,
    elsewhere: bool = True,
) -> Solution:
    """``argmin |y - raw|`` subject to every block, sample by sample, in float64.

    Args:
        raw: ``(B, n)``.
        blocks: What the set is made of; tensors lead with B or 1.
        tolerance: Scale-free KKT residual below which a sample counts as solved.
        dtype: That of raw as it was given: violations of a few of its roundings count as none.
        elsewhere: Whether sets without a point near raw are looked at in other units.

    Returns:
        Solution whose `dual` ``(B, r)`` holds the multipliers of the blocks in order.
    """
    raw = raw.detach().double()
    stack = Stack([image.map(Tensor.detach) for image in images(blocks)], raw.shape[-1])
    sound = raw.isfinite().all(-1) & valid(blocks)
    y, dual = torch.where(sound.unsqueeze(-1), raw, torch.nan), raw.new_zeros(raw.shape[0], sum(stack.sizes))
    status = torch.where(sound, Status.SOLVED, Status.INVALID).to(torch.int8)
    iterations, residual = torch.zeros_like(status, dtype=torch.int64), torch.where(sound, 0.0, torch.nan).to(raw)
    y = stack.clamped(y)
    inside = (stack.outside(raw) <= CURVED.inside * torch.finfo(dtype).eps * stack.size(raw)).all(-1)
    outside = sound & ~inside
    limits = Limits(tolerance, min(ROUNDINGS * torch.finfo(dtype).eps, CURVED.feasible))
    if not may_look(raw):
        return _merge_fixed(Solution(y, dual, status, iterations, residual), outside, raw, stack, limits)
    for index in outside.nonzero().squeeze(-1).split(_chunk(stack, raw)):
        if index.numel() == 0:  # what all samples share may be unsound
            break
        part = _solve(raw[index], stack.select(index), limits)
        y[index], dual[index], status[index], iterations[index], residual[index] = part
    found = Solution(y, dual, status, iterations, residual)
    lost = (status == int(Status.INFEASIBLE)).nonzero().squeeze(-1)
    return found if lost.numel() == 0 or not elsewhere else _looked_for_elsewhere(found, lost, raw, blocks, limits)


def _looked_for_elsewhere(
    known: Solution, lost: Tensor, raw: Tensor, blocks: Sequence[Block], limits: Limits
) -> Solution:
    """`known`, where sets that have no point within reach of raw are looked at in units of their own.

    Outputs in very different units put the nearest point far beyond raw. With each output in the unit in which the rows
    feel it as much as the others, a point of the set is near if there is one. Where that point leads to no nearest
    one, it is the answer itself, and not proved to be the nearest.
    """
    raw, some = raw[lost], [_taken(block, lost) for block in blocks]
    stack = Stack([image.map(Tensor.detach) for image in images(some)], raw.shape[-1])
    felt = (stack.jacobian(raw).abs() / stack.factor(raw).unsqueeze(-1)).amax(-2)
    units = power_above(1 / torch.where(felt > 0, felt, felt.amax(-1, keepdim=True)).clamp_min(1e-300))
    if bool((units.amax(-1) <= LIKE * units.amin(-1)).all()):
        return known
    turned = [in_units(block, units) for block in some]
    there = project_intersection(raw / units, turned, tolerance=limits.residual, elsewhere=False)
    reached = solved(there.status)
    if not bool(reached.any()):
        return known
    chosen = reached.nonzero().squeeze(-1)
    lost, raw, units, point = lost[chosen], raw[chosen], units[chosen], there.y[chosen] * units[chosen]
    some, dual = [_taken(block, chosen) for block in some], there.dual[chosen]
    start, none = Guess(point, dual, torch.ones_like(units[:, :1])), torch.zeros_like(chosen)
    instead = answer = Answer(*start, torch.full_like(point[:, 0], torch.inf), none, none.bool())
    stack = Stack([image.map(Tensor.detach) for image in images(some)], raw.shape[-1])
    for part in WAY:  # from those units to none, since multipliers change with them
        unit = power_above(units**part) if part else torch.ones_like(units)
        stack = Stack(
            [image.map(Tensor.detach) for image in images([in_units(block, unit) for block in some])], raw.shape[-1]
        )
        aim, near = raw / unit, start.y / unit
        guess = Guess(near, start.dual, _unit(aim, near, stack))
        answer = settle(aim, stack, guess, torch.ones_like(guess.unit), limits.residual)
        good = (answer.residual <= limits.residual) & ~answer.lost
        start = Guess(choose(good, answer.y * unit, start.y), choose(good, answer.dual, start.dual), start.unit)
    found, feasible = _judge(_tidied(raw, stack, answer), stack, limits), _judge(instead, stack, limits)
    good = found.status == int(Status.SOLVED)
    return place(known, lost, Solution(*(choose(good, new, old) for new, old in zip(found, feasible, strict=True))))


def _taken(block: Block, index: Tensor) -> Block:
    """The samples of a block in float64; constants stay as they are."""
    return type(block)(*(field.double() if field.shape[0] == 1 else field[index].double() for field in block))


def _merge_fixed(known: Solution, outside: Tensor, raw: Tensor, stack: Stack, limits: Limits) -> Solution:
    """`known` with the samples `outside` solved by the fixed program, which all samples run through."""
    safe = torch.where(outside.unsqueeze(-1), raw, 0.0)
    first = follow_and_polish(safe, stack, _unit(safe, safe, stack))
    found = _judge(tidy(safe, stack, first), stack, limits)
    return Solution(*(choose(outside, new, old) for new, old in zip(found, known, strict=True)))


def _chunk(stack: Stack, raw: Tensor) -> int:
    """Samples per pass, so that Jacobians and Hessians stay near 256 MB."""
    n = raw.shape[-1]
    return max(1, 2**25 // (n * n + 4 * n * sum(stack.sizes)))


def _solve(raw: Tensor, stack: Stack, limits: Limits) -> Solution:
    """All samples are outside: the fixed program for all, and the alternating solver for those that it leaves.

    Small sets without a matrix go to the alternating solver at once, which then takes fewer operations.
    """
    plain = not any(isinstance(one, SemiDefiniteImage) for one in stack.images)
    if plain and raw.shape[-1] * sum(stack.sizes) <= SMALL_BATCH:
        return _solve_alternating(raw, stack, limits)
    answer = follow_and_polish(raw, stack, _unit(raw, raw, stack))
    found = _judge(_tidied(raw, stack, answer), stack, limits)
    again = lambda index: _solve_alternating(raw[index], stack.select(index), limits)
    return solve_open(found, found.status != int(Status.SOLVED), again)


def _solve_alternating(raw: Tensor, stack: Stack, limits: Limits) -> Solution:
    """Each sample in the unit of raw, and those far away once more in the unit of y."""
    first = stack.nearby(raw)
    guess = Guess(first, raw.new_zeros(raw.shape[0], sum(stack.sizes)), _unit(raw, first, stack))
    answer = settle(raw, stack, guess, torch.ones_like(guess.unit), limits.residual)
    for _ in range(CURVED.passes):
        far = answer.unit > CURVED.far_away * local_unit(raw, stack, answer.y, answer.dual)
        index = (far.squeeze(-1) & ~answer.lost).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        part = come_closer(raw[index], stack.select(index), take(answer, index), limits.residual)
        answer = place(answer, index, part)
    return _judge(_tidied(raw, stack, answer), stack, limits)


def _tidied(raw: Tensor, stack: Stack, answer: Answer) -> Answer:
    """The answer with a last step inwards where a row is missed by more than rounding."""
    missed = (stack.overshoot(answer.y) > 1) & (answer.residual < LOOSE_DISTANCE) & ~answer.lost
    return solve_open(answer, missed, lambda index: tidy(raw[index], stack.select(index), take(answer, index)))


def _judge(answer: Answer, stack: Stack, limits: Limits) -> Solution:
    """The answer with its status: solved where it is optimal and every row holds, feasible where the rows hold."""
    y = stack.clamped(answer.y)
    feasible = (stack.outside(y) <= limits.violation * stack.size(y)).all(-1)
    status = torch.where(answer.residual <= limits.residual, Status.SOLVED, Status.NOT_CONVERGED)
    status = verdict(torch.where(answer.lost, Status.INFEASIBLE, status), feasible)
    return Solution(y, answer.dual, status, answer.iterations, answer.residual)


def _unit(raw: Tensor, first: Tensor, stack: Stack) -> Tensor:
    """The power of two above raw, the first point and the distance to the furthest row, ``(B, 1)``."""
    distance = stack.miss(raw) / stack.factor(raw)
    sizes = [part.abs().amax(-1, keepdim=True) for part in (raw, first, distance)]
    return power_above(torch.cat(sizes, dim=-1).amax(-1, keepdim=True))
