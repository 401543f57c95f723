"""DC3 on affine rows: complete the equalities, correct the inequalities, in the predicted coordinates z.

    y_P = z,  y_O = A_O^-1 (b - A_P z),  lower <= G y <= upper
    becomes  lower - G_O A_O^-1 b <= (G_P - G_O A_O^-1 A_P) z <= upper - G_O A_O^-1 b.

The completion is affine in z, so descending on z and completing once at the end is the published iteration on y, and
the equalities hold to the accuracy of one solve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.functional.completion import Completion, Partition, complete, factorize_completion, reduced_rows
from hardnet.products import times


class Descent(NamedTuple):
    """How the correction descends.

    Attributes:
        step: Step size: a number, or a tensor that broadcasts with ``(*batch, 1)``.
        momentum: Weight of the previous move.
        steps: Steps that every sample takes.
        extra_steps: Further steps for the samples whose largest violation exceeds `tolerance`.
        tolerance: Largest violation at which a sample stops during the extra steps.
        published_sign: Use ``r = relu(A y - upper) + relu(lower - A y)``, which pushes violated lower bounds the
            wrong way, as in the published piecewise-box baseline of the HardNet paper and its reported numbers.
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
    """Descend ``|violation of lower <= A y <= upper|^2`` from y, differentiably, without reading values.

    Args:
        y: Start, ``(*batch, n)``; returned unchanged, bit for bit, where it violates nothing.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)`` or ``(*batch, m)`` or None.
        upper: Like `lower`.
        descent: Step size, momentum and number of steps.
        gram: ``A A'`` if the caller has it.

    Returns:
        The corrected y, ``(*batch, n)``.
    """
    if A.shape[-2] == 0:
        return y
    apply_gram = _gram_operator(A, gram)
    product = times(A, y)
    total = move = torch.zeros_like(product)
    for count in range(descent.steps + descent.extra_steps):
        residual = _signed_residual(product, lower, upper, descent.published_sign)
        move = 2 * descent.step * residual + descent.momentum * move
        if count >= descent.steps:
            violated = residual.abs().amax(dim=-1, keepdim=True) > descent.tolerance
            move = torch.where(violated, move, 0)
        product = product - apply_gram(move)
        total = total + move
    return y - times(A.mT, total)


def largest_step(A: Tensor) -> Tensor:
    """``1 / (2 sigma_max(A)^2)``, with an upper bound for sigma_max: ``(*batch, 1)``; twice this step is still stable.

    With S the smaller of ``A A'`` and ``A' A``, ``sigma_max^2 <= |S^8|_F^(1/8)``, which exceeds it by a factor of
    ``min(m, n)^(1/16)`` at most. It needs three matrix products, no eigenvalue solver, and reads no values.
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
        return lambda c: times(A, times(A.mT, c))
    square = A @ A.mT if gram is None else gram
    return lambda c: times(square, c)


def _signed_residual(product: Tensor, lower: Tensor | None, upper: Tensor | None, published_sign: bool) -> Tensor:
    """``relu(A y - upper) - relu(lower - A y)``, or the sum of the two with the published sign."""
    residual = torch.zeros_like(product) if upper is None else (product - upper).clamp_min(0)
    if lower is None:
        return residual
    below = (lower - product).clamp_min(0)
    return residual + below if published_sign else residual - below


class Reduced(NamedTuple):
    """What depends only on the matrices, and is kept where they are constant.

    Attributes:
        G: Inequality rows in the coordinates that descend, ``(*batch, q, n - e)``.
        completion: The factor of the equalities; None without completion.
        shift: ``G_O A_O^-1``: by how much one unit of b lowers the bounds of G; None without completion.
        gram: ``G G'`` where it is no larger than G, else None.
        step: ``1 / (2 sigma_max(G)^2)`` where the caller computed it, ``(*batch, 1)``; else None.
    """

    G: Tensor
    completion: Completion | None
    shift: Tensor | None
    gram: Tensor | None
    step: Tensor | None = None


def reduce_rows(A: Tensor | None, G: Tensor, partition: Partition | None) -> Reduced:
    """Eliminate the completed coordinates from the inequality rows G; without a partition nothing is eliminated.

    Args:
        A: Equality rows, ``(*batch, e, n)``; None without completion.
        G: Inequality rows, ``(*batch, q, n)``; all rows without completion.
        partition: Which coordinates are predicted and completed; None without completion.
    """
    if A is None or partition is None:
        return _with_gram(G, None, None)
    completion = factorize_completion(A, partition)
    shift = G.index_select(-1, partition.completed) @ completion.inverse
    return _with_gram(reduced_rows(G, completion, partition), completion, shift)


def _with_gram(G: Tensor, completion: Completion | None, shift: Tensor | None) -> Reduced:
    """The reduction with the Gram matrix that the descent on G uses."""
    gram = G @ G.mT if G.shape[-2] <= G.shape[-1] else None
    return Reduced(G, completion, shift, gram)


def complete_and_correct(
    z: Tensor,
    b: Tensor | None,
    lower: Tensor | None,
    upper: Tensor | None,
    reduced: Reduced,
    partition: Partition | None,
    descent: Descent,
) -> Tensor:
    """Descend from z on the violated inequalities, then complete.

    Args:
        z: Predicted coordinates, ``(*batch, n - e)``; all of them without completion.
        b: Right-hand sides of the equalities, ``(e,)`` or ``(*batch, e)``; None without completion.
        lower: Lower bounds of the inequality rows, or None.
        upper: Upper bounds of the inequality rows, or None.
        reduced: `reduce_rows` of the matrices.
        partition: Which coordinates are which; None without completion.
        descent: Step size, momentum and number of steps.

    Returns:
        y ``(*batch, n)``.
    """
    if b is None or partition is None or reduced.completion is None or reduced.shift is None:
        return correct_affine(z, reduced.G, lower, upper, descent, reduced.gram)
    taken = times(reduced.shift, b)
    lower = None if lower is None else lower - taken
    upper = None if upper is None else upper - taken
    z = correct_affine(z, reduced.G, lower, upper, descent, reduced.gram)
    return complete(z, b, reduced.completion, partition)
