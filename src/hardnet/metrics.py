"""Violations and gaps as the paper defines them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.region import Kind, count_of
from hardnet.sets.base import ConstraintSet
from hardnet.structure import BoxedRows

THRESHOLD = 1e-4
"""Residual above which a row counts as violated in the paper's tables."""


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


def summarize(residual: Tensor, threshold: float = THRESHOLD) -> Violations:
    """Maximum, mean and number above the threshold over the last dimension; zeros if there are no rows."""
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
    return summarize(residual[..., ~equal], threshold), summarize(residual[..., equal], threshold)


def equality_rows(constraint: ConstraintSet, numbers: Any, like: Tensor) -> Tensor:
    """Which rows are equalities, ``(rows,)`` bool: those whose two bounds are equal in every sample."""
    flags = []
    for part in constraint.region_of(numbers, like).parts:
        rows = part.data
        if part.kind is not Kind.ROWS or not isinstance(rows, BoxedRows):
            flags.append(torch.zeros(count_of(rows, like), dtype=torch.bool, device=like.device))
            continue
        if rows.boxed:
            flags.append(_agree(rows.box_lower, rows.box_upper, like))
        flags.append(_agree(rows.lower, rows.upper, rows.A[..., 0]))
    return torch.cat(flags)


def _agree(lower: Tensor | None, upper: Tensor | None, rows: Tensor) -> Tensor:
    """Whether two bounds are given and equal in every sample, for the m rows of `rows` ``(..., m)``: ``(m,)``."""
    if lower is None or upper is None:
        return torch.zeros(rows.shape[-1], dtype=torch.bool, device=rows.device)
    equal = lower == upper
    return equal.reshape(-1, equal.shape[-1]).all(0)


def penalty(constraint: ConstraintSet, y: Tensor, x: Any = None) -> Tensor:
    """``sum of squared residuals`` per sample ``(*batch)``: the term that the soft baseline adds to its loss."""
    return constraint.violation(y, x).square().sum(-1)


def optimality_gap(objective: Tensor, optimum: Tensor) -> Tensor:
    """``(objective - optimum) / max(1, |optimum|)`` per sample."""
    return (objective - optimum) / optimum.abs().clamp_min(1)
