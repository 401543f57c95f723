"""The Euclidean projection onto ``lower <= A y <= upper``, for any rows, with its implicit derivative.

With J the strictly active rows (and all equalities), N the projector onto the null space of A_J, and g the
cotangent of y,

    u = N g,   w = (A_J')^+ g:     raw receives u,  the active bounds w,  A_J  -dual u' - w y'.

Rows that touch y with a zero multiplier are left out of J, which agrees with relu'(0) = 0. Dependent active rows share
dual and w through the pseudo-inverse, so that duplicates share evenly. Compiled, exported and transformed code uses
the fixed program of `hardnet.functional.polyhedron_fixed`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import UnsupportedSetError, sentence
from hardnet.functional.derivatives import along_tangent
from hardnet.functional.metric import InMetric, in_metric, take_metric
from hardnet.functional.polyhedron_fixed import project_fixed
from hardnet.functional.polyhedron_gradient import gradients
from hardnet.functional.samples import (
    ASKING,
    PROVED,
    VALID,
    Options,
    not_proved,
    raise_bad_numbers,
    raise_infeasible,
    refuse_options,
    warn_not_converged,
)
from hardnet.functional.strict import hold_exactly, refuse_half_precision
from hardnet.modes import full_precision, narrow, outside_compiler, signed
from hardnet.rows import Batch, in_double, take_rows
from hardnet.solvers.polyhedron.emptiness import prove_empty
from hardnet.solvers.polyhedron.projection import solve
from hardnet.solvers.polyhedron.shared_choice import LEAST_ROWS, rows_for
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.solution import Solution, Status

LOOSE = 1e-9
"""Where no value may be read, an unconverged answer is NaN if its residual exceeds the larger of this and 64 roundings
of the dtype."""


@full_precision
def project_any(
    raw: Tensor, A: Tensor, lower: Tensor | float | None = None, upper: Tensor | float | None = None, **options: Any
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper``; arguments as in `hardnet.functional.project_affine`."""
    rows, chosen = take_rows(raw, A, lower, upper), Options(**options)
    if chosen[:3] not in VALID:
        refuse_options(chosen)
    if chosen.strict:
        refuse_half_precision(raw.dtype)
    if chosen.metric is not None:
        chosen = chosen._replace(metric=take_metric(chosen.metric, raw, rows))
    return narrow(rows.as_given(project(rows, chosen)), raw.dtype, chosen.on_invalid)


def project(rows: Batch, options: Options) -> Tensor:
    """The nearest points ``(B, n)`` of a record, in the dtype of its raw; a metric as `take_metric` returns it."""
    if rows.A.shape[-2] == 0:
        return rows.raw
    if options.metric is None:
        y = _route(rows, options)
    else:
        euclidean = partial(_route, options=options._replace(shared=None))
        found = in_metric(rows, options.metric, euclidean, lambda record: solve_any(record).y, options.on_invalid)
        y = found.y if options.on_infeasible == "nearest" else _met(found, rows)  # a compromise may violate rows
    y = along_tangent(y, *rows.numbers) if options.gradient == "tangent" else y
    if not options.strict:
        return y
    onto = partial(_route, options=Options(on_infeasible="nan", on_invalid="nan"))
    return hold_exactly(y, rows, onto, options.on_invalid)


def _met(found: InMetric, rows: Batch) -> Tensor:
    """Y in a metric; if its rows are not satisfied, a warning, or NaN where no value may be read."""
    if rows.look:
        warn_not_converged(rows.as_given(found.lost), rows.as_given(found.left))
        return found.y
    return torch.where(found.lost.unsqueeze(-1), torch.nan, found.y)


def solve_any(rows: Batch, shared: SharedRows | None = None) -> Solution:
    """The full solution behind `project`, a flat batch without derivatives; y is NaN for samples without an answer.

    No error is raised, and on a GPU no value is read.
    """
    found = _solve(rows, shared) if rows.mode == "eager" else project_fixed(rows)
    return found._replace(y=_without_a_look(found.y, found.status, found.residual))


def _solve(rows: Batch, shared: SharedRows | None) -> Solution:
    """Run the solver of eager code."""
    wide = in_double(rows)
    found = solve(wide, shared=_factors(rows, shared), rounding=torch.finfo(rows.raw.dtype).eps)
    if not rows.look:  # a solver that may read values has tried this proof already
        proof = prove_empty(*wide.numbers, found.y, found.side)  # pyright: ignore[reportArgumentType]
        empty = (found.status == int(Status.NOT_CONVERGED)) & (proof != 0).any(-1)
        status = torch.where(empty, int(Status.INFEASIBLE), found.status).to(torch.int8)
        found = found._replace(status=status, dual=torch.where(empty.unsqueeze(-1), proof, found.dual))
    y, dual = found.y.to(rows.raw.dtype), found.dual.to(rows.raw.dtype)
    return Solution(y, dual, found.status, found.iterations, found.residual)


