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
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hardnet.functional import nearest_formulas, polyhedron
from hardnet.functional.box_rows import project_box_rows
from hardnet.functional.derivatives import keep_value
from hardnet.functional.nearest_formulas import Nearest
from hardnet.functional.samples import CHOICES, Gradient, Infeasible, Policy, check_options
from hardnet.kernels.cpu import launch as cpu
from hardnet.kernels.gpu import nearest as gpu
from hardnet.modes import HALF, full_precision, may_look, mode, narrow, plain, refuse_forward_tangent
from hardnet.products import times
from hardnet.rows import MOST_FEW_ROWS, Batch, BoxedRows, Structure, take_rows
from hardnet.solvers.polyhedron.shared_factor import SharedRows


@full_precision
def project_few(
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
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` for up to 4 rows; arguments as in `project_affine`.

    The fixed program; where a look is free, or asked for, the general solver settles the samples that it left open. It
    also takes what the program does not have: a metric, and rows that hold in exact arithmetic.
    """
    policies: Any = {"on_infeasible": on_infeasible, "on_invalid": on_invalid}
    if metric is not None or strict:
        policies |= {"metric": metric, "strict": strict, "shared": shared}
        return polyhedron.project_affine(raw, A, lower, upper, gradient=gradient, **policies)
    rows = take_rows(raw, A, lower, upper)
    if not rows.memory and on_infeasible in ("raise", "nearest"):  # refused, or outside the graph
        return polyhedron.project_affine(raw, A, lower, upper, gradient=gradient, **policies)
    given = policies | {"gradient": gradient}
    if any(value not in CHOICES[name] for name, value in given.items()):
        check_options(**given)
    if rows.trivial:
        return raw.expand(*rows.shape, raw.shape[-1])
    look = may_look(raw) or on_infeasible in ("raise", "nearest")
    if not look and not rows.learned and gpu.takes(rows):
        return _as_given(gpu.answer(rows), raw, rows, on_invalid)
    found = answer(rows, gradient)
    y = _as_given(bits_of_raw(found, rows) if look else found, raw, rows, on_invalid)
    if not look:  # NaN where it is not solved
        return y
    bad = found.detach()[:, :1].isnan()
    if not bool(bad.any()):
        return y
    settled = polyhedron.project_affine(raw, A, lower, upper, **policies)
    return torch.where(bad.reshape(*rows.shape, 1), settled, y)


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
    box = BoxedRows(A, lower, upper, box_lower, box_upper)
    y = project_few(raw, *box.dense(), **options)
    point = y.detach()
    held = point if box_lower is None else torch.maximum(point, box_lower.detach().to(point.dtype))
    held = held if box_upper is None else torch.minimum(held, box_upper.detach().to(point.dtype))
    limit = MOST_CLAMPED * torch.finfo(point.dtype).eps * held.abs().amax(-1)
    moved = ((held - point).abs().amax(-1) > limit).unsqueeze(-1)
    inside = keep_value(y, held)
    if not may_look(raw):
        return torch.where(moved, torch.nan, inside)
    return torch.where(moved, project_box_rows(raw, *box[:5], **options), inside) if bool(moved.any()) else inside


MOST_CLAMPED = 4.0
"""Roundings of the largest output by which a clamp may move what the fixed program found."""
PROJECTIONS: dict[Structure, Callable[..., Tensor]] = {
    "few rows in a box": project_few_in_box,
    "box and few rows": project_box_rows,
    "few rows": project_few,
    "rows": polyhedron.project_affine,
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
    """``argmin |y - raw|  subject to  lower <= A y <= upper``: see `hardnet.functional.polyhedron.project_affine`."""
    options: Any = {"metric": metric, "gradient": gradient, "strict": strict, "shared": shared}
    options |= {"on_infeasible": on_infeasible, "on_invalid": on_invalid}
    few = isinstance(A, Tensor) and A.dim() >= 2 and 0 < A.shape[-2] <= MOST_FEW_ROWS
    return PROJECTIONS["few rows" if few else "rows"](raw, A, lower, upper, **options)


def _as_given(y: Tensor, raw: Tensor, rows: Batch, on_invalid: str) -> Tensor:
    """Y in the shape and the dtype of raw."""
    if rows.raw is raw:
        return y
    y = y.reshape(*rows.shape, raw.shape[-1])
    return narrow(y, raw.dtype, on_invalid) if raw.dtype in HALF else y


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
    for backend in (cpu, gpu):
        if backend.takes(rows):
            return by_kernel(rows, gradient == "tangent", backend)
    return nearest_formulas.nearest(*rows[:4], _tangent(gradient))


def answer(rows: Batch, gradient: str) -> Tensor:
    """Y of `fixed_program` alone, NaN where it is not solved."""
    if cpu.takes(rows) or gpu.takes(rows):
        return fixed_program(rows, gradient).y
    if rows.learned or not rows.memory:
        return nearest_formulas.nearest(*rows[:4], _tangent(gradient)).y
    with torch.inference_mode():  # hundreds of operations, each of which takes a fifth less without a version to keep
        y = nearest_formulas.nearest(*rows[:4]).y
    return y.clone()


def _tangent(gradient: str) -> bool:
    """Whether the formulas let more through to raw than the derivative: not in a graph that has none."""
    if gradient == "tangent":
        refuse_forward_tangent()
    return gradient == "tangent" and mode() != "export"


def by_kernel(rows: Batch, tangent: bool, backend: ModuleType) -> Nearest:
    """The same as `nearest_formulas.nearest`, for rows that the backend takes: one pass each way.

    Args:
        rows: The record of the call.
        tangent: Whether raw gets back what would pull it inside.
        backend: A module with `forward` and `backward`.
    """
    if rows.learned:
        y, dual, status, residual = NearestByKernel.apply(*rows[:4], tangent, backend)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        y, dual, status, residual = backend.forward(rows)
    return Nearest(y, dual, status.to(torch.int8), residual)


class NearestByKernel(torch.autograd.Function):
    """y, and without derivative dual, status and residual; keeps them beside the inputs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """One pass; what differentiates or maps the gradient goes through the formulas."""
        *numbers, ctx.tangent, ctx.backend = inputs
        y, dual, status, residual = ctx.backend.forward(Batch(*numbers))
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
        grads = ctx.backend.backward(gradient, Batch(raw, A, lower, upper), tuple(found), needs[1], ctx.tangent)
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
