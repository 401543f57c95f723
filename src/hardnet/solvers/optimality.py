"""How good a projection is: the natural residual of its optimality conditions, free of scale."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.solvers.problem import Problem, multiply

SOLVED = 1e-12
"""The residual up to which a sample counts as solved."""


def kkt_residual(problem: Problem, y: Tensor, dual: Tensor, product: Tensor | None = None) -> Tensor:
    """``max(|y - raw + A'dual|, |A y - clamp(A y + dual, lower, upper)|) / max(1, |y|)`` with unit rows: ``(B,)``.

    It is zero exactly at the projection. The sample's unit makes 1 the size of raw and of the way to the set.
    `product` is ``A y`` where the caller has it already.
    """
    stationarity = (y - problem.raw + multiply(problem.A.mT, dual)).abs().amax(-1)
    product = multiply(problem.A, y) if product is None else product
    moved = (product + dual * problem.norm.square()).clamp(problem.lower, problem.upper)
    complementarity = ((product - moved).abs() / problem.norm).amax(-1)
    return torch.maximum(stationarity, complementarity) / y.abs().amax(-1).clamp_min(1.0)


def careful_residual(problem: Problem, y: Tensor, dual: Tensor) -> Tensor:
    """`kkt_residual` less what the rounding of the multipliers alone may leave of ``y - raw + A'dual``: ``(B,)``.

    Nearly dependent rows have multipliers far above the size of y, which cancel: each is off by its own rounding.
    """
    size = multiply(problem.A.abs().mT, dual.abs()).amax(-1)
    rounding = y.shape[-1] * torch.finfo(y.dtype).eps * size / y.abs().amax(-1).clamp_min(1.0)
    return (kkt_residual(problem, y, dual) - rounding).clamp_min(0.0)
