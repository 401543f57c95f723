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
from hardnet.solvers.conic_distance import Answer, Guess, come_closer, local_unit, settle, tidy
from hardnet.solvers.conic_iterate import miss
from hardnet.solvers.conic_newton import overshoot
from hardnet.solvers.quadratic_root import power_of_two
from hardnet.solvers.solution import Solution, Status
from hardnet.solvers.stack import Stack

FAR_AWAY = 16.0
"""From so many sizes of y on, the answer is found once more in the unit of y."""
PASSES = 3
"""How often: each pass gains about twelve digits of distance."""
LOOSE = 1e-4
"""Residual up to which rows that are missed by more than rounding are worth a last step."""
FEASIBLE = 64 * 2.0**-52
"""How far a row of a solved sample may be missed, relative to its terms."""


def project_intersection(
    raw: Tensor,
    blocks: Sequence[Block],
    *,
    tolerance: float = 1e-9,
    dtype: torch.dtype = torch.float64,
) -> Solution:
    """``argmin |y - raw|`` subject to every block, sample by sample, in float64.

    Args:
        raw: ``(B, n)``.
        blocks: What the set is made of; tensors lead with B or 1.
        tolerance: Scale-free KKT residual below which a sample counts as solved.
        dtype: That of raw as it was given: violations of a few of its roundings count as none.

    Returns:
        Solution whose `dual` ``(B, r)`` holds the multipliers of the blocks in order.
    """
    raw = raw.detach().double()
    exact = [type(block)(*(field.detach().double() for field in block)) for block in blocks]
    stack, valid = Stack([block.image() for block in exact], raw), raw.isfinite().all(-1)
    for block in blocks:  # as given: how exact P is goes by its dtype
        valid = valid & block.valid()
    y, dual = torch.where(valid.unsqueeze(-1), raw, torch.nan), raw.new_zeros(raw.shape[0], sum(stack.sizes))
    status = torch.where(valid, Status.SOLVED, Status.INVALID).to(torch.int8)
    iterations, residual = torch.zeros_like(status, dtype=torch.int64), torch.where(valid, 0.0, torch.nan).to(raw)
    y = stack.clamped(y)
    inside = (miss(stack, raw) <= 4 * torch.finfo(dtype).eps * stack.size(raw)).all(-1)
    for index in (valid & ~inside).nonzero().squeeze(-1).split(_chunk(stack, raw)):
        part = _solve(raw[index], stack.select(raw[index], index), tolerance)
        y[index], dual[index], status[index], iterations[index], residual[index] = part
    return Solution(y, dual, status, iterations, residual)


def _chunk(stack: Stack, raw: Tensor) -> int:
    """Samples per pass, so that Jacobians and Hessians stay near 256 MB."""
    n = raw.shape[-1]
    return max(1, 2**25 // (n * n + 4 * n * sum(stack.sizes)))


def _solve(raw: Tensor, stack: Stack, tolerance: float) -> Solution:
    """All samples are outside: solve each in the unit of raw, and those far away once more in the unit of y."""
    first = stack.nearby(raw)
    guess = Guess(first, raw.new_zeros(raw.shape[0], sum(stack.sizes)), _unit(raw, first, stack))
    answer = settle(raw, stack, guess, torch.ones_like(guess.unit), tolerance)
    for _ in range(PASSES):
        far = answer.unit > FAR_AWAY * local_unit(raw, stack, answer.y, answer.dual)
        index = (far.squeeze(-1) & ~answer.lost).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        part = come_closer(raw[index], stack.select(raw[index], index), _select(answer, index), tolerance)
        answer = _merge(answer, index, part)
    index = ((overshoot(stack, answer.y) > 1) & (answer.residual < LOOSE) & ~answer.lost).nonzero().squeeze(-1)
    if index.numel():
        part = tidy(raw[index], stack.select(raw[index], index), _select(answer, index))
        answer = _merge(answer, index, part)
    y = stack.clamped(answer.y)
    feasible = (miss(stack, y) <= max(FEASIBLE, 1e-3 * tolerance) * stack.size(y)).all(-1)
    status = torch.where(feasible & (answer.residual <= tolerance), Status.SOLVED, Status.NOT_CONVERGED)
    status = torch.where(answer.lost, Status.INFEASIBLE, status).to(torch.int8)
    return Solution(y, answer.dual, status, answer.iterations, answer.residual)


def _unit(raw: Tensor, first: Tensor, stack: Stack) -> Tensor:
    """The power of two above raw, the first point and the distance to the furthest row, ``(B, 1)``."""
    distance = miss(stack, raw) / stack.factor(raw)
    sizes = [part.abs().amax(-1, keepdim=True) for part in (raw, first, distance)]
    return power_of_two(torch.cat(sizes, dim=-1).amax(-1, keepdim=True))


def _select(answer: Answer, index: Tensor) -> Answer:
    """The samples `index` alone."""
    return Answer(*(field[index] for field in answer))


def _merge(answer: Answer, index: Tensor, part: Answer) -> Answer:
    """`answer` with the samples `index` replaced by `part`."""
    return Answer(*(field.index_copy(0, index, new) for field, new in zip(answer, part, strict=True)))
