"""The nearest point of a polyhedron with its multipliers, status and residual, on the device of raw.

The solvers are those of `hardnet.functional.nearest`, chosen by the same table, without derivatives. No error is
raised, and values are read only where that is free (eager code on a CPU). Compiled and exported graphs can return
every field.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.box_rows import find_in_box, hold_in_box
from hardnet.functional.elementary import project_box
from hardnet.functional.metric import in_metric, take_metric
from hardnet.functional.nearest import bits_of_raw, fixed_program
from hardnet.functional.polyhedron import solve_any
from hardnet.functional.samples import Options
from hardnet.functional.strict import hold_exactly
from hardnet.modes import full_precision, narrow
from hardnet.products import times_columnwise
from hardnet.rows import Batch, boxed, take_rows
from hardnet.solvers.polyhedron.box_rows import steps
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.solution import Solution, Status
from hardnet.structure import MOST_BOX_ROWS, MOST_FEW_ROWS, BoxedRows


@full_precision
@torch.no_grad()
def solve_rows(
    raw: Tensor,
    rows: BoxedRows,
    *,
    metric: Tensor | None = None,
    strict: bool = False,
    shared: SharedRows | None = None,
) -> Solution:
    """``argmin |y - raw|`` over the polyhedron with its multipliers, ``raw - y = A'dual_rows + dual_box``.

    y equals the result of `project_rows` for SOLVED samples, and is NaN for samples that are INVALID (bad numbers),
    INFEASIBLE (an empty set), or NOT_CONVERGED and far from an answer.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron: m general rows, with or without a box.
        metric: W as in `project_affine`; then ``W (raw - y) = A'dual_rows + dual_box``.
        strict: Whether inequality rows must hold in exact arithmetic; if they have no room, NOT_CONVERGED.
        shared: Factors of these rows in dense form, as in `project_affine`.

    Returns:
        `Solution`; `dual` is ``(*batch, m)``, or ``(*batch, m + n)`` with a box, whose coordinates come last.
    """
    boxed_alone = metric is None and rows.boxed and rows.A.shape[-2] <= MOST_BOX_ROWS
    numbers = rows[:3] if boxed_alone else rows.dense()
    box = rows[3:5] if boxed_alone else (None, None)
    record = take_rows(raw, *numbers, None, *box)
    chosen = Options(metric=None if metric is None else take_metric(metric, raw, record), strict=strict, shared=shared)
    if record.trivial or numbers[0].shape[-2] == 0:
        found = _box_alone(record)
    else:
        found = (_box_and_rows if boxed_alone else _any_rows)(record, chosen)
    found = Solution(*map(record.as_given, found))
    return found._replace(y=narrow(found.y, raw.dtype, "nan"))


def _box_alone(rows: Batch) -> Solution:
    """A clamp: the multiplier of a coordinate is ``raw - y``; rows without bounds have zero multipliers."""
    y = project_box(rows.raw, rows.box_lower, rows.box_upper, on_invalid="nan")
    status = torch.where(y.isnan().any(-1), int(Status.INVALID), int(Status.SOLVED)).to(torch.int8)
    boxed = rows.box_lower is not None or rows.box_upper is not None
    dual = rows.raw - y if boxed else rows.raw.new_zeros(len(y), rows.A.shape[-2])
    residual = (y - y).abs().sum(-1)
    return Solution(y, dual, status, torch.zeros_like(status, dtype=torch.long), residual)


def _box_and_rows(rows: Batch, options: Options) -> Solution:
    """Solve for the rows' multipliers; those of the coordinates are the remainder, zero inside the box."""
    flat, dtype = boxed(rows), rows.raw.dtype
    found = find_in_box(flat, rows)
    left = flat[0] - times_columnwise(flat[1], found.dual) - found.y
    held = (found.y <= flat[4]) | (found.y >= flat[5])
    dual = torch.cat([found.dual, torch.where(held, left, 0.0)], dim=-1).to(dtype)
    y = (hold_in_box(found.y, rows, flat) if options.strict else found.y).to(dtype)
    lost = _lost(found.status, y)
    y, status = torch.where(lost.unsqueeze(-1), torch.nan, y), _without(lost, found.status)
    count = torch.full_like(status, steps(rows.A.shape[-2]), dtype=torch.long)
    return Solution(y, dual, status, count, found.residual)


def _any_rows(rows: Batch, options: Options) -> Solution:
    """Rows without a separate box: few rows by the fixed program, others by the general solver."""
    if options.metric is not None:
        found = _in_metric(rows, options.metric)
    elif rows.A.shape[-2] <= MOST_FEW_ROWS and not options.strict:
        found = _few(rows)
    else:
        found = solve_any(rows, options.shared)
    if not options.strict:
        return found
    y = hold_exactly(found.y, rows, lambda record: solve_any(record).y, on_invalid="nan")
    return found._replace(y=y, status=_without(_lost(found.status, y), found.status))


def _few(rows: Batch) -> Solution:
    """The fixed program for few rows; where values may be read, the general solver takes the samples it left open."""
    found, look = fixed_program(rows, "exact"), rows.look and rows.mode == "eager"
    y = bits_of_raw(found.y, rows) if look else found.y
    tests = torch.full_like(found.status, 2 ** rows.A.shape[-2] - 1, dtype=torch.long)
    first = Solution(y, found.dual, found.status, tests, found.residual)
    bad = first.status != int(Status.SOLVED)
    if not look or not bool(bad.any()):
        return first
    pick = lambda new, old: torch.where(bad.unsqueeze(-1) if new.dim() > bad.dim() else bad, new, old)
    return Solution(*(pick(new, old) for new, old in zip(solve_any(rows), first, strict=True)))


def _in_metric(rows: Batch, metric: Tensor) -> Solution:
    """Solve in the variables of the metric, in which the multipliers are the same."""
    kept: list[Solution] = []

    def project(record: Batch) -> Tensor:
        kept.append(solve_any(record))
        return kept[0].y

    found = in_metric(rows, metric, project, lambda record: solve_any(record).y, "nan")
    (first,) = kept
    lost = found.lost & (first.status.long() == int(Status.SOLVED))
    residual = torch.where(lost, found.left, first.residual)
    return Solution(found.y, first.dual.to(rows.raw.dtype), _without(lost, first.status), first.iterations, residual)


def _lost(status: Tensor, y: Tensor) -> Tensor:
    """Solved samples whose answer was lost: no room for exact arithmetic, or out of the range of raw's dtype."""
    return (status.long() == int(Status.SOLVED)) & ~y.isfinite().all(-1)


def _without(lost: Tensor, status: Tensor) -> Tensor:
    """The status, NOT_CONVERGED for lost samples; via int64, since ONNX Runtime has no `where` for int8."""
    return torch.where(lost, int(Status.NOT_CONVERGED), status.long()).to(torch.int8)
