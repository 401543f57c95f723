"""Completion: solve ``A y = b`` for some coordinates of y, given the others by the network.

With the columns of A split into predicted P and completed O, ``y_O = A_O^-1 (b - A_P y_P)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import RankError
from hardnet.modes import may_look, working
from hardnet.products import times
from hardnet.solvers.algebra.square import solve_square

REFINEMENTS = 3
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
    for _ in range(REFINEMENTS):
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
