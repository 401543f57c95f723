"""The nearest point of a polyhedron: which solver takes which rows, and the fixed program for few rows.

box alone                       clamp                         `functional.elementary`
up to 4 rows, box included      a fixed program               here, by kernels or `functional.nearest_formulas`
box and rows                    in the rows' multipliers      `functional.box_rows`: up to 8 rows, more by a kernel
anything else                   the general solver            `functional.polyhedron`

For few rows, with J the active ones (those with a multiplier, and every equality) and g the cotangent of y,

    w = (A_J A_J')^-1 A_J g,   u = g - A_J' w:     raw receives u,  A_J  -dual u' - w y',  the active bounds w.

A row that touches y with a zero multiplier is not in J, which agrees with relu'(0) = 0. Where rows depend on each
other, the later ones are dropped: their multiplier and w are zero. Each bound of an equality receives half of w.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.functional import box_rows, nearest_formulas, polyhedron
from hardnet.functional.derivatives import keep_value
from hardnet.functional.elementary import project_box
from hardnet.functional.metric import take_metric
from hardnet.functional.nearest_formulas import Nearest
from hardnet.functional.strict import refuse_half_precision
from hardnet.kernels.backends import find
from hardnet.modes import full_precision, narrow, refuse_forward_tangent
from hardnet.nearest import derivative
from hardnet.nearest.derivative import Found, Route
from hardnet.nearest.policy import Gradient, OnInfeasible, OnInvalid, OnUnsolved, Policy
from hardnet.products import times
from hardnet.rows import Batch, take_rows
from hardnet.solvers.polyhedron.shared_rows import SharedRows
from hardnet.structure import MOST_FEW_ROWS, BoxedRows


@full_precision
def project_rows(raw: Tensor, rows: BoxedRows, given: Policy | None = None, **options: Any) -> Tensor:
    """``argmin |y - raw|`` over the polyhedron, by the solver from the table at the head of this file.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron.
        given: The options of `project_affine` as a record.
        **options: The same by name.
    """
    policy = (Policy(**options) if given is None else given).checked()
    as_rows = rows.boxed and (policy.metric is not None or policy.shared is not None)  # neither supports a box
    return _project(raw, rows.dense() if as_rows else rows[:5], policy)


def _project(raw: Tensor, numbers: tuple[Any, ...], policy: Policy, most_few: int = MOST_FEW_ROWS) -> Tensor:
    """The same for A, lower and upper, and with bounds of the outputs where there are some."""
    if policy.strict:
        refuse_half_precision(raw.dtype)
    A, lower, upper, *box = numbers
    rows = take_rows(raw, A, lower, upper, None, *box)
    m, n = A.shape[-2:]
    boxed = rows.box_lower is not None or rows.box_upper is not None
    if boxed and (m == 0 or 0 in rows.shape):
        y = project_box(raw, *box, on_invalid=policy.on_invalid)
        return y.expand(*rows.shape, n)
    if boxed and not box_rows.takes(rows, policy):
        rows, boxed = rows.dense(), False
    if policy.metric is not None:
        policy = policy._replace(metric=take_metric(policy.metric, raw, rows))
    few = 0 < m + n * boxed <= most_few and policy.metric is None and not policy.strict
    if boxed:
        y = (_few_in_box if few else box_rows.project)(rows, policy)
    else:
        y = (project if few else polyhedron.project)(rows, policy)
    return y if rows.raw is raw else narrow(rows.as_given(y), raw.dtype, policy.on_invalid)


def project(rows: Batch, policy: Policy) -> Tensor:
    """The nearest points ``(B, n)`` for a record of few rows, in the dtype of its raw.

    Computed by the fixed program. Where reading values is free, or an option requires it, the general solver takes the
    samples that the fixed program did not solve.
    """
    if not rows.memory and policy.asks:  # that solver refuses, or leaves the compiled graph
        return polyhedron.project(rows, policy)
    if rows.trivial:
        return rows.raw
    y = answer(rows, policy.gradient)
    if not (rows.look or policy.asks):  # unsolved samples stay NaN
        return _or_last(y, rows, policy) if policy.on_unsolved == "best" else y
    bad = y.detach()[:, :1].isnan()
    if not bool(bad.any()):
        return bits_of_raw(y, rows)
    known = bits_of_raw(y, rows), ~bad.squeeze(-1)
    return polyhedron.project(rows, policy._replace(gradient="exact"), known)


def _or_last(y: Tensor, rows: Batch, policy: Policy) -> Tensor:
    """The last point of the general program for the samples that the fixed program of few rows left open."""
    return torch.where(y.detach()[:, :1].isnan(), polyhedron.project(rows, policy), y)


def _few_in_box(rows: Batch, policy: Policy) -> Tensor:
    """The same for a box whose n coordinates and k rows are together at most 4 rows; y is exactly inside the box.

    The fixed program puts a coordinate on its bound up to rounding, and a clamp removes that rounding. Where the clamp
    moves y by more (nearly dependent rows, raw far away), `hardnet.functional.box_rows` solves the sample, or it is NaN
    if no value may be read.
    """
    dense, recorded = rows.dense(), not rows.memory
    y = polyhedron.project(dense, policy) if recorded and policy.asks else answer(dense, policy.gradient)
    y = bits_of_raw(y, dense) if rows.look else y
    point = y.detach()
    held = point if rows.box_lower is None else torch.maximum(point, rows.box_lower.detach())
    held = held if rows.box_upper is None else torch.minimum(held, rows.box_upper.detach())
    limit = MOST_CLAMPED * torch.finfo(point.dtype).eps * held.abs().amax(-1)
    bad = ~((held - point).abs().amax(-1) <= limit)
    y = keep_value(y, held)
    if not rows.look and (recorded or not policy.asks):
        y = torch.where(bad.unsqueeze(-1), torch.nan, y)
        if policy.on_unsolved != "best":
            return y
        return torch.where(bad.unsqueeze(-1), box_rows.project(rows, policy), y)
    return box_rows.project(rows, policy, (y, ~bad)) if bool(bad.any()) else y


MOST_CLAMPED = 4.0
"""How far a clamp may move the point that the fixed program found, in roundings of the largest output."""


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
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    shared: SharedRows | None = None,
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, differentiable in all four arguments.

    The rows may be of any number, even more than n, dependent, duplicated, redundant or equalities (lower == upper),
    in any units. The solver works in float64 whatever the dtype. A raw output inside the set (to rounding) is returned
    bit for bit, a row that bounds one output (a row of the identity) holds exactly, and a sample's answer does not
    depend on the other samples of the batch. A sample whose answer satisfies the rows but could not be proved to be the
    nearest point, for example with equalities that nearly coincide, is FEASIBLE: returned, with a `NotConvergedWarning`
    where values may be read.

    On CUDA and under torch.compile, torch.export and torch.func no value is read, and the solver is a fixed program.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or a number for all rows; None is -inf.
        upper: Like `lower`; None is +inf.
        metric: W of ``min (y - raw)'W(y - raw)``: positive ``(n,)`` or ``(*batch, n)``, or positive definite
            ``(n, n)`` or ``(*batch, n, n)``; it has a gradient too. None is the identity.
        gradient: ``"exact"``, or ``"tangent"``: raw also receives ``w_i a_i`` from an inequality row that it violates,
            if that pulls it back inside.
        strict: Whether inequalities must hold in exact arithmetic for the numbers returned, which moves them a few
            roundings inward.
        on_infeasible: What to do with an empty set. ``"raise"``: raise an `InfeasibleError` with the rows that
            contradict each other; this reads the answer. ``"nearest"``: return the compromise with the least sum of
            squared distances to the rows. ``"nan"``: return NaN for that sample alone. ``"auto"``: raise in eager mode
            on a CPU, else NaN.
        on_unsolved: What to do with a sample that is neither solved nor proved empty. ``"raise"``: raise a
            `ConvergenceError` that names the samples and carries the `.solution` of the whole batch; this reads the
            answer. ``"nan"``: return NaN for that sample alone. ``"best"``: return the last point, which may be outside
            the set; its gradient is zero. ``"auto"``: raise in eager mode on a CPU, else NaN.
        on_invalid: What to do with NaN, an infinite A or raw, or lower > upper: ``"raise"`` an error where values may
            be read, or return ``"nan"`` for that sample alone.
        shared: The result of `prepare_rows` for this A, if A is constant; by default it is computed at each call where
            that pays off.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients.
    """
    options: Any = {"metric": metric, "gradient": gradient, "strict": strict, "shared": shared}
    options |= {"on_infeasible": on_infeasible, "on_unsolved": on_unsolved, "on_invalid": on_invalid}
    return _project(raw, (A, lower, upper), Policy(**options).checked())


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
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
) -> Tensor:
    """``argmin |y - raw|  s.t.  lower <= A y <= upper,  box_lower <= y <= box_upper``, differentiable in all six.

    Every coordinate is exactly inside the box, and rows hold to rounding. A raw output inside the set is returned bit
    for bit, and a sample's answer does not depend on the other samples of the batch. The solver works in float64
    whatever the dtype.

    Args:
        raw: ``(*batch, n)``.
        A: ``(k, n)`` or ``(*batch, k, n)``; dependent and redundant rows are allowed.
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
        on_unsolved: What to do with a sample that is not solved: as in `project_affine`.
        on_invalid: What to do with NaN, an infinite A or raw, or lower > upper on a CPU in eager mode: ``"raise"`` an
            error, or return ``"nan"`` for that sample alone.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients.
    """
    policy = Policy(on_infeasible, on_unsolved, on_invalid, gradient, strict)
    return _project(raw, (A, lower, upper, box_lower, box_upper), policy.checked(), most_few=0)


