"""Newton's method on the active set: for few rows it settles most samples in a handful of batched solves.

With unit rows, ``G = A A'`` and the guess J of the active rows, ``G_JJ dual_J = (A raw - b)_J`` makes these rows tight;
the rows with ``A y + dual`` outside the bounds are the next guess. A guess that repeats itself is optimal. The method
may cycle, so that the samples which have not settled after a few steps are left to another one.

Called by `hardnet.solvers.projection_steps`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import times_aligned
from hardnet.solvers.problem import Problem

STEPS = {16: 4, 1 << 30: 6}
"""Most steps, by the most rows they serve: a sample that cycles is cheap to pass on where rows are few."""
CHUNK_ENTRIES = 1 << 19
"""Most entries of the matrices that are solved at once: they stay in the cache."""


def newton(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y ``(B, n)``, dual ``(B, m)``, the steps taken ``(B,)`` and which samples settled ``(B,)``."""
    norm = problem.norm
    gram = (problem.A @ problem.A.mT) / (norm.unsqueeze(-1) * norm.unsqueeze(-2))
    dual = torch.zeros_like(problem.lower)
    steps = torch.zeros(len(dual), dtype=torch.long, device=dual.device)
    settled = torch.zeros_like(steps, dtype=torch.bool)
    scaled = [part / norm for part in (problem.product, problem.lower, problem.upper, problem.slack)]
    index = torch.arange(len(dual), device=dual.device)
    for chunk in index.split(max(1, CHUNK_ENTRIES // dual.shape[-1] ** 2)):
        _settle(gram, scaled, chunk, (dual, steps, settled))
    dual = dual / norm
    return problem.raw - times_aligned(problem.A.mT, dual), dual, steps, settled


def _settle(gram: Tensor, scaled: list[Tensor], index: Tensor, result: tuple[Tensor, Tensor, Tensor]) -> None:
    """Run the steps for the samples of `index`, dropping those that settle, and write into `result`."""
    dual, steps, settled = result
    product, lower, upper, slack = (part[index] for part in scaled)
    side = _outside(product, lower, upper, slack)
    most = next(steps for rows, steps in STEPS.items() if product.shape[-1] <= rows)
    for _ in range(most):
        rows = gram if gram.dim() == 2 else gram[index]
        guess = _tight(rows, side, product - torch.where(side > 0, upper, lower))
        steps[index] += 1
        following = _outside(product - times_aligned(rows, guess) + guess, lower, upper, slack)
        same = (following == side).all(-1)
        dual[index], settled[index] = guess, same
        rest = (~same).nonzero().squeeze(-1)
        if len(rest) == 0:
            return
        product, lower, upper, slack, index = (part[rest] for part in (product, lower, upper, slack, index))
        side = following[rest]


def _outside(value: Tensor, lower: Tensor, upper: Tensor, slack: Tensor) -> Tensor:
    """+1 above the upper bound, -1 below the lower, 0 between; an equality is always active."""
    side = (value > upper + slack).to(value) - (value < lower - slack).to(value)
    return torch.where(lower == upper, 1.0, side)


def _tight(gram: Tensor, side: Tensor, excess: Tensor) -> Tensor:
    """Multipliers that make the rows of `side` tight; NaN where these rows are dependent."""
    active = (side != 0).to(gram)
    matrix = gram * (active.unsqueeze(-1) * active.unsqueeze(-2))
    matrix.diagonal(dim1=-2, dim2=-1).add_(1 - active)
    factor, info = torch.linalg.cholesky_ex(matrix)
    right = torch.where(side != 0, excess, 0.0).unsqueeze(-1)
    dual = torch.cholesky_solve(right, factor).squeeze(-1)
    return dual.masked_fill((info != 0).unsqueeze(-1), torch.nan)
