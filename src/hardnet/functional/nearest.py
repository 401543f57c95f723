"""The nearest point of a polyhedron: which solver takes which structure, and the fixed program for few rows.

box alone                       clamp                         `functional.elementary`
up to 4 rows, box included      a fixed program               here, by kernels or `functional.nearest_formulas`
box and up to 8 rows            in the rows' multipliers      `functional.box_rows`
constant rows, many of them     with shared factors           `solvers.polyhedron.shared_rows`
anything else                   the general solver            `functional.polyhedron`

For few rows, with J the active ones (those with a multiplier, and every equality) and g the cotangent of y,

    w = (A_J A_J')^-1 A_J g,   u = g - A_J' w:     raw receives u,  A_J  -dual u' - w y',  the active bounds w.

A row that touches y without a multiplier is not in J, which agrees with relu'(0) = 0; where rows depend on each other
the later ones give way, and their multiplier and w are zero. An equality gives half of w to each of its bounds.

Called by `hardnet.functional.relaxed`, `hardnet.layers.projection` and others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hardnet.functional import box_rows, nearest_formulas, polyhedron
from hardnet.functional.derivatives import keep_value
from hardnet.functional.nearest_formulas import Nearest
from hardnet.functional.samples import ASKING, VALID, Gradient, Infeasible, Options, Policy, refuse_options
from hardnet.functional.strict import refuse_half_precision
from hardnet.kernels.backends import find
from hardnet.modes import HALF, full_precision, narrow, plain, refuse_forward_tangent
from hardnet.products import times
from hardnet.rows import Batch, take_rows
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.structure import MOST_FEW_ROWS, BoxedRows, Structure


@full_precision
def project_few(
    raw: Tensor, A: Tensor, lower: Tensor | float | None = None, upper: Tensor | float | None = None, **options: Any
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` for up to 4 rows; arguments as in `project_affine`."""
    chosen = Options(**options)
    if chosen[:3] not in VALID:
        refuse_options(chosen)
    if chosen.metric is not None or chosen.strict:  # which the fixed program does not have
        return polyhedron.project_any(raw, A, lower, upper, **options)
    rows = take_rows(raw, A, lower, upper)
    y = project(rows, chosen)
    if rows.raw is raw:
        return y
    y = rows.as_given(y)
    return narrow(y, raw.dtype, chosen.on_invalid) if raw.dtype in HALF else y


def project(rows: Batch, options: Options) -> Tensor:
    """The nearest points ``(B, n)`` of a record of few rows, in the dtype of its raw.

    By the fixed program; where a look is free, or asked for, the general solver settles the samples that it left open.
    """
    if not rows.memory and options.on_infeasible in ASKING:  # refused, or outside the graph
        return polyhedron.project(rows, options)
    if rows.trivial:
        return rows.raw
    if not (rows.look or options.on_infeasible in ASKING):  # NaN where it is not solved
        return answer(rows, options.gradient)
    found = answer(rows, options.gradient)
    y, bad = bits_of_raw(found, rows), found.detach()[:, :1].isnan()
    if not bool(bad.any()):
        return y
    return torch.where(bad, polyhedron.project(rows, options._replace(gradient="exact")), y)


@full_precision
def project_few_in_box(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    box_lower: Tensor | None,
    box_upper: Tensor | None,
    **options: Any,
) -> Tensor:
    """The same for a box whose n coordinates and k rows are 4 rows at most; exactly inside the box.

    The fixed program has a coordinate at its bound to rounding, and a clamp the rest. Where that is more than rounding
    (rows that nearly depend on each other, raws far away) the multipliers of the rows decide, or NaN without a look.
    """
    rows, chosen = take_rows(raw, A, lower, upper, None, box_lower, box_upper), Options(**options)
    if chosen[:3] not in VALID:
        refuse_options(chosen)
    if chosen.strict:
        refuse_half_precision(raw.dtype)
    if 0 in rows.shape:
        return raw.expand(*rows.shape, raw.shape[-1])
    y = (polyhedron.project if chosen.strict else project)(rows.dense(), chosen)
    point = y.detach()
    held = point if rows.box_lower is None else torch.maximum(point, rows.box_lower.detach())
    held = held if rows.box_upper is None else torch.minimum(held, rows.box_upper.detach())
    limit = MOST_CLAMPED * torch.finfo(point.dtype).eps * held.abs().amax(-1)
    moved = ((held - point).abs().amax(-1) > limit).unsqueeze(-1)
    y = keep_value(y, held)
    if not rows.look:
        y = torch.where(moved, torch.nan, y)
    elif bool(moved.any()):
        y = torch.where(moved, box_rows.project(rows, chosen), y)
    return narrow(rows.as_given(y), raw.dtype, chosen.on_invalid)


MOST_CLAMPED = 4.0
"""Roundings of the largest output by which a clamp may move what the fixed program found."""
PROJECTIONS: dict[Structure, Callable[..., Tensor]] = {
    "few rows in a box": project_few_in_box,
    "box and few rows": box_rows.project_box_rows,
    "few rows": project_few,
    "rows": polyhedron.project_any,
}
"""Who projects onto rows of each structure; all take the options of `project_affine`, a box no `metric`."""


