"""The samples of a retraction on their way: where they are, and what a trial step makes of that.

Called by `hardnet.solvers.nonlinear_retract`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear_measure import ELASTIC, error_of, size_from
from hardnet.solvers.nonlinear_rows import Derivatives, Rows
from hardnet.solvers.nonlinear_search import choose

SOFTEST = 1e1
"""Most elasticity of a row of length one."""
SHORT = 0.125
"""Length of a step below which the next one is more elastic."""
SHORTEST = 1e-12
"""Length below which a step is given up: near a vanishing gradient it may be too long by many orders."""
NUDGES = 2
"""Nudges of a sample before it counts as stuck."""


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


class Merit(NamedTuple):
    """``|v|`` with each row times its weight ``(b, m)``, None for 1."""

    weight: Tensor | None

    def take(self, index: Tensor) -> Merit:
        """That of some samples."""
        return self if self.weight is None else Merit(self.weight[index])

    def __call__(self, violation: Tensor) -> Tensor:
        """The size of the violations ``(b, m)``: ``(b,)``."""
        return torch.linalg.vector_norm(violation if self.weight is None else violation * self.weight, dim=-1)


def begin(rows: Rows, y: Tensor, raw: Tensor, at: Derivatives, fine: float, unit: bool, going: Tensor | None) -> State:
    """The state at the first points."""
    least, violation = raw.abs().amax(-1, keepdim=True).clamp_max(1.0), rows.violation(at.value)
    error, _ = error_of(rows, violation, at.jacobian, size_from(y, least))
    zero, one = torch.zeros_like(error), torch.ones_like(error)
    size = error if unit else torch.linalg.vector_norm(violation, dim=-1)
    count = torch.zeros_like(error, dtype=torch.long)
    open_ = error > fine
    open_ = open_ if going is None else open_ & going
    known = (violation, at.jacobian, error, zero, ELASTIC * one, one, count, y, size, error, zero, count)
    return State(open_, y, least, at.value, *known, torch.zeros_like(open_))


def all_moved(now: State, tried: Trial) -> State:
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


def moved(now: State, tried: Trial, plain: Tensor, shorter: Tensor, look: bool) -> State:
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


def ended(new: State, before: State, merit: Merit, unit: bool, tolerance: float, fine: float, look: bool) -> State:
    """The new state with its best points, and with the samples closed that have ended."""
    error = new.error
    size = error if unit else merit(new.violation)
    better = before.going & (size <= before.best_size)
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
