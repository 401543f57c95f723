"""The nearest point of a polyhedron with what is known of it: multipliers, status, residual, on the device of raw.

The same solvers as in `hardnet.functional.nearest`, by the same table, without derivatives: nothing is raised, and a
value is looked at only where that is free (eager code on a CPU). Compiled and exported graphs have every field as an
output.

Called by `hardnet.layers.projection`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.box_rows import find_in_box, hold_in_box
from hardnet.functional.elementary import project_box
from hardnet.functional.metric import in_metric
from hardnet.functional.nearest import bits_of_raw, fixed_program
from hardnet.functional.polyhedron import solve_any
from hardnet.functional.strict import hold_exactly
from hardnet.modes import HALF, full_precision, may_look, mode, narrow
from hardnet.products import times_columnwise
from hardnet.rows import MOST_BOX_ROWS, MOST_FEW_ROWS, BoxedRows, flatten_boxed, take_rows
from hardnet.shapes import check_affine
from hardnet.solvers.polyhedron.box_rows import steps
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.solution import Solution, Status


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

    y is that of `project_rows` where the status is SOLVED, and NaN where a sample is INVALID (bad numbers), INFEASIBLE
    (an empty set), or NOT_CONVERGED far from an answer.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron, m general rows and maybe a box.
        metric: W as in `project_affine`; then ``W (raw - y) = A'dual_rows + dual_box``.
        strict: Whether inequality rows must hold in exact arithmetic; where they have no room, NOT_CONVERGED.
        shared: Factors of these rows, given as dense ones, as in `project_affine`.

    Returns:
        `Solution`; `dual` is ``(*batch, m)``, or ``(*batch, m + n)`` beside a box, whose coordinates come last.
    """
    if raw.dtype in HALF:
        wide = rows.map(lambda number, _: number.float())
        found = solve_rows(raw.float(), wide, metric=None if metric is None else metric.float(), strict=strict)
        return found._replace(y=narrow(found.y, raw.dtype, "nan"))
    if rows.boxed and metric is None and rows.A.shape[-2] <= MOST_BOX_ROWS:
        return _box_alone(raw, rows) if rows.A.shape[-2] == 0 else _box_and_rows(raw, rows, strict)
    return _any_rows(raw, *rows.dense(), metric, strict, shared)


def _box_alone(raw: Tensor, rows: BoxedRows) -> Solution:
    """A clamp: what it takes away is the multiplier of the coordinate."""
    y = project_box(raw, rows.box_lower, rows.box_upper, on_invalid="nan")
    status = torch.where(y.isnan().any(-1), int(Status.INVALID), int(Status.SOLVED)).to(torch.int8)
    return Solution(y, raw - y, status, torch.zeros_like(status, dtype=torch.long), (y - y).abs().amax(-1))


def _box_and_rows(raw: Tensor, rows: BoxedRows, strict: bool) -> Solution:
    """By the multipliers of the rows; those of the coordinates are what is left, zero inside the box."""
    batch, flat = flatten_boxed(raw, *rows[:5])
    found = find_in_box(flat, torch.finfo(raw.dtype).eps)
    left = flat[0] - times_columnwise(flat[1], found.dual) - found.y
    held = (found.y <= flat[4]) | (found.y >= flat[5])
    dual = torch.cat([found.dual, torch.where(held, left, 0.0)], dim=-1)
    y = (hold_in_box(found.y, flat, raw.dtype) if strict else found.y).to(raw.dtype)
    lost = _lost(found.status, y)
    y, status = torch.where(lost.unsqueeze(-1), torch.nan, y), _without(lost, found.status)
    y, dual = (part.to(raw.dtype).reshape(*batch, part.shape[-1]) for part in (y, dual))
    status, residual = (part.reshape(batch) for part in (status, found.residual))
    return Solution(y, dual, status, torch.full_like(status, steps(rows.A.shape[-2]), dtype=torch.long), residual)


def _any_rows(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    metric: Tensor | None,
    strict: bool,
    shared: SharedRows | None,
) -> Solution:
    """Rows without a box of their own: few of them by the fixed program, others by the general solver."""
    batch, lower, upper = check_affine(raw, A, lower, upper)
    if 0 in (*batch, *A.shape[-2:]) or (lower is None and upper is None):  # nothing to enforce
        found = _box_alone(raw.expand(*batch, raw.shape[-1]), BoxedRows(A, None, None))
        return found._replace(dual=raw.new_zeros(*batch, A.shape[-2]))
    if metric is not None:
        found = _in_metric(raw, A, lower, upper, metric)
    elif A.shape[-2] <= MOST_FEW_ROWS and not strict:
        found = _few(raw, A, lower, upper)
    else:
        found = solve_any(raw, A, lower, upper, shared)
    if not strict:
        return found
    onto = lambda *problem: solve_any(*problem).y
    y = hold_exactly(found.y, A, lower, upper, onto, on_invalid="nan")
    return found._replace(y=y, status=_without(_lost(found.status, y), found.status))


def _few(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Solution:
    """The fixed program over sets of active rows; where a look is free the general solver settles what it left."""
    record, look = take_rows(raw, A, lower, upper), may_look(raw) and mode() == "eager"
    found, shape = fixed_program(record, "exact"), record.shape
    y = bits_of_raw(found.y, record) if look else found.y
    tests = torch.full_like(found.status, 2 ** A.shape[-2] - 1, dtype=torch.long)
    parts = y, found.dual, found.status, tests, found.residual
    first = Solution(*(part.reshape(shape + part.shape[1:]) for part in parts))
    bad = first.status != int(Status.SOLVED)
    if not look or not bool(bad.any()):
        return first
    settled = solve_any(raw, A, lower, upper)
    pick = lambda new, old: torch.where(bad.unsqueeze(-1) if new.dim() > bad.dim() else bad, new, old)
    return Solution(*(pick(new, old) for new, old in zip(settled, first, strict=True)))


def _in_metric(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, metric: Tensor) -> Solution:
    """In the variables of the metric, where the multipliers are the same."""
    kept: list[Solution] = []

    def project(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        kept.append(solve_any(raw, A, lower, upper))
        return kept[0].y

    found = in_metric(raw, A, lower, upper, metric, project, lambda *rows: solve_any(*rows).y, "nan")
    (first,) = kept
    lost = found.lost & (first.status.long() == int(Status.SOLVED))
    residual = torch.where(lost, found.left, first.residual)
    return Solution(found.y, first.dual.to(raw.dtype), _without(lost, first.status), first.iterations, residual)


def _lost(status: Tensor, y: Tensor) -> Tensor:
    """Solved samples whose answer did not survive: no room for exact arithmetic, or beyond the dtype of raw."""
    return (status.long() == int(Status.SOLVED)) & ~y.isfinite().all(-1)


def _without(lost: Tensor, status: Tensor) -> Tensor:
    """NOT_CONVERGED for the samples that were lost; ONNX Runtime chooses between no numbers of 8 bits."""
    return torch.where(lost, int(Status.NOT_CONVERGED), status.long()).to(torch.int8)
