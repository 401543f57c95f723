"""Violations and gaps as the paper defines them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.sets.base import ConstraintSet

THRESHOLD = 1e-4
"""A row counts as violated above this, in the paper's tables."""


class Violations(NamedTuple):
    """Per-sample violations of one kind of rows (inequalities or equalities), each ``(*batch)``.

    Attributes:
        largest: Maximum over the rows of a sample.
        mean: Mean over the rows of a sample.
        number: Number of rows above the threshold.
    """

    largest: Tensor
    mean: Tensor
    number: Tensor

    def average(self) -> tuple[float, float, float]:
        """Mean over all samples of the three columns, as the paper's tables print them."""
        return self.largest.mean().item(), self.mean.mean().item(), self.number.mean().item()


def summarise(residual: Tensor, threshold: float = THRESHOLD) -> Violations:
    """Maximum, mean and number above the threshold over the last dimension; zeros where there are no rows."""
    if residual.shape[-1] == 0:
        nothing = residual.new_zeros(residual.shape[:-1])
        return Violations(nothing, nothing, nothing)
    count = (residual > threshold).sum(-1).to(residual.dtype)
    return Violations(residual.amax(-1), residual.mean(-1), count)


def violations(
    constraint: ConstraintSet, y: Tensor, x: Any = None, *, threshold: float = THRESHOLD
) -> tuple[Violations, Violations]:
    """The violations of the inequality rows and of the equality rows (``lower == upper``) of C(x)."""
    numbers = constraint.numbers(x, y)
    residual = constraint.residual(numbers, y)
    equal = equality_rows(constraint, numbers, y)
    return summarise(residual[..., ~equal], threshold), summarise(residual[..., equal], threshold)


def equality_rows(constraint: ConstraintSet, numbers: Any, like: Tensor) -> Tensor:
    """Which rows are equalities, ``(rows,)`` bool: the two bounds agree in every sample."""
    if not constraint.polyhedral:
        return torch.zeros(constraint.residual(numbers, like).shape[-1], dtype=torch.bool, device=like.device)
    rows = constraint.rows(numbers, like)
    if rows.lower is None or rows.upper is None:
        return torch.zeros(rows.A.shape[-2], dtype=torch.bool, device=like.device)
    equal = rows.lower == rows.upper
    return equal.reshape(-1, equal.shape[-1]).all(0)


def penalty(constraint: ConstraintSet, y: Tensor, x: Any = None) -> Tensor:
    """``sum of squared residuals`` per sample ``(*batch)``: what the soft baseline adds to its loss."""
    return constraint.violation(y, x).square().sum(-1)


def optimality_gap(objective: Tensor, optimum: Tensor) -> Tensor:
    """``(objective - optimum) / max(1, |optimum|)`` per sample."""
    return (objective - optimum) / optimum.abs().clamp_min(1)
