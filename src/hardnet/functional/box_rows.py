"""The Euclidean projection onto a box and a few rows, with its derivative; the box stays a box.

``y = clamp(raw - A'dual, box_lower, box_upper)``, so the k multipliers of the rows decide it: see
`hardnet.solvers.polyhedron.box_rows`. Eager calls take one autograd function; under compile, export and torch.func
everything is plain tensor operations without a look at values.

Called by `hardnet.experiments.warmup`, `hardnet.functional.nearest` and others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import NonFiniteError, OptionError, ShapeError, sentence
from hardnet.functional.box_rows_gradient import Tangent, cotangents, deliver, differentiable, differentiate_again
from hardnet.functional.derivatives import keep_value
from hardnet.functional.elementary import project_box
from hardnet.functional.polyhedron import project_affine
from hardnet.functional.samples import (
    CHOICES,
    PROVED,
    Gradient,
    Infeasible,
    Policy,
    check_options,
    not_proved,
    raise_bad_box,
    raise_infeasible,
    refuse,
    warn_not_converged,
)
from hardnet.functional.strict import refuse_without_room, tighten
from hardnet.kernels.cpu import launch as cpu
from hardnet.kernels.gpu import nearest as gpu
from hardnet.modes import full_precision, may_look, may_wait, mode, plain, refuse_forward_tangent
from hardnet.rows import MOST_BOX_ROWS, REALS, BoxedBatch, flatten_boxed
from hardnet.shapes import broadcast_batch, check_affine, check_bound
from hardnet.solvers.polyhedron.box_rows import Outcome, settle, solve
from hardnet.solvers.solution import Status

Given = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""raw, A, lower, upper, box_lower and box_upper as they were given."""


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

    Every coordinate is exactly inside the box, rows hold to rounding. A raw output inside the set is returned bit for
    bit, and a sample's answer does not depend on its batch mates. The solver works in float64 whatever the dtype.

    Args:
        raw: ``(*batch, n)``.
        A: ``(k, n)`` or ``(*batch, k, n)``, at most 8 rows; dependent and redundant ones are allowed.
        lower: ``(k,)``, ``(*batch, k)`` or a number for all rows; None is -inf, ``lower == upper`` an equality.
        upper: Like `lower`; None is +inf.
        box_lower: ``(n,)``, ``(*batch, n)`` or a number for all coordinates; None is -inf.
        box_upper: Like `box_lower`; None is +inf.
        gradient: ``"exact"``, or ``"tangent"``: raw receives the steepest descent that stays in the set, so that what
            would pull an active row or bound back inside passes.
        strict: Whether rows with room between their bounds must hold in exact arithmetic for the numbers returned.
        on_infeasible: What an empty set gives: ``"auto"`` an `InfeasibleError` on a CPU in eager mode, else NaN for
            that sample; ``"raise"`` the error always; ``"nearest"`` the compromise with the least sum of squared
            distances to rows and box; ``"nan"``.
        on_invalid: What NaN, an infinite A or raw, or lower > upper give on a CPU in eager mode: an error, or NaN for
            that sample alone.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients. Where no
        look is possible, a sample that did not converge is NaN as well.
    """
    given = {"gradient": gradient, "on_infeasible": on_infeasible, "on_invalid": on_invalid}
    if any(value not in CHOICES[name] for name, value in given.items()):
        check_options(**given)
    _check_call(raw, strict, on_infeasible)
    bounds = _check(raw, A, lower, upper, box_lower, box_upper)
    if A.shape[-2] == 0:
        return project_box(raw, *bounds[2:], on_invalid=on_invalid)
    if not strict and on_infeasible in ("auto", "nan") and _on_a_gpu(raw, A, *bounds):
        batch, flat = flatten_boxed(raw, A, *bounds, dtype=raw.dtype)
        if gpu.takes_box(flat):
            return gpu.answer_in_box(flat).reshape(*batch, raw.shape[-1])
    batch, flat = flatten_boxed(raw, A, *bounds)
    rounding = torch.finfo(raw.dtype).eps
    eager = plain(raw, A, *bounds)
    project = _eager if eager else _traced
    y, found = project(flat, rounding, gradient == "tangent")
    if strict:
        exact = hold_in_box(y, flat, raw.dtype)
        refuse_without_room(y, exact, batch, on_invalid)
        y = exact
    y, status, dual, residual = (
        part.reshape(batch + part.shape[1:]) for part in (_rounded(y, raw), found.status, found.dual, found.residual)
    )
    return _answer_bad_samples(y, status, dual, residual, (raw, A, *bounds), on_infeasible, on_invalid)


def _on_a_gpu(raw: Tensor, *others: Tensor | None) -> bool:
    """Whether y alone is asked for, without a derivative, in a dtype that the kernel stores."""
    if not raw.is_cuda or raw.dtype not in REALS:
        return False
    recorded = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (raw, *others))
    return not recorded


def hold_in_box(y: Tensor, flat: BoxedBatch, dtype: torch.dtype) -> Tensor:
    """Y inside the box whose rows hold in exact arithmetic, by projection onto the box and tightened rows."""
    _, A, lower, upper, *box = (part.detach() for part in flat)
    eps = torch.finfo(torch.float64).eps
    project = lambda point, low, high: (
        solve(torch.where(point.isfinite(), point, 0.0), A, low, high, *box, rounding=eps).y
    )
    return tighten(y, (A, lower, upper), project, dtype)


def _rounded(y: Tensor, raw: Tensor) -> Tensor:
    """Y in the dtype of raw; what that cannot hold is an error where a look is free, else NaN for that sample."""
    narrow = y.to(raw.dtype)
    if may_look(raw) and not bool(narrow.isinf().any()):
        return narrow
    lost = (narrow.isinf() & y.isfinite()).any(-1)
    if may_look(raw) and bool(lost.any()):
        refuse(lost, NonFiniteError, f"raw: expected a dtype that holds the nearest point, got {raw.dtype}")
    return torch.where(lost.unsqueeze(-1), torch.nan, narrow)


def _check_call(raw: Tensor, strict: bool, on_infeasible: str) -> None:
    """Refuse what cannot be kept here: exact arithmetic in half precision, and a look where there is none."""
    if strict and raw.dtype not in (torch.float64, torch.float32):
        raise OptionError(
            sentence("strict", "float64 or float32 outputs", raw.dtype, "leave strict out, or call .float()")
        )
    if on_infeasible in ("raise", "nearest") and not may_wait():
        remedy = "pass 'auto' or 'nan', which give NaN for an empty set here"
        raise OptionError(
            sentence("on_infeasible", "no look at values in compiled or mapped code", on_infeasible, remedy)
        )


def _check(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None,
    upper: Tensor | float | None,
    box_lower: Tensor | float | None,
    box_upper: Tensor | float | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Check shapes, dtypes and devices; return the bounds as tensors."""
    batch, lower, upper = check_affine(raw, A, lower, upper)
    if A.shape[-2] > MOST_BOX_ROWS:
        raise ShapeError(sentence("A", f"at most {MOST_BOX_ROWS} rows beside a box", A.shape[-2], "use project_affine"))
    box = []
    for name, bound in (("box_lower", box_lower), ("box_upper", box_upper)):
        side = check_bound(name, bound, raw, raw.shape[-1])
        batch = batch if side is None else broadcast_batch(name, batch, side.shape[:-1])
        box.append(side)
    return lower, upper, box[0], box[1]


