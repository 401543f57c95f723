"""The nearest point of a polyhedron with its multipliers, status and residual, on the device of raw.

The solvers are those of `hardnet.functional.nearest`, chosen by the same table, without derivatives. No error is
raised, and values are read only where that is free (eager code on a CPU). Compiled and exported graphs can return
every field.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional import box_rows, polyhedron
from hardnet.functional.elementary import project_box
from hardnet.functional.metric import take_metric
from hardnet.functional.nearest import bits_of_raw, fixed_program
from hardnet.modes import full_precision, narrow
from hardnet.nearest.policy import QUIET, Policy, answered
from hardnet.rows import Batch, boxed, take_rows
from hardnet.solvers.polyhedron.shared_rows import SharedRows
from hardnet.solvers.solution import Solution, Status
from hardnet.structure import MOST_FEW_ROWS, BoxedRows


@full_precision
@torch.no_grad()
def solve_rows(
    raw: Tensor,
    rows: BoxedRows,
    *,
    metric: Tensor | None = None,
    strict: bool = False,
    shared: SharedRows | None = None,
    best: bool = False,
) -> Solution:
    """``argmin |y - raw|`` over the polyhedron with its multipliers, ``raw - y = A'dual_rows + dual_box``.

    y equals the result of `project_rows` for SOLVED and FEASIBLE samples, and is NaN for samples that are INVALID (bad
    numbers), INFEASIBLE (an empty set) or NOT_CONVERGED.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron: m general rows, with or without a box.
        metric: W as in `project_affine`; then ``W (raw - y) = A'dual_rows + dual_box``.
        strict: Whether inequality rows must hold in exact arithmetic; if they have no room, NOT_CONVERGED.
        shared: Factors of these rows in dense form, as in `project_affine`.
        best: Whether y is the last point of a sample that is NOT_CONVERGED.

    Returns:
        `Solution`; `dual` is ``(*batch, m)``, or ``(*batch, m + n)`` with a box, whose coordinates come last.
    """
    record = take_rows(raw, *rows[:3], None, *rows[3:5])
    boxed_alone = metric is None and rows.boxed and box_rows.takes(record, QUIET._replace(strict=strict))
    record = record if boxed_alone else take_rows(raw, *rows.dense())
    W = None if metric is None else take_metric(metric, raw, record)
    policy = QUIET._replace(on_unsolved="best" if best else "nan", strict=strict, metric=W, shared=shared)
    if record.trivial or record.A.shape[-2] == 0:
        found = _box_alone(record)
    else:
        found = (_box_and_rows if boxed_alone else _any_rows)(record, policy)
    y, dual = narrow(answered(found, policy), raw.dtype, "nan"), found.dual.to(record.raw.dtype)
    return Solution(*map(record.as_given, (y, dual, *found[2:])))


def _box_alone(rows: Batch) -> Solution:
    """A clamp: the multiplier of a coordinate is ``raw - y``; rows without bounds have zero multipliers."""
    y = project_box(rows.raw, rows.box_lower, rows.box_upper, on_invalid="nan")
    status = torch.where(y.isnan().any(-1), int(Status.INVALID), int(Status.SOLVED)).to(torch.int8)
    dual = rows.raw.new_zeros(len(y), rows.A.shape[-2])
    if rows.box_lower is not None or rows.box_upper is not None:
        dual = torch.cat([dual, rows.raw - y], dim=-1)
    residual = (y - y).abs().sum(-1)
    return Solution(y, dual, status, torch.zeros_like(status, dtype=torch.long), residual)


def _box_and_rows(rows: Batch, policy: Policy) -> Solution:
    """Solve for the rows' multipliers; those of the coordinates are the remainder, zero inside the box."""
    rows = rows._replace(memory=rows.memory and (rows.look or policy.on_unsolved != "best"))
    return box_rows.solve_boxed(boxed(rows), rows, policy)


def _any_rows(rows: Batch, policy: Policy) -> Solution:
    """Rows without a separate box: few rows by the fixed program, others by the general solver."""
    few = rows.A.shape[-2] <= MOST_FEW_ROWS and policy.metric is None and not policy.strict
    return _few(rows, policy) if few else polyhedron.find(rows, policy, prove=True)


def _few(rows: Batch, policy: Policy) -> Solution:
    """The fixed program for few rows; where values may be read, the general solver takes the samples it left open."""
    found, look = fixed_program(rows, "exact"), rows.look and rows.mode == "eager"
    y = bits_of_raw(found.y, rows) if look else found.y
    tests = torch.full_like(found.status, 2 ** rows.A.shape[-2] - 1, dtype=torch.long)
    first = Solution(y, found.dual, found.status, tests, found.residual)
    bad = first.status != int(Status.SOLVED)
    if not (look and bool(bad.any())) and policy.on_unsolved != "best":
        return first
    second = polyhedron.find(rows, policy)
    pick = lambda new, old: torch.where(bad.unsqueeze(-1) if new.dim() > bad.dim() else bad, new, old.to(new.dtype))
    return Solution(*(pick(new, old) for new, old in zip(second, first, strict=True)))
