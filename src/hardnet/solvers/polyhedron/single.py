"""One row: the projection in closed form, ``y = raw - a (a'raw - clamp(a'raw, lower, upper)) / |a|^2``."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.solvers.polyhedron.problem import FEASIBLE
from hardnet.solvers.solution import Outcome, Status


def solve_single(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Outcome:
    """Project onto one row per sample; the numbers must be finite and the bounds in order."""
    a = A.reshape(-1, A.shape[-1])
    square = a.square().sum(-1, keepdim=True)
    product = (a * raw).sum(-1, keepdim=True)
    target = product.clamp(lower, upper)
    excess = product - target
    size = square.sqrt() * torch.linalg.vector_norm(raw, dim=-1, keepdim=True) + target.abs()
    moved = excess.abs() > FEASIBLE * size
    empty = moved & (square == 0)
    dual = torch.where(moved & ~empty, excess / square, 0.0)
    y = raw - a * dual
    # correct once at y: for a raw output far outside, rounding is relative to raw, which may be much larger than y
    rest = torch.where(dual != 0, ((a * y).sum(-1, keepdim=True) - target) / square, 0.0)
    y = torch.where(moved, y - a * rest, raw)
    missed = ((a * y).sum(-1, keepdim=True) - target).abs() / torch.where(size > 0, size, 1.0)
    residual = torch.where(moved, missed, 0.0)
    dual = torch.where(empty, excess.sign(), dual)
    status, steps, residual = (part.squeeze(-1) for part in (empty * int(Status.INFEASIBLE), moved.long(), residual))
    return Outcome(y, dual, dual.sign(), status.to(torch.int8), steps, residual)
