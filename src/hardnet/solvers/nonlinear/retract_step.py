"""One step of a retraction: the nearest point of the linearized rows, and the violation predicted after it.

    min over d, s   |d|^2 / 2 + |s / elastic|^2 / 2   subject to  lower <= g + J d + s <= upper

The size of a violation is ``|v|``, each row in units of its gradient's length. Where the linearized rows are infeasible
the slack s makes the step elastic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import CUT, STATIONARY, SUFFICIENT
from hardnet.solvers.algebra.small import product
from hardnet.solvers.nonlinear.measure import elastic_rows, fixed_direction, row_norms
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.nonlinear.step import solve_step

NUDGE = 1e-2
"""Length, relative to the sample's size, of the nudge away from a stationary point that violates its rows."""


class Plan(NamedTuple):
    """The step of a pass and the violation predicted after it; ``(b,)`` unless stated.

    Attributes:
        step: ``(b, n)``.
        weight: The weight of each violation, ``(b, m)``.
        violation: The violation at the current point, ``(b, m)``.
        current: Its size.
        promised: The size predicted by the linearized rows after the full step.
    """

    step: Tensor
    weight: Tensor
    violation: Tensor
    current: Tensor
    promised: Tensor

    def merit(self, violation: Tensor) -> Tensor:
        """The size of the violations ``(b, m)``: ``(b,)``."""
        return torch.linalg.vector_norm(violation * self.weight, dim=-1)

    def accepts(self, there: Tensor, length: Tensor | float) -> Tensor:
        """Whether the violations ``(b, m)`` after a step of this length have decreased enough; False for NaN."""
        return self.merit(there) <= self.current + SUFFICIENT * length * (self.promised - self.current)

    def shorter(self, there: Tensor, length: Tensor) -> Tensor:
        """The next length t, which minimizes ``(1 - t) |v| + t^2 |c|``, with c from the violations there."""
        bent = self.merit(there - (1 - length).unsqueeze(-1) * self.violation)
        least = self.current * length.square() / (2 * bent)
        least = torch.where(bent.isfinite(), least, 0.1 * length)
        return torch.minimum(torch.maximum(least, CUT * length), 0.5 * length)


def plan_step(
    rows: Rows, at: Derivatives, violation: Tensor, size: Tensor, elastic: Tensor, unit: bool, look: bool = True
) -> tuple[Plan, Tensor]:
    """The step from a point with these derivatives, and which samples are stationary: no decrease is predicted.

    Args:
        rows: The rows.
        at: Their values and Jacobian.
        violation: ``(b, m)``.
        size: The size of the outputs, ``(b, 1)``.
        elastic: The elasticity of a row of length one, ``(b,)``.
        unit: Whether violations are measured in units of the rows' gradients.
        look: Whether values may be read.
    """
    J, norm = at.jacobian, row_norms(at.jacobian)
    least = violation / size.clamp_min(torch.finfo(norm.dtype).tiny)
    if not unit:
        norm, least = norm.amax(-1, keepdim=True).expand_as(norm), least.amax(-1, keepdim=True)
    soft = elastic_rows(rows, J, torch.maximum(norm, least) * elastic.unsqueeze(-1))
    step, dual = solve_step(J, rows.lower - at.value, rows.upper - at.value, soft, tight=rows.tight, look=look)
    left = soft.square() * dual if rows.tight else rows.violation(at.value + product(J, step))
    weight = 1 / norm if unit else torch.ones_like(norm)
    current, promised = (torch.linalg.vector_norm(part * weight, dim=-1) for part in (violation, left))
    stationary = ~(current - promised > STATIONARY * current)
    stationary = stationary if unit else stationary | (damped_share(rows, at, look) <= STATIONARY)
    return Plan(step, weight, violation, current, promised), stationary


def nudged(y: Tensor, size: Tensor) -> Tensor:
    """Y ``(b, n)`` moved a little in a fixed direction, for samples of the size ``(b, 1)``."""
    return y + NUDGE * size.clamp_min(NUDGE) * fixed_direction(y)


def damped_share(rows: Rows, at: Derivatives, look: bool = True) -> Tensor:
    """The share of the violation that a damped step is predicted to remove: 0 at a stationary point.

    The elasticity of each row is the length of the longest gradient.
    """
    J, norm = at.jacobian, row_norms(at.jacobian)
    soft = elastic_rows(rows, J, norm.amax(-1, keepdim=True).expand_as(norm))
    step, _ = solve_step(J, rows.lower - at.value, rows.upper - at.value, soft, tight=rows.tight, look=look)
    current = torch.linalg.vector_norm(rows.violation(at.value), dim=-1)
    promised = torch.linalg.vector_norm(rows.violation(at.value + product(J, step)), dim=-1)
    return torch.where(current > 0, 1 - promised / current, 1.0)
