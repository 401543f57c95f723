"""A box and several rows: multipliers by an interior point method, with the same number of steps for every sample.

The variables are ``z = (y, s)`` with ``A y = s``, so that the row bounds become a box as well, and each of the k
equalities has a multiplier. A predictor-corrector step solves k equations, whatever n is; the rest is elementwise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times_columnwise, times_rowwise
from hardnet.solvers.polyhedron.box_factor import Factor, factorize_rows
from hardnet.solvers.polyhedron.box_problem import BoxProblem, power_near
from hardnet.solvers.repeat import repeat

STEPS = 32
"""Number of steps: typical problems need 10 to 15, thin boxes and sets without an interior 25 to 30."""
STEPS_IN_GRAPHS = 16
"""The same in compiled code, where each step is part of the graph."""
ROW_CURVATURE = 1e-12
"""Curvature added for ``s``, which has none, so that rows far from their bounds stay solvable; the Newton steps that
follow undo it."""
TO_THE_BORDER = 0.995
"""The fraction of the way to the nearest bound that a step may go."""
DONE = 1e-28
"""The mean of slack times multiplier at which a sample stops moving."""


FAR = 1e9
"""A bound farther away than this many sizes of the sample is dropped: its gap would dominate the mean of all gaps."""


class _Frame(NamedTuple):
    """Center and curvature of the objective, bounds of z, and which exist, ``(B, n + k)`` each; ``M = [A, -I]``."""

    center: Tensor
    curvature: Tensor
    low: Tensor
    high: Tensor
    has_low: Tensor
    has_high: Tensor
    free: Tensor
    M: Tensor


class _State(NamedTuple):
    """z, its distances to its bounds (1 if absent), the k multipliers of ``M z = 0``, and those of the bounds.

    The distances are stored beside z: computed as differences, they would lose their digits near the bounds.
    """

    z: Tensor
    below: Tensor
    above: Tensor
    dual: Tensor
    at_low: Tensor
    at_high: Tensor


def multipliers_of_rows(problem: BoxProblem, mode: str) -> Tensor:
    """Approximate multipliers ``(B, k)`` of ``lower <= A y <= upper``; `mode` is the mode of the call."""
    unit = _unit(problem)
    frame = _frame(problem, unit)
    state = _start(frame)
    step = lambda *parts: _step(frame, _State(*parts))
    going = lambda *parts: _going(frame, _State(*parts))
    count = STEPS_IN_GRAPHS if mode == "compile" else STEPS
    state = _State(*repeat(step, state, count, going, exported=mode == "export"))
    return state.dual * unit


def _unit(problem: BoxProblem) -> Tensor:
    """A power of two near the largest relevant number of the sample, ``(B, 1)``."""
    inside = problem.clamp(problem.raw)
    reach = torch.maximum(problem.raw.abs().amax(-1, keepdim=True), inside.abs().amax(-1, keepdim=True))
    away = problem.excess(problem.times(inside)).abs().amax(-1, keepdim=True)
    return power_near(torch.maximum(reach, torch.where(away.isfinite(), away, 0.0)))


def _frame(problem: BoxProblem, unit: Tensor) -> _Frame:
    """The problem in z, in the sample's unit."""
    batch, k = problem.raw.shape[0], problem.A.shape[-2]
    zero = torch.zeros_like(problem.raw[:, :1]).expand(batch, k)
    join = lambda first, second: torch.cat([first, second.expand(batch, k)], dim=-1)
    spread = lambda bound: bound.expand(problem.raw.shape)
    low = join(spread(problem.low), problem.lower) / unit
    high = join(spread(problem.high), problem.upper) / unit
    low, high = torch.where(low > -FAR, low, -torch.inf), torch.where(high < FAR, high, torch.inf)
    curvature = join(torch.ones_like(problem.raw), zero + ROW_CURVATURE)
    eye = torch.eye(k, dtype=problem.A.dtype, device=problem.A.device)
    M = torch.cat([problem.A, -eye.expand(problem.A.shape[0], k, k)], dim=-1)
    center = join(problem.raw / unit, zero)
    return _Frame(center, curvature, low, high, low > -torch.inf, high < torch.inf, low < high, M)


def _start(frame: _Frame) -> _State:
    """Raw and its rows, moved inside their bounds by a fraction of the width; multipliers of 1."""
    margin = 0.1 * (frame.high - frame.low).clamp(0.0, 1.0)
    k = frame.M.shape[-2]
    between = lambda z: torch.minimum(torch.maximum(z, frame.low + margin), frame.high - margin)
    y = between(frame.center)[:, :-k]
    rows = times_rowwise(frame.M[..., :-k], y)
    z = between(torch.cat([y, rows], dim=-1))
    z = torch.where(frame.free, z, torch.where(frame.has_low, frame.low, 0.0))
    some_low, some_high = frame.has_low & frame.free, frame.has_high & frame.free
    below, above = torch.where(some_low, z - frame.low, 1.0), torch.where(some_high, frame.high - z, 1.0)
    return _State(z, below, above, torch.zeros_like(z[:, -k:]), some_low.to(z.dtype), some_high.to(z.dtype))


