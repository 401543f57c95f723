"""Projections from near and from far: the same problem in the unit of raw, and then in the unit of the answer.

Far away from a small set, rounding relative to raw is no accuracy at y. But ``y = P(raw)`` is also the projection of
every point between y and raw. So a first answer names a point on the way, a hundred sizes of the set away; its
projection is exact at the size of the set; and Newton, with the distance weighted so that the multipliers are of that
size too, carries it over to raw itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import CURVED, HALFWAY
from hardnet.modes import may_look
from hardnet.products import gram, power_above, times_tiled
from hardnet.solvers.conic.stack import Feet, Linear, Stack, finite
from hardnet.solvers.solution import choose, place, take

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
        """The samples `index` alone."""
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


def finish(task: Task, state: State, limit: int = 12) -> tuple[State, Tensor]:
    """Newton steps, kept only where they lower the residual; returns how many were kept ``(B,)`` too."""
    state = state._replace(residual=optimality(task, state.y, state.dual))
    steps, running = torch.zeros_like(state.residual, dtype=torch.int64), state.residual > CURVED.target
    for _ in range(limit):
        index = running.nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        moved, better, again = _try_step(task.select(index), take(state, index))
        state, running = place(state, index, moved), running.index_copy(0, index, again)
        steps = steps.index_add(0, index, better.to(steps.dtype))
    return state, steps


def _try_step(task: Task, state: State) -> tuple[State, Tensor, Tensor]:
    """One step, kept where it lowers the residual; which samples it helped, and which may need another ``(B,)``."""
    y, dual = step(task, state, torch.zeros_like(state.penalty))
    residual = optimality(task, y, dual)
    better = residual < state.residual
    keep = better.unsqueeze(-1)
    y, dual = torch.where(keep, y, state.y), torch.where(keep, dual, state.dual)
    again = (residual > CURVED.target) & (residual < 0.5 * state.residual)
    return State(y, dual, state.penalty, torch.where(better, residual, state.residual)), better, again


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
    near, steps = finish(task.select(known), take(state, known))
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
    polished, steps = finish(task.select(near), take(found.state, near))
    return place(found.state, near, polished), found.spent.index_add(0, near, steps), found.gone


def come_closer(raw: Tensor, stack: Stack, answer: Answer, tolerance: float) -> Answer:
    """The answer at the accuracy of y: by the projection of a point on the way, and Newton from there."""
    unit = local_unit(raw, stack, answer.y, answer.dual)
    part = (HALFWAY * unit / _length(raw - answer.y)).clamp_max(1)
    near = answer.y + part * (raw - answer.y)
    guess = Guess(answer.y, answer.dual * part, HALFWAY * unit)
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
        state, steps = finish(task, state)
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
