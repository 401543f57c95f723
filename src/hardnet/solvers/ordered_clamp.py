"""Clamp one variable after another, each between bounds that depend on the ones before it; differentiable.

``y_i = min(max(raw_i, lower_i(y_1..y_{i-1})), upper_i(y_1..y_{i-1}))``, with the bounds that
`hardnet.solvers.offline.elimination` derived once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.shapes import joint_batch


class Step(NamedTuple):
    """The rows of ``body y <= right`` that bound one variable.

    Attributes:
        variable: Its index.
        upper: Rows with coefficient +1 on it.
        lower: Rows with coefficient -1 on it.
        fixed: At most one row, an equality with coefficient +1 on it.
    """

    variable: int
    upper: slice
    lower: slice
    fixed: slice


def clamp_in_order(raw: Tensor, body: Tensor, right: Tensor, steps: Sequence[Step]) -> Tensor:
    """``y_i = min(max(raw_i, lower bounds), upper bounds)``, each bound an affine function of the y before i.

    Args:
        raw: ``(*batch, n)``.
        body: ``(r, n)``, its columns in the order of the steps.
        right: ``(*batch, r)``.
        steps: One per variable.
    """
    raw = raw.expand(*joint_batch(raw.shape[:-1], right.shape[:-1]), raw.shape[-1])
    done: list[Tensor] = []
    for step in steps:
        before = torch.stack(done, dim=-1) if done else raw[..., :0]
        upper, lower, fixed = (_bounds(rows, before, body, right) for rows in step[1:])
        value = fixed[..., 0] if fixed.shape[-1] else raw[..., step.variable]
        value = torch.maximum(value, (-lower).amax(dim=-1)) if lower.shape[-1] else value
        done.append(torch.minimum(value, upper.amin(dim=-1)) if upper.shape[-1] else value)
    value_of = {step.variable: value for step, value in zip(steps, done, strict=True)}
    return torch.stack([value_of[variable] for variable in range(len(steps))], dim=-1)


def _bounds(rows: slice, before: Tensor, body: Tensor, right: Tensor) -> Tensor:
    """``right - body y`` over the variables that are already fixed: ``(*batch, rows)``."""
    return right[..., rows] - before @ body[rows, : before.shape[-1]].mT
