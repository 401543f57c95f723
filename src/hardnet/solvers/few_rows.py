"""The multipliers of the nearest point for few rows, by a fixed program over the active sets.

    minimise |d|  subject to  lower_i <= value_i + a_i . d <= upper_i,   d = -sum_i dual_i a_i

Leave out the last row and solve. If the answer d keeps the last row, it is the answer. If it leaves the row above its
upper bound (below its lower one), the nearest point with the row lies *on* that bound: were it inside, it would be
nearest without the row too. So pin the row there, take its direction out of the others, and solve these again. One
row is a clamp, and every row may have two bounds, which the test tells apart.

All ways to pin rows are computed side by side, as versions of the rows before: with the last row free, then pinned, at
each of its bounds if it has two. So k rows take k steps, `levels` and `_stand` down from the last row, `_with_last`
back up.

If the rows before the last have a common point and pinning the last one leaves none, there is none with the last row
either: the line from a point inside to d would cross the bound. So an empty set shows where a row is constant on what
is pinned and outside its bounds. Its multiplier is then made so large that nothing else shows beside it; what is left
is the combination of rows that is zero, the proof that they contradict each other.

The row is the first index of every tensor, then the version and the sample.

Called by `hardnet.functional.nearest_formulas`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

DEPENDENT = (64 * torch.finfo(torch.float64).eps) ** 2
"""A row is constant on pinned rows if they leave this part of its square: an angle of 1e-14."""
DOUBT = 8 * torch.finfo(torch.float64).eps
"""An excess within this part of the terms it came from is rounding: at a vertex where more rows meet than needed, it
would pin a row whose multiplier has the wrong sign."""
PROOF = 2.0**300
"""The multiplier of a contradiction, in units of the slack: those of rows that are not constant stay below 2^200."""


class Level(NamedTuple):
    """One row, and what is left of it beside the rows after it: T versions, of which the first has them all free.

    Attributes:
        row: What the pinned rows leave of it, ``(T, B, n)``.
        cross: Its products with the k rows before it, ``(k, T, B, 1)``.
        inverse: ``1 / |row|^2``, zero where nothing is left and the row is zero, ``(T, B, 1)``.
        constant: Where nothing is left, ``(T, B, 1)``.
    """

    row: Tensor
    cross: Tensor
    inverse: Tensor
    constant: Tensor


def levels(rows: Tensor) -> list[Level]:
    """Each of the rows ``(m, B, n)`` by Gram-Schmidt beside every set of pinned rows after it; differentiable.

    Not by the Gram matrix: the angle of nearly parallel rows would be lost in its rounding.
    """
    m, n = len(rows), rows.shape[-1]
    left, found = rows.unsqueeze(1), []
    limit = DEPENDENT * _square(left)
    pinned = torch.zeros_like(limit[0]) if n < m else None
    for k in reversed(range(m)):
        last = left[-1]
        cross, own = (left * last).sum(-1, keepdim=True).split((k, 1))
        constant = own[0] == 0
        inverse = own[0].masked_fill(constant, torch.inf).reciprocal()
        found.append(Level(last, cross, inverse, constant))
        if k > 0:
            others = left[:-1]
            reduced = torch.addcmul(others, cross * inverse, last, value=-1)
            gone = _square(reduced) <= limit[:k]
            if pinned is not None:  # as many pinned rows as coordinates leave nothing
                after = pinned + ~constant
                gone, pinned = gone | (after >= n), torch.cat((pinned, after))
            left = torch.cat((others, reduced.masked_fill(gone, 0.0)), 1)
    return found[::-1]


def _square(rows: Tensor) -> Tensor:
    """``|a|^2`` of each row, ``(..., 1)``, without derivative."""
    return (rows * rows).detach().sum(-1, keepdim=True)


def version(stack: Tensor, pinned: list[Tensor]) -> Tensor:
    """The version ``(B, ...)`` of ``(T, B, ...)`` for the masks ``(B, 1)`` of the rows after, the next one first."""
    for mask in pinned:
        free, held = stack.chunk(2)
        stack = torch.where(mask, held, free)
    return stack[0]


def solve(
    rows: list[Level], value: Tensor, lower: Tensor | None, upper: Tensor | None, noise: Tensor, slack: Tensor
) -> tuple[Tensor, Tensor]:
    """The multipliers ``(m, B, 1)``, positive at an upper bound, and which sets have a point ``(B, 1)``; no look.

    Args:
        rows: What `levels` found.
        value: Where each row stands, ``(m, B, 1)``.
        lower: ``(m, B, 1)`` or None, like `upper`, but not both.
        upper: See there.
        noise: The rounding of the values, ``(B, 1)``.
        slack: What a constant row may be outside its bounds, ``(B, 1)``.
    """
    if lower is not None and upper is not None:
        rows = _on_either_side(rows)
    low, high = ([None] * len(rows) if bound is None else bound.unbind() for bound in (lower, upper))
    stands, proof = _stand(rows, value, [side for side in (low, high) if side[0] is not None]), PROOF * slack
    dual = _alone(rows[0], stands[0], low[0], high[0], slack, proof)
    for k in range(1, len(rows)):
        dual = _with_last(dual, rows[k], stands[k], low[k], high[k], noise, slack, proof)
    dual = dual[:, 0]
    possible = dual.abs().amax(0) <= proof / 2
    return torch.where(possible, dual, dual / proof), possible


def _on_either_side(rows: list[Level]) -> list[Level]:
    """The same levels with each pinned version twice: at the lower bound, then at the upper one."""
    index, found = torch.zeros(1, dtype=torch.long, device=rows[0].inverse.device), []
    for level in reversed(rows):
        cross, *rest = level.cross.index_select(1, index), level.inverse[index], level.constant[index]
        found.append(Level(level.row, cross, *rest))
        pinned = index + 2 ** (len(found) - 1)
        index = torch.cat((index, pinned, pinned))
    return found[::-1]


def _stand(rows: list[Level], value: Tensor, sides: list[Any]) -> list[Tensor]:
    """Where each row stands in each version ``(T, B, 1)``: pinning the last row moves those before it."""
    stands, found = value.unsqueeze(1), []
    for k in reversed(range(1, len(rows))):
        at, rest = stands[-1], stands[:-1]
        found.append(at)
        steps = [(at - side[k]) * rows[k].inverse for side in sides]
        stands = torch.cat((rest, *(torch.addcmul(rest, rows[k].cross, step, value=-1) for step in steps)), 1)
    return [stands[0], *found[::-1]]


def _alone(row: Level, at: Tensor, low: Tensor | None, high: Tensor | None, slack: Tensor, proof: Tensor) -> Tensor:
    """The multiplier of the first row ``(1, T, B, 1)``: it is all that is left."""
    excess = at - at.clamp(low, high)
    over = excess.abs() > slack * row.constant
    return (torch.where(row.constant, excess.sign() * proof, excess * row.inverse) * over).unsqueeze(0)


def _with_last(
    dual: Tensor,
    row: Level,
    at: Tensor,
    low: Tensor | None,
    high: Tensor | None,
    noise: Tensor,
    slack: Tensor,
    proof: Tensor,
) -> Tensor:
    """The multipliers without the last row, or with it where it leaves its bounds."""
    free, *held = dual.chunk(1 + (low is not None) + (high is not None), 1)
    moves = row.cross * free
    reached = at - moves.sum(0)
    target = reached.clamp(low, high)
    excess = reached - target
    doubt = torch.add(noise, at.abs() + moves.abs().sum(0), alpha=DOUBT)
    first = torch.add(slack, free.abs().sum(0), alpha=PROOF**-0.5)  # a contradiction before this row is proof enough
    over = excess.abs() > torch.where(row.constant, first, doubt)
    # a constant row moves no other: its versions are the same
    dual = torch.where(over, held[-1] if len(held) == 1 else torch.where(excess > 0, held[1], held[0]), free)
    mine = (at - target - (row.cross * dual).sum(0)) * row.inverse
    mine = torch.where(row.constant, excess.sign() * proof, mine) * over
    # the multiplier of a violated row has the sign of the excess, but for rounding
    if low is None:
        mine = mine.clamp_min(0)
    elif high is None:
        mine = mine.clamp_max(0)
    else:
        mine = torch.where(excess > 0, mine.clamp_min(0), mine.clamp_max(0))
    return torch.cat((dual, mine.unsqueeze(0)))
