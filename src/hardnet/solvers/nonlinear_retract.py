"""Retraction: a point of ``lower <= g(y) <= upper, A_lower <= A y <= A_upper`` by Gauss-Newton steps.

Each step is the nearest point of the linearised set (`nonlinear_step`), shortened until the violation falls; affine
rows are rows of every step, and never give way. Where the linearisation has no point the step is elastic. Called by
`nonlinear` for the feasible point, for the start of the nearest one, and for what remains violated at its end.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear_rows import Derivatives, Rows, Traced
from hardnet.solvers.nonlinear_search import EVERY_PASS, SUFFICIENT, Pace, choose, run, shorten
from hardnet.solvers.nonlinear_step import solve_step
from hardnet.solvers.small import product

ELASTIC = 1e-4
"""Least elasticity of a row of length one: of a violation v a step leaves about ``ELASTIC^2 v / sigma^2``.

A gradient that would send a sample farther than 1e4 times its own size counts as smaller than it is."""
SOFTEST = 1e1
SHORT = 0.125
"""Length of a step below which the next one is more elastic."""
SHORTEST = 1e-12
"""Length below which a step is given up: near a vanishing gradient it may be too long by many orders."""
CUT = 1e-3
"""Least part of a refused length that is tried next."""
FINE = 1e-14
"""Part of a row's scale to which a violation is driven while steps still bring it down."""
CHORD, FAST = 1e-5, 1e-2
"""A sample keeps its Jacobian for the steps that follow where its violation is below CHORD and fell by FAST at once."""
STATIONARY = 1e-9
"""Share of the violation that a step must promise to remove; below it the point is stationary."""
NEARLY_STATIONARY = 1e-6
"""The same share where the iteration ended without an answer."""
NUDGE = 1e-2
"""Length of a nudge relative to the sample's size, at a stationary point that violates its rows."""
WHOLE = slice(None)
NUDGES = 2
"""Nudges of a sample before it counts as stuck."""


class Retracted(NamedTuple):
    """Where the iteration ended, per sample: the point ``(B, n)`` and what is known of it, ``(B,)`` each.

    ``ratio`` is by how much the last full step reduced the violation: near a regular point it tends to zero.
    """

    y: Tensor
    error: Tensor
    stationary: Tensor
    ratio: Tensor
    steps: Tensor


def row_size(y: Tensor, raw: Tensor) -> Tensor:
    """``max |y|``, at least ``min(1, max |raw|)``: the size of a sample's outputs, ``(b, 1)``."""
    return torch.maximum(y.abs().amax(-1, keepdim=True), raw.abs().amax(-1, keepdim=True).clamp_max(1.0))


def row_norms(jacobian: Tensor) -> Tensor:
    """``|J_i|``, ``(b, m)``; 1 for a zero row."""
    norm = torch.linalg.vector_norm(jacobian, dim=-1)
    return norm + (norm == 0)


def elastic_rows(rows: Rows, jacobian: Tensor, soft: Tensor | None = None) -> Tensor:
    """How far each row gives way: ``soft`` or the least elasticity for the rows of g, 0 for affine rows, ``(b, m)``."""
    soft = ELASTIC * row_norms(jacobian) if soft is None else soft
    if not rows.A.shape[-2]:
        return soft
    return torch.cat([soft[:, : rows.curved], torch.zeros_like(soft[:, rows.curved :])], dim=-1)


