"""DC3 on affine rows: complete the equalities, correct the inequalities, in the predicted coordinates z.

    y_P = z,  y_O = A_O^-1 (b - A_P z),  lower <= G y <= upper
    becomes  lower - G_O A_O^-1 b <= (G_P - G_O A_O^-1 A_P) z <= upper - G_O A_O^-1 b.

The completion is affine in z, so descending on z and completing once at the end is the published iteration on y, and
the equalities hold to the accuracy of one solve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import RankError
from hardnet.modes import may_look, working
from hardnet.products import times
from hardnet.solvers.algebra.small import solve_square

# Completion: solve ``A y = b`` for some coordinates of y, given the others by the network.
#
# With the columns of A split into predicted P and completed O, ``y_O = A_O^-1 (b - A_P y_P)``.


COMPLETION_REFINEMENTS = 3
"""Each refinement multiplies the residual by about ``cond(A_O) eps``."""


class Partition(NamedTuple):
    """Which coordinates the network predicts, and which the equalities determine: index tensors."""

    predicted: Tensor
    completed: Tensor


class Completion(NamedTuple):
    """What is computed from the A of the equalities.

    Attributes:
        A_predicted: Columns of the predicted coordinates, ``(*batch, e, n - e)``.
        A_completed: Columns of the completed ones, ``(*batch, e, e)``.
        inverse: ``A_O^-1``, ``(*batch, e, e)``.
        slope: ``A_O^-1 A_P``; the completed coordinates change by -slope times the change of the predicted ones.
        condition: ``|A_O| |A_O^-1|`` in the infinity norm, ``(*batch)``.
    """

    A_predicted: Tensor
    A_completed: Tensor
    inverse: Tensor
    slope: Tensor
    condition: Tensor


def choose_partition(A: Tensor) -> Partition:
    """Complete the columns that a column-pivoted QR of A ``(e, n)`` picks first: deterministic and well conditioned.

    Each step takes the column with the largest component orthogonal to the columns already taken.

    Raises:
        RankError: The rows of A are linearly dependent, so that no choice of e columns is invertible.
    """
    rows, columns = A.shape
    taken = independent_columns(A, torch.finfo(working(A.dtype)).eps)
    if len(taken) < rows:
        raise RankError(
            f"A: expected {rows} linearly independent equality rows, got rank {len(taken)}; drop the redundant rows"
        )
    return partition_of([column for column in range(columns) if column not in taken], columns, A.device)


def independent_columns(A: Tensor, eps: float) -> list[int]:
    """The columns of A ``(m, n)`` that pivoting takes, best first, until only rounding of relative size eps is left."""
    rest = A.detach().to("cpu", torch.float64).clone()
    threshold = max(A.shape) * eps * rest.norm(dim=0).max().item()
    taken: list[int] = []
    for _ in range(min(A.shape)):
        norms = rest.norm(dim=0)
        best = int(norms.argmax())
        if not norms[best] > threshold:
            break
        direction = rest[:, best] / norms[best]
        rest -= torch.outer(direction, direction @ rest)
        taken.append(best)
    return taken


def partition_of(predicted: list[int], n: int, device: torch.device) -> Partition:
    """The partition of ``range(n)`` with the given predicted coordinates."""
    completed = [column for column in range(n) if column not in set(predicted)]
    free, solved = (torch.tensor(columns, dtype=torch.long, device=device) for columns in (predicted, completed))
    return Partition(free, solved)


def factorize_completion(A: Tensor, partition: Partition) -> Completion:
    """``A_O^-1`` and ``A_O^-1 A_P`` for A ``(*batch, e, n)``; differentiable; no error where A_O is singular."""
    A_predicted, A_completed = A.index_select(-1, partition.predicted), A.index_select(-1, partition.completed)
    inverse = torch.linalg.inv_ex(A_completed.detach(), check_errors=False).inverse
    size = torch.linalg.matrix_norm(A_completed.detach(), torch.inf)
    condition = size * torch.linalg.matrix_norm(inverse, torch.inf)
    if A.requires_grad:  # the identity in place of singular blocks, so that they send no gradient
        bad = _beyond(condition, A)[..., None, None]
        A_completed = torch.where(bad, torch.eye(A.shape[-2], dtype=A.dtype, device=A.device), A_completed)
        inverse = torch.linalg.inv_ex(A_completed, check_errors=False).inverse
    return Completion(A_predicted, A_completed, inverse, inverse @ A_predicted, condition)


def complete(predicted: Tensor, b: Tensor, factor: Completion, partition: Partition) -> Tensor:
    """``y_P = predicted, y_O = A_O^-1 (b - A_P y_P)``, refined until ``A y - b`` is at rounding level.

    Args:
        predicted: The predicted coordinates, ``(*batch, n - e)``.
        b: Right-hand sides, ``(e,)`` or ``(*batch, e)``.
        factor: `factorize_completion` of A.
        partition: Which coordinates are which.

    Returns:
        y ``(*batch, n)``; NaN in the samples whose A_O is singular to rounding.
    """
    rest = b - times(factor.A_predicted, predicted)
    completed = times(factor.inverse, rest)
    for _ in range(COMPLETION_REFINEMENTS):
        completed = completed + times(factor.inverse, rest - times(factor.A_completed, completed))
    y = in_order(predicted.expand(*completed.shape[:-1], predicted.shape[-1]), completed, partition)
    return torch.where(singular(factor).unsqueeze(-1), torch.nan, y)


def in_order(predicted: Tensor, completed: Tensor, partition: Partition) -> Tensor:
    """The two groups of coordinates as one vector ``(*batch, n)`` in the original order."""
    order = torch.cat([partition.predicted, partition.completed]).argsort()
    return torch.cat([predicted, completed], dim=-1).index_select(-1, order)


def reduced_rows(G: Tensor, factor: Completion, partition: Partition) -> Tensor:
    """``G_P - G_O A_O^-1 A_P``: rows G ``(*batch, q, n)`` in the predicted coordinates, along the equalities."""
    return G.index_select(-1, partition.predicted) - G.index_select(-1, partition.completed) @ factor.slope


def singular(factor: Completion) -> Tensor:
    """Whether A_O is numerically singular in its dtype, ``(*batch)``; NaN counts as singular."""
    return _beyond(factor.condition, factor.A_completed)


def _beyond(condition: Tensor, A: Tensor) -> Tensor:
    """Whether a condition number is beyond the dtype of e rows; NaN is."""
    return ~(condition < 1 / (A.shape[-2] * torch.finfo(A.dtype).eps))


Function = Callable[[Tensor, Any], Tensor]


class Completed(NamedTuple):
    """y ``(*batch, n)`` with the derivative of the implicit function, and which samples reached the tolerance."""

    y: Tensor
    converged: Tensor


def jacobian(function: Function, y: Tensor, x: Any) -> Tensor:
    """``d function / d y`` of each sample, ``(*batch, rows, n)``; itself differentiable."""
    return _per_sample(torch.func.jacrev(function), y, x)


def gradient(function: Function, y: Tensor, x: Any) -> Tensor:
    """The gradient of a scalar function of one sample, ``(*batch, n)``; itself differentiable."""
    return _per_sample(torch.func.grad(function), y, x)


def complete_smooth(
    z: Tensor, x: Any, equality: Function, partition: Partition, start: Tensor, tolerance: float, iterations: int
) -> Completed:
    """Newton's method on the completed coordinates from `start` ``(*batch, e)``; each sample stops on its own.

    A last Newton step, recorded by autograd with a fixed Jacobian, gives the derivative of the implicit function with
    respect to z and x.
    """
    with torch.no_grad():
        completed = start
        for _ in range(iterations):
            y = in_order(z, completed, partition)
            residual = equality(y, x)
            active = residual.abs().amax(dim=-1, keepdim=True) > tolerance
            if may_look(active) and not bool(active.any()):
                break
            step = solve_square(jacobian(equality, y, x).index_select(-1, partition.completed), residual)
            completed = torch.where(active, completed - step, completed)
        y = in_order(z, completed, partition)
        converged = equality(y, x).abs().amax(dim=-1) <= tolerance
        J = jacobian(equality, y, x).index_select(-1, partition.completed)
    implicit = completed - solve_square(J, equality(in_order(z, completed, partition), x))
    return Completed(in_order(z, implicit, partition), converged)


def reduce_gradient(full: Tensor, J: Tensor, partition: Partition) -> Tensor:
    """The gradient along the equalities, ``g_P - J_P' J_O^-T g_O``, in the predicted coordinates."""
    own = full.index_select(-1, partition.completed)
    multiplier = solve_square(J.index_select(-1, partition.completed).mT, own)
    return full.index_select(-1, partition.predicted) - times(J.index_select(-1, partition.predicted).mT, multiplier)


def _per_sample(function: Callable[..., Tensor], y: Tensor, x: Any) -> Tensor:
    """Map a function of one sample over the batch dimensions of y, and of x where x is a tensor."""
    batch = y.shape[:-1]
    if not batch:
        return function(y, x)
    mapped = isinstance(x, Tensor)
    flat = x.expand(*batch, x.shape[-1]).reshape(batch.numel(), -1) if mapped else x
    result = torch.func.vmap(function, in_dims=(0, 0 if mapped else None))(y.reshape(batch.numel(), -1), flat)
    return result.reshape(*batch, *result.shape[1:])


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
