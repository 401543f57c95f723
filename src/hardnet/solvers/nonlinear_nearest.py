"""The nearest point: sequential quadratic programming from a feasible point to a KKT point of ``min |y - raw|^2 / 2``.

A step of `nonlinear_direction` is accepted by the l1 merit ``|y - raw|^2 / 2 + sum_i weight_i violation_i``, with one
second-order correction of a full step that is refused; each row has a weight above its multiplier.

Called by `hardnet.solvers.nonlinear_iterate` and `hardnet.solvers.nonlinear_program`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear_direction import DENSE, direction, first_multipliers
from hardnet.solvers.nonlinear_measure import elastic_rows, relative_error
from hardnet.solvers.nonlinear_rows import Derivatives, Rows
from hardnet.solvers.nonlinear_search import EVERY_PASS, SUFFICIENT, Pace, choose, run, shorten
from hardnet.solvers.nonlinear_step import solve_step
from hardnet.solvers.small import product

SMALL_STEP = 3e-11
"""A step of this part of the sample's size is the last one: what remains is at most as much, mostly its square."""
DISTANT = 1e-3
"""What the distance to raw adds to the size of a sample: where y is near 0 it is all there is."""
SHORTEST = 2.0**-12
"""Length below which a step is given up."""
CUT = 0.1
"""Least part of a refused length that is tried next."""
WHOLE = slice(None)
FAR = 0.3
"""Relative violation beyond which no step may lead, however near to raw: the way back would be lost."""


class Nearest(NamedTuple):
    """Where the iteration ended: y ``(B, n)``, multipliers ``(B, m)``, and ``(B,)`` each what is known of it.

    ``settled`` samples ended by a small step; in ``flat`` ones the Lagrangian was flat or bent down along the rows.
    """

    y: Tensor
    dual: Tensor
    settled: Tensor
    flat: Tensor
    steps: Tensor


