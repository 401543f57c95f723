"""The nearest point of a small polyhedron by trying every face, some rows giving way: a fixed program without a loop.

For a choice of rows I that are held at their bound, and of rows V that give way, the candidate is the point nearest to
raw among those that minimize ``sum_V w_i (a_i y - b_i)^2`` subject to ``a_i y = b_i`` in I. The answer is one of these
candidates, for the rows that are held and give way there; and each candidate that satisfies the rows that may not
give way is a point that competes. So the answer is the candidate with the least slack and, among these, the nearest
to raw: no sign of a multiplier is asked for, and no step depends on the numbers. For few outputs these are some
hundreds of candidates in a fixed number of operations, which ONNX Runtime does in a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.rows import ordered
from hardnet.solvers.solution import Status
from hardnet.structure import BoxedRows

MOST_FACES, MOST_HARD_FACES = 700, 128
"""The most candidates with rows that give way, and without, where other programs exist; more take milliseconds."""
MOST_OUTPUTS, MOST_BOUNDS = 6, 24
"""Beyond these the candidates are not even counted."""
FACE_DEPENDENT = 1e-24
"""A row is dependent on others if they leave no more than this of its square, an angle of 1e-12."""
PROXIMAL, PROXIMAL_STEPS = 1e-6, 3
"""Weight of the proximal term relative to the largest weight, and how many steps remove it."""
MET, SAME = 64 * torch.finfo(torch.float64).eps, 1e-13
"""What rounding may leave of a row at its bound, and two slacks that differ by no more are the same; relative."""


class Faces(NamedTuple):
    """The candidates of a polyhedron of n outputs, as places in its list of one-sided rows.

    Attributes:
        row: The row of each one-sided row, those of the box behind the others.
        sign: 1 for an upper bound, -1 for a lower one.
        held: For each candidate n places, that of no row at the end, ``(N, n)``.
        soft: The one-sided rows that may give way.
        gives: Which of these do in each candidate, ``(N, soft)`` of 0 and 1.
    """

    row: tuple[int, ...]
    sign: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    soft: tuple[int, ...]
    gives: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=64)
def faces(n: int, bounded: tuple[tuple[int, int], ...], soft: tuple[bool, ...]) -> Faces | None:
    """The candidates; None if they are too many.

    Args:
        n: The number of outputs.
        bounded: Each one-sided row: its place among the rows and the box, and its sign.
        soft: Whether each of these may give way.
    """
    give = [place for place, own in enumerate(soft) if own]
    held, gives = [], []
    for sides in product((0, 1), repeat=len(give)):
        V = [place for place, chosen in zip(give, sides, strict=True) if chosen]
        taken = {bounded[place][0] for place in V}
        if len(taken) < len(V):
            continue  # both sides of a row cannot give way
        others = [place for place, (row, _) in enumerate(bounded) if row not in taken]
        for count in range(n + 1 if not V else n):
            for rows in combinations(others, count):
                if len({bounded[place][0] for place in rows}) == count:
                    held.append(rows + (len(bounded),) * (n - count))
                    gives.append(sides)
                if len(held) > (MOST_FACES if give else MOST_HARD_FACES):
                    return None
    places, signs = zip(*bounded, strict=True) if bounded else ((), ())
    return Faces(places, signs, tuple(held), tuple(give), tuple(gives))


def nearest(
    raw: Tensor,
    A: Tensor,
    between: tuple[Tensor, Tensor],
    box: tuple[Tensor, Tensor],
    weight: Tensor | None,
    tried: Faces,
) -> tuple[Tensor, Tensor]:
    """The nearest points ``(B, n)`` to rounding, and their `Status` ``(B,)``; reads no value, and is differentiable.

    Where the rows that may not give way have no common point, the answer is NaN and INFEASIBLE; where numbers are bad
    it is NaN and INVALID.

    Args:
        raw: ``(B, n)`` float64.
        A: ``(B, k, n)``.
        between: The bounds of the rows, ``(B, k)``.
        box: The bounds of the outputs, ``(B, n)``.
        weight: ``(k,)``; None weighs distances to the rows, whatever their units.
        tried: The candidates.
    """
    valid = raw.isfinite().all(-1) & A.isfinite().all(-1).all(-1) & ordered(*box).all(-1) & ordered(*between).all(-1)
    raw = torch.where(raw.isfinite(), raw, 0.0)
    least, most = (torch.cat(pair, -1) for pair in zip(between, box, strict=True))
    rows, bound, length = _one_sided(raw, A, least, most, tried)
    units = torch.ones_like(length)
    if weight is not None:
        every = torch.cat([weight.to(raw), raw.new_ones(raw.shape[-1])])
        units = every[torch.tensor(tried.row, device=raw.device)] * length * length
    found, solved = _best(raw, rows, bound, units, tried)
    status = torch.where(solved, int(Status.SOLVED), int(Status.INFEASIBLE))
    status = torch.where(valid, status, int(Status.INVALID))
    return torch.where((valid & solved).unsqueeze(-1), found, torch.nan), status.to(torch.int8)


def _best(raw: Tensor, rows: Tensor, bound: Tensor, weight: Tensor, tried: Faces) -> tuple[Tensor, Tensor]:
    """The best candidate ``(B, n)``, and whether there is any ``(B,)``; arguments as `_one_sided` returns them."""
    held, soft = (torch.tensor(numbers, device=raw.device) for numbers in (tried.held, tried.soft or (0,)))
    gives = torch.tensor(tried.gives, dtype=raw.dtype, device=raw.device)
    hard = torch.tensor([own not in tried.soft for own in range(len(tried.row))], device=raw.device)
    present = bound.isfinite()
    limit = torch.where(present, bound, 0.0)  # or a candidate that is not chosen would have a derivative of NaN
    own, at = rows[:, held], limit[:, held]
    frame, along = _frame(own)
    rows, bound = rows[:, :-1], bound[:, :-1]
    system, given, giving = None, gives, (rows[:, soft], limit[:, soft])
    if tried.soft:
        weight = weight / weight[:, soft].amax(-1, keepdim=True)
        given = gives * weight[:, soft].unsqueeze(-2)
        system = _across(frame, giving[0], given)
    y = raw.unsqueeze(-2).expand(-1, held.shape[0], -1)
    for _ in range(2):  # the second time removes the rounding of a raw output far away
        for place, direction in enumerate(frame):
            missing = at[..., place : place + 1] - (own[..., place, :] * y).sum(-1, keepdim=True)
            y = y + missing / along[place] * direction
        y = y if system is None else _give_way(y, *giving, given, system)
    excess = torch.matmul(y, rows.mT) - bound.unsqueeze(-2)
    size = torch.maximum(y.abs().amax(-1, keepdim=True), limit[:, :-1].abs().unsqueeze(-2))
    beyond = torch.where(excess <= MET * size, 0.0, excess)  # NaN stays
    able = ~(torch.where(hard, beyond, 0.0) != 0).any(-1) & y.isfinite().all(-1) & present[:, held].all(-1)
    slack = torch.where(hard, 0.0, beyond)
    if tried.soft:  # a row that gives way by rounding alone would let y slide along it
        able = able & ((slack[..., soft] > 0) | (gives == 0)).all(-1)
    first = torch.where(able, (weight.unsqueeze(-2) * slack * slack).sum(-1), torch.inf).argmin(-1)
    y = torch.where(y.isfinite(), y, 0.0)
    least, near = _at(slack, first).unsqueeze(-2), _at(y, first).unsqueeze(-2)
    same = able & ((slack - least).abs() <= torch.where(least > 0, SAME, 0.0) * size).all(-1)
    start = raw.unsqueeze(-2)
    beside = (y - near) * ((y - start) + (near - start))  # |y - raw|^2 - |near - raw|^2, however far away raw is
    return _at(y, torch.where(same, beside.sum(-1), torch.inf).argmin(-1)), able.any(-1)


def _one_sided(raw: Tensor, A: Tensor, least: Tensor, most: Tensor, tried: Faces) -> tuple[Tensor, Tensor, Tensor]:
    """``a y <= b`` with rows of length one ``(B, T + 1, n)``, the last without a row; and their lengths ``(B, T)``."""
    row = torch.tensor(tried.row, device=raw.device)
    sign = torch.tensor(tried.sign, dtype=raw.dtype, device=raw.device)
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    every = torch.cat([A, eye.expand(raw.shape[0], *eye.shape)], -2)
    every = torch.where(every.isfinite(), every, 0.0)[:, row]
    square = (every * every).sum(-1)
    length = torch.where(square > 0, square, 1.0).sqrt()
    bound = torch.where(sign > 0, most[:, row], -least[:, row]) / length
    rows, none = every * (sign / length).unsqueeze(-1), torch.zeros_like(raw)
    return torch.cat([rows, none.unsqueeze(-2)], -2), torch.cat([bound, none[:, :1]], -1), length


def _frame(rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """An orthonormal frame of each candidate's held rows ``(B, N, n, n)``, and each row along its own direction.

    Directions are ``(B, N, n)``, and zero for rows of zeros and rows dependent on those before, which hold nothing.
    """
    frame: list[Tensor] = []
    along: list[Tensor] = []
    for own in range(rows.shape[-2]):
        rest = rows[..., own, :]
        for _ in range(2 if frame else 1):  # twice is enough for a frame orthonormal to rounding
            for direction in frame:
                rest = rest - (rest * direction).sum(-1, keepdim=True) * direction
        square = (rest * rest).sum(-1, keepdim=True)
        free = square > FACE_DEPENDENT
        frame.append(torch.where(free, rest / torch.where(free, square, 1.0).sqrt(), 0.0))
        along.append(torch.where(free, (rows[..., own, :] * frame[-1]).sum(-1, keepdim=True), 1.0))
    return frame, along


def _across(frame: list[Tensor], rows: Tensor, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The projection across the frame, ``H = sum_i given_i a_i a_i'`` across it, and the inverse of ``H + eps``.

    Args:
        frame: Directions that are held, each ``(B, N, n)``.
        rows: ``(B, S, n)``.
        given: Weights, 0 for rows that do not give way, ``(B, N, S)``.
    """
    n = rows.shape[-1]
    eye, held = torch.eye(n, dtype=rows.dtype, device=rows.device), torch.stack(frame, -2)
    across = eye - torch.matmul(held.mT, held)
    squares = (rows.unsqueeze(-1) * rows.unsqueeze(-2)).flatten(-2)
    H = torch.matmul(torch.matmul(across, torch.matmul(given, squares).unflatten(-1, (n, n))), across)
    return across, H, _inverse(H + PROXIMAL * eye, eye)


