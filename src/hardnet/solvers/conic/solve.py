"""Exact Euclidean projection onto intersections of curved sets: ``min 1/2 |y - raw|^2  s.t.  G(y) in K``.

A fixed program, an interior point method and Newton on the active set (`fixed`), solves all samples; on a GPU and
in graphs that is all. Where a look is free, the samples that it leaves (sets without interior, extreme units) go on to
an augmented Lagrangian that gets near from anywhere and to Newton steps that are kept only where
they lower the residual, both in `distance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import FAR_AWAY, FEASIBLE, INSIDE, PASSES, ROUNDINGS
from hardnet.modes import may_look
from hardnet.products import power_above
from hardnet.solvers.conic.barriers import follow_and_polish
from hardnet.solvers.conic.blocks import Block, images, in_units, valid
from hardnet.solvers.conic.distance import Answer, Guess, come_closer, local_unit, settle, tidy
from hardnet.solvers.conic.stack import SemiDefiniteImage, Stack
from hardnet.solvers.solution import Solution, Status, choose, place, solved, take, verdict

LOOSE_DISTANCE = 1e-4
"""Residual up to which rows that are missed by more than rounding are worth a last step."""
LIKE = 64.0
"""Units of outputs that are no further apart than this are no reason for having missed a point."""
WAY = tuple(1 - step / 16 for step in range(1, 17))
"""Powers of these units, on the way from them to none."""
SMALL_BATCH = 512
"""Outputs times rows up to which the alternating solver is the faster one on a CPU."""


class Limits(NamedTuple):
    """What a solved sample may be off: the scale-free KKT residual, and rows in parts of their terms."""

    residual: float
    violation: float


def project_intersection(
    raw: Tensor,
    blocks: Sequence[Block],
    *,
    tolerance: float = 1e-9,
    dtype: torch.dtype = torch.float64,
    elsewhere: bool = True,
) -> Solution:
    """``argmin |y - raw|`` subject to every block, sample by sample, in float64.

    Args:
        raw: ``(B, n)``.
        blocks: What the set is made of; tensors lead with B or 1.
        tolerance: Scale-free KKT residual below which a sample counts as solved.
        dtype: That of raw as it was given: violations of a few of its roundings count as none.
        elsewhere: Whether sets without a point near raw are looked at in other units.

    Returns:
        Solution whose `dual` ``(B, r)`` holds the multipliers of the blocks in order.
    """
    raw = raw.detach().double()
    stack = Stack([image.map(Tensor.detach) for image in images(blocks)], raw.shape[-1])
    sound = raw.isfinite().all(-1) & valid(blocks)
    y, dual = torch.where(sound.unsqueeze(-1), raw, torch.nan), raw.new_zeros(raw.shape[0], sum(stack.sizes))
    status = torch.where(sound, Status.SOLVED, Status.INVALID).to(torch.int8)
    iterations, residual = torch.zeros_like(status, dtype=torch.int64), torch.where(sound, 0.0, torch.nan).to(raw)
    y = stack.clamped(y)
    inside = (stack.outside(raw) <= INSIDE * torch.finfo(dtype).eps * stack.size(raw)).all(-1)
    outside = sound & ~inside
    limits = Limits(tolerance, min(ROUNDINGS * torch.finfo(dtype).eps, FEASIBLE))
    if not may_look(raw):
        return _merge_fixed(Solution(y, dual, status, iterations, residual), outside, raw, stack, limits)
    for index in outside.nonzero().squeeze(-1).split(_chunk(stack, raw)):
        if index.numel() == 0:  # what all samples share may be unsound
            break
        part = _solve(raw[index], stack.select(index), limits)
        y[index], dual[index], status[index], iterations[index], residual[index] = part
    found = Solution(y, dual, status, iterations, residual)
    lost = (status == int(Status.INFEASIBLE)).nonzero().squeeze(-1)
    return found if lost.numel() == 0 or not elsewhere else _looked_for_elsewhere(found, lost, raw, blocks, limits)


def _looked_for_elsewhere(
    known: Solution, lost: Tensor, raw: Tensor, blocks: Sequence[Block], limits: Limits
) -> Solution:
    """`known`, where sets that have no point within reach of raw are looked at in units of their own.

    Outputs in very different units put the nearest point far beyond raw. With each output in the unit in which the rows
    feel it as much as the others, a point of the set is near if there is one. Where that point leads to no nearest
    one, it is the answer itself, and not proved to be the nearest.
    """
    raw, some = raw[lost], [_taken(block, lost) for block in blocks]
    stack = Stack([image.map(Tensor.detach) for image in images(some)], raw.shape[-1])
    felt = (stack.jacobian(raw).abs() / stack.factor(raw).unsqueeze(-1)).amax(-2)
    units = power_above(1 / torch.where(felt > 0, felt, felt.amax(-1, keepdim=True)).clamp_min(1e-300))
    if bool((units.amax(-1) <= LIKE * units.amin(-1)).all()):
        return known
    turned = [in_units(block, units) for block in some]
    there = project_intersection(raw / units, turned, tolerance=limits.residual, elsewhere=False)
    reached = solved(there.status)
    if not bool(reached.any()):
        return known
    chosen = reached.nonzero().squeeze(-1)
    lost, raw, units, point = lost[chosen], raw[chosen], units[chosen], there.y[chosen] * units[chosen]
    some, dual = [_taken(block, chosen) for block in some], there.dual[chosen]
    start, none = Guess(point, dual, torch.ones_like(units[:, :1])), torch.zeros_like(chosen)
    instead = answer = Answer(*start, torch.full_like(point[:, 0], torch.inf), none, none.bool())
    stack = Stack([image.map(Tensor.detach) for image in images(some)], raw.shape[-1])
    for part in WAY:  # from those units to none, since multipliers change with them
        unit = power_above(units**part) if part else torch.ones_like(units)
        stack = Stack(
            [image.map(Tensor.detach) for image in images([in_units(block, unit) for block in some])], raw.shape[-1]
        )
        aim, near = raw / unit, start.y / unit
        guess = Guess(near, start.dual, _unit(aim, near, stack))
        answer = settle(aim, stack, guess, torch.ones_like(guess.unit), limits.residual)
        good = (answer.residual <= limits.residual) & ~answer.lost
        start = Guess(choose(good, answer.y * unit, start.y), choose(good, answer.dual, start.dual), start.unit)
    found, feasible = _judge(_tidied(raw, stack, answer), stack, limits), _judge(instead, stack, limits)
    good = found.status == int(Status.SOLVED)
    return place(known, lost, Solution(*(choose(good, new, old) for new, old in zip(found, feasible, strict=True))))


def _taken(block: Block, index: Tensor) -> Block:
    """The samples of a block in float64; constants stay as they are."""
    return type(block)(*(field.double() if field.shape[0] == 1 else field[index].double() for field in block))


def _merge_fixed(known: Solution, outside: Tensor, raw: Tensor, stack: Stack, limits: Limits) -> Solution:
    """`known` with the samples `outside` solved by the fixed program, which all samples run through."""
    safe = torch.where(outside.unsqueeze(-1), raw, 0.0)
    first = follow_and_polish(safe, stack, _unit(safe, safe, stack))
    found = _judge(tidy(safe, stack, first), stack, limits)
    return Solution(*(choose(outside, new, old) for new, old in zip(found, known, strict=True)))


def _chunk(stack: Stack, raw: Tensor) -> int:
    """Samples per pass, so that Jacobians and Hessians stay near 256 MB."""
    n = raw.shape[-1]
    return max(1, 2**25 // (n * n + 4 * n * sum(stack.sizes)))


def _solve(raw: Tensor, stack: Stack, limits: Limits) -> Solution:
    """All samples are outside: the fixed program for all, and the alternating solver for those that it leaves.

    Small sets without a matrix go to the alternating solver at once, which then takes fewer operations.
    """
    plain = not any(isinstance(one, SemiDefiniteImage) for one in stack.images)
    if plain and raw.shape[-1] * sum(stack.sizes) <= SMALL_BATCH:
        return _solve_alternating(raw, stack, limits)
    answer = follow_and_polish(raw, stack, _unit(raw, raw, stack))
    found = _judge(_tidied(raw, stack, answer), stack, limits)
    index = (found.status != int(Status.SOLVED)).nonzero().squeeze(-1)
    if index.numel() == 0:
        return found
    rest = _solve_alternating(raw[index], stack.select(index), limits)
    return place(found, index, rest)


def _solve_alternating(raw: Tensor, stack: Stack, limits: Limits) -> Solution:
    """Each sample in the unit of raw, and those far away once more in the unit of y."""
    first = stack.nearby(raw)
    guess = Guess(first, raw.new_zeros(raw.shape[0], sum(stack.sizes)), _unit(raw, first, stack))
    answer = settle(raw, stack, guess, torch.ones_like(guess.unit), limits.residual)
    for _ in range(PASSES):
        far = answer.unit > FAR_AWAY * local_unit(raw, stack, answer.y, answer.dual)
        index = (far.squeeze(-1) & ~answer.lost).nonzero().squeeze(-1)
        if index.numel() == 0:
            break
        part = come_closer(raw[index], stack.select(index), take(answer, index), limits.residual)
        answer = place(answer, index, part)
    return _judge(_tidied(raw, stack, answer), stack, limits)


def _tidied(raw: Tensor, stack: Stack, answer: Answer) -> Answer:
    """The answer with a last step inwards where a row is missed by more than rounding."""
    index = ((stack.overshoot(answer.y) > 1) & (answer.residual < LOOSE_DISTANCE) & ~answer.lost).nonzero().squeeze(-1)
    if index.numel() == 0:
        return answer
    return place(answer, index, tidy(raw[index], stack.select(index), take(answer, index)))


def _judge(answer: Answer, stack: Stack, limits: Limits) -> Solution:
    """The answer with its status: solved where it is optimal and every row holds, feasible where the rows hold."""
    y = stack.clamped(answer.y)
    feasible = (stack.outside(y) <= limits.violation * stack.size(y)).all(-1)
    status = torch.where(answer.residual <= limits.residual, Status.SOLVED, Status.NOT_CONVERGED)
    status = verdict(torch.where(answer.lost, Status.INFEASIBLE, status), feasible)
    return Solution(y, answer.dual, status, answer.iterations, answer.residual)


def _unit(raw: Tensor, first: Tensor, stack: Stack) -> Tensor:
    """The power of two above raw, the first point and the distance to the furthest row, ``(B, 1)``."""
    distance = stack.miss(raw) / stack.factor(raw)
    sizes = [part.abs().amax(-1, keepdim=True) for part in (raw, first, distance)]
    return power_above(torch.cat(sizes, dim=-1).amax(-1, keepdim=True))
