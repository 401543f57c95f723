"""The Euclidean projection onto ``lower <= A y <= upper``, for any rows, with its implicit derivative.

With J the strictly active rows (and all equalities), N the projector on the null space of A_J, and g the
cotangent of y,

    u = N g,   w = (A_J')^+ g:     raw receives u,  the active bounds w,  A_J  -dual u' - w y'.

Rows that touch y with a zero multiplier are left out of J, which agrees with relu'(0) = 0. Dependent active rows share
dual and w by the pseudo-inverse, so that duplicates share evenly. Compiled, exported and transformed code takes the
fixed program of `hardnet.functional.polyhedron_fixed`.

Called by `hardnet.functional.box_rows`, `hardnet.functional.nearest` and `hardnet.functional.solve`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import UnsupportedSetError, sentence
from hardnet.functional.derivatives import along_tangent
from hardnet.functional.metric import InMetric, in_metric
from hardnet.functional.polyhedron_fixed import project_fixed
from hardnet.functional.polyhedron_gradient import gradients
from hardnet.functional.samples import (
    CHOICES,
    PROVED,
    Gradient,
    Infeasible,
    Policy,
    check_options,
    not_proved,
    raise_bad_numbers,
    raise_infeasible,
    warn_not_converged,
)
from hardnet.functional.strict import hold_exactly
from hardnet.modes import HALF, full_precision, may_look, mode, narrow, outside_compiler, signed
from hardnet.shapes import check_affine
from hardnet.solvers.polyhedron.emptiness import prove_empty
from hardnet.solvers.polyhedron.projection import flatten, solve
from hardnet.solvers.polyhedron.shared_choice import LEAST_ROWS, rows_for
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.solution import Solution, Status

LOOSE = 1e-9
"""The residual above which an answer is NaN where no status is looked at, or 64 roundings of a narrower dtype."""


@full_precision
def project_affine(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    metric: Tensor | None = None,
    gradient: Gradient = "exact",
    strict: bool = False,
    on_infeasible: Infeasible = "auto",
    on_invalid: Policy = "raise",
    shared: SharedRows | None = None,
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, differentiable in all four arguments.

    Any number of rows: more than n, dependent, duplicated, redundant, equalities (lower == upper), in any units. The
    solver works in float64 whatever the dtype. A raw output inside the set (to rounding) is returned bit for bit, a
    row that bounds one output (a row of the identity) holds exactly, and a sample's answer does not depend on its
    batch mates. A sample that misses the tolerance raises a `NotConvergedWarning`; so does one whose rows, such as
    equalities that nearly coincide, are met by a point that could not be proved to be the nearest.

    On CUDA and under torch.compile, torch.export and torch.func no value is looked at: a sample that the fixed
    program of pivots does not solve is NaN.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or a number for all rows; None is -inf.
        upper: Like `lower`; None is +inf.
        metric: W of ``min (y - raw)'W(y - raw)``: positive ``(n,)`` or ``(*batch, n)``, or positive definite
            ``(n, n)`` or ``(*batch, n, n)``; it has a gradient too. None is the identity.
        gradient: ``"exact"``, or ``"tangent"``: raw also receives ``w_i a_i`` of an inequality row that it violates
            where that pulls it back inside.
        strict: Whether inequalities hold for the returned numbers in exact arithmetic, by a few roundings inward.
        on_infeasible: What an empty set gives. ``"raise"``: an `InfeasibleError` with the rows that contradict each
            other, by a look at the answer. ``"nearest"``: the compromise with the least sum of squared distances to
            the rows. ``"nan"``: NaN for that sample alone. ``"auto"`` raises in eager mode on a CPU, else is NaN.
        on_invalid: What NaN, an infinite A or raw, or lower > upper give: an error where values are looked at, or NaN
            for that sample alone.
        shared: What `prepare_rows` made of this A, where it is constant; by default it is made at each call that it
            pays for.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients.
    """
    batch, lower, upper = check_affine(raw, A, lower, upper)
    given = {"gradient": gradient, "on_infeasible": on_infeasible, "on_invalid": on_invalid}
    if any(value not in CHOICES[name] for name, value in given.items()):
        check_options(**given)
    if A.shape[-2] == 0:
        return raw.expand(*batch, raw.shape[-1])
    project = partial(_route, on_infeasible=on_infeasible, on_invalid=on_invalid)
    if metric is None:
        y = project(raw, A, lower, upper, shared)
    else:
        found = in_metric(raw, A, lower, upper, metric, project, lambda *rows: solve_any(*rows).y, on_invalid)
        y = found.y if on_infeasible == "nearest" else _met(found)  # a compromise violates rows
    y = along_tangent(y, raw, A, lower, upper) if gradient == "tangent" else y
    if not strict:
        return y
    onto = partial(_route, on_infeasible="nan", on_invalid="nan")
    return hold_exactly(y, A, lower, upper, onto, on_invalid)


def _met(found: InMetric) -> Tensor:
    """Y of a metric; a warning where its rows are not met, or NaN where no value is looked at."""
    if may_look(found.y):
        warn_not_converged(found.lost, found.left)
        return found.y
    return torch.where(found.lost.unsqueeze(-1), torch.nan, found.y)


def solve_any(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, shared: SharedRows | None = None
) -> Solution:
    """What `project_affine` knows of its answer, without derivatives; y is NaN where a sample has none.

    Nothing is raised, and on a GPU nothing is looked at. Shapes as in `project_affine`, bounds as tensors.
    """
    if mode() == "eager":
        found = _solve(raw, A, lower, upper, shared, may_look(raw))
    else:
        found = project_fixed(raw, A, lower, upper)
    return found._replace(y=_without_a_look(found.y, found.status, found.residual))