def _give_way(y: Tensor, rows: Tensor, bound: Tensor, given: Tensor, system: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The points ``(B, N, n)`` with the least ``sum_i given_i (a_i y - b_i)^2`` that are nearest to y across the frame.

    By proximal steps ``(H + eps) step = pull + eps step`` from 0, which stay in the range of H.
    """
    across, H, inverse = system
    missing = torch.where(given > 0, bound.unsqueeze(-2) - torch.matmul(y, rows.mT), 0.0)
    pull = torch.matmul(across, torch.matmul(given * missing, rows).unsqueeze(-1))
    step = torch.matmul(inverse, pull)
    for _ in range(PROXIMAL_STEPS - 1):
        step = step + torch.matmul(inverse, pull - torch.matmul(H, step))
    return y + torch.matmul(across, step).squeeze(-1)  # the inverse magnifies what rounding left along the frame


def _inverse(H: Tensor, eye: Tensor) -> Tensor:
    """The inverse of small positive definite matrices ``(..., n, n)``, by Gauss and Jordan."""
    whole = torch.cat([H, eye.expand(H.shape)], -1)
    for own in range(len(eye)):
        row = whole[..., own : own + 1, :] / whole[..., own : own + 1, own : own + 1]
        whole = whole - (whole[..., own : own + 1] - eye[:, own : own + 1]) * row
    return whole[..., len(eye) :]


def _at(values: Tensor, index: Tensor) -> Tensor:
    """The candidates `index` ``(B,)`` of ``(B, N, d)``: ``(B, d)``."""
    return torch.gather(values, 1, index.view(-1, 1, 1).expand(-1, 1, values.shape[-1])).squeeze(1)


def faces_of(rows: BoxedRows, soft: Sequence[bool]) -> Faces | None:
    """The candidates of a polyhedron whose general rows `soft` may give way; None if they are too many."""
    k, n = rows.A.shape[-2:]
    general = [
        (row, sign) for row in range(k) for bound, sign in ((rows.upper, 1), (rows.lower, -1)) if bound is not None
    ]
    box = ((rows.box_upper, 1), (rows.box_lower, -1))
    bounds = [(k + place, sign) for place in range(n) for bound, sign in box if bound is not None]
    bounded = (*general, *bounds)
    if n > MOST_OUTPUTS or len(bounded) > MOST_BOUNDS:
        return None
    return faces(n, bounded, tuple(row < k and soft[row] for row, _ in bounded))
