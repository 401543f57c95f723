"""Backtracking for a batch: each sample takes the longest of its steps ``1, 1/2, 1/4, ...`` that lowers its merit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SUFFICIENT = 1e-4
"""Share of the decrease that the slope promises which a step must bring."""


class Found(NamedTuple):
    """The new points ``(b, n)``, the step lengths ``(b,)``, 0 where none was accepted, and the merit ``(b,)``."""

    y: Tensor
    length: Tensor
    merit: Tensor


def backtrack(
    merit: Callable[[Tensor, Tensor], Tensor],
    y: Tensor,
    step: Tensor,
    current: Tensor,
    slope: Tensor,
    *,
    noise: Tensor,
    halvings: int = 12,
    correct: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Found:
    """``merit(y + t step) <= current + 1e-4 t slope + noise`` by halving t; a refused full step is corrected once.

    Args:
        merit: ``(points, index) -> (len(index),)``: the merit of the samples of `index`; NaN counts as refused.
        y: ``(b, n)``.
        step: ``(b, n)``.
        current: The merit at y, ``(b,)``.
        slope: Its directional derivative along the step, or a bound of it, ``(b,)``.
        noise: By how much rounding may raise the merit, ``(b,)``.
        halvings: Trials after the first.
        correct: ``(points, index) -> `` a second-order correction to add to ``y + step``.
    """
    found = Found(y.clone(), torch.zeros_like(current), current.clone())
    index, length = torch.arange(len(y), device=y.device), 1.0
    for trial in range(halvings + 1):
        index = _try(found, merit, y[index] + length * step[index], index, length, (current, slope, noise))
        if trial == 0 and correct is not None and len(index):
            point = y[index] + step[index]
            index = _try(found, merit, point + correct(point, index), index, length, (current, slope, noise))
        if len(index) == 0:
            break
        length /= 2
    return found


def _try(
    found: Found,
    merit: Callable[[Tensor, Tensor], Tensor],
    point: Tensor,
    index: Tensor,
    length: float,
    limits: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Write the points that are accepted; return the samples that are not."""
    current, slope, noise = (part[index] for part in limits)
    value = merit(point, index)
    accepted = value <= current + SUFFICIENT * length * slope + noise
    done = accepted.nonzero().squeeze(-1)
    chosen = index[done]
    found.y[chosen], found.length[chosen], found.merit[chosen] = point[done], length, value[done]
    return index[(~accepted).nonzero().squeeze(-1)]