class _Equations(NamedTuple):
    """The parts of the equations of a step."""

    inverse: Tensor
    factor: Factor
    slope: Tensor
    miss: Tensor


def _step(frame: _Frame, state: _State) -> _State:
    """A predictor and a centered corrector, taken as far as the bounds allow."""
    equations = _equations(frame, state)
    count, gap, none = *_gap(state), torch.zeros_like(state.z)
    guess = _direction(frame, state, equations, none, none)
    after = _products(state, guess, _reach(state, guess, 1.0)) / count
    center = (after / torch.where(gap > 0, gap, 1.0)).clamp(0.0, 1.0) ** 3 * gap
    low_goal = torch.where(state.at_low > 0, center - guess.at_low * guess.z, 0.0)
    high_goal = torch.where(state.at_high > 0, center + guess.at_high * guess.z, 0.0)
    move = _direction(frame, state, equations, low_goal, high_goal)
    reach = _reach(state, move, TO_THE_BORDER)
    sound = torch.stack([part.isfinite().all(-1) for part in move]).all(0).unsqueeze(-1)
    going = sound & ((gap > DONE) | (equations.miss.abs().amax(-1, keepdim=True) > DONE))
    return _State(*(torch.where(going, old + reach * way, old) for old, way in zip(state, move, strict=True)))


def _going(frame: _Frame, state: _State) -> Tensor:
    """Whether some sample is not done: a bool ``()``."""
    miss = times_rowwise(frame.M, state.z).abs().amax(-1, keepdim=True)
    return ((_gap(state)[1] > DONE) | (miss > DONE)).any()


def _gap(state: _State) -> tuple[Tensor, Tensor]:
    """How many bounds there are, and the mean of slack times multiplier: ``(B, 1)`` each."""
    count = ((state.at_low > 0).sum(-1, keepdim=True) + (state.at_high > 0).sum(-1, keepdim=True)).clamp_min(1)
    return count, _products(state, state, 0.0) / count


def _equations(frame: _Frame, state: _State) -> _Equations:
    """The left-hand side of a step's equations, factorized."""
    weight = frame.curvature + state.at_low / state.below + state.at_high / state.above
    inverse = torch.where(frame.free, 1.0 / weight, 0.0)
    factor = factorize_rows(frame.M * inverse.sqrt().unsqueeze(-2))
    slope = frame.curvature * (state.z - frame.center) + times_columnwise(frame.M, state.dual)
    return _Equations(inverse, factor, slope, times_rowwise(frame.M, state.z))


def _direction(frame: _Frame, state: _State, equations: _Equations, low_goal: Tensor, high_goal: Tensor) -> _State:
    """The step to ``at_low * below = low_goal``, ``at_high * above = high_goal`` and ``M z = 0``, to first order."""
    inverse, factor, slope, miss = equations
    below, above = state.below, state.above
    pull = (slope - low_goal / below + high_goal / above) * inverse
    dual = factor.solve(miss - times_rowwise(frame.M, pull))
    z = -pull - inverse * times_columnwise(frame.M, dual)
    at_low = low_goal / below - state.at_low - state.at_low * z / below
    at_high = high_goal / above - state.at_high + state.at_high * z / above
    return _State(
        z, torch.where(state.at_low > 0, z, 0.0), torch.where(state.at_high > 0, -z, 0.0), dual, at_low, at_high
    )


def _products(state: _State, move: _State, reach: Tensor | float) -> Tensor:
    """The sum of distance times multiplier after the fraction `reach` of a move, ``(B, 1)``."""
    low = (state.at_low + reach * move.at_low) * (state.below + reach * move.below)
    high = (state.at_high + reach * move.at_high) * (state.above + reach * move.above)
    total = torch.where(state.at_low > 0, low, 0.0) + torch.where(state.at_high > 0, high, 0.0)
    return total.sum(-1, keepdim=True)


def _reach(state: _State, move: _State, part: float) -> Tensor:
    """The fraction of a move, at most 1, that goes the fraction `part` of the way to the first zero: ``(B, 1)``."""
    some_low, some_high = state.at_low > 0, state.at_high > 0
    rates = [
        torch.where(some_low, -move.below / state.below, 0.0),
        torch.where(some_high, -move.above / state.above, 0.0),
        torch.where(some_low, -move.at_low / torch.where(some_low, state.at_low, 1.0), 0.0),
        torch.where(some_high, -move.at_high / torch.where(some_high, state.at_high, 1.0), 0.0),
    ]
    fastest = torch.stack([rate.amax(-1) for rate in rates]).amax(0)
    return (part / fastest.clamp_min(part)).unsqueeze(-1)
