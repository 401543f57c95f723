"""Correction: heavy-ball descent on the squared violation of affine rows, the repair step of DC3.

    gradient = 2 A' r,  r = relu(A y - upper) - relu(lower - A y)
    move_k = step gradient + momentum move_(k-1),  y <- y - move_k

Every move lies in the row space of A, so the iteration runs on ``w = A y`` and on the coefficients of the
moves: ``w <- w - A A' c``, ``c_k = 2 step r + momentum c_(k-1)``, and y is touched once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.functional.completion import matvec


class Descent(NamedTuple):
    """How the correction descends.

    Attributes:
        step: Step size: a number, or a tensor that broadcasts with ``(*batch, 1)``.
        momentum: Weight of the previous move.
        steps: Steps that every sample takes.
        extra_steps: Further steps of the samples whose largest violation exceeds `tolerance`.
        tolerance: Where a sample stops during the extra steps.
        published_sign: Use ``r = relu(A y - upper) + relu(lower - A y)``, which pushes violated lower bounds the
            wrong way: the published piecewise-box baseline of the HardNet paper does, and its numbers inherit it.
    """

    step: float | Tensor
    momentum: float = 0.5
    steps: int = 10
    extra_steps: int = 0
    tolerance: float = 1e-4
    published_sign: bool = False


def correct_affine(
    y: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, descent: Descent, gram: Tensor | None = None
) -> Tensor:
    """Descend ``|violation of lower <= A y <= upper|^2`` from y, differentiably, without a look at values.

    Args:
        y: Start, ``(*batch, n)``; returned unchanged, bit for bit, where it violates nothing.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)`` or ``(*batch, m)`` or None.
        upper: Like `lower`.
        descent: Step size, momentum and number of steps.
        gram: ``A A'`` where the caller keeps it.

    Returns:
        The corrected y, ``(*batch, n)``.
    """
    if A.shape[-2] == 0:
        return y
    apply_gram = _gram_operator(A, gram)
    product = matvec(A, y)
    total = move = torch.zeros_like(product)
    for count in range(descent.steps + descent.extra_steps):
        residual = _signed_residual(product, lower, upper, descent.published_sign)
        move = 2 * descent.step * residual + descent.momentum * move
        if count >= descent.steps:
            violated = residual.abs().amax(dim=-1, keepdim=True) > descent.tolerance
            move = torch.where(violated, move, 0)
        product = product - apply_gram(move)
        total = total + move
    return y - matvec(A.mT, total)


def largest_step(A: Tensor) -> Tensor:
    """``1 / (2 sigma_max(A)^2)``, with an upper bound for sigma_max: ``(*batch, 1)``; up to twice it would be stable.

    With S the smaller of ``A A'`` and ``A' A``, ``sigma_max^2 <= |S^8|_F^(1/8)``, which exceeds it by a factor of
    ``min(m, n)^(1/16)`` at most. It needs three matrix products, no eigenvalue solver and no look at values.
    """
    S = A @ A.mT if A.shape[-2] <= A.shape[-1] else A.mT @ A
    tiny = torch.finfo(A.dtype).tiny
    size = _frobenius(S).clamp_min(tiny)  # powers of S / |S| neither overflow nor vanish
    power = S / size
    for _ in range(3):
        power = power @ power
    bound = size * _frobenius(power).clamp_min(tiny) ** (1 / 8)
    return (1 / (2 * bound)).squeeze(-1)


def exact_step(A: Tensor) -> Tensor:
    """``1 / (2 sigma_max(A)^2)`` for one constant A ``(m, n)``, by its singular values: ``(1,)``."""
    if 0 in A.shape:
        return A.new_ones(1)
    largest = torch.linalg.matrix_norm(A, 2).square().clamp_min(torch.finfo(A.dtype).tiny)
    return (1 / (2 * largest)).reshape(1)


def _frobenius(S: Tensor) -> Tensor:
    """``|S|_F`` with its two dimensions kept."""
    return torch.linalg.matrix_norm(S, keepdim=True)


def _gram_operator(A: Tensor, gram: Tensor | None) -> Callable[[Tensor], Tensor]:
    """``c -> A A' c``, by one product where ``A A'`` is no larger than A."""
    if gram is None and A.shape[-2] > A.shape[-1]:
        return lambda c: matvec(A, matvec(A.mT, c))
    square = A @ A.mT if gram is None else gram
    return lambda c: matvec(square, c)


def _signed_residual(product: Tensor, lower: Tensor | None, upper: Tensor | None, published_sign: bool) -> Tensor:
    """``relu(A y - upper) - relu(lower - A y)``, or the sum of the two with the published sign."""
    residual = torch.zeros_like(product) if upper is None else (product - upper).clamp_min(0)
    if lower is None:
        return residual
    below = (lower - product).clamp_min(0)
    return residual + below if published_sign else residual - below
