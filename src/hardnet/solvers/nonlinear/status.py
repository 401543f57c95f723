"""How samples ended: the status of each, the tests behind it, and the record that a solve returns."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.algebra.small import product, products, solve_definite
from hardnet.solvers.nonlinear.direction import DEGENERATE
from hardnet.solvers.nonlinear.measure import relative_error, row_norms
from hardnet.solvers.nonlinear.rows import Derivatives, Rows

KKT_ROUNDINGS = 64
"""Roundings of the terms of ``J'dual`` that the KKT residual may have in addition to the tolerance."""
SLOW = 0.15
"""A full step near a regular point leaves less than this part of the violation; at a cusp or a double root, more."""
ROUNDED = 1e-13
"""Relative violation up to which rounding may be the reason that the last step did not reduce it."""
DEPENDENT = 1e-10
"""Least pivot of the unit gradients of active rows; below it they are dependent."""


class NonlinearStatus(IntEnum):
    """How one sample ended (stored as int8).

    OK: the rows hold to the tolerance and, for the nearest point, so do the KKT conditions, to the same tolerance
    relative to ``1 + |y - raw|`` plus 64 roundings of the terms of ``J'dual``. FEASIBLE_ONLY: the rows hold, the KKT
    conditions do not. NOT_CONVERGED: the rows do not hold. INFEASIBLE_LOCAL: the rows do not hold, and no small move
    reduces their violation. DEGENERATE: the rows hold, but gradients of active rows are dependent, or the point is not
    isolated. INVALID: raw, x or a bound is NaN or infinite, lower > upper, or g is not finite at raw or any of the
    other starts.
    """

    OK = 0
    FEASIBLE_ONLY = 1
    NOT_CONVERGED = 2
    INFEASIBLE_LOCAL = 3
    DEGENERATE = 4
    INVALID = 5


class NonlinearSolution(NamedTuple):
    """The outcome for each sample of a batch.

    Attributes:
        y: ``(B, n)``; the best point found where the rows do not hold, raw where INVALID.
        dual: Multipliers ``(B, m + k)``, positive at the upper bound; 0 from a retraction.
        status: `NonlinearStatus`, ``(B,)`` int8.
        iterations: ``(B,)``.
        violation: The largest violation relative to its row's scale, ``(B,)``.
        residual: The larger of ``|y - raw + J'dual| / (1 + |y - raw|)`` and the complementarity residual, ``(B,)``; 0
            from a retraction.
    """

    y: Tensor
    dual: Tensor
    status: Tensor
    iterations: Tensor
    violation: Tensor
    residual: Tensor


def unsolved(raw: Tensor, rows: Rows) -> NonlinearSolution:
    """A batch of INVALID samples, with y = raw."""
    count = torch.zeros(len(raw), dtype=torch.long, device=raw.device)
    nan = raw.new_full((len(raw),), torch.nan)
    status = torch.full_like(count, NonlinearStatus.INVALID, dtype=torch.int8)
    return NonlinearSolution(raw, torch.zeros_like(rows.lower), status, count, nan, nan)


def blame(found: NonlinearSolution, steps: Tensor, stationary: Tensor) -> NonlinearSolution:
    """Replace NOT_CONVERGED by INFEASIBLE_LOCAL where the violation is stationary; set the number of steps."""
    stuck = (found.status == NonlinearStatus.NOT_CONVERGED) & stationary
    status = torch.where(stuck, int(NonlinearStatus.INFEASIBLE_LOCAL), found.status.long()).to(torch.int8)
    return found._replace(status=status, iterations=steps)


def judged(
    rows: Rows,
    raw: Tensor,
    y: Tensor,
    at: Derivatives,
    dual: Tensor,
    ratio: Tensor,
    tolerance: float,
    settled: Tensor,
    flat: Tensor,
    look: bool = True,
) -> NonlinearSolution:
    """Check what holds at y, where `at` was evaluated, and derive the status from it."""
    error, _ = relative_error(rows, at, y, raw)
    residual, rounding = kkt_residual(rows, raw, y, at, dual)
    optimal = settled & (residual <= tolerance + rounding)
    flat = _confirmed_flat(rows, y, dual, optimal & flat) if look else flat
    weak = optimal & (flat | _dependent(rows, at.jacobian, dual))
    found = status_of(y, dual, error, ratio, tolerance, optimal, weak)
    return found._replace(residual=residual)


def kkt_residual(rows: Rows, raw: Tensor, y: Tensor, at: Derivatives, dual: Tensor) -> tuple[Tensor, Tensor]:
    """The KKT residual relative to ``1 + |y - raw|``, and the rounding that it may have, ``(b,)`` each."""
    away = y - raw
    size = 1 + away.abs().amax(-1)
    gap = torch.where(dual > 0, rows.upper - at.value, at.value - rows.lower)
    slack = torch.where(dual != 0, dual.abs() * gap.abs(), 0.0).amax(-1) / size.square()
    residual = torch.maximum((away + product(at.jacobian.mT, dual)).abs().amax(-1) / size, slack)
    terms = product(at.jacobian.abs().mT, dual.abs()).amax(-1) / size  # the rounding of the sum is relative to it
    return residual, KKT_ROUNDINGS * torch.finfo(y.dtype).eps * terms


def status_of(
    y: Tensor,
    dual: Tensor,
    error: Tensor,
    ratio: Tensor,
    tolerance: float,
    optimal: Tensor | None = None,
    weak: Tensor | None = None,
) -> NonlinearSolution:
    """The status of points with a relative violation `error`, which the last full step multiplied by `ratio`."""
    feasible = error <= tolerance
    degenerate = (ratio > SLOW) & (error > ROUNDED)
    degenerate = degenerate if weak is None else degenerate | weak
    status = torch.where(feasible if optimal is None else optimal, int(NonlinearStatus.OK), 1)
    status = torch.where(degenerate, int(NonlinearStatus.DEGENERATE), status)
    status = torch.where(feasible, status, int(NonlinearStatus.NOT_CONVERGED))
    return NonlinearSolution(y, dual, status.to(torch.int8), torch.zeros_like(status), error, torch.zeros_like(error))


def _confirmed_flat(rows: Rows, y: Tensor, dual: Tensor, flat: Tensor) -> Tensor:
    """Which of the samples marked `flat` have a curvature of W of at most `DEGENERATE` along their active rows."""
    todo = flat.nonzero().squeeze(-1)
    if len(todo) == 0:
        return flat
    some, own = rows.take(todo), dual[todo]
    at = some.evaluate(y[todo], lambda *_: own)
    unit = at.jacobian * ((some.equality | (own != 0)) / row_norms(at.jacobian)).unsqueeze(-1)
    eye = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    across = torch.linalg.pinv(unit, rtol=DEPENDENT) @ unit
    along = eye - across
    W: Tensor = eye + at.hessian  # pyright: ignore[reportOperatorIssue]
    least = torch.linalg.eigvalsh(along @ W @ along + across).amin(-1)
    return flat.index_copy(0, todo, least <= DEGENERATE)


def _dependent(rows: Rows, jacobian: Tensor, dual: Tensor) -> Tensor:
    """Whether the gradients of the active rows are dependent, ``(b,)``."""
    active = (rows.equality | (dual != 0)).to(jacobian)
    unit = jacobian * (active / row_norms(jacobian)).unsqueeze(-1)
    gram = products(unit, unit.mT).clone()
    gram.diagonal(dim1=-2, dim2=-1).add_(1 - active)
    return ~(solve_definite(gram, torch.zeros_like(gram[..., :1]))[1] > DEPENDENT)
