"""The least slack when some rows may be relaxed and others may not, and the nearest point with that slack.

Rows that may be relaxed have levels: those of the first have the least slack that the hard rows allow, those of each
further level the least that the levels above leave them. The rows that determine the slack of a level are equalities
from then on.

First ``min sum_i w_i s_i^2`` over y and s with ``lower <= A y + s <= upper``, where only rows with a weight have an s;
then ``min |y - raw|`` with exactly that s. The least slack is unique. It is found by proximal steps: each adds
``eps |y - y_k|^2``, which makes it a projection in the variables ``(sqrt(eps) y, sqrt(w) s)``. The active rows of a
step give the slack in closed form, and its optimality conditions tell whether they are the right ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import length, times_aligned
from hardnet.rows import Batch
from hardnet.solvers.polyhedron.projection import solve
from hardnet.solvers.solution import Status, place

PROXIMAL = (1e-2, 1e-4, *(1e-6,) * 8, *(1e-8,) * 8)
"""Weights of the proximal term, step by step; rows have length one, and the largest weight of a slack is one."""
EXACT, OPTIMAL = 1e-13, 1e-10
"""The relative error in the optimality conditions of the least slack at which the steps end, and the largest accepted.
"""
CARRIES = 1e-9
"""The force or multiplier of a row, relative to the largest force, above which the least slack rests on the row."""
KNOWN = 1e-7
"""The accuracy, relative to the size of y, to which the slack of every relaxed row must be known."""
SLACK_RANK = 1e-11
"""Singular values below this fraction of the largest count as zero."""


class Rows(NamedTuple):
    """``lower <= A y + slack <= upper`` for a flat batch in float64, with rows of length one.

    Attributes:
        A: ``(B, k, n)``.
        lower: ``(B, k)``; -inf where absent.
        upper: ``(B, k)``; +inf where absent.
        weight: ``(B, k)``, at most one in each level; 0 for hard rows, which may not be relaxed.
        level: The level of each row with a weight, from 1; 0 for hard rows, ``(B, k)``.
    """

    A: Tensor
    lower: Tensor
    upper: Tensor
    weight: Tensor
    level: Tensor

    def detach(self) -> Rows:
        """The same numbers without gradients."""
        return Rows(*(number.detach() for number in self))

    @classmethod
    def of_unit_length(
        cls, A: Tensor, lower: Tensor, upper: Tensor, weight: Tensor, level: Tensor | None = None
    ) -> tuple[Rows, Tensor]:
        """The rows divided by their lengths ``(B, k)``, which are constants to autograd; a zero row is unchanged.

        Without levels all rows that may be relaxed are of the first.
        """
        lengths, level = row_lengths(A.detach()), torch.ones_like(weight) if level is None else level
        unit = torch.zeros_like(weight)
        for own in levels(level):
            unit = unit + _unit_weight(torch.where(level == own, weight, 0.0), lengths)
        return cls(A / lengths.unsqueeze(-1), lower / lengths, upper / lengths, unit, level), lengths


class Relaxation(NamedTuple):
    """The levels of a flat batch, and the nearest point.

    Attributes:
        y: The nearest point with the least slack, ``(B, n)``.
        slack: The least slack, in units of the rows of length one, ``(B, k)``: negative if the upper bound is relaxed.
        fixed: The rows that determine the least slack, ``(B, k)`` int8: the relaxed ones and the hard ones that
            force them, +1 at the upper bound and -1 at the lower.
        stage: The level at which each of these rows was settled, ``(B, k)``; 0 for the others. A relaxed row gives way
            at its own level; at a later one it holds.
        side: All strictly active rows at y in the same signs, ``(B, k)`` int8.
        proof: Weights of hard rows that contradict each other where the status is INFEASIBLE, ``(B, k)``.
        status: ``(B,)`` int8.
    """

    y: Tensor
    slack: Tensor
    fixed: Tensor
    stage: Tensor
    side: Tensor
    proof: Tensor
    status: Tensor


@torch.no_grad()
def relax(raw: Tensor, rows: Rows) -> Relaxation:
    """All levels, then the nearest point, for samples whose rows contradict each other; see ``.status``.

    Args:
        raw: ``(B, n)`` float64.
        rows: The rows, of length one.
    """
    none = torch.zeros_like(rows.level)
    settled = _First(raw, none.to(torch.int8), none, torch.full_like(raw[:, 0], int(Status.SOLVED), dtype=torch.int8))
    stage, order = none, levels(rows.level)
    for level in order:
        settled = _settle_level(rows, settled, level) if len(order) > 1 else _least_slack(raw, rows)
        stage = torch.where((settled.fixed != 0) & (stage == 0), level, stage)
    return _nearest(raw, rows, settled, stage)


def levels(level: Tensor) -> list[float]:
    """The levels of rows that may be relaxed, the highest first."""
    return [own for own in level.unique().tolist() if own > 0]


def row_lengths(A: Tensor) -> Tensor:
    """``|a|`` of each row, ``(*batch, k)``; 1 for a row of zeros."""
    size = length(A).squeeze(-1)
    return torch.where(size > 0, size, 1.0)


def _unit_weight(weight: Tensor, lengths: Tensor) -> Tensor:
    """``w |a|^2`` relative to the largest, via square roots, which neither overflow nor lose a row with a weight."""
    soft = weight > 0
    root = weight.sqrt() * (lengths / torch.where(soft, lengths, 0.0).amax(-1, keepdim=True))
    root = torch.where(soft, root / torch.where(soft, root, 0.0).amax(-1, keepdim=True), 0.0)
    return torch.where(soft, root.square().clamp_min(torch.finfo(root.dtype).tiny), 0.0)


def settle(anchor: Tensor, rows: Rows, fixed: Tensor) -> Tensor:
    """The point nearest to `anchor` ``(B, n)`` with the least slack on fixed active rows; in plain operations.

    ``min sum_V w (a y - bound)^2`` over the soft rows V subject to ``a y = bound`` in the hard rows I: with P the
    pseudo-inverse of A_I and ``N = 1 - P A_I``, the step from ``y0 = anchor - P(A_I anchor - b_I)`` is
    ``(sqrt(w) A_V N)^+ sqrt(w)(b_V - A_V y0)``. A second pass removes the rounding of an anchor far away.
    """
    soft = rows.weight > 0
    bound = active_bound(rows, fixed)
    held = torch.where(((fixed != 0) & ~soft).unsqueeze(-1), rows.A, 0.0)
    inverse = torch.linalg.pinv(held, rtol=SLACK_RANK)
    root = torch.where((fixed != 0) & soft, rows.weight.sqrt(), 0.0)
    pull = root.unsqueeze(-1) * rows.A
    rounding = SLACK_RANK * root.detach().amax(-1)  # absolute: the hard rows may leave nothing of a pull
    step = torch.linalg.pinv(pull - pull @ inverse @ held, atol=rounding, rtol=torch.zeros_like(rounding))
    for _ in range(2):
        anchor = anchor - times_aligned(inverse, times_aligned(held, anchor) - torch.where(soft, 0.0, bound))
        anchor = anchor + times_aligned(step, root * bound - times_aligned(pull, anchor))
    return anchor


def active_bound(rows: Rows, side: Tensor) -> Tensor:
    """The bound at which each row is active, ``(B, k)``; 0 for the others."""
    return torch.where(side > 0, rows.upper, torch.where(side < 0, rows.lower, 0.0))


class _First(NamedTuple):
    """A level: a point with the least slack ``(B, n)``, `fixed` and `proof` ``(B, k)``, and the status."""

    y: Tensor
    fixed: Tensor
    proof: Tensor
    status: Tensor


def _settle_level(rows: Rows, before: _First, level: float) -> _First:
    """The least slack of one level: rows below it are absent, those above it hard, and what is settled an equality."""
    basis = _basis(rows, before)
    value, taken = times_aligned(basis, before.y), (before.fixed == 0) & (rows.level <= level)
    soft = torch.where(taken & (rows.level == level), rows.weight, 0.0)
    sides = (torch.where(taken, side, absent) for side, absent in ((rows.lower, -torch.inf), (rows.upper, torch.inf)))
    lower, upper = (torch.cat([value, side], dim=-1) for side in sides)
    zero = torch.zeros_like(value)
    here = Rows(
        torch.cat([basis, rows.A], dim=-2), lower, upper, *(torch.cat([zero, part], -1) for part in (soft, soft))
    )
    holds = solve(_record(before.y, *here[:3]))
    known = before.status == int(Status.SOLVED)
    left = (known & (holds.status != int(Status.SOLVED))).nonzero().squeeze(-1)
    after = before._replace(
        y=torch.where((known & (holds.status == int(Status.SOLVED))).unsqueeze(-1), holds.y, before.y)
    )
    if not len(left):
        return after
    found = _least_slack(before.y[left], Rows(*(part[left] for part in here)))
    count = value.shape[-1]
    fixed = torch.where(before.fixed[left] != 0, before.fixed[left], found.fixed[:, count:])
    # what is settled holds a point, so that rows which contradict it do so by rounding alone
    lost = (found.status == int(Status.INFEASIBLE)) & (before.fixed[left] != 0).any(-1)
    status = torch.where(lost, int(Status.NOT_CONVERGED), found.status).to(torch.int8)
    return place(after, left, _First(found.y, fixed, found.proof[:, count:], status))


def _basis(rows: Rows, settled: _First) -> Tensor:
    """An orthonormal basis ``(B, r, n)`` of the rows that are settled, with zeros behind it."""
    _, size, basis = torch.linalg.svd(torch.where((settled.fixed != 0).unsqueeze(-1), rows.A, 0.0), full_matrices=False)
    return torch.where((size > SLACK_RANK * size[:, :1]).unsqueeze(-1), basis, 0.0)


def _least_slack(raw: Tensor, rows: Rows) -> _First:
    """Proximal steps until the active rows of every sample are right; keeps the best ones of all steps."""
    empty = torch.zeros_like(raw[:, 0], dtype=torch.bool)
    least = torch.full_like(raw[:, 0], torch.inf)
    fixed, proof = torch.zeros_like(rows.lower, dtype=torch.int8), torch.zeros_like(rows.lower)
    carries = torch.zeros_like(fixed, dtype=torch.bool)
    best, near = raw, raw
    for eps in PROXIMAL:
        found = solve(_record(*_extended(near, rows, eps)))
        near = found.y[:, : raw.shape[-1]] / eps**0.5
        proven = (found.status == int(Status.INFEASIBLE)) & ~empty
        proof, empty = torch.where(proven.unsqueeze(-1), found.dual, proof), empty | proven
        assert found.side is not None
        side = found.side.to(torch.int8)
        y = settle(near, rows, side)
        missed, needed = _missed(y, rows, side, found.dual)
        better = ((missed < least) & (least > EXACT)).unsqueeze(-1)
        best, fixed = torch.where(better, y, best), torch.where(better, side, fixed)
        carries = torch.where(better, needed, carries)
        least = torch.where(better.squeeze(-1), missed, least)
        if bool(((least <= EXACT) | empty).all()):
            break
    sound = (least <= OPTIMAL) & (_unknown(best, rows, fixed, least) <= KNOWN)
    status = torch.where(sound, int(Status.SOLVED), int(Status.NOT_CONVERGED))
    fixed = torch.where(carries, fixed, 0)
    return _First(best, fixed, proof, torch.where(empty, int(Status.INFEASIBLE), status).to(torch.int8))


def _extended(near: Tensor, rows: Rows, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One proximal step as a projection of ``(sqrt(eps) y_k, 0)``: a column for the slack of each row with a weight."""
    soft = (rows.weight > 0).any(0)
    columns = torch.diag_embed(torch.where(rows.weight > 0, rows.weight.rsqrt(), 0.0))[..., soft]
    start = torch.cat([eps**0.5 * near, near.new_zeros(len(near), columns.shape[-1])], dim=-1)
    return start, torch.cat([rows.A / eps**0.5, columns], dim=-1), rows.lower, rows.upper


