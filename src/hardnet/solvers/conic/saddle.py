"""The saddle system of the tight rows that Newton steps and gradients share, solved with a look and without.

`Saddle` takes rows of any rank by a singular value decomposition. `StiffSaddle` is a fixed program for GPUs and large
sets: one Cholesky factor of n x n however many rows are tight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import gram, times_tiled
from hardnet.solvers.conic.stack import Linear

STIFFNESS = 1e5
"""How much stiffer than W the tight rows are made: each round then leaves about this part of their residual."""
ROUNDS = 6
"""Rounds; rows that are independent to 1e-3 are met to rounding."""


class Saddle:
    """Solve ``[W C'; C 0] (d, v) = (b, q)`` for the tight rows C of a `Linear`, whatever their rank.

    With ``W = L L'`` and the thin SVD ``L^-1 C' = U S V'``: ``d = L^-T ((I - UU') L^-1 b + U S^+ V' q)`` and
    ``v = V S^+ (U' L^-1 b - S^+ V' q)``.

    Args:
        W: Symmetric positive definite, ``(B, n, n)``.
        linear: The rows, of which only the tight ones count.
    """

    L: Tensor
    U: Tensor
    Vt: Tensor

    def __init__(self, W: Tensor, linear: Linear) -> None:
        self.L, _ = torch.linalg.cholesky_ex(W)
        C = torch.where(linear.tight.unsqueeze(-1), linear.rows, 0.0)
        reduced = torch.linalg.solve_triangular(self.L, C.mT, upper=False)
        usable = reduced.isfinite().all(-1).all(-1)[:, None, None]  # LAPACK refuses a whole batch for one NaN
        self.U, S, self.Vt = torch.linalg.svd(torch.where(usable, reduced, 0.0), full_matrices=False)
        cut = max(reduced.shape[-2:]) * 8 * torch.finfo(S.dtype).eps * S.amax(-1, keepdim=True)
        self.pseudo: Tensor = torch.where(cut < S, 1 / S.clamp_min(torch.finfo(S.dtype).tiny), 0.0)
        self.basis: Tensor = torch.where((cut < S).unsqueeze(-2), self.U, 0.0)

    def down(self, b: Tensor) -> Tensor:
        """``L^-1 b``."""
        return torch.linalg.solve_triangular(self.L, b.unsqueeze(-1), upper=False)

    def up(self, b: Tensor) -> Tensor:
        """``L^-T b``."""
        return torch.linalg.solve_triangular(self.L.mT, b, upper=True).squeeze(-1)

    def solve(self, b: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """``(d, v)``; v is zero on rows that are not tight."""
        half = self.down(b)
        inner = self.pseudo.unsqueeze(-1) * (self.Vt @ q.unsqueeze(-1))
        d = self.up(half - self.basis @ (self.basis.mT @ half) + self.U @ inner)
        v = self.Vt.mT @ (self.pseudo.unsqueeze(-1) * (self.U.mT @ half - inner))
        return d, v.squeeze(-1)


class StiffSaddle:
    """The same system by the method of multipliers: ``d = (W + t C'C)^-1 (b - C'v + t C'q)``, ``v += t (C d - q)``.

    Each round shrinks ``C d - q`` by ``1 / (1 + t sigma)`` for the eigenvalues sigma of ``C W^-1 C'``; dependent rows
    share v by the pseudo-inverse, since v stays in the range of C.
    """

    def __init__(self, W: Tensor, linear: Linear) -> None:
        self.C: Tensor = torch.where(linear.tight.unsqueeze(-1), linear.rows, 0.0)
        largest = W.diagonal(dim1=-2, dim2=-1).amax(-1)
        self.stiffness: Tensor = (STIFFNESS * largest).unsqueeze(-1)
        L, _ = torch.linalg.cholesky_ex(W + self.stiffness.unsqueeze(-1) * gram(self.C))
        eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
        self.inverse: Tensor = torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False)

    def solve(self, b: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """``(d, v)``; v is zero on rows that are not tight."""
        d, v = torch.zeros_like(b), torch.zeros_like(q)
        for _ in range(ROUNDS):
            right = b - times_tiled(self.C.mT, v - self.stiffness * q)
            d = (self.inverse.mT @ (self.inverse @ right.unsqueeze(-1))).squeeze(-1)
            v = v + self.stiffness * (times_tiled(self.C, d) - q)
        return d, v
