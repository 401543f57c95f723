"""HardNet-Aff for many rows: Cholesky of the Gram matrix, QR for the samples that need it.

``A A' = C C'``: Cholesky does not feel the size of a row (``c_k² / |a_k|²`` is the squared distance of the unit row k
from the rows before it, whatever the scale), but its error grows with cond(A)². So every sample is looked at: where
the smallest distance says that this is too much, the sample alone is solved again by QR of its A' (eager, on a CPU).
Where no value may be looked at (compiled code, an accelerator) the Gram matrix is formed in float64 and the answer
refined twice with its residual, which contracts the error by cond(A)² eps each time; a sample that does not
contract is NaN. Samples never share a decision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import may_look, moved, outer_sum, signed_violation, split_by_side, times
from hardnet.functional.affine_bounds import times_transposed as times_t
from hardnet.functional.affine_pinv import pseudo_inverse

Saved = tuple[Tensor, ...]
SAFE_DISTANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Below this squared distance of a unit row from the rows before it, Cholesky is not trusted with the sample."""


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + A' (A A')⁻¹ s`` for raw ``(B, n)``, A ``(B, m, n)``, bounds ``(B, m)`` or ``(m,)``."""
    violation = signed_violation(times(A, raw), lower, upper)
    C, doubtful = factorise(A)
    P = pseudo_inverse(A[doubtful]) if may_look(A) and doubtful.any() else A[:0]
    q, step = invert(violation, A, C, doubtful, P, refinements(A))
    if not may_look(A):
        lost = (doubtful | not_contracted(A, violation, step)).unsqueeze(-1)
        violation, step = torch.where(lost, torch.nan, violation), torch.where(lost, torch.nan, step)
    return moved(raw, step), (C, doubtful, P, violation, q, step)


def correct(rest: Tensor, A: Tensor, saved: Saved) -> Tensor:
    """``A⁺ r`` for r ``(B, m)``: ``(B, n)``."""
    return invert(rest, A, *saved[:3], refine=0)[1]


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y ``(B, n)``: see `hardnet.functional.affine_core`."""
    C, doubtful, P, violation, q, step = saved
    w = solve(C, times(A, gradient))
    across = gradient - times_t(A, w)
    for _ in range(refinements(A)):
        correction = solve(C, times(A, across))
        w, across = w + correction, across - times_t(A, correction)
    if len(P):
        w, across = settle_backward(A, gradient, doubtful, P, w, across)
    active, below, above = split_by_side(violation, w)
    grad_matrix = outer_sum(A, (q, -w, -active), (across, step, raw)) if wants_matrix else None
    return gradient - times_t(A, active), grad_matrix, below, above


def refinements(A: Tensor) -> int:
    """How many corrections with the residual: none in float64 where doubtful samples get QR, two where none may."""
    if not may_look(A):
        return 2
    return 0 if A.dtype == torch.float64 else 1


def factorise(A: Tensor) -> tuple[Tensor, Tensor]:
    """C ``(B, m, m)`` of ``A A' = C C'``, and which samples are doubtful ``(B,)``."""
    look = may_look(A)
    rows = A if look or A.device.type == "mps" else A.double()
    gram = torch.bmm(rows, rows.mT)
    C, failed = torch.linalg.cholesky_ex(gram)
    distance = (C.diagonal(dim1=-2, dim2=-1).square() / gram.diagonal(dim1=-2, dim2=-1)).amin(-1)
    sure = SAFE_DISTANCE[A.dtype] if look else 64 * A.shape[-2] * torch.finfo(C.dtype).eps
    return C, (distance > sure).logical_not_().logical_or_(failed != 0)


def solve(C: Tensor, right: Tensor) -> Tensor:
    """``(A A')⁻¹ r = C⁻' C⁻¹ r`` for r ``(B, m)``, in the dtype of r."""
    solution = torch.linalg.solve_triangular(C, right.to(C.dtype).unsqueeze(-1), upper=False)
    return torch.linalg.solve_triangular(C.mT, solution, upper=True).squeeze(-1).to(right.dtype)


def invert(right: Tensor, A: Tensor, C: Tensor, doubtful: Tensor, P: Tensor, refine: int) -> tuple[Tensor, Tensor]:
    """``q = (A A')⁻¹ s`` and ``A' q = A⁺ s`` for s ``(B, m)``; by ``P = A⁺'`` for the doubtful samples."""
    q = solve(C, right)
    step = times_t(A, q)
    for _ in range(refine):
        correction = solve(C, right - times(A, step))
        q, step = q + correction, step + times_t(A, correction)
    if not len(P):
        return q, step
    s = right[doubtful]
    exact = times_t(P, s)
    exact = exact + times_t(P, s - times(A[doubtful], exact))
    return put(q, doubtful, times(P, exact)), put(step, doubtful, exact)


def settle_backward(
    A: Tensor, gradient: Tensor, doubtful: Tensor, P: Tensor, w: Tensor, across: Tensor
) -> tuple[Tensor, Tensor]:
    """Replace the doubtful samples: ``w = P g, across = g - A' w`` with ``P = A⁺'`` by QR."""
    rows, g = A[doubtful], gradient[doubtful]
    exact = times(P, g)
    exact = exact + times(P, g - times_t(rows, exact))
    return put(w, doubtful, exact), put(across, doubtful, g - times_t(rows, exact))


def not_contracted(A: Tensor, violation: Tensor, step: Tensor) -> Tensor:
    """Whether the residual ``s - A step`` of a sample ``(B,)`` stayed above what refinement leaves of good samples."""
    rest = (violation - times(A, step)).abs()
    size = torch.linalg.vector_norm(A, dim=-1) * torch.linalg.vector_norm(step, dim=-1, keepdim=True)
    return (rest > 256 * torch.finfo(A.dtype).eps * size).any(-1)


def put(target: Tensor, where: Tensor, values: Tensor) -> Tensor:
    """The samples of `target` chosen by the mask `where`, replaced by `values`."""
    return target.index_put((where,), values)
