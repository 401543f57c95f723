"""The signed violation of ``lower <= p <= upper`` and the products that every path of the closed form shares."""

from __future__ import annotations

import torch
from torch import Tensor


def may_look(tensor: Tensor) -> bool:
    """Whether a value may decide what is computed: eager code on a CPU, where a look costs no synchronisation."""
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu"


def corrections(A: Tensor) -> int:
    """How often y is corrected with what is left of s: for a square A in float32 once is not enough from far outside.

    A Gram matrix of badly conditioned rows would not bear more: its corrections may grow.
    """
    return 3 if A.dtype == torch.float32 and A.shape[-2] == A.shape[-1] else 1


def signed_violation(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``s = relu(lower - p) - relu(p - upper) = clamp(p, lower, upper) - p``, NaN for samples with invalid bounds.

    Invalid is lower > upper, lower = +inf, upper = -inf or NaN; infinite bounds on the open side give s = 0.

    Args:
        product: ``p = A raw``, ``(B, m)``.
        lower: ``(B, m)`` or ``(m,)`` or None.
        upper: Like `lower`.
    """
    if lower is None and upper is None:
        return product - product
    room = width(lower, upper, product.dtype)
    narrowest = room if room.shape[-1] == 1 else room.amin(-1, keepdim=True)
    return to_bounds(product, lower, upper).add_(nan_where_negative(narrowest))


def width(lower: Tensor | None, upper: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``upper - lower``; for one bound alone any number that is negative or NaN exactly where it is invalid."""
    if lower is not None and upper is not None:
        return upper - lower
    if upper is not None:
        return upper.clamp_max(0) + torch.finfo(dtype).max  # negative for -inf alone
    return torch.finfo(dtype).max - torch.as_tensor(lower).clamp_min(0)


def clamp_valid(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``clamp(p, lower, upper)`` for p ``(B, m)``, NaN for samples with invalid bounds."""
    room = width(lower, upper, product.dtype)
    if may_look(room) and room.amin().item() >= 0:
        return product.clamp(lower, upper)
    return product.clamp(lower, upper).add_(nan_where_negative(room.amin(-1, keepdim=True)))


def clamp_lanes(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """The same for p ``(m, B)``; the bounds are ``(B, m)`` or ``(m,)`` all the same."""
    room = width(lower, upper, product.dtype)
    turn = lambda side: side if side is None else side.t() if side.dim() == 2 else side.unsqueeze(1)
    target = product.clamp(turn(lower), turn(upper))
    if may_look(room) and room.amin().item() >= 0:
        return target
    return target.add_(nan_where_negative(room.amin(-1)))


def dot(rows: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for rows ``(m, n, B)`` and v ``(n, B)``: ``(m, B)``; +0.0 where all terms are zero."""
    return (rows * vector).sum(1)


def combine(weights: Tensor, rows: Tensor) -> Tensor:
    """``A' w = sum_k w_k a_k`` for weights ``(m, B)`` and rows ``(m, n, B)``: ``(n, B)``; +0.0 where all are zero."""
    return (rows * weights.unsqueeze(1)).sum(0)


def to_bounds(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``clamp(p, lower, upper) - p`` for bounds that are known to be valid."""
    return product.clamp(lower, upper).sub_(product)


def nan_where_negative(number: Tensor) -> Tensor:
    """Zero where the number is >= 0, NaN elsewhere: added to an answer, it poisons bad samples without a branch.

    Cut from the graph: the derivative of the root at zero would be NaN for every sample.
    """
    return number.detach().clamp_max(0).sqrt_()


def split_by_side(violation: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``w`` on the violated rows (V w), on those below their lower and above their upper bound; zero elsewhere."""
    side = violation.sign()
    active, below = w * side * side, w * side.clamp_min(0)
    return active, below, active - below


def moved(raw: Tensor, step: Tensor) -> Tensor:
    """``raw + step``, and raw itself, bit for bit, where the step is zero: ``-0.0 - (0 - 0.0)`` keeps its sign."""
    return raw - torch.rsub(step, 0)


def times(A: Tensor, vector: Tensor) -> Tensor:
    """``A v`` for A ``(m, n)`` or ``(B, m, n)`` and v ``(B, n)``: ``(B, m)``."""
    return vector @ A.mT if A.dim() == 2 else torch.bmm(vector.unsqueeze(-2), A.mT).squeeze(-2)


def times_transposed(A: Tensor, vector: Tensor) -> Tensor:
    """``A' v`` for A ``(m, n)`` or ``(B, m, n)`` and v ``(B, m)``: ``(B, n)``."""
    return vector @ A if A.dim() == 2 else torch.bmm(vector.unsqueeze(-2), A).squeeze(-2)


def minus_times_transposed(base: Tensor, A: Tensor, vector: Tensor) -> Tensor:
    """``b - A' v`` for b ``(B, n)``, v ``(B, m)``; b itself, bit for bit, where v is zero: -0.0 - 0.0 = -0.0."""
    step = times_transposed(A, vector).add_(0)
    return base - step


def outer_sum(A: Tensor, left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
    """``sum_k l_k r_k'`` in the shape of A: per sample, or summed over the batch where A is ``(m, n)``."""
    if A.dim() == 2:
        total = left[0].mT @ right[0]
        for first, second in zip(left[1:], right[1:], strict=True):
            total = torch.addmm(total, first.mT, second)
        return total
    return torch.bmm(torch.stack(left, -1), torch.stack(right, -2))
