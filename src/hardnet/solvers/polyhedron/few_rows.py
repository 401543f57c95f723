"""The multipliers of the nearest point for few rows, by a fixed program over the active sets.

    minimize |d|  subject to  lower_i <= value_i + a_i . d <= upper_i,   d = -sum_i dual_i a_i

Leave out the last row and solve. If the answer d satisfies the last row, it is the answer. If the row is above its
upper bound (below its lower one) there, the nearest point with the row is *on* that bound: if it were inside, it would
be nearest without the row too. So pin the row to that bound, project its direction out of the others, and solve these
again. One row is a clamp, and k rows are k - 1 rows solved twice: 2^k - 1 tests in all, whatever the numbers are. Every
row may have two bounds, which the test tells apart.

If the rows before the last have a common point and pinning the last one leaves none, there is none with the last row
either: the line from a point inside to d would cross the bound. So an empty set is detected where a row is constant on
the pinned rows and outside its bounds; the combination of rows that is zero is then returned in place of multipliers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import times_rowwise

DEPENDENT = (64 * torch.finfo(torch.float64).eps) ** 2
"""A row is constant on the pinned rows if they leave no more than this fraction of its square: an angle of 1e-14."""
DOUBT = 8 * torch.finfo(torch.float64).eps
"""An excess below this fraction of the terms it came from is rounding: at a vertex where more rows meet than needed, it
would pin a row whose multiplier has the wrong sign."""


def solve(
    rows: Tensor,
    square: Tensor,
    value: Tensor,
    lower: Tensor,
    upper: Tensor,
    noise: Tensor,
    slack: Tensor,
    pinned: int = 0,
) -> tuple[Tensor, Tensor]:
    """The multipliers ``(B, k)``, positive at an upper bound, and which sets are empty ``(B, 1)``; reads no value.

    Args:
        rows: The rows with the pinned ones projected out, ``(B, k, d)``, in coordinates that keep angles and lengths.
        square: The squared length of each whole row, ``(B, k)``.
        value: The current value of each row, ``(B, k)``.
        lower: ``(B, k)``.
        upper: ``(B, k)``.
        noise: The rounding of the values, ``(B, 1)``.
        slack: How far a constant row may be outside its bounds, ``(B, 1)``.
        pinned: How many rows are pinned.
    """
    last, at, others = rows[..., -1, :], value[..., -1:], rows[..., :-1, :]
    own = (last * last).sum(-1, keepdim=True)
    full = pinned >= rows.shape[-1]  # nothing is left of a row once as many are pinned as there are coordinates
    constant = own <= (2.0 if full else DEPENDENT) * square[..., -1:]
    own = torch.where(constant, 1.0, own)
    if rows.shape[-2] == 1:
        return _solve_one(at - at.clamp(lower, upper), own, constant, slack)
    before = (square[..., :-1], lower[..., :-1], upper[..., :-1])
    free, hopeless = solve(others, before[0], value[..., :-1], *before[1:], noise, slack, pinned)
    cross = times_rowwise(others, last)
    moves = cross * free
    reached = at - moves.sum(-1, keepdim=True)
    target = reached.clamp(lower[..., -1:], upper[..., -1:])
    excess = reached - target
    doubt = DOUBT * (at.abs() + moves.abs().sum(-1, keepdim=True) + target.abs()) + noise
    share, step = cross / own, (at - target) / own
    reduced = others - share.unsqueeze(-1) * last.unsqueeze(-2)
    held, contradicts = solve(reduced, before[0], value[..., :-1] - cross * step, *before[1:], noise, slack, pinned + 1)
    mine = torch.where(contradicts, 0.0, step) - (share * held).sum(-1, keepdim=True)
    # the multiplier of a violated row has the sign of the excess, except for rounding
    mine = torch.where(excess > 0, mine.clamp_min(0), mine.clamp_max(0))
    lost = constant & (excess.abs() > slack)
    leaves = (excess.abs() > doubt) & ~constant & ~hopeless
    free = torch.where(lost & ~hopeless, 0.0, free)
    alone = torch.where(lost & ~hopeless, excess.sign(), 0.0)
    dual = torch.where(leaves, torch.cat((held, mine), -1), torch.cat((free, alone), -1))
    return dual, hopeless | lost | (leaves & contradicts)


def _solve_one(excess: Tensor, own: Tensor, constant: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """The multiplier of one row that is outside its bounds by `excess`, and whether its set is empty."""
    empty = constant & (excess.abs() > slack)
    return torch.where(constant, torch.where(empty, excess.sign(), 0.0), excess / own), empty


def coordinates(rows: Tensor) -> Tensor:
    """Rows ``(B, m, n)`` in at most m coordinates that keep angles and lengths: L of ``rows = L Q``, Q orthonormal.

    By Gram-Schmidt, since the rounding of a Gram matrix would lose the angle between nearly parallel rows.
    """
    m, n = rows.shape[-2:]
    if n <= m:
        return rows
    rest, columns = rows, []
    for k in range(m):
        pivot = rest[..., k, :]
        square = (pivot * pivot).sum(-1, keepdim=True)
        whole = rows[..., k, :]
        dependent = square <= DEPENDENT * (whole * whole).sum(-1, keepdim=True)
        direction = torch.where(dependent, 0.0, pivot / torch.where(dependent, 1.0, square).sqrt())
        column = times_rowwise(rest, direction)
        rest = rest - column.unsqueeze(-1) * direction.unsqueeze(-2)
        columns.append(column)
    return torch.stack(columns, -1)