class State(NamedTuple):
    """The samples of a batch on their way; ``(b,)`` unless said.

    Attributes:
        going: Open samples.
        y: Where they are, ``(b, n)``.
        raw: ``(b, n)``.
        value: The rows at y, ``(b, m)``.
        jacobian: Their Jacobian there, ``(b, m, n)``.
        hessian: ``sum_i dual_i Hess g_i`` there, ``(b, n, n)``; None where products with it are enough.
        dual: Multipliers ``(b, m)``.
        weight: Of the violations in the merit, ``(b, m)``.
        scale: Of the rows at y, ``(b, m)``.
        length: Of the next trial.
        shift: The second-order correction of the next trial, ``(b, n)``.
        tried: Whether the correction was tried.
        settled: Whether the last step was small.
        flat: Whether the Lagrangian is flat or bent down along the rows.
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
    scale: Tensor
    length: Tensor
    shift: Tensor
    tried: Tensor
    settled: Tensor
    flat: Tensor
    steps: Tensor


def approach(
    rows: Rows,
    y: Tensor,
    raw: Tensor,
    *,
    iterations: int = 100,
    going: Tensor | None = None,
    pace: Pace = EVERY_PASS,
) -> Nearest:
    """Iterate from y ``(B, n)``, on or near the set; each sample stops by itself.

    Args:
        rows: The rows.
        y: Where to start.
        raw: ``(B, n)``.
        iterations: The most passes.
        going: Samples that are to move, ``(B,)``; by default all.
        pace: When values may be looked at.
    """
    look = pace.free
    dense = not (y.shape[-1] > DENSE and rows.tight)
    at = (
        rows.evaluate(y, lambda value, J: first_multipliers(rows, value, J, y - raw, look))
        if dense
        else rows.evaluate(y)
    )
    dual = first_multipliers(rows, at.value, at.jacobian, y - raw, look) if at.dual is None else at.dual
    none = torch.zeros_like(y[:, 0], dtype=torch.bool)
    scale = relative_error(rows, at, y, raw)[1]
    still = torch.zeros_like(dual), scale, torch.ones_like(y[:, 0]), torch.zeros_like(y)
    open_ = ~none if going is None else going
    state = State(open_, y, raw, *at[:3], dual, *still, none, none, none, none.long())
    found = run(
        rows,
        state,
        lambda some, now: _pass(some, now, look),
        lambda now: (now.y, now.dual, now.settled, now.flat, now.steps),
        iterations,
        pace,
    )
    return Nearest(*found)


def _pass(rows: Rows, now: State, look: bool) -> State:
    """One trial of every open sample; a `last` step, which is tiny, is taken as it is."""
    away, violation = now.y - now.raw, rows.violation(now.value)
    at = Derivatives(now.value, now.jacobian, now.hessian, now.dual)
    step, dual, flat = direction(rows, now.y, away, at, look)
    farthest = away.abs().amax(-1)
    size = now.y.abs().amax(-1)
    last = step.abs().amax(-1) <= SMALL_STEP * (size + DISTANT * farthest)
    weight = torch.maximum(now.weight, 1.5 * dual.abs())
    current = _merit(violation, away, weight)
    planned = rows.violation(now.value + product(now.jacobian, step))
    slope = ((away * step).sum(-1) + (weight * (planned - violation)).sum(-1)).clamp_max(0.0)
    noise = torch.where(last, torch.inf, 1e-15 * (current + (weight * now.scale).sum(-1)))

    def judge(
        violation: Tensor, away: Tensor, length: Tensor, scale: Tensor, index: Tensor | slice = WHOLE
    ) -> tuple[Tensor, Tensor]:
        reached, first, along = _merit(violation, away, weight[index]), current[index], slope[index]
        good = reached <= first + SUFFICIENT * length * along + noise[index]
        good = good & ((violation / scale).amax(-1) <= FAR)
        excess = 2 * (reached - first - length * along)
        shorter = torch.where(excess > 0, -along * length.square() / excess, 0.5 * length)
        return good, torch.minimum(torch.maximum(shorter, CUT * length), 0.5 * length)

    def judge_some(point: Tensor, length: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        some = rows.take(index)
        return judge(some.violation(some.value(point)), point - now.raw[index], length, now.scale[index], index)

    trial = now.y + torch.addcmul(now.shift, now.length.unsqueeze(-1), step)
    traced = rows.trace(trial)
    scale = now.scale
    good, shorter = judge(rows.violation(traced.value), trial - now.raw, now.length, scale)
    accepted = now.going & good
    if look and not bool((accepted | ~now.going).all()):
        refused = now.going & ~accepted
        trial, accepted, refused = _corrected(rows, now, traced.value, trial, accepted, refused, judge_some)
        trial, accepted, shorter = shorten(now.y, step, trial, accepted, refused, shorter, judge_some, SHORTEST)
        traced = rows.trace(trial)
    at = rows.derive(traced, None if now.hessian is None else lambda *_: dual)
    scale = relative_error(rows, at, trial, now.raw)[1]
    moved = now._replace(y=trial, value=at.value, jacobian=at.jacobian, hessian=at.hessian, dual=dual, scale=scale)
    if look and bool(accepted.all()):
        return moved._replace(going=~last, weight=weight, flat=flat, settled=last, steps=now.steps + 1)
    return _stay(rows, now, moved, accepted, last, flat, weight, shorter, look)


def _stay(
    rows: Rows,
    now: State,
    moved: State,
    accepted: Tensor,
    last: Tensor,
    flat: Tensor,
    weight: Tensor,
    shorter: Tensor,
    look: bool,
) -> State:
    """The state where some trials were refused: corrected the first time, shortened after that."""
    going = now.going
    if look:
        length, shift, tried = now.length, now.shift, now.tried
        bent = torch.zeros_like(going) if now.hessian is None else (now.hessian != 0).flatten(1).any(-1)
        ended = (accepted & last) | ~(accepted | bent)
    else:
        tried = going & ~accepted & (now.length == 1) & ~now.tried
        shift = _corrections(rows, now, moved.value, tried)
        length = torch.where(accepted | tried, 1.0, shorter)
        tried = tried | (now.tried & ~accepted)
        ended = (accepted & last) | (length < SHORTEST)
    hessian = None if now.hessian is None else choose(accepted, moved.hessian, now.hessian)  # pyright: ignore[reportArgumentType]
    if look and hessian is not None:  # no length was accepted: once more along the plain projection, which descends
        hessian = choose(going & ~accepted, torch.zeros_like(hessian), hessian)
    return State(
        going=going & ~ended,
        y=choose(accepted, moved.y, now.y),
        raw=now.raw,
        value=choose(accepted, moved.value, now.value),
        jacobian=choose(accepted, moved.jacobian, now.jacobian),
        hessian=hessian,
        dual=choose(accepted | (going & ended), moved.dual, now.dual),
        weight=choose(going, weight, now.weight),
        scale=choose(accepted, moved.scale, now.scale),
        length=length,
        shift=shift,
        tried=tried,
        settled=torch.where(going, accepted & last, now.settled),
        flat=torch.where(going, flat, now.flat),
        steps=now.steps + going,
    )


def _corrections(rows: Rows, now: State, there: Tensor, refused: Tensor) -> Tensor:
    """For full steps that were `refused` for the first time: back to the rows as they are there; else 0, ``(b, n)``."""
    found = _back(rows, now.value, now.jacobian, there, look=False)
    return choose(refused, found, torch.zeros_like(found))


def _corrected(
    rows: Rows,
    now: State,
    there: Tensor,
    trial: Tensor,
    accepted: Tensor,
    refused: Tensor,
    judge: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Refused full steps tried again with a correction: the points, which are accepted, and who is still refused."""
    index = refused.nonzero().squeeze(-1)
    back = _back(rows.take(index), now.value[index], now.jacobian[index], there[index], look=True)
    point = trial[index] + back
    good = judge(point, now.length[index], index)[0]
    accepted = accepted.index_copy(0, index, good)
    return trial.index_copy(0, index, point), accepted, refused & ~accepted


def _back(rows: Rows, value: Tensor, J: Tensor, there: Tensor, look: bool) -> Tensor:
    """The step back to the rows, whose values after a full step were `there`."""
    there = torch.where(there.isfinite(), there, value)
    soft = elastic_rows(rows, J)
    return solve_step(J, rows.lower - there, rows.upper - there, soft, tight=rows.tight, look=look)[0]


def _merit(violation: Tensor, away: Tensor, weight: Tensor) -> Tensor:
    return away.square().sum(-1) / 2 + (weight * violation).sum(-1)