def bits_of_raw(y: Tensor, rows: Batch) -> Tensor:
    """Y ``(B, n)``, with the bits of raw for samples whose raw already satisfies all rows to rounding; reads values.

    Only sets with an equality need this. The derivative stays the one of y, which moves along the equalities.
    """
    if rows.lower is None or rows.upper is None or not bool((rows.lower == rows.upper).any()):
        return y
    return torch.where(_holds(rows), keep_value(y, rows.raw), y)


def _holds(rows: Batch) -> Tensor:
    """Whether every row holds at raw up to rounding of its terms ``sum |a_j raw_j| + |bound|``: ``(B, 1)``."""
    point, A, low, high = (part.detach().double() for part in rows[:4] if part is not None)
    product = times(A, point)
    target = product.clamp(low, high)
    terms = times(A.abs(), point.abs()) + target.abs()
    rounding = 4 * torch.finfo(rows.raw.dtype).eps
    return ((product - target).abs() <= rounding * terms).all(-1, keepdim=True) & terms.isfinite().all(-1, keepdim=True)


def fixed_program(rows: Batch, gradient: str) -> Nearest:
    """The nearest point by a kernel if one takes these rows, else by the formulas; no value is read."""
    kernel = find("few_rows", rows)
    if kernel is None:
        return nearest_formulas.nearest(*rows.numbers, _tangent(gradient, rows))
    return by_kernel(rows, gradient == "tangent", kernel)


