"""What the derivative at a solution works with: derivatives there, the multipliers to use, and the active rows.

Called by `hardnet.functional.nonlinear_gradient` and `hardnet.functional.nonlinear_again`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.nonlinear_call import Call
from hardnet.solvers.nonlinear_rows import Derivatives, Rows
from hardnet.solvers.nonlinear_status import NonlinearStatus

TOUCHING = 1e-8
"""Part of a row's scale within which it touches its bound, where no multiplier says so."""


def working(
    problem: Call, rows: Rows, raw: Tensor, y: Tensor, dual: Tensor, status: Tensor
) -> tuple[Derivatives, Tensor, Tensor, Tensor]:
    """Derivatives at y, the multipliers to use, the active rows ``(B, M)``, and which samples have a derivative."""
    exact = ((status == NonlinearStatus.OK) | (status == NonlinearStatus.DEGENERATE)).unsqueeze(-1)
    exact = exact if problem.gradient == "exact" else torch.zeros_like(exact)
    sound = (exact | (status <= NonlinearStatus.FEASIBLE_ONLY).unsqueeze(-1)) | (
        status == NonlinearStatus.DEGENERATE
    ).unsqueeze(-1)
    point = torch.where(sound, y, 0.0)
    used = torch.where(exact, dual, 0.0)
    at = rows.evaluate(point, (lambda *_: used) if problem.gradient == "exact" else None)
    hessian = None if at.hessian is None else at.hessian.nan_to_num()
    at = Derivatives(at.value.nan_to_num(), at.jacobian.nan_to_num(), hessian)
    scale = rows.scale(at.jacobian, 1 + y.abs().amax(-1, keepdim=True))
    near = torch.minimum((at.value - rows.lower).abs(), (rows.upper - at.value).abs()) <= TOUCHING * scale
    moved = (y != raw).any(-1, keepdim=True)
    active = (rows.equality | torch.where(exact, dual != 0, near & moved)) & sound
    return at, used, active, sound


def sides(rows: Rows, dual: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Which share of q the lower and the upper bound receive: an equality half each."""
    at_upper = torch.where(dual == 0, rows.upper - value <= value - rows.lower, dual > 0).to(value)
    at_upper = torch.where(rows.equality, 0.5, at_upper)
    return 1 - at_upper, at_upper
