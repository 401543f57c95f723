"""The state of a retraction in progress: where the samples are, and how a trial step changes it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import ELASTIC, NUDGES, SHORT, SOFTEST
from hardnet.solvers.nonlinear.measure import error_of, size_from
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.solution import choose


class State(NamedTuple):
    """The samples of a batch in progress; ``(b,)`` unless stated.

    Attributes:
        going: Open samples.
        y: The current points, ``(b, n)``.
        unit: The least value for the size of the outputs, ``(b, 1)``.
        value: The rows at y, ``(b, m)``.
        violation: By how much they are violated, ``(b, m)``.
        jacobian: Their Jacobian there, ``(b, m, n)``.
        error: The relative violation at y.
        ratio: The factor by which the last full step reduced it.
        elastic: The elasticity of rows of length one.
        length: The length of the next trial step.
        nudges: How often the sample was nudged.
        best: The least violated point so far, ``(b, n)``; `best_size`, `best_error` and `best_ratio` belong to it.
        steps: Passes so far.
        stationary: Whether no decrease was predicted for the last step.
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
    """The result of a trial step: point, derivatives, violation, error, and whether it was accepted.

    ``length`` ``(b,)`` is the length of the step; ``given_up`` are samples for which no length was short enough.
    """

    y: Tensor
    at: Derivatives
    violation: Tensor
    error: Tensor
    accepted: Tensor
    stationary: Tensor
    length: Tensor
    given_up: Tensor


def begin(rows: Rows, y: Tensor, raw: Tensor, at: Derivatives, fine: float, unit: bool) -> State:
    """The state at the first points."""
    least, violation = raw.abs().amax(-1, keepdim=True).clamp_max(1.0), rows.violation(at.value)
    error, _ = error_of(rows, violation, at.jacobian, size_from(y, least))
    zero, one = torch.zeros_like(error), torch.ones_like(error)
    size = error if unit else torch.linalg.vector_norm(violation, dim=-1)
    count = torch.zeros_like(error, dtype=torch.long)
    open_ = error > fine
    known = (violation, at.jacobian, error, zero, ELASTIC * one, one, count, y, size, error, zero, count)
    return State(open_, y, least, at.value, *known, torch.zeros_like(open_))


def outcome(now: State) -> tuple[Tensor, ...]:
    """The results of the samples when they have ended."""
    return now.best, now.best_error, now.stationary, now.best_ratio, now.steps


def moved(now: State, tried: Trial) -> State:
    """The state after the trials: accepted trials become the current points, and short ones make rows more elastic."""
    accepted, stationary = tried.accepted, tried.stationary
    plain = accepted & ~stationary & (tried.length == 1)
    stiffer, softer = (now.elastic / 10).clamp_min(ELASTIC), now.elastic * 10
    softer = torch.where(accepted, softer.clamp_max(SOFTEST), softer)
    short = tried.given_up | (accepted & ~stationary & (tried.length <= SHORT))
    return now._replace(
        y=choose(accepted, tried.y, now.y),
        value=choose(accepted, tried.at.value, now.value),
        violation=choose(accepted, tried.violation, now.violation),
        jacobian=choose(accepted, tried.at.jacobian, now.jacobian),
        error=torch.where(accepted, tried.error, now.error),
        ratio=torch.where(plain, tried.error / now.error, now.ratio),
        elastic=torch.where(short, softer, torch.where(plain, stiffer, now.elastic)),
        nudges=now.nudges + (stationary & now.going),
        steps=now.steps + now.going,
        stationary=torch.where(now.going, stationary, now.stationary),
    )


def ended(new: State, before: State, unit: bool, tolerance: float, fine: float) -> State:
    """The new state with its best points updated and finished samples closed."""
    error = new.error
    size = error if unit else torch.linalg.vector_norm(new.violation, dim=-1)
    better = before.going & (size <= before.best_size)
    slow = (error <= tolerance) & (error > 0.5 * before.error) & (new.length == 1)
    stuck = (new.nudges > NUDGES) | (new.elastic > SOFTEST)
    return new._replace(
        best=choose(better, new.y, new.best),
        best_size=torch.where(better, size, new.best_size),
        best_error=torch.where(better, error, new.best_error),
        best_ratio=torch.where(better, new.ratio, new.best_ratio),
        going=before.going & (error > fine) & ~(slow | stuck),
    )
