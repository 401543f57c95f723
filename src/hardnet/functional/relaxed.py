"""The nearest point when some rows may be relaxed, as little as possible, with its implicit derivative.

``lower <= A y + s <= upper`` with ``s = 0`` in the hard rows and in the box: first minimize ``sum_i w_i s_i^2``, then
find the nearest y to raw with that s. If the whole set is not empty, the slack is zero and y is the ordinary
projection. Otherwise both stages are linear systems on their active rows, which autograd differentiates, including the
dependence of the slack on the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import InfeasibleError, OptionError, name_samples, sample_indices, sentence
from hardnet.functional.derivatives import keep_value
from hardnet.functional.nearest import project_rows
from hardnet.modes import full_precision, may_look, narrow, outside_compiler, refuse_transforms
from hardnet.nearest.policy import Once, OnInfeasible, OnInvalid, OnUnsolved, Policy, refuse_unsolved
from hardnet.products import times_aligned
from hardnet.rows import boxed, ordered, take_rows
from hardnet.solvers.polyhedron.every_face import faces_of, nearest
from hardnet.solvers.polyhedron.relaxed import SLACK_RANK, Relaxation, Rows, active_bound, levels, relax, settle
from hardnet.solvers.solution import Solution, Status, place
from hardnet.structure import BoxedRows


@outside_compiler  # reads values, so a compiled graph must call it uncompiled
@full_precision
def project_relaxed(
    raw: Tensor,
    rows: BoxedRows,
    *,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    once: Once | None = None,
) -> Tensor:
    """``argmin |y - raw|`` with the least slack, differentiable in raw and every number but the weights.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron, with the weights of the rows that may be relaxed.
        on_infeasible: What to do if the hard rows have no common point: ``"raise"`` an `InfeasibleError` that names
            them, or return ``"nan"`` for that sample alone; ``"auto"`` raises on a CPU and returns NaN on a GPU.
        on_unsolved: What to do if no least slack can be verified: a `ConvergenceError`, ``"nan"``, or the ``"best"``
            point found, which may be outside the hard rows.
        on_invalid: What to do with NaN, an infinite A or raw, or lower > upper: raise an error where values may be
            read, or return NaN.
        once: Where a layer remembers that it has warned.

    Returns:
        y ``(*batch, n)``, exactly inside the box. Samples whose rows contradict each other are solved on the CPU.
    """
    refuse_transforms("rows that give way")
    if on_infeasible not in ("auto", "raise", "nan"):
        expected = "'auto', 'raise' or 'nan' beside rows that give way"
        raise OptionError(sentence("on_infeasible", expected, repr(on_infeasible), "relax the other sets too"))
    policy = Policy(on_infeasible, on_unsolved, on_invalid, once=once).checked().resolved(may_look(raw))
    quiet = {"on_infeasible": "nan", "on_unsolved": "nan", "on_invalid": on_invalid, "once": once}
    y = project_rows(raw, rows._replace(weight=None), **quiet)
    left = _contradicting(y, raw, rows)
    if rows.weight is None or not bool(left.any()):
        return y
    some = _gather(left, raw, rows)
    found = relax(some.raw.detach(), some.rows.detach())
    good = (found.status == int(Status.SOLVED)).unsqueeze(-1)
    moved = torch.where(good, _differentiable(some, found), torch.nan)
    y = _placed(y, left, some.inside_box(moved))
    if policy.on_infeasible == "raise":
        _refuse_empty(left, found)
    lost = (found.status == int(Status.NOT_CONVERGED)).to(left.device)
    if policy.on_unsolved == "raise" and bool(lost.any()):
        refuse_unsolved(_solution(y, left, found), sentence("rows", "a least slack that can be verified", "none"))
    if policy.on_unsolved == "best":
        last = torch.where(lost.unsqueeze(-1), some.inside_box(found.y), moved.detach())
        y = torch.where(y.isnan(), _placed(y.detach(), left, last), y)
    return y


def _placed(y: Tensor, left: Tensor, part: Tensor) -> Tensor:
    """Y ``(*batch, n)`` with other values ``(b, n)`` for the samples of the mask `left`."""
    mask = left.unsqueeze(-1)
    return torch.where(mask, torch.zeros_like(y).masked_scatter(mask, part.to(y)), y)


def _solution(y: Tensor, left: Tensor, found: Relaxation) -> Solution:
    """What is known of the whole batch: NaN for samples without an answer; rows that give way have no multipliers."""
    status = torch.where(y.isnan().any(-1), int(Status.INVALID), int(Status.SOLVED)).to(torch.int8)
    status = status.masked_scatter(left, found.status.to(status))
    steps, residual = torch.zeros_like(status, dtype=torch.long), torch.where(status == 0, 0.0, torch.nan)
    return Solution(y.detach(), y.new_zeros(*left.shape, 0), status, steps, residual)


@full_precision
def project_small(raw: Tensor, rows: BoxedRows, soft: Sequence[bool], on_infeasible: str = "auto") -> Tensor | None:
    """The nearest point by trying every face of a small polyhedron, for exported graphs; None if they are too many.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron, with the weights of the rows that may be relaxed.
        soft: Which general rows may be relaxed.
        on_infeasible: What to do if the hard rows have no common point: ``"nearest"`` relaxes all general rows, without
            a box; otherwise such a sample is NaN.
    """
    if on_infeasible == "nearest" and rows.boxed:
        remedy = "write box & hn.Relaxed(rows), which always has an answer inside the box"
        raise OptionError(sentence("on_infeasible", "no 'nearest' beside a box in an exported graph", "one", remedy))
    soft = [True] * len(soft) if on_infeasible == "nearest" else soft
    tried = faces_of(rows, soft)
    if tried is None:
        return None
    batch = take_rows(raw, rows.A, rows.lower, rows.upper, None, rows.box_lower, rows.box_upper)
    point, A, *bounds = (part.expand(batch.raw.shape[0], *part.shape[1:]) for part in boxed(batch))
    weight = None if on_infeasible == "nearest" else rows.weight
    y, _ = nearest(point, A, (bounds[0], bounds[1]), (bounds[2], bounds[3]), weight, tried)
    inside = torch.minimum(torch.maximum(y.detach(), bounds[2].detach()), bounds[3].detach())
    return narrow(batch.as_given(keep_value(y, inside)), raw.dtype, "nan")


@torch.no_grad()
def least_slack(y: Tensor, rows: BoxedRows) -> Tensor:
    """The least slack of each general row, ``(*batch, m)`` float64: negative where the upper bound must be relaxed.

    It is 0 if the rows do not contradict each other. It is also 0 if no least slack was found, so that the violation of
    the rows stays visible.

    Args:
        y: Points to start from, ``(*batch, n)``; the answer does not depend on them.
        rows: The polyhedron, with the weights of the rows that may be relaxed.
    """
    m = rows.A.shape[-2]
    slack = y.new_zeros(*y.shape[:-1], m, dtype=torch.float64)
    start = torch.where(y.isfinite(), y, 0)
    nearest = project_rows(start, rows._replace(weight=None), on_infeasible="nan", on_invalid="nan")
    left = _contradicting(nearest, start, rows)
    if rows.weight is None or not bool(left.any()):
        return slack
    some = _gather(left, start, rows)
    found = relax(some.raw, some.rows)
    open_ = (found.status != int(Status.SOLVED)).nonzero().squeeze(-1)
    if open_.numel():  # the slack does not depend on the start, but whether it is found may
        rows_left = Rows(*(number[open_] for number in some.rows))
        found = place(found, open_, relax(torch.zeros_like(some.raw[open_]), rows_left))
    slack[left] = torch.where(found.status.unsqueeze(-1) == int(Status.SOLVED), found.slack * some.length, 0.0)[
        :, :m
    ].to(slack)
    return slack


class _Samples(NamedTuple):
    """Some samples of a batch in float64 on the CPU, with dense rows of length one: the general rows, then the box.

    Attributes:
        raw: ``(b, n)``.
        rows: The rows, which carry gradients.
        length: What each row was divided by, ``(b, k)``.
        box: The bounds of the coordinates ``(b, n)``, None where absent.
    """

    raw: Tensor
    rows: Rows
    length: Tensor
    box: tuple[Tensor | None, Tensor | None]

    def inside_box(self, y: Tensor) -> Tensor:
        """Y clamped into the box, which it misses by at most rounding; NaN stays NaN."""
        with torch.no_grad():
            low, high = (None if side is None else side.detach() for side in self.box)
            value = y if low is None and high is None else y.clamp(low, high)
        return keep_value(y, value)


def _contradicting(y: Tensor, raw: Tensor, rows: BoxedRows) -> Tensor:
    """The samples ``(*batch)`` with valid numbers but no projection y: their rows contradict each other."""
    left = y.isnan().any(-1) & raw.isfinite().all(-1)
    sound = rows.A.isfinite().flatten(-2).all(-1)
    for low, high in ((rows.lower, rows.upper), (rows.box_lower, rows.box_upper)):
        least = torch.full_like(raw[..., :1], -torch.inf) if low is None else low
        most = torch.full_like(raw[..., :1], torch.inf) if high is None else high
        sound = sound & ordered(least, most).all(-1)
    return left & sound


def _gather(left: Tensor, raw: Tensor, rows: BoxedRows) -> _Samples:
    """Gather the samples of the mask `left` ``(*batch)``."""

    def take(number: Tensor, core: int) -> Tensor:
        own = number.shape[number.dim() - core :]
        return number.expand(*left.shape, *own)[left].to("cpu", torch.float64)

    A, lower, upper = rows.dense()
    absent = A.new_full((A.shape[-2],), torch.inf)
    lower, upper = (-absent if lower is None else lower), (absent if upper is None else upper)
    weight = torch.zeros_like(absent) if rows.weight is None else rows.weight.detach().to(absent)
    level = torch.zeros_like(weight) if rows.level is None else rows.level.to(weight)
    pad = weight.new_zeros(A.shape[-2] - len(weight))
    soft = (take(torch.cat([part, pad]), 1) for part in (weight, level))
    numbers = (take(A, 2), take(lower, 1), take(upper, 1), *soft)
    sides = (rows.box_lower, rows.box_upper)
    box = tuple(None if side is None else take(side, 1) for side in sides)
    unit, length = Rows.of_unit_length(*numbers)
    return _Samples(take(raw, 1), unit, length, box)  # pyright: ignore[reportArgumentType]


def _differentiable(some: _Samples, found: Relaxation) -> Tensor:
    """The solver's y with the derivative of all stages on their active rows.

    ``y = raw - A_J^+(A_J raw - b_J)``, where b_J is the value that each level reaches in the rows that give way, the
    levels above it being equalities. Rows that determine the least slack are dependent and stay so when the numbers
    change, as the derivative of a pseudo-inverse requires.
    """
    if not torch.is_grad_enabled():
        return found.y
    rows, level = some.rows, active_bound(some.rows, found.side)
    for own in levels(rows.level):
        gave_way = (found.fixed != 0) & (rows.level == own) & (found.stage == own)
        here = torch.where(found.stage <= own, found.fixed, 0)
        at_level = rows._replace(lower=level, upper=level, weight=torch.where(gave_way, rows.weight, 0.0))
        level = torch.where(gave_way, times_aligned(rows.A, settle(found.y, at_level, here)), level)
    active = torch.where((found.side != 0).unsqueeze(-1), some.rows.A, 0.0)
    missing = times_aligned(active, some.raw) - level
    smooth = some.raw - times_aligned(torch.linalg.pinv(active, rtol=SLACK_RANK), missing)
    return keep_value(smooth, found.y)


def _refuse_empty(left: Tensor, found: Relaxation) -> None:
    """Raise for hard rows that contradict each other."""
    empty = found.status == int(Status.INFEASIBLE)
    if bool(empty.any()):
        samples = [sample for sample, bad in zip(sample_indices(left), empty.tolist(), strict=True) if bad]
        rows = [proof.nonzero().squeeze(-1).tolist() for proof in found.proof[empty]]
        text = f"rows {name_samples(rows[0])}, which may not give way, contradict each other"
        where = f" in sample {samples[0]} (infeasible samples: {name_samples(samples)})" if left.dim() else ""
        raise InfeasibleError(f"{text}{where}; relax one of them, or pass on_infeasible='nan'", samples, rows)
