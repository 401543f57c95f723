"""The nearest point: sequential quadratic programming from a feasible point to a KKT point of ``min |y - raw|^2 / 2``.

Each pass tries the step of `nearest_step`. A full step that is refused is tried again in the next pass with a
second-order correction, then shorter; where no length is accepted, once with the step of the plain projection. So the
operations of a pass do not depend on values, nor a sample's result on the other samples of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import SHORTEST_SEARCH
from hardnet.solvers.algebra.small import compiles
from hardnet.solvers.nonlinear.direction import first_multipliers, forms_metric
from hardnet.solvers.nonlinear.nearest_compiled import walk
from hardnet.solvers.nonlinear.nearest_step import plan_in_torch, step_back
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.search import EVERY_PASS, TRIALS, Pace, run
from hardnet.solvers.solution import choose


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


def approach(
    rows: Rows,
    y: Tensor,
    raw: Tensor,
    *,
    iterations: int = 100,
    going: Tensor | None = None,
    pace: Pace = EVERY_PASS,
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
    if look and going is None and compiles(y.unsqueeze(-2)) and rows.lower.shape[-1]:
        return Nearest(*walk(rows, y, raw, iterations))
    first = lambda value, J: first_multipliers(rows, value, J, y - raw, look)
    at = rows.evaluate(y, first if dense else None)
    dual = first(at.value, at.jacobian) if at.dual is None else at.dual
    none = torch.zeros_like(y[:, 0], dtype=torch.bool)
    still = torch.zeros_like(dual), torch.ones_like(y[:, 0]), torch.zeros_like(y), none, none, none, none, none.long()
    state = State(~none if going is None else going, y, raw, *at[:3], dual, *still)
    result = lambda now: (now.y, now.dual, now.settled, now.flat, now.steps)
    passes = TRIALS * iterations if look else iterations
    return Nearest(*run(rows, state, lambda some, now: _pass(some, now, look), result, passes, pace))


def _pass(rows: Rows, now: State, look: bool) -> State:
    """One trial step of every open sample; a `last` step is tiny and need not decrease the merit."""
    bent = now.hessian
    bent = None if bent is None else choose(now.straight, torch.zeros_like(bent), bent)
    at = Derivatives(now.value, now.jacobian, bent, now.dual)
    plan = plan_in_torch(rows, at, now.y, now.raw, now.weight, look)
    trial = now.y + torch.addcmul(now.shift, now.length.unsqueeze(-1), plan.step)
    traced = rows.trace(trial)
    good, shorter = plan.judge(rows.violation(traced.value), trial - now.raw, now.length)
    accepted = now.going & good
    there = rows.derive(traced, None if bent is None else lambda *_: plan.dual)
    tried = now.going & ~accepted & (now.length == 1) & ~now.tried
    shift = step_back(rows, now.value, now.jacobian, there.value, look)
    length = torch.where(accepted | tried, 1.0, shorter)
    given_up = length < SHORTEST_SEARCH
    ended = (accepted & plan.last) | (given_up if bent is None else given_up & now.straight)
    return now._replace(
        going=now.going & ~ended,
        y=choose(accepted, trial, now.y),
        value=choose(accepted, there.value, now.value),
        jacobian=choose(accepted, there.jacobian, now.jacobian),
        hessian=None if bent is None else choose(accepted, there.hessian, now.hessian),  # pyright: ignore[reportArgumentType]
        dual=choose(accepted | (now.going & ended), plan.dual, now.dual),
        weight=choose(now.going, plan.weight, now.weight),
        length=torch.where(given_up, 1.0, length),
        shift=choose(tried, shift, torch.zeros_like(shift)),
        tried=tried | (now.tried & ~accepted & ~given_up),
        straight=given_up | (now.straight & ~accepted),
        settled=torch.where(now.going, accepted & plan.last, now.settled),
        flat=torch.where(now.going, plan.flat, now.flat),
        steps=now.steps + now.going,
    )
