"""The derivative of a nearest point on nonlinear rows as a function that can be differentiated itself.

Called by `hardnet.functional.nonlinear_gradient` where a backward pass is recorded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.nonlinear_active import sides, working
from hardnet.functional.nonlinear_call import Call, Saved
from hardnet.solvers.nonlinear_derivatives import batched_gradient
from hardnet.solvers.nonlinear_rows import Rows


def differentiable(problem: Call, grad: Tensor, saved: Saved, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """The first derivative as a function that can be differentiated itself.

    A Newton step on the KKT system from the solution, with the system held fixed, has the right first derivative; one
    more step, with everything moving, then has the right second one.
    """
    (raw, lower, upper, A, *leaves), y, dual, status = saved
    with torch.no_grad():
        rows = problem.rows(lower, upper, A)
        at, used, active, sound = working(problem, rows, raw, y, dual, status)
    attached = problem.rows(lower, upper, A, tuple(leaves[: problem.inputs]))
    curved = problem.gradient == "exact"
    side = sides(rows, used, at.value)
    with torch.enable_grad():
        bound = torch.where(active, side[0] * lower.nan_to_num(0, 0, 0) + side[1] * upper.nan_to_num(0, 0, 0), 0.0)
        with torch.no_grad():
            K = _system(rows, y, used, active, curved)[0]
        point, multiplier = _newton(attached, K, raw, bound, y, used, active, curved)
        K, _ = _system(attached, point, multiplier, active, curved)
        point, _ = _newton(attached, K, raw, bound, point, multiplier, active, curved)
        point = torch.where(sound, point, 0.0)
    asked = [part for part, need in zip(saved.inputs, needed, strict=True) if need]
    clean = torch.where(sound & ~grad.isnan(), grad, 0.0)
    found = iter(torch.autograd.grad(point, asked, clean, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _system(rows: Rows, y: Tensor, dual: Tensor, active: Tensor, curved: bool) -> tuple[Tensor, Tensor]:
    """``[W C'; C 0]`` with ones for the inactive rows, ``(B, n + M, n + M)``, and the Jacobian; differentiable."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        point = y if y.requires_grad else y.detach().requires_grad_()
        value, slope = rows.slope(point, dual[:, : rows.curved])
        J = batched_gradient(value, point, create_graph=again)
        H = batched_gradient(slope, point, create_graph=again) if curved else 0.0
    J = torch.cat([J, rows.A.expand(len(y), *rows.A.shape[-2:])], dim=-2)
    C = torch.where(active.unsqueeze(-1), J, 0.0)
    W = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device) + H
    corner = torch.diag_embed((~active).to(y))
    K = torch.cat([torch.cat([W.expand(len(y), -1, -1), C.mT], -1), torch.cat([C, corner], -1)], -2)
    return K, J


def _newton(
    rows: Rows, K: Tensor, raw: Tensor, bound: Tensor, y: Tensor, dual: Tensor, active: Tensor, curved: bool
) -> tuple[Tensor, Tensor]:
    """One Newton step on the KKT system from (y, dual); with `curved` False the multipliers have no pull on y."""
    with torch.enable_grad():
        point = y if y.requires_grad else y.detach().requires_grad_()
        value, slope = rows.slope(point, dual[:, : rows.curved])
    affine = rows.A.expand(len(y), *rows.A.shape[-2:])
    value = torch.cat([value, (affine @ y.unsqueeze(-1)).squeeze(-1)], dim=-1)
    slope = slope + (affine.mT @ dual[:, rows.curved :].unsqueeze(-1)).squeeze(-1)
    off = raw - raw.detach() if not curved else None
    first = y - raw + slope if off is None else -off
    second = torch.where(active, value - bound, 0.0)
    second = second - second.detach()  # the solution counts as exact: only derivatives are wanted
    first = first - first.detach()
    step = torch.linalg.solve_ex(K, torch.cat([first, second], -1).unsqueeze(-1)).result.squeeze(-1)
    n = y.shape[-1]
    return y - step[:, :n], dual - torch.where(active, step[:, n:], 0.0)
