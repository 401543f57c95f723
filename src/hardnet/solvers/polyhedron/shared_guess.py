"""A guess of the active rows of constant rows: splitting steps for the whole batch, or one launch of pivots on a GPU.

Splitting works on the products ``v = G y - G q``, which start at zero, with bounds shifted likewise. The steps

    s = clamp(t, low, high),     t <- t + relaxation ((I + rho K)^-1 and the bounds' reflection of 2 s - t)

are over-relaxed, and each is one product with a constant matrix for all samples. At the end ``t - s`` is the multiplier
divided by rho, and the rows with t beyond a bound are the guess. Any number of steps is safe, since the guess is
verified.
"""

from __future__ import annotations

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.solvers.polyhedron.pivoting import KERNEL_ROWS, Pivoted, pivot
from hardnet.solvers.polyhedron.shared_factor import RELAXATION, SOFT, STIFF, SharedRows


def split_steps(step: Tensor, low: Tensor, high: Tensor, state: Tensor, count: int) -> Tensor:
    """The state t ``(B, k)`` after `count` steps ``t <- (1 - relaxation/2) t + r step`` with ``r = 2 s - t``.

    Args:
        step: `SharedRows.soft` or `SharedRows.stiff`.
        low: Lower bounds minus ``G q``, ``(B, k)``.
        high: Upper bounds minus ``G q``, ``(B, k)``.
        state: The t to start from; zero is ``y = q``.
        count: The number of steps.
    """
    for _ in range(count):
        reflected = torch.lerp(state, state.clamp(low, high), 2.0)
        state = torch.addmm(state, reflected, step, beta=1 - RELAXATION / 2)
    return state


def stiffen(state: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The state with the same multipliers ``rho (t - s)`` for the weight `STIFF` instead of `SOFT`."""
    return torch.lerp(state.clamp(low, high), state, SOFT / STIFF)


def sides_of(state: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """+1 beyond the upper bound, -1 beyond the lower, 0 between: ``(B, k)``."""
    return (state > high).to(state) - (state < low).to(state)


def guess_of(state: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The sides of a stiff state and its multipliers: ``(B, k)`` each."""
    return sides_of(state, low, high), STIFF * (state - state.clamp(low, high))


def pivots_on_chip(rows: SharedRows) -> bool:
    """Whether a GPU holds a sample's whole tableau, so that one launch finds the active rows exactly."""
    return rows.gram.is_cuda and 0 < len(rows.gram) <= KERNEL_ROWS and gpu.HAS_TRITON


def pivoted(rows: SharedRows, product: Tensor, low: Tensor, high: Tensor, slack: Tensor) -> Pivoted:
    """The exact multipliers by `solvers.polyhedron.pivoting`; `low` and `high` bound ``G y``, ``(B, k)``."""
    gram = rows.gram.expand(len(product), -1, -1)
    return pivot(gram, product, low, high, slack, 10 * sum(rows.G.shape) + 50)