def project_rows(raw: Tensor, rows: BoxedRows, **options: Any) -> Tensor:
    """``argmin |y - raw|`` over the polyhedron, by the table at the head of this file.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron.
        **options: Those of `project_affine`.
    """
    if options.get("metric") is not None:
        return project_affine(raw, *rows.dense(), **options)
    known = {name: value for name, value in options.items() if name != "metric"}
    structure, numbers = rows.classify()
    return PROJECTIONS[structure](raw, *numbers, **known)


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
    options: Any = {"metric": metric, "gradient": gradient, "strict": strict, "shared": shared}
    options |= {"on_infeasible": on_infeasible, "on_invalid": on_invalid}
    few = isinstance(A, Tensor) and A.dim() >= 2 and 0 < A.shape[-2] <= MOST_FEW_ROWS
    return PROJECTIONS["few rows" if few else "rows"](raw, A, lower, upper, **options)


def bits_of_raw(y: Tensor, rows: Batch) -> Tensor:
    """Y ``(B, n)`` as raw itself where that already holds its equalities to rounding; looks at values.

    The derivative stays that of y, which moves along the equalities.
    """
    if rows.lower is None or rows.upper is None or not bool((rows.lower == rows.upper).any()):
        return y
    return torch.where(_holds(rows), keep_value(y, rows.raw), y)


def _holds(rows: Batch) -> Tensor:
    """Whether every row holds at raw to rounding of its terms ``sum |a_j raw_j| + |bound|``: ``(B, 1)``."""
    point, A, low, high = (part.detach().double() for part in rows[:4] if part is not None)
    product = times(A, point)
    target = product.clamp(low, high)
    terms = times(A.abs(), point.abs()) + target.abs()
    rounding = 4 * torch.finfo(rows.raw.dtype).eps
    return ((product - target).abs() <= rounding * terms).all(-1, keepdim=True) & terms.isfinite().all(-1, keepdim=True)


def fixed_program(rows: Batch, gradient: str) -> Nearest:
    """The nearest point by kernels where they take these rows, else by the formulas; no look at any value."""
    kernel = find("few_rows", rows)
    if kernel is None:
        return nearest_formulas.nearest(*rows.numbers, _tangent(gradient, rows))
    return by_kernel(rows, gradient == "tangent", kernel)


def answer(rows: Batch, gradient: str) -> Tensor:
    """Y of `fixed_program` alone, NaN where it is not solved."""
    kernel = find("few_rows", rows)
    if kernel is not None:
        return by_kernel(rows, gradient == "tangent", kernel).y if rows.learned else kernel.answer(rows)
    if rows.learned or not rows.memory:
        return nearest_formulas.nearest(*rows.numbers, _tangent(gradient, rows)).y
    with torch.inference_mode():  # hundreds of operations, each of which takes a fifth less without a version to keep
        y = nearest_formulas.nearest(*rows.numbers).y
    return y.clone()


def _tangent(gradient: str, rows: Batch) -> bool:
    """Whether the formulas let more through to raw than the derivative: not in a graph that has none."""
    if gradient == "tangent":
        refuse_forward_tangent()
    return gradient == "tangent" and rows.mode != "export"


def by_kernel(rows: Batch, tangent: bool, kernel: Any) -> Nearest:
    """The same as `nearest_formulas.nearest`, for rows that the kernel takes: one pass each way.

    Args:
        rows: The record of the call.
        tangent: Whether raw gets back what would pull it inside.
        kernel: The operation of a backend, with `forward` and `backward`.
    """
    if rows.learned:
        y, dual, status, residual = NearestByKernel.apply(*rows.numbers, tangent, kernel)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        y, dual, status, residual = kernel.forward(rows)
    return Nearest(y, dual, status.to(torch.int8), residual)


class NearestByKernel(torch.autograd.Function):
    """y, and without derivative dual, status and residual; keeps them beside the inputs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """One pass; what differentiates or maps the gradient goes through the formulas."""
        *numbers, ctx.tangent, ctx.kernel = inputs
        y, dual, status, residual = ctx.kernel.forward(Batch(*numbers))
        ctx.save_for_backward(*numbers, y, dual, status)
        ctx.mark_non_differentiable(dual, status, residual)
        ctx.set_materialize_grads(False)
        return y, dual, status, residual

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper, which may themselves be differentiated or mapped."""
        raw, A, lower, upper, *found = ctx.saved_tensors
        gradient, needs = gradients[0], ctx.needs_input_grad
        if gradient is None:
            return (None,) * 6
        if torch.is_grad_enabled() or not plain(gradient):
            return *_through_formulas(gradient, (raw, A, lower, upper), needs, ctx.tangent), None, None
        grads = ctx.kernel.backward(gradient, Batch(raw, A, lower, upper), tuple(found), needs[1], ctx.tangent)
        bounds = (
            grad.sum(0) if needed and bound.dim() == 1 else grad if needed else None
            for grad, bound, needed in zip(grads[2:], (lower, upper), needs[2:4], strict=True)
        )
        return grads[0], grads[1], *bounds, None, None


def _through_formulas(
    gradient: Tensor, inputs: tuple[Tensor | None, ...], needs: tuple[bool, ...], tangent: bool
) -> tuple[Tensor | None, ...]:
    """The gradients by differentiating the plain formulas, with a graph of their own if one is asked for."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        parts = [
            part if again or part is None else part.detach().requires_grad_(needed)
            for part, needed in zip(inputs, needs, strict=False)
        ]
        raw, A, lower, upper = parts
        y = nearest_formulas.nearest(raw, A, lower, upper, tangent).y  # pyright: ignore[reportArgumentType]
        wanted = [part for part, needed in zip(parts, needs, strict=False) if part is not None and needed]
        found = iter(torch.autograd.grad(y, wanted, gradient, create_graph=again))  # pyright: ignore[reportArgumentType]
    return tuple(
        next(found) if part is not None and needed else None for part, needed in zip(parts, needs, strict=False)
    )
