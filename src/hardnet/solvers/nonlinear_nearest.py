"""The nearest point: sequential quadratic programming from a feasible point to a KKT point of ``min |y - raw|^2 / 2``.

A step of `nonlinear_direction` is accepted by the l1 merit ``|y - raw|^2 / 2 + sum_i weight_i violation_i``, with one
second-order correction of a full step that is refused; each row has a weight above its multiplier.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear_direction import direction
from hardnet.solvers.nonlinear_retract import elastic_rows, relative_error
from hardnet.solvers.nonlinear_rows import Derivatives, Rows
from hardnet.solvers.nonlinear_search import backtrack
from hardnet.solvers.nonlinear_step import solve_step
from hardnet.solvers.small import product

SMALL_STEP = 1e-9
"""A step of this part of the sample's size is the last one: what remains is about its square."""
DISTANT = 1e-3
"""What the distance to raw adds to the size of a sample: where y is near 0 it is all there is."""


class Nearest(NamedTuple):
    """Where the iteration ended: y ``(B, n)``, multipliers ``(B, m)``, and ``(B,)`` each what is known of it.

    ``settled`` samples ended by a small step; in ``flat`` ones the Lagrangian was flat or bent down along the rows.
    """

    y: Tensor
    dual: Tensor
    settled: Tensor
    flat: Tensor
    steps: Tensor


def approach(rows: Rows, y: Tensor, raw: Tensor, *, iterations: int = 60) -> Nearest:
    """Iterate from y ``(B, n)``, on or near the set; each sample stops by itself."""
    batch, m = rows.lower.shape
    settled = torch.zeros(batch, dtype=torch.bool, device=y.device)
    steps = torch.zeros_like(settled, dtype=torch.long)
    result = Nearest(y.clone(), y.new_zeros(batch, m), settled, settled.clone(), steps)
    index, dual, weight = torch.arange(batch, device=y.device), None, result.dual.clone()
    for _ in range(iterations):
        at, step, dual, flat = direction(rows, y, raw, dual)
        result.steps[index] += 1
        size = y.abs().amax(-1) + DISTANT * (y - raw).abs().amax(-1)
        last = step.abs().amax(-1) <= SMALL_STEP * size
        weight = torch.maximum(weight, 1.5 * dual.abs())
        y, length = _accept(rows, at, y, raw, step, weight, last)
        result.y[index], result.dual[index], result.settled[index] = y, dual, last
        result.flat[index] = flat
        keep = (~last & (length > 0)).nonzero().squeeze(-1)
        if len(keep) == 0:
            break
        if len(keep) < len(index):
            index, y, raw, dual, weight = (part[keep] for part in (index, y, raw, dual, weight))
            rows = rows.take(keep)
    return result


def _accept(
    rows: Rows, at: Derivatives, y: Tensor, raw: Tensor, step: Tensor, weight: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """The accepted points and step lengths, 0 where no length was; a `last` step is taken as it is."""

    def merit(point: Tensor, samples: Tensor) -> Tensor:
        some = rows if len(samples) == len(y) else rows.take(samples)
        return _merit(some.violation(some.value(point)), point - raw[samples], weight[samples])

    def correct(point: Tensor, samples: Tensor) -> Tensor:
        some, J = rows.take(samples), at.jacobian[samples]
        value = some.value(point)
        value = torch.where(value.isfinite(), value, at.value[samples])
        return solve_step(J, some.lower - value, some.upper - value, elastic_rows(some, J))[0]

    violation = rows.violation(at.value)
    current = _merit(violation, y - raw, weight)
    planned = rows.violation(at.value + product(at.jacobian, step))
    slope = (((y - raw) * step).sum(-1) + (weight * (planned - violation)).sum(-1)).clamp_max(0.0)
    _, scale = relative_error(rows, at, y, raw)
    noise = torch.where(last, torch.inf, 1e-15 * (current + (weight * scale).sum(-1)))
    found = backtrack(merit, y, step, current, slope, noise=noise, correct=correct)
    return found.y, found.length


def _merit(violation: Tensor, away: Tensor, weight: Tensor) -> Tensor:
    return away.square().sum(-1) / 2 + (weight * violation).sum(-1)