def _eager(flat: BoxedBatch, rounding: float, tangent: bool) -> tuple[Tensor, Outcome]:
    """One autograd function over the solver, or the solver alone where no derivative is asked for."""
    if not (torch.is_grad_enabled() and any(part.requires_grad for part in flat)):
        found = find_in_box(flat, rounding)
        return found.y, found
    y, *rest = _Projection.apply(*flat, rounding, tangent)  # pyright: ignore[reportGeneralTypeIssues]
    return y, Outcome(y.detach(), *rest)


def _traced(flat: BoxedBatch, rounding: float, tangent: bool) -> tuple[Tensor, Outcome]:
    """The solver on detached numbers, and the bits of its answer with the derivative of a smooth formula."""
    with torch.no_grad():
        found = solve(*(part.detach() for part in flat), rounding=rounding)
    recorded = torch.is_grad_enabled() and any(part.requires_grad for part in flat)
    if not (recorded or mode() in ("func", "forward")):
        return found.y, found
    if not tangent:
        return keep_value(differentiable(flat, found), found.y), found
    refuse_forward_tangent()
    smooth = differentiable((flat[0].detach(), *flat[1:]), found)
    passed = Tangent.apply(flat[0], flat[1].detach(), found.place, found.side, found.status)
    return keep_value(smooth + passed, found.y), found  # pyright: ignore[reportOperatorIssue]