def _factors(rows: Batch, given: SharedRows | None) -> SharedRows | None:
    """The factors of many rows that all samples share, where they pay off."""
    many = rows.A.dim() == 2 and rows.A.shape[-2] >= LEAST_ROWS
    return rows_for(rows, given) if many else None


def _route(rows: Batch, options: Options) -> Tensor:
    """Project by the fixed program where operations are recorded or transformed, else by the solver."""
    if rows.mode != "eager" and not (rows.mode == "compile" and options.on_infeasible in ASKING):
        if options.on_infeasible == "nearest":
            remedy = "use on_infeasible='nan', or torch.autograd in eager mode"
            raise UnsupportedSetError(sentence("on_infeasible", "no compromise in a fixed program", "one", remedy))
        found = project_fixed(rows)
        return _without_a_look(found.y, found.status, found.residual)
    look = rows.look or options.on_infeasible in ASKING  # the solver may wait, recorded operations may not
    return _project(rows._replace(mode="eager", look=look), options)  # pyright: ignore[reportReturnType, reportCallIssue, reportArgumentType]


def _without_a_look(y: Tensor, status: Tensor, residual: Tensor) -> Tensor:
    """NaN for the samples without an answer."""
    tolerance = max(LOOSE, 64 * torch.finfo(y.dtype).eps)
    bad = (status == int(Status.INFEASIBLE)) | ((status == int(Status.NOT_CONVERGED)) & ~(residual <= tolerance))
    return torch.where(bad.unsqueeze(-1), torch.nan, y)


@outside_compiler  # iterates until the last sample is done, so a compiled graph must call it uncompiled
def _project(rows: Batch, options: Options) -> Tensor:
    """Solve, then raise or warn for the samples without an answer where values may be read."""
    shared = _factors(rows, options.shared)
    find = _Projection.apply if rows.learned else _Projection.forward
    y, dual, _, status, residual = find(*rows.numbers, rows.look, rows.memory, shared)  # pyright: ignore[reportGeneralTypeIssues]
    if not rows.look:
        return _without_a_look(y, status, residual)
    if not bool(((status != int(Status.SOLVED)) | (residual > PROVED)).any()):
        return y
    if options.on_invalid == "raise":
        raise_bad_numbers(rows, status == int(Status.INVALID))
    if options.on_infeasible in ("auto", "raise"):
        raise_infeasible(rows.as_given(status == int(Status.INFEASIBLE)), rows.as_given(dual))
    warn_not_converged(rows.as_given(not_proved(status, residual)), rows.as_given(residual))
    if options.on_infeasible == "nearest":
        return y
    return torch.where((status == int(Status.INFEASIBLE)).unsqueeze(-1), torch.nan, y)


class _Projection(torch.autograd.Function):
    """y and, without a derivative, dual, side, status and residual; saves O(n + m) numbers per sample beside A."""

    @staticmethod
    @signed
    def forward(
        raw: Tensor,
        A: Tensor,
        lower: Tensor | None,
        upper: Tensor | None,
        look: bool,
        memory: bool,
        shared: SharedRows | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Solve in float64."""
        rows = in_double(Batch(raw, A, lower, upper, look=look, memory=memory))
        found = solve(rows, shared=shared, rounding=torch.finfo(raw.dtype).eps)
        return found.y.to(raw.dtype), found.dual, found.side.to(torch.int8), found.status, found.residual

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save what the derivative needs."""
        y, dual, side, status, residual = output
        ctx.look, _, ctx.shared = inputs[4:]
        ctx.save_for_backward(*inputs[:4], y, dual, side, status)
        ctx.mark_non_differentiable(dual, side, status, residual)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """``u``, ``-dual u' - w y'``, and w to the active bounds; summed over samples for shared inputs."""
        if grads[0] is None:
            return (None,) * 7
        rows, found = Batch(*ctx.saved_tensors[:4], look=ctx.look), ctx.saved_tensors[4:]
        return *gradients(grads[0], rows, *found, needed=ctx.needs_input_grad[:4], shared=ctx.shared), None, None, None
