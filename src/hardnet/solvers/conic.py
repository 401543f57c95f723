"""Exact Euclidean projection onto intersections of curved sets: ``min 1/2 |y - raw|^2  s.t.  G(y) in K``.

An augmented Lagrangian gets near from anywhere (`conic_lagrangian`); Newton on the optimality conditions finishes to
rounding and is kept only where it lowers the residual (`conic_newton`). Splitting methods were left out: they need
hundreds to thousands of iterations for the accuracy at which this finish sets in, where Newton needs about twenty.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hardnet.solvers.blocks import Block
from hardnet.solvers.conic_iterate import merge, miss, select, start
from hardnet.solvers.conic_lagrangian import BEYOND_REACH, approach, hopeless
from hardnet.solvers.conic_newton import finish, repair
from hardnet.solvers.solution import Solution, Status
from hardnet.solvers.stack import Stack

ROUNDS = tuple(accuracy for accuracy in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9) for _ in range(4))
"""Accuracies at which the augmented Lagrangian hands over to Newton; each round takes the samples still open."""
STEPS = 8
"""Newton steps of the augmented Lagrangian in one round: then solved samples leave the batch."""


def project_intersection(
    raw: Tensor,
    blocks: Sequence[Block],
    *,
    tolerance: float = 1e-9,
    rounding: float = 2.0**-52,
) -> Solution:
    """``argmin |y - raw|`` subject to every block, sample by sample, in float64.

    Args:
        raw: ``(B, n)``.
        blocks: What the set is made of; tensors lead with B or 1.
        tolerance: Scale-free KKT residual below which a sample counts as solved.
        rounding: The epsilon of the dtype that raw was given in: violations of a few of these count as none.

    Returns:
        Solution whose `dual` ``(B, r)`` holds the multipliers of the blocks in order.
    """
    raw = raw.detach().double()
    exact = [type(block)(*(field.detach().double() for field in block)) for block in blocks]
    stack, valid = Stack([block.image() for block in exact], raw), raw.isfinite().all(-1)
    for block in exact:
        valid = valid & block.valid()
    y, dual = torch.where(valid.unsqueeze(-1), raw, torch.nan), raw.new_zeros(raw.shape[0], sum(stack.sizes))
    status = torch.where(valid, Status.SOLVED, Status.INVALID).to(torch.int8)
    iterations, residual = torch.zeros_like(status, dtype=torch.int64), torch.where(valid, 0.0, torch.nan).to(raw)
    inside = (miss(stack, raw) <= 4 * rounding * stack.size(raw)).all(-1)
    for index in (valid & ~inside).nonzero().squeeze(-1).split(_chunk(stack, raw)):
        part = _solve(raw[index], stack.select(raw[index], index), tolerance)
        y[index], dual[index], status[index], iterations[index], residual[index] = part
    return Solution(y, dual, status, iterations, residual)


def _chunk(stack: Stack, raw: Tensor) -> int:
    """Samples per pass, so that Jacobians and Hessians stay near 256 MB."""
    n = raw.shape[-1]
    return max(1, 2**25 // (n * n + 4 * n * sum(stack.sizes)))


def _solve(raw: Tensor, stack: Stack, tolerance: float) -> Solution:
    """All samples are outside: alternate the globally convergent phase and the fast one until each is solved."""
    first = stack.nearby(raw)
    unit, factor = stack.scaled(first), stack.factor(first)
    state = start(raw, first, unit)
    iterations = torch.zeros_like(state.residual, dtype=torch.int64)
    lost = torch.zeros_like(state.residual, dtype=torch.bool)
    for accuracy in ROUNDS:
        index = ((state.residual > max(tolerance * 1e-3, 1e-13)) & ~lost).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        point = raw[index]
        part = unit.select(point, index)
        found = approach(point, part, select(state, index), accuracy, STEPS)
        near = (found.state.residual <= accuracy).nonzero().squeeze(-1)  # Newton may lead astray from further away
        polished, steps = finish(point[near], part.select(point[near], near), select(found.state, near))
        own = merge(found.state, near, polished)
        state = merge(state, index, own)
        iterations = iterations.index_add(0, index, found.spent.index_add(0, near, steps))
        lost = lost.index_copy(0, index, found.gone & (own.residual > tolerance))
    solved = state.residual <= tolerance
    lost = lost | (~solved & hopeless(raw, unit, state.y, BEYOND_REACH))
    status = torch.where(solved, Status.SOLVED, Status.NOT_CONVERGED)
    status = torch.where(lost, Status.INFEASIBLE, status).to(torch.int8)
    return Solution(repair(raw, unit, state), state.dual / factor, status, iterations, state.residual)
