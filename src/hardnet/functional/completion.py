"""Completion: ``A y = b`` solved for some coordinates of y when the network predicts the others.

With the columns of A split into predicted P and completed O, ``y_O = A_O^-1 (b - A_P y_P)``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import RankError
from hardnet.functional.half import working

REFINEMENTS = 3
"""Each multiplies the residual by about ``cond(A_O) eps``."""


class Partition(NamedTuple):
    """Which coordinates the network predicts, and which the equalities determine: index tensors."""

    predicted: Tensor
    completed: Tensor


class Completion(NamedTuple):
    """What the equalities give once A is known.

    Attributes:
        A_predicted: Columns of the predicted coordinates, ``(*batch, e, n - e)``.
        A_completed: Columns of the completed ones, ``(*batch, e, e)``.
        inverse: ``A_O^-1``, ``(*batch, e, e)``.
        slope: ``A_O^-1 A_P``, so that the completed coordinates move by minus slope times the predicted ones.
        condition: ``|A_O| |A_O^-1|`` in the infinity norm, ``(*batch)``.
    """

    A_predicted: Tensor
    A_completed: Tensor
    inverse: Tensor
    slope: Tensor
    condition: Tensor


def choose_partition(A: Tensor) -> Partition:
    """Complete the columns that a column-pivoted QR of A ``(e, n)`` picks first: deterministic and well conditioned.

    Each step takes the column with the largest part outside the span of those taken before.

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
    """The columns of A ``(m, n)`` that pivoting takes, best first, until the rest is rounding of relative size eps."""
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
    """The partition of ``range(n)`` whose predicted coordinates are given."""
    completed = [column for column in range(n) if column not in set(predicted)]
    free, solved = (torch.tensor(columns, dtype=torch.long, device=device) for columns in (predicted, completed))
    return Partition(free, solved)


def factorize_completion(A: Tensor, partition: Partition) -> Completion:
    """``A_O^-1`` and ``A_O^-1 A_P`` for A ``(*batch, e, n)``; differentiable, and silent where A_O is singular."""
    A_predicted, A_completed = A.index_select(-1, partition.predicted), A.index_select(-1, partition.completed)
    inverse = torch.linalg.inv_ex(A_completed, check_errors=False).inverse
    size = torch.linalg.matrix_norm(A_completed.detach(), torch.inf)
    condition = size * torch.linalg.matrix_norm(inverse.detach(), torch.inf)
    return Completion(A_predicted, A_completed, inverse, inverse @ A_predicted, condition)


def complete(predicted: Tensor, b: Tensor, factor: Completion, partition: Partition) -> Tensor:
    """``y_P = predicted, y_O = A_O^-1 (b - A_P y_P)``; refined, which brings ``A y - b`` down to rounding.

    Args:
        predicted: The predicted coordinates, ``(*batch, n - e)``.
        b: Right-hand sides, ``(e,)`` or ``(*batch, e)``.
        factor: `factorize_completion` of A.
        partition: Which coordinates are which.

    Returns:
        y ``(*batch, n)``; NaN in the samples whose A_O is singular to rounding.
    """
    rest = b - matvec(factor.A_predicted, predicted)
    completed = matvec(factor.inverse, rest)
    for _ in range(REFINEMENTS):
        completed = completed + matvec(factor.inverse, rest - matvec(factor.A_completed, completed))
    y = in_order(predicted.expand(*completed.shape[:-1], predicted.shape[-1]), completed, partition)
    return torch.where(singular(factor).unsqueeze(-1), torch.nan, y)


def in_order(predicted: Tensor, completed: Tensor, partition: Partition) -> Tensor:
    """The two groups of coordinates as one vector ``(*batch, n)``, each coordinate at its place."""
    order = torch.cat([partition.predicted, partition.completed]).argsort()
    return torch.cat([predicted, completed], dim=-1).index_select(-1, order)


def reduced_rows(G: Tensor, factor: Completion, partition: Partition) -> Tensor:
    """``G_P - G_O A_O^-1 A_P``: rows G ``(*batch, q, n)`` in the predicted coordinates, along the equalities."""
    return G.index_select(-1, partition.predicted) - G.index_select(-1, partition.completed) @ factor.slope


def singular(factor: Completion) -> Tensor:
    """Whether A_O cannot be told from a singular matrix in its dtype, ``(*batch)``; NaN counts as singular."""
    limit = 1 / (factor.inverse.shape[-1] * torch.finfo(factor.inverse.dtype).eps)
    return ~(factor.condition < limit)


def matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """``matrix @ vector`` over any batch; one matrix for all samples is one matrix product."""
    if matrix.dim() == 2:
        return vector @ matrix.mT
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