def _missed(y: Tensor, rows: Rows, fixed: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
    """The largest relative error of y ``(B, n)`` in the optimality conditions ``(B,)``, and the rows that carry force.

    The conditions are ``A_V'(w s) = A_I'dual`` with multipliers whose signs match their bounds, no other row violated,
    and the rows in V violated at the bound that `fixed` names. The multipliers are those of the step, `dual`
    ``(B, k)``, which have the right signs, or those of least length, which are exact; the better ones count. The error
    of a NaN is infinite.

    The second answer ``(B, k)`` marks the rows of `fixed` without which the conditions do not hold: soft rows that give
    way and hard rows with a multiplier. The others were active in a step, on its way from raw, and need not be at the
    nearest point.
    """
    soft, product = rows.weight > 0, times_aligned(rows.A, y)
    gave_way, bound = (fixed != 0) & soft, active_bound(rows, fixed)
    size = torch.maximum(y.abs().amax(-1), bound.abs().amax(-1))
    other = torch.where(gave_way, 0.0, product.clamp(rows.lower, rows.upper) - product).abs().amax(-1) / size
    force = torch.where(gave_way, rows.weight * (bound - product), 0.0)
    held = torch.where(((fixed != 0) & ~soft).unsqueeze(-1), rows.A, 0.0)
    pull = times_aligned(rows.A.mT, force)
    signed = torch.where(rows.lower < rows.upper, fixed, 0)  # an equality may be needed on either side
    shortest = times_aligned(torch.linalg.pinv(held.mT, rtol=SLACK_RANK), pull)
    of_step, largest = torch.where(soft, 0.0, dual), force.abs().amax(-1)
    short, stepped = (
        torch.maximum((pull - times_aligned(held.mT, chosen)).abs().amax(-1), -(chosen * signed).amin(-1))
        for chosen in (shortest, of_step)
    )
    unbalanced = torch.maximum(torch.minimum(short, stepped), (force * signed).amax(-1)) / largest
    missed = torch.maximum(other.nan_to_num(0.0), unbalanced.nan_to_num(0.0))
    multiplier = torch.where((short <= stepped).unsqueeze(-1), shortest, of_step)
    carried = torch.maximum(force.abs(), torch.where(held.any(-1), multiplier, 0.0).abs()) > CARRIES * largest[:, None]
    slack = torch.where(gave_way, bound - product, 0.0).abs() > KNOWN * size[:, None]
    return missed + torch.where(y.isfinite().all(-1), 0, torch.inf), (fixed != 0) & (carried | slack)


def _unknown(y: Tensor, rows: Rows, fixed: Tensor, missed: Tensor) -> Tensor:
    """The uncertainty of the slack of the relaxed rows, relative to the size of y ``(B, n)``: ``(B,)``.

    The forces ``w s`` balance up to the fraction `missed` ``(B,)`` of the largest, or up to rounding; for a row with a
    small weight that error may be as large as its whole slack.
    """
    gave_way, bound = (fixed != 0) & (rows.weight > 0), active_bound(rows, fixed)
    slack = torch.where(gave_way, bound - times_aligned(rows.A, y), 0.0)
    size = torch.maximum(y.abs().amax(-1), bound.abs().amax(-1))
    weakest = torch.where(gave_way, rows.weight, torch.inf).amin(-1)
    rounding = missed + torch.finfo(y.dtype).eps
    return (rounding * (rows.weight * slack).abs().amax(-1) / (weakest * size)).nan_to_num(0.0)


def _nearest(raw: Tensor, rows: Rows, first: _First, stage: Tensor) -> Relaxation:
    """The last stage: the fixed rows become equalities on an orthonormal basis, which cannot contradict each other.

    Where rounding makes the set empty, the bounds of the other rows are widened to admit the point of the first stage.
    """
    fixed = first.fixed != 0
    basis = _basis(rows, first)
    level, product = times_aligned(basis, first.y), times_aligned(rows.A, first.y)
    every = torch.cat([basis, rows.A], dim=-2)
    lower, upper = torch.where(fixed, -torch.inf, rows.lower), torch.where(fixed, torch.inf, rows.upper)
    found = solve(_record(raw, every, torch.cat([level, lower], dim=-1), torch.cat([level, upper], dim=-1)))
    left = (found.status != int(Status.SOLVED)).nonzero().squeeze(-1)
    if len(left):
        room = 4 * torch.finfo(raw.dtype).eps * first.y.abs().amax(-1, keepdim=True)
        lower = torch.minimum(lower, product - room * (product <= lower))
        upper = torch.maximum(upper, product + room * (product >= upper))
        low, high = torch.cat([level, lower], dim=-1), torch.cat([level, upper], dim=-1)
        found = place(found, left, solve(_record(raw[left], every[left], low[left], high[left])))
    assert found.side is not None
    side = torch.where(fixed, first.fixed, found.side[:, basis.shape[-2] :].to(torch.int8))
    done = first.status == int(Status.SOLVED)
    status = torch.where(done & (found.status != int(Status.SOLVED)), int(Status.NOT_CONVERGED), first.status)
    gave_way = fixed & (rows.weight > 0) & (stage == rows.level)
    slack = torch.where(gave_way, active_bound(rows, first.fixed) - product, 0.0)
    slack = torch.where(done.unsqueeze(-1), slack, 0.0)
    return Relaxation(found.y, slack, first.fixed, stage, side, first.proof, status.to(torch.int8))


def _record(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Batch:
    """The record of a flat batch of plain float64 numbers on a CPU."""
    return Batch(raw, A, lower, upper, look=True, memory=True)