def answer(rows: Batch, gradient: str) -> Tensor:
    """Only y of `fixed_program`, NaN for samples that are not solved."""
    kernel = find("few_rows", rows)
    if kernel is not None:
        return by_kernel(rows, gradient == "tangent", kernel).y if rows.learned else kernel.answer(rows)
    if rows.learned or not rows.memory:
        return nearest_formulas.nearest(*rows.numbers, _tangent(gradient, rows)).y
    with torch.inference_mode():  # hundreds of operations, each a fifth faster without version counters
        y = nearest_formulas.nearest(*rows.numbers).y
    return y.clone()


def _tangent(gradient: str, rows: Batch) -> bool:
    """Whether the formulas pass the tangent gradient to raw; never in an exported graph, which has no gradient."""
    if gradient == "tangent":
        refuse_forward_tangent()
    return gradient == "tangent" and rows.mode != "export"


def by_kernel(rows: Batch, tangent: bool, kernel: Any) -> Nearest:
    """The same as `nearest_formulas.nearest`, for rows that the kernel takes: one launch each for forward and backward.

    Args:
        rows: The record of the call.
        tangent: Whether raw also receives the gradient that would pull it inside.
        kernel: The operation of a backend, with `forward` and `backward`.
    """

    def find(rows: Batch) -> Found:
        y, dual, status, residual = kernel.forward(rows)
        return Found(y, dual, None, None, status, residual)

    def product(grad: Tensor, rows: Batch, found: Found, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        _, _, lower, upper = rows.numbers
        parts = (found.y, found.dual, found.status)
        raw, A, *bounds = kernel.backward(grad, rows, parts, needed[1], tangent)
        sums = (
            part.sum(0) if wanted and bound is not None and bound.dim() == 1 else part if wanted else None
            for part, bound, wanted in zip(bounds, (lower, upper), needed[2:4], strict=True)
        )
        return raw, A, *sums, None, None

    found = derivative.nearest(Route(find, product, tangent), rows)
    return Nearest(found.y, found.dual, found.status.to(torch.int8), found.residual)
