"""The nearest point where smooth convex blocks ``g_i(y) <= 0`` cut a set that has a fast projection of its own.

A step from y projects ``(raw + rho y) / (1 + rho)`` onto the set beside the tangents ``g_i(y) + g_i'(y)(z - y) <= 0``.
Where it leaves y in its place, the conditions of the nearest point hold, with the prices ``(1 + rho) dual`` of the
tangents; rho stands for the curvature of ``sum_i price_i g_i``, which tangents do not have, and is measured from step
to step. Tangents cut off no point of the set, so that they prove it empty where nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hardnet.functional.derivatives import linearized
from hardnet.products import length
from hardnet.solvers.conic.blocks import Balls, Block, Quadratics, SecondOrder
from hardnet.solvers.solution import Solution, Status
from hardnet.structure import BoxedRows

MOST_STEPS = 60
"""The most steps; a sample takes 10 to 30."""
SHARE, KEPT = 0.7, 0.7
"""rho over the measured curvature, and the part of an earlier measurement that a later one keeps."""
TARGET = 1e-11
"""How far a step may move y, times one and the curvature on both sides, relative to the largest output."""
KEPT_ROUNDINGS = 8
"""Roundings, relative to its terms, by which a block may miss its bound."""

Cut = Callable[[Tensor, BoxedRows, Tensor], tuple[Tensor, Solution]]
"""``(raw (B, n), tangents, which samples) -> (anything (B, ...), solution)``; multipliers of tangents come first."""


def smooth(blocks: Sequence[Block]) -> bool:
    """Whether all blocks have one tangent at a point of their boundary, but for the apex of a cone."""
    return all(isinstance(block, (SecondOrder, Balls, Quadratics)) for block in blocks)


@torch.no_grad()
def by_tangents(raw: Tensor, blocks: Sequence[Block], near: Tensor, cut: Cut) -> tuple[Tensor, Solution]:
    """What `cut` found last, its solution with the multipliers of the blocks in the place of those of tangents.

    Samples that are not settled keep the status NOT_CONVERGED.

    Args:
        raw: ``(B, n)`` float64.
        blocks: Smooth ones, float64, led by B or shared.
        near: The nearest point without the blocks ``(B, n)``.
        cut: Projects onto the rest and the tangents.
    """
    B, k = len(raw), len(blocks)
    index, y = torch.arange(B, device=raw.device), near
    price, bend, last = raw.new_zeros(B, k), raw.new_zeros(B, k), None
    whole: Any = None
    for _ in range(MOST_STEPS):
        own = [_taken(block, index, B) for block in blocks]
        value, slope = (torch.stack(parts, -2) for parts in zip(*(linearized(b.excess, y) for b in own), strict=True))
        if last is not None:
            moved = length(y - last[0]).unsqueeze(-2)
            seen = (length(slope - last[1]) / torch.where(moved > 0, moved, 1.0)).squeeze(-1)
            bend = torch.maximum(KEPT * bend, seen)
        last = y, slope
        rho = SHARE * (price * bend).sum(-1, keepdim=True)
        aim = (slope * y.unsqueeze(-2)).sum(-1) - value.squeeze(-1)
        tangents = BoxedRows(slope, None, aim, equality=(False,) * k)
        extra, found = cut((raw[index] + rho * y) / (1 + rho), tangents, index)
        price = found.dual[:, :k] * (1 + rho)
        size = torch.maximum(found.y.abs().amax(-1), raw[index].abs().amax(-1))
        still = (1 + rho.squeeze(-1)) * (found.y - y).abs().amax(-1) <= TARGET * size
        holds = torch.stack([_holds(block, found.y) for block in own], -1).all(-1)
        going, empty = found.status == int(Status.SOLVED), found.status == int(Status.INFEASIBLE)
        solved = going & still & holds
        status = torch.where(solved | empty, found.status, int(Status.NOT_CONVERGED)).to(torch.int8)
        own_dual = [_multipliers(b, found.y, p) for b, p in zip(own, price.split(1, -1), strict=True)]
        dual = torch.cat([*own_dual, found.dual[:, k:] * (1 + rho)], -1)
        part = (extra, *found._replace(dual=dual, status=status))
        whole = part if whole is None else tuple(map(lambda a, b, i=index: a.index_copy(0, i, b), whole, part))
        left = going & ~solved
        index, y, price, bend = index[left], found.y[left], price[left], bend[left]
        last = last[0][left], last[1][left]
        if index.numel() == 0:
            break
    return whole[0], Solution(*whole[1:])


def _taken(block: Block, index: Tensor, count: int) -> Any:
    """Some samples of a block."""
    if len(index) == count:
        return block
    fields = zip(block, block.cores, strict=True)
    return type(block)(*(field[index] if field.dim() > core else field for field, core in fields))


def _holds(block: Any, y: Tensor) -> Tensor:
    """Whether a block holds to rounding, ``(B,)``."""
    return (block.excess(y) <= KEPT_ROUNDINGS * torch.finfo(y.dtype).eps * block.scale(y)).squeeze(-1)


def _multipliers(block: Any, y: Tensor, price: Tensor) -> Tensor:
    """The multipliers ``(B, r)`` of a block with this price: those of a cone are ``(unit vector, -1)`` times it."""
    if isinstance(block, Quadratics):
        return price
    z = (block.cone() if isinstance(block, Balls) else block).image().value(y)
    size = length(z[..., :-1])
    unit = z[..., :-1] / torch.where(size > 0, size, 1.0)
    return price * torch.cat([unit, -torch.ones_like(size)], -1)
