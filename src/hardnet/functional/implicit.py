"""The implicit derivative of a projection on its active set, written once.

At ``y = argmin h(y)  subject to  c_J(y) = 0`` with Hessian W of the Lagrangian and gradient rows C of the active
constraints, a change of the optimality conditions moves y by the inverse of ``[W C'; C 0]``. Its transpose
takes the cotangent g of y to

    u = W^-1 (g - C'w) = (W^-1 - W^-1 C'(C W^-1 C')^+ C W^-1) g,      w = (C W^-1 C')^+ C W^-1 g.

u is the cotangent of raw, w that of the right-hand sides of the active constraints; every other number p of the
set receives ``-d/dp (dual . C(p) u + w . c(y; p))`` at fixed y, dual, u and w.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.solvers.active import split


def implicit_vjp(grad: Tensor, C: Tensor, active: Tensor, hessian: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``(u, w)`` with ``[W C_J'; C_J 0] (u, w) = (g, 0)``; dependent rows share w by the pseudo-inverse.

    Args:
        grad: Cotangent g of y, ``(B, n)``.
        C: Gradient rows, ``(m, n)`` for all samples or ``(B, m, n)``.
        active: Which rows are active, ``(B, m)``; w is zero on the others.
        hessian: W, symmetric positive definite ``(B, n, n)``, or None for the identity.
    """
    if hessian is None:
        return split(grad, C, active)
    factor = torch.linalg.cholesky(hessian)
    rows = torch.linalg.solve_triangular(factor, C.mT.expand(*hessian.shape[:-2], *C.mT.shape[-2:]), upper=False).mT
    white = torch.linalg.solve_triangular(factor, grad.unsqueeze(-1), upper=False).squeeze(-1)
    tangent, multiplier = split(white, rows, active)
    back = torch.linalg.solve_triangular(factor.mT, tangent.unsqueeze(-1), upper=True)
    return back.squeeze(-1), multiplier


def masked_vjp(grad: Tensor, C: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """`implicit_vjp` for independent active rows and W the identity, by one solve of full size and without a look."""
    rows = torch.where(active.unsqueeze(-1), C, 0.0)
    K = rows @ rows.mT + torch.diag_embed((~active).to(rows))
    w = torch.linalg.solve_ex(K, rows @ grad.unsqueeze(-1)).result
    return grad - (rows.mT @ w).squeeze(-1), w.squeeze(-1)