def _solve(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, shared: SharedRows | None, look: bool
) -> Solution:
    """The solver of eager code, with the batch as it came."""
    many = A.shape[-2] >= LEAST_ROWS and A.shape[:-2].numel() == 1
    batch, flat = flatten(raw, A, lower, upper)
    shared = rows_for(raw, A, lower, upper, shared, look) if many else None
    found = solve(*flat, look=look, shared=shared, rounding=torch.finfo(raw.dtype).eps)
    if not look:  # who looks has proved it
        proof = prove_empty(*flat, found.y, found.side)
        empty = (found.status == int(Status.NOT_CONVERGED)) & (proof != 0).any(-1)
        status = torch.where(empty, int(Status.INFEASIBLE), found.status).to(torch.int8)
        found = found._replace(status=status, dual=torch.where(empty.unsqueeze(-1), proof, found.dual))
    y, dual = (part.to(raw.dtype).view(*batch, part.shape[-1]) for part in (found.y, found.dual))
    return Solution(y, dual, *(part.view(batch) for part in (found.status, found.iterations, found.residual)))


def _route(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    shared: SharedRows | None = None,
    *,
    on_infeasible: str,
    on_invalid: str,
) -> Tensor:
    """Who projects: the fixed program wherever operations are recorded or transformed, else the solver."""
    around, asked = mode(), on_infeasible in ("raise", "nearest")
    if around != "eager" and not (around == "compile" and asked):
        if on_infeasible == "nearest":
            remedy = "use on_infeasible='nan', or torch.autograd in eager mode"
            raise UnsupportedSetError(sentence("on_infeasible", "no compromise in a fixed program", "one", remedy))
        found = project_fixed(raw, A, lower, upper)
        return _without_a_look(found.y, found.status, found.residual)
    return _project(raw, A, lower, upper, shared, on_infeasible, on_invalid)  # pyright: ignore[reportReturnType, reportCallIssue, reportArgumentType]


def _without_a_look(y: Tensor, status: Tensor, residual: Tensor) -> Tensor:
    """NaN for the samples without an answer."""
    tolerance = max(LOOSE, 64 * torch.finfo(y.dtype).eps)
    bad = (status == int(Status.INFEASIBLE)) | ((status == int(Status.NOT_CONVERGED)) & ~(residual <= tolerance))
    return torch.where(bad.unsqueeze(-1), torch.nan, y)


@outside_compiler  # loops until the last sample is through: a compiled graph calls it as it is
def _project(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    shared: SharedRows | None,
    on_infeasible: str,
    on_invalid: str,
) -> Tensor:
    """Solve, then raise or warn for the samples without an answer where a look is possible."""
    look = may_look(raw) or on_infeasible in ("raise", "nearest")
    many = A.shape[-2] >= LEAST_ROWS and A.shape[:-2].numel() == 1
    shared = rows_for(raw, A, lower, upper, shared, look) if many else None
    learned = any(part is not None and part.requires_grad for part in (raw, A, lower, upper))
    find = _Projection.apply if learned and torch.is_grad_enabled() else _Projection.forward
    y, dual, _, status, residual = find(raw, A, lower, upper, look, shared)  # pyright: ignore[reportGeneralTypeIssues]
    y = narrow(y, raw.dtype, on_invalid)
    if not look:
        return _without_a_look(y, status, residual)
    if not bool(((status != int(Status.SOLVED)) | (residual > PROVED)).any()):
        return y
    if on_invalid == "raise":
        raise_bad_numbers(raw, A, lower, upper, status == int(Status.INVALID))
    if on_infeasible in ("auto", "raise"):
        raise_infeasible(status == int(Status.INFEASIBLE), dual)
    warn_not_converged(not_proved(status, residual), residual)
    if on_infeasible == "nearest":
        return y
    return torch.where((status == int(Status.INFEASIBLE)).unsqueeze(-1), torch.nan, y)


class _Projection(torch.autograd.Function):
    """y and, without derivative, dual, side, status and residual; saves O(n + m) numbers a sample beside A.

    y is in the dtype of raw, in float32 for half types, whose range it may exceed.
    """

    @staticmethod
    @signed
    def forward(
        raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, look: bool, shared: SharedRows | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Solve in float64."""
        batch, flat = flatten(raw, A, lower, upper)
        found = solve(*flat, look=look, shared=shared, rounding=torch.finfo(raw.dtype).eps)
        y = found.y.to(torch.float32 if raw.dtype in HALF else raw.dtype).view(*batch, raw.shape[-1])
        dual, side = (part.view(*batch, A.shape[-2]) for part in (found.dual, found.side.to(torch.int8)))
        return y, dual, side, found.status.view(batch), found.residual.view(batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the derivative reads."""
        y, dual, side, status, residual = output
        ctx.look, ctx.shared = inputs[4:]
        ctx.save_for_backward(*inputs[:4], y, dual, side, status)
        ctx.mark_non_differentiable(dual, side, status, residual)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """``u``, ``-dual u' - w y'`` and w to the active bounds, summed over what was shared."""
        if grads[0] is None:
            return (None,) * 6
        options = {"needed": ctx.needs_input_grad[:4], "look": ctx.look, "shared": ctx.shared}
        return *gradients(grads[0], *ctx.saved_tensors, **options), None, None
