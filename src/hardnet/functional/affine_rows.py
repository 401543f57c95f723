"""HardNet-Aff for few rows: Gram-Schmidt on the rows, unrolled over m, elementwise over the batch.

The batch is the last dimension, so that every operation runs over contiguous samples. With ``A = L R``, L unit
lower triangular, the rows of R orthogonal (modified Gram-Schmidt) and ``D = R R'`` diagonal,

    A⁺ s = R' D⁻¹ L⁻¹ s,    A⁺' g = L⁻' D⁻¹ R g,    (A A')⁻¹ s = L⁻' D⁻¹ L⁻¹ s.

The error grows with cond(A) and not with its square, the size of a row does not matter, and nothing here looks at a
value, so that the same lines serve the eager, the compiled and the accelerator path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import (
    combine,
    may_look,
    moved,
    nan_where_negative,
    signed_violation,
    split_by_side,
    times,
)

Saved = tuple[Tensor, ...]
SAFE_DISTANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
"""Below this squared distance of a unit row from the rows before it, a sample's answer is refined."""


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + A⁺ s`` for raw ``(B, n)``, A ``(B, m, n)``, bounds ``(B, m)`` or ``(m,)``."""
    violation = signed_violation(times(A, raw), lower, upper).t().contiguous()
    rows = A.permute(1, 2, 0).contiguous()
    R, L, inverse, distance = orthogonalise(rows)
    doubtful = (distance < SAFE_DISTANCE[A.dtype]).any(0)
    weights, step = invert(violation, rows, R, L, inverse, doubtful)
    return moved(raw, step.t()), (rows, R, L, inverse, doubtful, violation, weights, step)


def correct(rest: Tensor, A: Tensor, saved: Saved) -> Tensor:
    """``A⁺ r`` for r ``(B, m)``: ``(B, n)``."""
    return invert(rest.t(), *saved[:5])[1].t()


def invert(
    right: Tensor, rows: Tensor, R: Tensor, L: Tensor, inverse: Tensor, doubtful: Tensor
) -> tuple[Tensor, Tensor]:
    """``w = D⁻¹ L⁻¹ s`` and ``A⁺ s = R' w`` for s ``(m, B)``, refined where a sample is doubtful ``(B,)``.

    R is orthogonal only up to cond(A) roundings; one pass with the residual squares them.
    """
    weights = substitute(L, right).mul_(inverse)
    step = combine(weights, R)
    if may_look(right) and not doubtful.any():
        return weights, step
    correction = substitute(L, right - (rows * step).sum(1)).mul_(inverse)
    correction = torch.where(doubtful, correction, 0)
    return weights.add_(correction), step.add_(combine(correction, R))


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y ``(B, n)``: see `hardnet.functional.affine_core`."""
    rows, R, L, inverse, _, violation, weights, step = saved
    incoming = gradient.t().contiguous()
    inside = (R * incoming).sum(1).mul_(inverse)
    w = substitute_transposed(L, inside)
    active, below, above = split_by_side(violation, w)
    grad_raw = gradient - combine(active, rows).t()
    grad_matrix = None
    if wants_matrix:
        across = incoming - combine(inside, R)
        grad_matrix = substitute_transposed(L, weights).unsqueeze(1) * across
        grad_matrix.addcmul_(w.unsqueeze(1), step.unsqueeze(0), value=-1)
        grad_matrix.addcmul_(active.unsqueeze(1), raw.t().contiguous(), value=-1)
        grad_matrix = grad_matrix.permute(2, 0, 1)
    return grad_raw, grad_matrix, below.t(), above.t()


def orthogonalise(rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``A = L R`` of rows ``(m, n, B)``: R, L below its diagonal ``(m, m, B)``, 1 / diag(D), and ``d_k / |a_k|²``.

    The last is the squared distance of the unit row k from the rows before it; 1 / diag(D) is NaN if it is rounding.
    """
    m, n, samples = rows.shape
    R, L, size = rows.clone(), rows.new_empty(m, m, samples), (rows * rows).sum(1)
    R_rows, squares = R.unbind(0), [size[0]]
    for k in range(m - 1):
        first, rest = R_rows[k], R[k + 1 :]
        multiplier = (rest * first).sum(1).div_(squares[k])
        rest.addcmul_(multiplier.unsqueeze(1), first, value=-1)
        L[k + 1 :, k] = multiplier
        squares.append((R_rows[k + 1] * R_rows[k + 1]).sum(0))
    D = torch.stack(squares)
    distance = D / size
    rounding = (4 * n * torch.finfo(rows.dtype).eps) ** 2
    return R, L, D.reciprocal().add_(nan_where_negative((distance - rounding).amin(0))), distance


def substitute(L: Tensor, right: Tensor) -> Tensor:
    """``L⁻¹ r``, column by column."""
    solution = right.clone()
    for k in range(L.shape[0] - 1):
        solution[k + 1 :].addcmul_(L[k + 1 :, k], solution[k].unsqueeze(0), value=-1)
    return solution


def substitute_transposed(L: Tensor, right: Tensor) -> Tensor:
    """``L⁻' r``, row by row from the last."""
    solution = right.clone()
    for k in range(L.shape[0] - 1, 0, -1):
        solution[:k].addcmul_(L[k, :k], solution[k].unsqueeze(0), value=-1)
    return solution
