"""HardNet-Aff for two rows a and b, with b split along and across a.

With ``b = c a + r`` and ``a'r = 0``,

    A⁺ s = a s₁ / |a|² + r (s₂ - c s₁) / |r|²,    A⁺' g = (u - c v, v) with u = a'g / |a|², v = r'g / |r|².

The remainder r is made orthogonal twice, which leaves it so to rounding whatever the angle between a and b. The batch
is the last dimension of a, b and r; a zero row needs no test, since it divides by zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.affine_bounds import moved, nan_where_negative, signed_violation, split_by_side, times
from hardnet.functional.affine_bounds import times_transposed as times_t

Saved = tuple[Tensor, ...]


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + A⁺ s`` for raw ``(B, n)``, A ``(B, 2, n)``, bounds ``(B, 2)`` or ``(2,)``."""
    product = times(A, raw)
    violation = signed_violation(product, lower, upper).add_(product, alpha=0)  # NaN where raw is infinite
    parts = split(A)
    along_first, along_r, step = invert(violation, *parts)
    return moved(raw, step.t()), (*parts, violation, along_first, along_r, step)


def correct(rest: Tensor, A: Tensor, saved: Saved) -> Tensor:
    """``A⁺ r`` for r ``(B, 2)``: ``(B, n)``."""
    return invert(rest, *saved[:5])[-1].t()


def invert(
    right: Tensor, first: Tensor, r: Tensor, c: Tensor, first_square: Tensor, r_square: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients ``(B,)`` of ``A⁺ s`` along a and along r, and ``A⁺ s`` itself ``(n, B)``, for s ``(B, 2)``."""
    one, two = right.unbind(1)
    along_first = one / first_square
    along_r = torch.addcmul(two, c, one, value=-1).div_(r_square)
    return along_first, along_r, (along_first * first).addcmul_(along_r, r)


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of raw, A, lower and upper from that of y ``(B, n)``: see `hardnet.functional.affine_core`."""
    first, r, c, first_square, r_square, violation, along_first, along_r, step = saved
    incoming = gradient.t().contiguous()
    u, v = (first * incoming).sum(0).div_(first_square), (r * incoming).sum(0).div_(r_square)
    w = torch.stack((torch.addcmul(u, c, v, value=-1), v), 1)
    active, below, above = split_by_side(violation, w)
    grad_matrix = None
    if wants_matrix:
        across = torch.addcmul(incoming, u, first, value=-1).addcmul_(v, r, value=-1)
        q = torch.stack((torch.addcmul(along_first, c, along_r, value=-1), along_r))
        grad_matrix = (q.unsqueeze(1) * across).addcmul_(w.t().unsqueeze(1), step, value=-1)
        grad_matrix = grad_matrix.addcmul_(active.t().unsqueeze(1), raw.t(), value=-1).permute(2, 0, 1)
    return gradient - times_t(A, active), grad_matrix, below, above


def split(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A ``(n, B)``, r ``(n, B)``, c ``(B,)``, |a|² and |r|² ``(B,)``; the last is NaN where a and b are dependent."""
    first, second = A.permute(1, 2, 0).contiguous().unbind(0)
    first_square = (first * first).sum(0)
    c = (first * second).sum(0).div_(first_square)
    r = torch.addcmul(second, c, first, value=-1)
    again = (first * r).sum(0).div_(first_square)
    r.addcmul_(again, first, value=-1)
    c.add_(again)
    r_square = (r * r).sum(0)
    second_square = torch.addcmul(r_square, c * c, first_square)
    rounding = (4 * A.shape[-1] * torch.finfo(A.dtype).eps) ** 2
    return first, r, c, first_square, r_square + nan_where_negative(r_square.sub(second_square, alpha=rounding))
