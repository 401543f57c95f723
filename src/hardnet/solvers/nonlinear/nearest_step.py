"""One step towards the nearest point, and the merit function that decides whether it is accepted.

The step d and the multipliers come from the quadratic program of the Lagrangian (`direction`). The merit is
``|y - raw|^2 / 2 + sum_i weight_i violation_i``, with weights above the rows' multipliers, so that d is a descent
direction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import DISTANT, FAR, MERIT_ROUNDING, MOST_STEP_ROWS, SEARCH_CUT, SMALL_STEP, SUFFICIENT
from hardnet.solvers.algebra.small import compiles, product
from hardnet.solvers.nonlinear.direction import direction
from hardnet.solvers.nonlinear.measure import elastic_rows, relative_error
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.step import solve_step
from hardnet.solvers.solution import place


class Plan(NamedTuple):
    """The step of a pass and the decrease predicted for it; ``(b,)`` unless stated.

    Attributes:
        step: ``(b, n)``.
        dual: The multipliers of the step, ``(b, m)``.
        weight: The weights of the violations in the merit, ``(b, m)``.
        scale: The scales of the rows, ``(b, m)``.
        current: The merit at y.
        slope: The change of the merit in a full step that the linearized rows predict, at most 0.
        noise: By how much rounding may raise the merit; infinite for a last step.
        last: Whether the step is so small that it is the last one.
        flat: Whether the Lagrangian has zero or negative curvature along the rows.
    """

    step: Tensor
    dual: Tensor
    weight: Tensor
    scale: Tensor
    current: Tensor
    slope: Tensor
    noise: Tensor
    last: Tensor
    flat: Tensor

    def take(self, index: Tensor) -> Plan:
        """The plan of some samples."""
        return Plan(*(part[index] for part in self))

    def judge(self, violation: Tensor, away: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Whether a step with these violations ``(b, m)``, ``y - raw`` and length is accepted; the next length."""
        reached = merit(violation, away, self.weight)
        good = reached <= self.current + SUFFICIENT * length * self.slope + self.noise
        good = good & ((violation / self.scale).amax(-1) <= FAR)
        excess = 2 * (reached - self.current - length * self.slope)
        shorter = torch.where(excess > 0, -self.slope * length.square() / excess, 0.5 * length)
        return good, torch.minimum(torch.maximum(shorter, SEARCH_CUT * length), 0.5 * length)


def plan_step(rows: Rows, at: Derivatives, y: Tensor, raw: Tensor, weight: Tensor) -> Plan:
    """The step from y ``(b, n)`` with the derivatives and multipliers there; `weight` ``(b, m)`` is the last step's."""
    if (
        at.hessian is None
        or at.dual is None
        or rows.size is None
        or not all(compiles(part, "approach", MOST_STEP_ROWS) for part in (at.jacobian, at.hessian))
    ):
        return plan_in_torch(rows, at, y, raw, weight)
    from hardnet.kernels.cpu.approach import plan

    bounds = rows.lower, rows.upper, rows.size
    *known, settled = plan(at.jacobian, at.hessian, at.value, *bounds, y, raw, at.dual, weight, rows.curved)
    found = Plan._make([*known, torch.zeros_like(settled)])
    todo = (~settled).nonzero().squeeze(-1)
    if len(todo) == 0:
        return found
    rest = plan_in_torch(rows.take(todo), at.take(todo), y[todo], raw[todo], weight[todo])
    return place(found, todo, rest)


def plan_in_torch(rows: Rows, at: Derivatives, y: Tensor, raw: Tensor, weight: Tensor, look: bool = True) -> Plan:
    """`plan_step` without compiled code, and for samples whose Lagrangian is not convex."""
    away, violation = y - raw, rows.violation(at.value)
    step, dual, flat = direction(rows, y, away, at, look)
    scale = relative_error(rows, at, y, raw)[1]
    last = step.abs().amax(-1) <= SMALL_STEP * (y.abs().amax(-1) + DISTANT * away.abs().amax(-1))
    weight = torch.maximum(weight, 1.5 * dual.abs())
    current = merit(violation, away, weight)
    planned = rows.violation(at.value + product(at.jacobian, step))
    slope = ((away * step).sum(-1) + (weight * (planned - violation)).sum(-1)).clamp_max(0.0)
    noise = torch.where(last, torch.inf, MERIT_ROUNDING * (current + (weight * scale).sum(-1)))
    return Plan(step, dual, weight, scale, current, slope, noise, last, flat)


def merit(violation: Tensor, away: Tensor, weight: Tensor) -> Tensor:
    """``|away|^2 / 2 + weight . violation``, ``(b,)``."""
    return away.square().sum(-1) / 2 + (weight * violation).sum(-1)


def step_back(rows: Rows, value: Tensor, J: Tensor, there: Tensor, look: bool = True) -> Tensor:
    """The second-order correction ``(b, n)``: a step back to the rows, whose values after the full step are `there`."""
    there = torch.where(there.isfinite(), there, value)
    soft = elastic_rows(rows, J)
    return solve_step(J, rows.lower - there, rows.upper - there, soft, tight=rows.tight, look=look)[0]