def _answer_bad_samples(
    y: Tensor, status: Tensor, dual: Tensor, residual: Tensor, given: Given, on_infeasible: str, on_invalid: str
) -> Tensor:
    """Raise, warn or compromise where the options ask for it and a look is possible; y has NaN for bad samples."""
    free = may_look(y)
    named = on_infeasible in ("raise", "nearest")
    if not (free or named) or not bool(((status != int(Status.SOLVED)) | (residual > PROVED)).any()):
        return y
    if free and on_invalid == "raise":
        raise_bad_box(*given, status == int(Status.INVALID))
    empty = status == int(Status.INFEASIBLE)
    if on_infeasible in ("auto", "raise"):
        raise_infeasible(empty, dual, "the box and")
    if free:
        warn_not_converged(not_proved(status, residual), residual)
    return _compromise(y, empty, given) if on_infeasible == "nearest" and bool(empty.any()) else y


def _compromise(y: Tensor, empty: Tensor, given: Given) -> Tensor:
    """Empty sets as n + k dense rows, whose projection knows the compromise."""
    raw, A, lower, upper, low, high = given
    batch, n = y.shape[:-1], y.shape[-1]
    eye = torch.eye(n, dtype=raw.dtype, device=raw.device)
    take = lambda part, core: part.expand(*batch, *part.shape[-core:])[empty]
    dense = torch.cat([take(A, 2), take(eye, 2)], dim=-2)
    bound = lambda part, size, absent: take(raw.new_full((size,), absent) if part is None else part, 1)
    least = torch.cat([bound(lower, A.shape[-2], -torch.inf), bound(low, n, -torch.inf)], dim=-1)
    most = torch.cat([bound(upper, A.shape[-2], torch.inf), bound(high, n, torch.inf)], dim=-1)
    nearest = project_affine(take(raw, 1), dense, least, most, on_infeasible="nearest")
    return torch.where(empty.unsqueeze(-1), torch.zeros_like(y).masked_scatter(empty.unsqueeze(-1), nearest), y)


def find_in_box(flat: BoxedBatch, rounding: float) -> Outcome:
    """By a kernel where one takes the batch, else in plain torch; what is left open is settled where a look is free."""
    backend = next((backend for backend in (cpu, gpu) if backend.takes_box(flat)), None)
    found = solve(*flat, rounding=rounding) if backend is None else Outcome(*backend.nearest_in_box(flat, rounding))
    if not (may_look(flat[0]) and plain(*flat)) or not bool((found.status == int(Status.NOT_CONVERGED)).any()):
        return found
    return settle(found, flat, rounding, by_kernel=backend is not None)


class _Projection(torch.autograd.Function):
    """y and, without derivative, the rest of the `Outcome`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Solve; keep what the derivative reads."""
        flat, (rounding, tangent) = inputs[:6], inputs[6:]
        found = find_in_box(flat, rounding)
        ctx.tangent = tangent
        ctx.save_for_backward(*flat, *found)
        ctx.mark_non_differentiable(*found[1:])
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The implicit derivative; where it is differentiated again, that of the smooth formula."""
        if grads[0] is None:
            return (None,) * 8
        inputs, found = ctx.saved_tensors[:6], Outcome(*ctx.saved_tensors[6:])
        if torch.is_grad_enabled():
            return *differentiate_again(grads[0], inputs, found, ctx.tangent), None, None
        passed = cotangents(grads[0], inputs, found, tangent=ctx.tangent)
        return *deliver(passed, grads[0], inputs, found, ctx.needs_input_grad, ctx.tangent), None, None
