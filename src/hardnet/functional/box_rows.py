"""The Euclidean projection onto a box and a few rows, with its derivative; the box stays a box.

``y = clamp(raw - A'dual, box_lower, box_upper)``, so the k multipliers of the rows determine y: see
`hardnet.solvers.polyhedron.box_rows`. Eager calls use one autograd function; under compile, export and torch.func
everything is plain tensor operations that read no value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import NonFiniteError, OptionError, ShapeError, sentence
from hardnet.functional import polyhedron
from hardnet.functional.box_rows_gradient import Tangent, cotangents, deliver, differentiable, differentiate_again
from hardnet.functional.derivatives import keep_value
from hardnet.functional.elementary import project_box
from hardnet.functional.samples import (
    ASKING,
    PROVED,
    VALID,
    Gradient,
    Infeasible,
    Options,
    Policy,
    not_proved,
    raise_bad_numbers,
    raise_infeasible,
    refuse,
    refuse_options,
    warn_not_converged,
)
from hardnet.functional.strict import refuse_half_precision, refuse_without_room, tighten
from hardnet.kernels.backends import find
from hardnet.modes import full_precision, may_wait, narrow, refuse_forward_tangent
from hardnet.rows import Batch, BoxedBatch, boxed, take_rows
from hardnet.solvers.polyhedron.box_rows import Outcome, settle, solve
from hardnet.solvers.solution import Status
from hardnet.structure import MOST_BOX_ROWS


@full_precision
def project_box_rows(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    box_lower: Tensor | float | None = None,
    box_upper: Tensor | float | None = None,
    *,
    gradient: Gradient = "exact",
    strict: bool = False,
    on_infeasible: Infeasible = "auto",
    on_invalid: Policy = "raise",
) -> Tensor:
    """``argmin |y - raw|  s.t.  lower <= A y <= upper,  box_lower <= y <= box_upper``, differentiable in all six.

    Every coordinate is exactly inside the box, and rows hold to rounding. A raw output inside the set is returned bit
    for bit, and a sample's answer does not depend on the other samples of the batch. The solver works in float64
    whatever the dtype.

    Args:
        raw: ``(*batch, n)``.
        A: ``(k, n)`` or ``(*batch, k, n)``, at most 8 rows; dependent and redundant ones are allowed.
        lower: ``(k,)``, ``(*batch, k)`` or a number for all rows; None is -inf, ``lower == upper`` an equality.
        upper: Like `lower`; None is +inf.
        box_lower: ``(n,)``, ``(*batch, n)`` or a number for all coordinates; None is -inf.
        box_upper: Like `box_lower`; None is +inf.
        gradient: ``"exact"``, or ``"tangent"``: raw receives the steepest descent that stays in the set, so that
            gradients that pull an active row or bound back inside pass.
        strict: Whether rows with room between their bounds must hold in exact arithmetic for the numbers returned.
        on_infeasible: What to do with an empty set: ``"auto"`` raises an `InfeasibleError` on a CPU in eager mode and
            else returns NaN for that sample; ``"raise"`` always raises; ``"nearest"`` returns the compromise with the
            least sum of squared distances to rows and box; ``"nan"`` returns NaN.
        on_invalid: What to do with NaN, an infinite A or raw, or lower > upper on a CPU in eager mode: ``"raise"`` an
            error, or return ``"nan"`` for that sample alone.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients. Where
        values cannot be read, a sample that did not converge is NaN as well.
    """
    rows = take_rows(raw, A, lower, upper, None, box_lower, box_upper)
    if A.shape[-2] > MOST_BOX_ROWS:
        raise ShapeError(sentence("A", f"at most {MOST_BOX_ROWS} rows beside a box", A.shape[-2], "use project_affine"))
    options = Options(gradient, on_infeasible, on_invalid, strict)
    if options[:3] not in VALID:
        refuse_options(options)
    if strict:
        refuse_half_precision(raw.dtype)
    if A.shape[-2] == 0:
        return project_box(raw, box_lower, box_upper, on_invalid=on_invalid)
    return narrow(rows.as_given(project(rows, options)), raw.dtype, on_invalid)


def project(rows: Batch, options: Options) -> Tensor:
    """The nearest points ``(B, n)`` for a record of a box and few rows, in the dtype of its raw."""
    asks = options.on_infeasible in ASKING
    if asks and not may_wait():
        remedy = "pass 'auto' or 'nan', which give NaN for an empty set here"
        raise OptionError(
            sentence("on_infeasible", "no look at values in compiled or mapped code", options.on_infeasible, remedy)
        )
    if not (rows.look or options.strict or asks or rows.learned) and (kernel := find("box_rows", rows)):
        return kernel.answer(boxed(rows, rows.raw.dtype))
    flat = boxed(rows)
    y, found = (_eager if rows.memory else _traced)(flat, rows, options.gradient == "tangent")
    if options.strict:
        exact = hold_in_box(y, rows, flat)
        refuse_without_room(y, exact, rows, options.on_invalid)
        y = exact
    return _answer_bad_samples(_rounded(y, rows), found, rows, options)


def hold_in_box(y: Tensor, rows: Batch, flat: BoxedBatch) -> Tensor:
    """Y inside the box, with rows that hold in exact arithmetic, by projecting onto the box and tightened rows."""
    _, A, lower, upper, *box = (part.detach() for part in flat)
    eps = torch.finfo(torch.float64).eps

    def project(point: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
        start = torch.where(point.isfinite(), point, 0.0)
        bounds = lower if low is None else low, upper if high is None else high
        return solve(start, A, *bounds, *box, rounding=eps, mode=rows.mode).y

    return tighten(y, rows, project, rows.raw.dtype)


def _rounded(y: Tensor, rows: Batch) -> Tensor:
    """Y in the dtype of raw; a sample that overflows it is an error where values may be read, else NaN."""
    dtype = rows.raw.dtype
    narrowed = y.to(dtype)
    if rows.look and not bool(narrowed.isinf().any()):
        return narrowed
    lost = (narrowed.isinf() & y.isfinite()).any(-1)
    if rows.look and bool(lost.any()):
        text = f"raw: expected a dtype that holds the nearest point, got {dtype}"
        refuse(rows.as_given(lost), NonFiniteError, text)
    return torch.where(lost.unsqueeze(-1), torch.nan, narrowed)


def _eager(flat: BoxedBatch, rows: Batch, tangent: bool) -> tuple[Tensor, Outcome]:
    """One autograd function around the solver, or the solver alone if no derivative is needed."""
    if not rows.learned:
        found = find_in_box(flat, rows)
        return found.y, found
    y, *rest = _Projection.apply(rows, tangent, *flat)  # pyright: ignore[reportGeneralTypeIssues]
    return y, Outcome(y.detach(), *rest)


def _traced(flat: BoxedBatch, rows: Batch, tangent: bool) -> tuple[Tensor, Outcome]:
    """Solve on detached numbers, and give the answer, bit for bit, the derivative of a smooth formula."""
    rounding = torch.finfo(rows.raw.dtype).eps
    with torch.no_grad():
        found = solve(*(part.detach() for part in flat), rounding=rounding, mode=rows.mode)
    if not (rows.learned or rows.transformed):
        return found.y, found
    if not tangent:
        return keep_value(differentiable(flat, found), found.y), found
    refuse_forward_tangent()
    smooth = differentiable((flat[0].detach(), *flat[1:]), found)
    passed = Tangent.apply(flat[0], flat[1].detach(), found.place, found.side, found.status, rows.mode)
    return keep_value(smooth + passed, found.y), found  # pyright: ignore[reportOperatorIssue]


def _answer_bad_samples(y: Tensor, found: Outcome, rows: Batch, options: Options) -> Tensor:
    """Raise, warn or compromise as the options say, where values can be read; y has NaN for bad samples."""
    status, residual = found.status, found.residual
    if not (rows.look or options.on_infeasible in ASKING) or not bool(
        ((status != int(Status.SOLVED)) | (residual > PROVED)).any()
    ):
        return y
    if rows.look and options.on_invalid == "raise":
        raise_bad_numbers(rows, status == int(Status.INVALID))
    empty = status == int(Status.INFEASIBLE)
    if options.on_infeasible in ("auto", "raise"):
        raise_infeasible(rows.as_given(empty), rows.as_given(found.dual), "the box and")
    if rows.look:
        warn_not_converged(rows.as_given(not_proved(status, residual)), rows.as_given(residual))
    return _compromise(y, empty, rows) if options.on_infeasible == "nearest" and bool(empty.any()) else y


def _compromise(y: Tensor, empty: Tensor, rows: Batch) -> Tensor:
    """Solve empty sets as n + k dense rows: the general projection has the compromise."""
    some = rows.take(empty.nonzero().squeeze(-1)).dense()
    nearest = polyhedron.project(some, Options(on_infeasible="nearest"))
    return torch.where(empty.unsqueeze(-1), torch.zeros_like(y).masked_scatter(empty.unsqueeze(-1), nearest), y)


def find_in_box(flat: BoxedBatch, rows: Batch) -> Outcome:
    """Solve by a kernel if one takes the batch, else in plain torch; `flat` is ``boxed(rows)``.

    Samples that did not converge are settled by other solvers where values may be read.
    """
    rounding, kernel = torch.finfo(rows.raw.dtype).eps, find("box_rows", rows)
    if kernel is None:
        found = solve(*flat, rounding=rounding, mode=rows.mode)
    else:
        found = Outcome(*kernel.forward(flat, rounding))
    if not (rows.look and rows.memory) or not bool((found.status == int(Status.NOT_CONVERGED)).any()):
        return found
    return settle(found, flat, rounding, by_kernel=kernel is not None)


class _Projection(torch.autograd.Function):
    """y and, without a derivative, the rest of the `Outcome`."""

    @staticmethod
    def forward(ctx: Any, rows: Batch, tangent: bool, *flat: Tensor) -> tuple[Tensor, ...]:
        """Solve, and save what the derivative needs."""
        found = find_in_box(flat, rows)  # pyright: ignore[reportArgumentType]
        ctx.tangent = tangent
        ctx.save_for_backward(*flat, *found)
        ctx.mark_non_differentiable(*found[1:])
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The implicit derivative; if it is differentiated again, the derivative of the smooth formula instead."""
        if grads[0] is None:
            return (None,) * 8
        inputs, found = ctx.saved_tensors[:6], Outcome(*ctx.saved_tensors[6:])
        if torch.is_grad_enabled():
            return None, None, *differentiate_again(grads[0], inputs, found, ctx.tangent)
        passed = cotangents(grads[0], inputs, found, tangent=ctx.tangent)
        return None, None, *deliver(passed, grads[0], inputs, found, ctx.needs_input_grad[2:], ctx.tangent)