def relative_error(rows: Rows, at: Derivatives, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """The largest violation relative to its row's scale, ``(b,)``, and these scales ``(b, m)``."""
    return _error(rows, rows.violation(at.value), at.jacobian, row_size(y, raw))


def _error(rows: Rows, violation: Tensor, jacobian: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """The same from the violations and the size of the outputs; infinite for a violated row without a scale."""
    scale = rows.scale(jacobian, size).clamp_min(torch.finfo(size.dtype).tiny)
    return (violation / scale).amax(-1), scale


class State(NamedTuple):
    """The samples of a batch on their way; ``(b,)`` unless said.

    Attributes:
        going: Open samples.
        y: Where they are, ``(b, n)``.
        unit: The least size that its outputs count as, ``(b, 1)``.
        value: The rows at y, ``(b, m)``.
        violation: By how much they are violated, ``(b, m)``.
        jacobian: Their Jacobian there or, near the end, a little before, ``(b, m, n)``.
        error: The relative violation at y.
        ratio: By how much the last full step reduced it.
        elastic: How much rows of length one give way.
        length: Of the next trial.
        nudges: How often the sample was nudged.
        best: The least violated point so far, ``(b, n)``, with its size of the violation, error and ratio.
        steps: Passes so far.
        stationary: Whether the last step promised nothing.
    """

    going: Tensor
    y: Tensor
    unit: Tensor
    value: Tensor
    violation: Tensor
    jacobian: Tensor
    error: Tensor
    ratio: Tensor
    elastic: Tensor
    length: Tensor
    nudges: Tensor
    best: Tensor
    best_size: Tensor
    best_error: Tensor
    best_ratio: Tensor
    steps: Tensor
    stationary: Tensor


class Trial(NamedTuple):
    """What the trial of a pass came to: point, derivatives, violation, its error, and what became of it."""

    y: Tensor
    at: Derivatives
    violation: Tensor
    error: Tensor
    accepted: Tensor
    stationary: Tensor
    length: Tensor


def retract(
    rows: Rows,
    y: Tensor,
    raw: Tensor,
    *,
    tolerance: float,
    fine: float = FINE,
    iterations: int = 100,
    unit: bool = True,
    at: Derivatives | None = None,
    going: Tensor | None = None,
    pace: Pace = EVERY_PASS,
) -> Retracted:
    """Iterate from y ``(B, n)``, which satisfies the affine rows; each sample stops by itself.

    A sample stops when its violation is below `fine`, when it is below `tolerance` and falls no more, or when it is
    stationary after two nudges.

    Args:
        rows: The rows.
        y: Where to start.
        raw: ``(B, n)``, which rounding is relative to.
        tolerance: Relative violation that counts as none.
        fine: Relative violation that ends the iteration at once.
        iterations: The most passes.
        unit: Whether violations are measured in units of the rows' gradients; else in the rows' own units, so that
            what cannot be satisfied ends at the least sum of squared violations.
        at: The derivatives at y, where they are known.
        going: Samples that are to move, ``(B,)``; by default all.
        pace: When values may be looked at.
    """
    at = rows.evaluate(y) if at is None else at
    state = _begin(rows, y, raw, at, fine, unit, going)
    found = run(
        rows,
        state,
        lambda some, now: _pass(some, now, tolerance, fine, unit, pace.free),
        lambda now: (now.best, now.best_error, now.stationary, now.best_ratio, now.steps),
        iterations,
        pace,
    )
    return Retracted(*found) if unit else _settle_stationary(rows, Retracted(*found), tolerance)


def _begin(rows: Rows, y: Tensor, raw: Tensor, at: Derivatives, fine: float, unit: bool, going: Tensor | None) -> State:
    """The state at the first points."""
    least, violation = raw.abs().amax(-1, keepdim=True).clamp_max(1.0), rows.violation(at.value)
    error, _ = _error(rows, violation, at.jacobian, _size(y, least))
    zero, one = torch.zeros_like(error), torch.ones_like(error)
    size = error if unit else torch.linalg.vector_norm(violation, dim=-1)
    count = torch.zeros_like(error, dtype=torch.long)
    open_ = error > fine
    open_ = open_ if going is None else open_ & going
    known = (violation, at.jacobian, error, zero, ELASTIC * one, one, count, y, size, error, zero, count)
    return State(open_, y, least, at.value, *known, torch.zeros_like(open_))


def _pass(rows: Rows, now: State, tolerance: float, fine: float, unit: bool, look: bool) -> State:
    """One trial of every open sample."""
    J, violation, size = now.jacobian, now.violation, _size(now.y, now.unit)
    norm = row_norms(J)
    norm = norm if unit else norm.amax(-1, keepdim=True).expand_as(norm)
    soft = _softness(rows, now, norm, size, unit)
    low, high = rows.lower - now.value, rows.upper - now.value
    step, dual = solve_step(J, low, high, soft, tight=rows.tight, look=look)
    merit = _Merit(1 / norm if unit else None)
    current = merit(violation)
    left = soft.square() * dual if rows.tight else rows.violation(now.value + product(J, step))
    promised = merit(left)
    stationary = ~(current - promised > STATIONARY * current)
    if not unit:
        stationary = stationary | (_damped_share(rows, now, norm, look) <= STATIONARY)
    move = now.length.unsqueeze(-1) * step
    if not look or bool(stationary.any()):
        move = choose(stationary, NUDGE * size.clamp_min(NUDGE) * fixed_direction(now.y), move)

    def judge(violation: Tensor, there: Tensor, length: Tensor, index: Tensor | slice = WHOLE) -> tuple[Tensor, Tensor]:
        own = merit if isinstance(index, slice) else merit.take(index)
        reached = own(there)
        bent = own(there - (1 - length).unsqueeze(-1) * violation)
        shorter = current[index] * length.square() / (2 * bent)  # least |(1 - t) v + t^2 c|, with c = bent / t^2
        shorter = torch.where(reached.isfinite(), shorter, 0.1 * length)
        shorter = torch.minimum(torch.maximum(shorter, CUT * length), 0.5 * length)
        good = reached <= current[index] + SUFFICIENT * length * (promised - current)[index]
        return good, shorter

    def judge_some(point: Tensor, length: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        some = rows.take(index)
        return judge(violation[index], some.violation(some.value(point)), length, index)

    trial, length = now.y + move, now.length
    traced = rows.trace(trial)
    there = rows.violation(traced.value)
    good, shorter = judge(violation, there, length)
    accepted = now.going & (stationary | good)
    if look and not bool((accepted | ~now.going).all()):
        refused = now.going & ~accepted
        trial, accepted, length = shorten(now.y, step, trial, accepted, refused, shorter, judge_some, SHORTEST)
        length, shorter = torch.where(refused, length, 1.0), length
        traced = rows.trace(trial)
        there = rows.violation(traced.value)
    at = _derive(rows, now, traced, look)
    error, _ = _error(rows, there, at.jacobian, _size(trial, now.unit))
    tried = Trial(trial, at, there, error, accepted, stationary, length)
    plain = accepted & ~stationary & (length == 1)
    if look and bool(plain.all()):
        return _ended(_all_moved(now, tried), now, merit, unit, tolerance, fine, look)
    return _ended(_moved(now, tried, plain, shorter, look), now, merit, unit, tolerance, fine, look)


class _Merit(NamedTuple):
    """``|v|`` with each row times its weight ``(b, m)``, None for 1."""

    weight: Tensor | None

    def take(self, index: Tensor) -> _Merit:
        """That of some samples."""
        return self if self.weight is None else _Merit(self.weight[index])

    def __call__(self, violation: Tensor) -> Tensor:
        return torch.linalg.vector_norm(violation if self.weight is None else violation * self.weight, dim=-1)


def _size(y: Tensor, unit: Tensor) -> Tensor:
    """`row_size` from the least size."""
    return torch.maximum(y.abs().amax(-1, keepdim=True), unit)


def _softness(rows: Rows, now: State, norm: Tensor, size: Tensor, unit: bool) -> Tensor:
    """How far each row gives way, ``(b, m)``."""
    least = now.violation / size.clamp_min(torch.finfo(norm.dtype).tiny)
    least = least if unit else least.amax(-1, keepdim=True)
    return elastic_rows(rows, now.jacobian, torch.maximum(norm, least) * now.elastic.unsqueeze(-1))


def _derive(rows: Rows, now: State, traced: Traced, look: bool) -> Derivatives:
    """The derivatives at the trial point; a sample that is nearly there keeps its Jacobian, which is as good there."""
    if not look:
        return rows.derive(traced)
    keeps = (now.error <= CHORD) & (now.ratio <= FAST) & (now.ratio > 0) | ~now.going
    if bool(keeps.all()):
        return Derivatives(traced.value, now.jacobian)
    at = rows.derive(traced)
    return Derivatives(at.value, choose(keeps, now.jacobian, at.jacobian) if bool(keeps.any()) else at.jacobian)


def _all_moved(now: State, tried: Trial) -> State:
    """The state where every sample is open and takes its full step."""
    return now._replace(
        y=tried.y,
        value=tried.at.value,
        violation=tried.violation,
        jacobian=tried.at.jacobian,
        error=tried.error,
        ratio=tried.error / now.error,
        elastic=(now.elastic / 10).clamp_min(ELASTIC),
        steps=now.steps + 1,
        stationary=tried.stationary,
    )


def _moved(now: State, tried: Trial, plain: Tensor, shorter: Tensor, look: bool) -> State:
    """The state after the trials: accepted ones are where the samples are, refused ones are tried shorter."""
    accepted, stationary = tried.accepted, tried.stationary
    given_up = now.going & ~accepted & (shorter < SHORTEST)
    stiffer, softer = (now.elastic / 10).clamp_min(ELASTIC), now.elastic * 10
    softer = torch.where(accepted, softer.clamp_max(SOFTEST), softer)
    short = given_up | (accepted & ~stationary & (tried.length <= SHORT))
    length = now.length if look else torch.where(now.going & ~accepted & ~given_up, shorter, 1.0)
    return now._replace(
        y=choose(accepted, tried.y, now.y),
        value=choose(accepted, tried.at.value, now.value),
        violation=choose(accepted, tried.violation, now.violation),
        jacobian=choose(accepted, tried.at.jacobian, now.jacobian),
        error=torch.where(accepted, tried.error, now.error),
        ratio=torch.where(plain, tried.error / now.error, now.ratio),
        elastic=torch.where(short, softer, torch.where(plain, stiffer, now.elastic)),
        length=length,
        nudges=now.nudges + (stationary & now.going),
        steps=now.steps + now.going,
        stationary=torch.where(now.going, stationary, now.stationary),
    )


def _ended(new: State, before: State, merit: _Merit, unit: bool, tolerance: float, fine: float, look: bool) -> State:
    """The new state with its best points, and with the samples closed that have ended."""
    error = new.error
    size = error if unit else merit(new.violation)
    better = before.going & ~(size > before.best_size)
    if look and bool(better.all()):
        new = new._replace(best=new.y, best_size=size, best_error=error, best_ratio=new.ratio)
    else:
        new = new._replace(
            best=choose(better, new.y, new.best),
            best_size=torch.where(better, size, new.best_size),
            best_error=torch.where(better, error, new.best_error),
            best_ratio=torch.where(better, new.ratio, new.best_ratio),
        )
    slow = (error <= tolerance) & (error > 0.5 * before.error) & (new.length == 1)
    stuck = (new.nudges > NUDGES) | (new.elastic > SOFTEST)
    return new._replace(going=before.going & (error > fine) & ~(slow | stuck))


def _settle_stationary(rows: Rows, result: Retracted, tolerance: float) -> Retracted:
    """Violated samples also count as stationary where only a tiny share of the violation could be removed."""
    todo = (~(result.error <= tolerance)).nonzero().squeeze(-1)
    if len(todo):
        some = rows.take(todo)
        at = some.evaluate(result.y[todo])
        norm = row_norms(at.jacobian).amax(-1, keepdim=True).expand_as(at.value)
        result.stationary[todo] |= _damped_share(some, at, norm) <= NEARLY_STATIONARY
    return result


def _damped_share(rows: Rows, at: Derivatives | State, norm: Tensor, look: bool = True) -> Tensor:
    """The share of the violation that a step of a gradient's length promises to remove: 0 at a stationary point."""
    soft = elastic_rows(rows, at.jacobian, norm)
    step = solve_step(at.jacobian, rows.lower - at.value, rows.upper - at.value, soft, tight=rows.tight, look=look)[0]
    current = torch.linalg.vector_norm(rows.violation(at.value), dim=-1)
    promised = torch.linalg.vector_norm(rows.violation(at.value + product(at.jacobian, step)), dim=-1)
    return torch.where(current > 0, 1 - promised / current, 1.0)


def fixed_direction(y: Tensor, number: int = 0) -> Tensor:
    """A fixed direction without symmetries, the same for every sample: ``(n,)``, one for each number."""
    place = torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
    return ((1.7 + 0.9 * number) * place + 0.3 + number).sin()
