"""``[W C'; C 0] (p, q) = (cotangent, 0)``: the linear system behind the derivative of a nearest point."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.kernels.limits import DEPENDENT
from hardnet.solvers.algebra.small import compiles, product, products, solve_definite
from hardnet.solvers.nonlinear.direction import added_curvature, stiffened
from hardnet.solvers.nonlinear.measure import row_norms
from hardnet.solvers.nonlinear.rows import Derivatives
from hardnet.solvers.solution import choose

DEFINITE = 1e-4
"""Least pivot for which W is considered positive definite."""


def solve_kkt(
    at: Derivatives, active: Tensor, grad: Tensor, degenerate: Tensor, look: bool = True
) -> tuple[Tensor, Tensor]:
    """``(p, q)`` with ``[W C'; C 0] (p, q) = (grad, 0)``; q is zero for rows that are not active.

    Where W is not positive definite the whole system is solved. At `degenerate` points ``(B,)`` it is singular: there
    dependent rows share q, and zero or negative curvature along the rows is replaced as in the solver. Without `look`
    the active rows' curvature is added for all samples, which does not change p and q, and where the result is not
    positive definite the identity is used for W.
    """
    if look and compiles(at.jacobian, "kkt") and (at.hessian is None or compiles(at.hessian, "kkt")):
        from hardnet.kernels.cpu.kkt import solve

        p, q, pivot = solve(at.jacobian, at.hessian, active, grad)
        bad = (~(pivot > DEFINITE)).nonzero().squeeze(-1)
        if len(bad):
            p[bad], q[bad] = _in_torch(at.take(bad), active[bad], grad[bad], degenerate[bad], look)
        return p, q
    return _in_torch(at, active, grad, degenerate, look)


def _in_torch(at: Derivatives, active: Tensor, grad: Tensor, degenerate: Tensor, look: bool) -> tuple[Tensor, Tensor]:
    """`solve_kkt` without compiled code, and for samples whose W is not positive definite."""
    norm = row_norms(at.jacobian)
    C = torch.where(active.unsqueeze(-1), at.jacobian / norm.unsqueeze(-1), 0.0)
    right = torch.cat([C.mT, grad.unsqueeze(-1)], dim=-1)
    if at.hessian is None:
        p, q = _by_rows(C, active, right)
        return p, q / norm
    W = at.hessian.clone()
    W.diagonal(dim1=-2, dim2=-1).add_(1.0)
    if not look:
        solved, pivot = solve_definite(W + products(C.mT, added_curvature(W, C, active).unsqueeze(-1) * C), right)
        solved = choose(pivot > 0, solved, right)
        p, q = _by_rows(C, active, solved)
        return p, q / norm
    solved, pivot = solve_definite(W, right)
    p, q = _by_rows(C, active, solved)
    bad = ~(pivot > DEFINITE)
    for samples, solver in ((bad & ~degenerate, _by_system), (bad & degenerate, _by_stiffened)):
        chosen = samples.nonzero().squeeze(-1)
        if len(chosen):
            p[chosen], q[chosen] = solver(W[chosen], C[chosen], active[chosen], right[chosen])
    return p, q / norm


def _by_rows(C: Tensor, active: Tensor, solved: Tensor) -> tuple[Tensor, Tensor]:
    """P and q from ``W^-1 [C', grad]``, by the system of the rows ``C W^-1 C'``."""
    across, free = solved[..., :-1], solved[..., -1]
    gram = products(C, across).clone()
    gram.diagonal(dim1=-2, dim2=-1).add_(torch.where(active, DEPENDENT, 1.0))
    q = solve_definite(gram, product(C, free).unsqueeze(-1))[0].squeeze(-1)
    q = torch.where(active, q, 0.0)
    return free - product(across, q), q


def _by_system(W: Tensor, C: Tensor, active: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """P and q from the whole system, by elimination with pivoting."""
    n = W.shape[-1]
    corner = torch.diag_embed((~active).to(W))
    K = torch.cat([torch.cat([W, C.mT], -1), torch.cat([C, corner], -1)], -2)
    grad = torch.cat([right[..., -1], torch.zeros_like(C[..., 0])], -1)
    solved = torch.linalg.solve_ex(K, grad.unsqueeze(-1)).result.squeeze(-1)
    return solved[:, :n], torch.where(active, solved[:, n:], 0.0)


def _by_stiffened(W: Tensor, C: Tensor, active: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """P and q with W made positive definite."""
    return _by_rows(C, active, solve_definite(stiffened(W, C, active)[0], right)[0])
