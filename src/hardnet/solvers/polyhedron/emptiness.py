"""Whether the last iterate of a solver proves ``lower <= A y <= upper`` empty, in plain operations that read no value.

On an empty set a program of fixed length stops with active rows J and a violated row j that depends on them,
``a_j = A_J'r``. Then ``ray = e_j - r`` has ``A'ray = 0``, and if the bounds, weighted by it, add up below zero, no y
satisfies these rows (Farkas). This gives a status where the host reads no value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import times
from hardnet.solvers.polyhedron.active import solve_unseen
from hardnet.solvers.polyhedron.orthogonal import EPS, FAR

NOTHING = 1e-12
"""The fraction of the largest weight of a ray below which a weight is rounding."""


def prove_empty(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, side: Tensor) -> Tensor:
    """Weights of rows that contradict each other, ``(B, m)``, the largest of size one; zero if that is not proved.

    Args:
        raw: ``(B, n)``, float64.
        A: ``(m, n)`` or ``(B, m, n)``.
        lower: ``(B, m)``, -inf where absent.
        upper: ``(B, m)``, inf where absent.
        y: The last iterate, ``(B, n)``.
        side: Its active rows: +1 at the upper bound, -1 at the lower, 0 inactive: ``(B, m)``.
    """
    length = torch.linalg.vector_norm(A, dim=-1)
    length = torch.where(length > 0, length, 1.0)
    rows = (A / length.unsqueeze(-1)).expand(len(y), *A.shape[-2:])
    lower, upper = lower / length, upper / length
    ray = _dependence(rows, lower, upper, y, side != 0)
    bound = torch.where(ray > 0, upper, lower)
    value = torch.where(ray != 0, ray * torch.where(ray != 0, bound, 0.0), 0.0).sum(-1)
    leak = times(rows.mT, ray).abs().sum(-1) + A.shape[-1] * EPS * ray.abs().sum(-1)
    # the rest of A'ray could make up for the violation at a point that far away, which is not counted as a solution
    reach = FAR * torch.maximum(raw.abs().amax(-1), y.abs().amax(-1))
    proof = ray / length
    proof = proof / proof.abs().amax(-1, keepdim=True)
    return torch.where((value < -leak * reach).unsqueeze(-1), proof, 0.0)


def _dependence(rows: Tensor, lower: Tensor, upper: Tensor, y: Tensor, active: Tensor) -> Tensor:
    """``e_j - r`` for the most violated row j off J, with ``A_J'r`` nearest to ``a_j``; signed by the violated side."""
    product = times(rows, y)
    above, below = product - upper, lower - product
    worst = torch.where(active, -torch.inf, torch.maximum(above, below)).argmax(-1, keepdim=True)
    joining = torch.zeros_like(product).scatter(-1, worst, 1.0)
    joining = torch.where(above > below, joining, -joining)
    ray = joining - solve_unseen(rows, active, times(rows, times(rows.mT, joining)))
    return torch.where(ray.abs() > NOTHING * ray.abs().amax(-1, keepdim=True), ray, 0.0)
