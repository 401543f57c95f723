"""The Euclidean projection onto ``lower <= A y <= upper``, for any rows, with its implicit derivative.

Eager code solves by `hardnet.solvers.polyhedron.projection`; compiled, exported and transformed code uses the fixed
program of `hardnet.functional.polyhedron_fixed`. Both have the derivative of `hardnet.nearest.derivative`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hardnet.errors import UnsupportedSetError, sentence
from hardnet.functional.derivatives import along_tangent
from hardnet.functional.metric import in_metric
from hardnet.functional.polyhedron_fixed import project_fixed
from hardnet.functional.samples import raise_bad_numbers
from hardnet.functional.strict import hold_exactly
from hardnet.modes import outside_compiler
from hardnet.nearest.derivative import Found, Route, nearest
from hardnet.nearest.policy import PROVED, Policy, answer, answered
from hardnet.rows import Batch, in_double
from hardnet.solvers.polyhedron.orthogonal import prove_empty
from hardnet.solvers.polyhedron.projection import solve
from hardnet.solvers.polyhedron.shared_rows import LEAST_ROWS, SharedRows, rows_for
from hardnet.solvers.solution import Outcome, Solution, Status, verdict
from hardnet.tolerances import rows_met


def project(rows: Batch, policy: Policy, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """The nearest points ``(B, n)`` of a record, in the dtype of its raw.

    Args:
        rows: The record of the call.
        policy: The options; a metric as `take_metric` returns it.
        known: Answers that the caller has found already, and for which samples, ``(B,)``; these are kept.
    """
    if rows.A.shape[-2] == 0:
        return rows.raw
    policy = policy.resolved(rows.look and rows.mode == "eager")
    if rows.mode == "compile" and policy.asks:
        return _uncompiled(rows._replace(mode="eager", look=True), policy, known)
    if rows.mode == "eager":
        return _project(rows._replace(look=rows.look or policy.asks), policy, known)
    if policy.on_infeasible == "nearest":
        remedy = "use on_infeasible='nan', or torch.autograd in eager mode"
        raise UnsupportedSetError(sentence("on_infeasible", "no compromise in a fixed program", "one", remedy))
    return answered(find(rows, policy), policy)


def _project(rows: Batch, policy: Policy, known: tuple[Tensor, Tensor] | None) -> Tensor:
    """Solve, then raise or warn for the samples without an answer where values may be read."""
    found = find(rows, policy)
    found = found if known is None else keep(found, *known)
    if not rows.look:
        return answered(found, policy)
    if not bool((found.status != int(Status.SOLVED)).any()):
        return found.y
    if policy.on_invalid == "raise":
        raise_bad_numbers(rows, found.status == int(Status.INVALID))
    return answer(Solution(*map(rows.as_given, found)), policy).reshape(found.y.shape)


def keep(found: Solution, y: Tensor, good: Tensor) -> Solution:
    """The solution with the answers y for the samples in the mask `good` ``(B,)``, which another solver has found."""
    status = torch.where(good, int(Status.SOLVED), found.status).to(torch.int8)
    return found._replace(y=torch.where(good.unsqueeze(-1), y, found.y), status=status)


_uncompiled = outside_compiler(_project)
"""A solver that reads values iterates until the last sample is done, so a compiled graph must call it uncompiled."""


def find(rows: Batch, policy: Policy, *, prove: bool = False) -> Solution:
    """The nearest points of a flat batch with their derivative, whatever their status; no sample raises.

    y is the last point of a sample that is NOT_CONVERGED, and the compromise of one that is INFEASIBLE.

    Args:
        rows: The record of the call.
        policy: The options; a metric as `take_metric` returns it.
        prove: Whether to look for a proof of emptiness where no value may be read, which costs more than the solve.
    """
    found = _euclidean(rows, policy.shared, prove) if policy.metric is None else _in_metric(rows, policy)
    if policy.gradient == "tangent":
        found = found._replace(y=along_tangent(found.y, *rows.numbers))
    if not policy.strict:
        return found
    return in_exact_arithmetic(found, lambda y: hold_exactly(y, rows, _points))


def in_exact_arithmetic(found: Solution, hold: Callable[[Tensor], Tensor]) -> Solution:
    """The points moved by `hold`, which gives NaN where rows leave no room for it: such a sample is not solved."""
    start = answered(found)
    exact = hold(start)
    lost = exact.isnan().any(-1) & ~start.isnan().any(-1)
    status = torch.where(lost, int(Status.NOT_CONVERGED), found.status.long()).to(torch.int8)
    return found._replace(y=torch.where(exact.isnan(), found.y, exact), status=status)


def _points(rows: Batch) -> Tensor:
    """Only the nearest points, NaN for samples without an answer."""
    return answered(_euclidean(rows, None))


def _euclidean(rows: Batch, shared: SharedRows | None, prove: bool = False) -> Solution:
    """The fixed program where operations are recorded or transformed, else the solver."""
    if rows.mode != "eager" or not (rows.look or rows.raw.is_cuda):
        return project_fixed(rows)
    shared = _factors(rows, shared)
    record = nearest(Route(partial(_solve, shared=shared), look=rows.look, shared=shared), rows)
    y, dual, side = record[:3]
    assert side is not None
    assert record.iterations is not None
    found = Solution(y, dual, record.status, record.iterations, record.residual)
    if rows.look or not prove:  # a solver that may read values has tried this proof already
        return found
    proof = prove_empty(*in_double(rows).numbers, y.detach().double(), side)  # pyright: ignore[reportArgumentType]
    empty = (found.status == int(Status.NOT_CONVERGED)) & (proof != 0).any(-1)
    status = torch.where(empty, int(Status.INFEASIBLE), found.status).to(torch.int8)
    return found._replace(status=status, dual=torch.where(empty.unsqueeze(-1), proof, dual))


def _solve(rows: Batch, shared: SharedRows | None) -> Found:
    """Solve in float64, and judge the rows at y in the dtype of raw."""
    found = solve(in_double(rows), shared=shared, rounding=torch.finfo(rows.raw.dtype).eps)
    y, side = found.y.to(rows.raw.dtype), found.side.to(torch.int8)
    return Found(y, found.dual, side, None, _judged(found, rows, y), found.residual, found.iterations)


def _factors(rows: Batch, given: SharedRows | None) -> SharedRows | None:
    """The factors of many rows that all samples share, where they pay off."""
    many = rows.A.dim() == 2 and rows.A.shape[-2] >= LEAST_ROWS
    return rows_for(rows, given) if many else None


def _in_metric(rows: Batch, policy: Policy) -> Solution:
    """Solve in the variables of the metric, in which the multipliers are the same; the rows are judged at y."""
    kept: list[Solution] = []

    def project(record: Batch) -> Tensor:
        kept.append(_euclidean(record, None))
        return kept[0].y

    assert policy.metric is not None
    found = in_metric(rows, policy.metric, project, _points, policy.on_invalid)
    (first,) = kept
    status = verdict(first.status, _met(rows, found.y.detach()))
    residual = torch.maximum(first.residual, found.left)
    return Solution(found.y, first.dual.to(rows.raw.dtype), status, first.iterations, residual)


def _met(rows: Batch, y: Tensor) -> Tensor:
    """Whether all rows hold at y ``(B, n)`` by the certificate's terms: ``(B,)``."""
    _, A, lower, upper = (None if part is None else part.detach().double() for part in rows.numbers)
    assert A is not None
    return rows_met(A, y.double(), lower, upper, torch.finfo(rows.raw.dtype).eps).all(-1)


def _judged(found: Outcome, rows: Batch, y: Tensor) -> Tensor:
    """The status of the outcome in the dtype of raw, y; FEASIBLE where rows are met but nothing proves it nearest."""
    if not rows.look:  # the residual of a sample that misses a row is infinite
        near = (found.status == int(Status.NOT_CONVERGED)) & found.residual.isfinite()
        return torch.where(near, int(Status.FEASIBLE), found.status).to(torch.int8)
    weak = (found.status != int(Status.SOLVED)) | (found.residual > PROVED)
    if not bool(weak.any()):
        return found.status
    doubtful = torch.where((found.status == int(Status.SOLVED)) & weak, int(Status.FEASIBLE), found.status)
    judged = verdict(doubtful, _met(rows, y))
    return torch.where(weak, judged, found.status).to(torch.int8)
