"""Points of ``lower <= g(y, x) <= upper`` beside affine rows: the nearest or a near one, with its derivative.

Called by `hardnet.sets.nonlinear`, `hardnet.sets.scaled` and others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hardnet.errors import (
    ConvergenceError,
    DTypeError,
    InfeasibleError,
    NonFiniteError,
    SampleError,
    ShapeError,
    in_samples,
    sample_indices,
    sentence,
)
from hardnet.functional.nonlinear_gradient import Call, NonlinearProjection
from hardnet.modes import full_precision, may_look, outside_compiler, refuse_transforms
from hardnet.rows import BoxedRows
from hardnet.solvers.nonlinear_iterate import Mode
from hardnet.solvers.nonlinear_rows import Function, Input, require_differentiable
from hardnet.solvers.nonlinear_rows import jacobian as differentiate
from hardnet.solvers.nonlinear_status import NonlinearSolution, NonlinearStatus

OnFailure = Literal["raise", "nan", "best", "raw"]
FAILURES: dict[NonlinearStatus, tuple[type[SampleError], str]] = {
    NonlinearStatus.INVALID: (
        NonFiniteError,
        "expected finite numbers in raw, x, bounds and g at some point around raw, and lower <= upper, got others",
    ),
    NonlinearStatus.INFEASIBLE_LOCAL: (
        InfeasibleError,
        "expected rows that some point near satisfies, got a violation that no small move reduces",
    ),
    NonlinearStatus.NOT_CONVERGED: (ConvergenceError, "expected rows that can be met to tol, got no convergence"),
}
"""The statuses of samples whose rows do not hold, with their errors."""
REMEDY = "start nearer (start=), or choose on_failure='nan', 'best' or 'raw'"


def call(function: Callable[..., Any] | nn.Module, y: Tensor, x: Any) -> Any:
    """``function(y, x)``, with the parameters and buffers of a module in the dtype of y."""
    if isinstance(function, nn.Module):
        own = [*function.named_parameters(), *function.named_buffers()]
        moved = {name: value.to(y.dtype) for name, value in own if value.is_floating_point() and value.dtype != y.dtype}
        if moved:
            return torch.func.functional_call(function, moved, (y, x))
    try:
        return function(y, x)
    except RuntimeError as error:
        if "dtype" not in str(error):
            raise
        remedy = "write its tensors as A.to(y), or make it a module, whose parameters follow by themselves"
        raise DTypeError(sentence("g", f"a function that follows the dtype of y, {y.dtype}", error, remedy)) from None


def jacobian_of(function: Function, derivative: Function | None, y: Tensor, x: Any) -> Tensor:
    """``d function / d y``, ``(*batch, m, n)``, for samples that do not depend on each other; without a graph."""
    if derivative is not None:
        with torch.no_grad():
            return derivative(y, x)
    return differentiate(function, y, x)


@outside_compiler
def project_nonlinear(
    raw: Tensor,
    g: Function,
    x: Any = None,
    *,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    rows: BoxedRows | None = None,
    jacobian: Function | None = None,
    mode: Mode = "nearest",
    gradient: Literal["exact", "projector"] = "exact",
    tol: float = 1e-10,
    start: Tensor | None = None,
    on_failure: OnFailure = "raise",
    iterations: int | None = None,
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= g(y, x) <= upper`` and affine rows: a KKT point, differentiable.

    The derivative is that of the KKT system with the Hessian of the Lagrangian, to raw, to the bounds, to x, to A, and
    to every tensor that g holds and that asks for one; it may be differentiated again. `solve_nonlinear` has the status
    of each sample.

    Args:
        raw: ``(*batch, n)``.
        g: ``(y, x) -> (*batch, m)``; it must treat samples apart, and is called in float64.
        x: The input of g: tensors with the batch in front, in any structure; others are shared by all samples.
        lower: ``(m,)``, ``(*batch, m)`` or a number; None is -inf.
        upper: Like `lower`.
        rows: Affine rows and a box, which hold too.
        jacobian: ``(y, x) -> (*batch, m, n)``; by default g is differentiated.
        mode: ``"nearest"``, or ``"retract"``: a feasible point by Gauss-Newton steps, cheaper and farther.
        gradient: ``"exact"``, or ``"projector"``: the projection onto the tangent space, without the curvature. A
            retraction has only the second.
        tol: Violation that is allowed, relative to the scale of each row.
        start: Where the iteration starts, ``(*batch, n)``; by default at raw.
        on_failure: For samples whose rows do not hold: ``"raise"`` an error that names them, ``"nan"``, ``"best"`` the
            least violated finite point found (NaN where there is none: INVALID), ``"raw"``.
        iterations: None: until each sample has ended. A number: that many passes whatever the values, so that a CUDA
            graph can capture it, forward and backward; there ``"raise"`` is ``"nan"``.
    """
    if mode == "retract":
        gradient = "projector"
    y, found = _project(
        raw,
        g,
        x,
        lower=lower,
        upper=upper,
        rows=rows,
        jacobian=jacobian,
        mode=mode,
        gradient=gradient,
        tol=tol,
        start=start,
        iterations=iterations,
        tight=_known_tight(lower, upper, rows),
    )
    return apply_policy(y, raw, found, policy_for(on_failure, iterations, raw))


@outside_compiler
def solve_nonlinear(
    raw: Tensor,
    g: Function,
    x: Any = None,
    *,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    rows: BoxedRows | None = None,
    jacobian: Function | None = None,
    mode: Mode = "nearest",
    tol: float = 1e-10,
    start: Tensor | None = None,
    iterations: int | None = None,
) -> NonlinearSolution:
    """`project_nonlinear` without a derivative, with what the solver knows: nothing is raised, look at ``.status``."""
    with torch.no_grad():
        return _project(
            raw.detach(),
            g,
            x,
            lower=lower,
            upper=upper,
            rows=rows,
            jacobian=jacobian,
            mode=mode,
            gradient="projector",
            tol=tol,
            start=start,
            iterations=iterations,
            tight=_known_tight(lower, upper, rows),
        )[1]


def project_rows_and_functions(
    raw: Tensor, parts: Sequence[Any], x: Any, **arguments: Any
) -> tuple[Tensor, NonlinearSolution]:
    """`project_nonlinear` for several sets, each with ``values`` and, where it was given, a ``derivative``.

    Returns y, with its derivative, and the solution; the policy is left to the caller.
    """

    def function(y: Tensor, given: Any) -> Tensor:
        values = [part.values(y, given) for part in parts]
        return torch.cat(values, dim=-1) if values else y[..., :0]

    def derivative(y: Tensor, given: Any) -> Tensor:
        return torch.cat([part.derivative(y, given) for part in parts], dim=-2)

    known = bool(parts) and all(part.jacobian is not None for part in parts)
    return _project(raw, function, x, jacobian=derivative if known else None, **arguments)


@full_precision
def _project(
    raw: Tensor,
    g: Function,
    x: Any,
    *,
    lower: Tensor | float | None,
    upper: Tensor | float | None,
    rows: BoxedRows | None,
    jacobian: Function | None,
    mode: Mode,
    gradient: str,
    tol: float,
    start: Tensor | None,
    iterations: int | None = None,
    tight: bool = False,
) -> tuple[Tensor, NonlinearSolution]:
    """Y with its derivative, in the dtype of raw, and the solution with the batch of raw."""
    refuse_transforms("nonlinear rows")
    batch, n = raw.shape[:-1], raw.shape[-1]
    point = raw.double().reshape(batch.numel(), n)
    given = Input.of(x, batch)
    m = _count(g, point, given)
    A, low, high = _dense(rows, raw)
    lower_all = _join(_bound("lower", lower, m, raw, -torch.inf), low, point, -torch.inf, A.shape[-2])
    upper_all = _join(_bound("upper", upper, m, raw, torch.inf), high, point, torch.inf, A.shape[-2])
    first = None if start is None else start.detach().double().expand_as(raw).reshape(batch.numel(), n)
    box = None if rows is None or not rows.boxed else (rows.box_lower, rows.box_upper)
    problem = Call(g, jacobian, given, m, mode, gradient, tol, first, raw.dtype, _flat_box(box, raw), iterations, tight)
    y, *rest = NonlinearProjection.apply(problem, point, lower_all, upper_all, A, *problem.leaves(point))
    found = NonlinearSolution(y.detach(), *rest)
    shaped = [part.reshape((*batch, *part.shape[1:])) for part in found]
    y = y.reshape(raw.shape).to(raw.dtype)
    return y, NonlinearSolution(y.detach(), *shaped[1:])


def _count(g: Function, point: Tensor, given: Input) -> int:
    """The number of rows of g, which must be differentiable."""
    if len(point) == 0:
        with torch.no_grad():
            return g(point, given.value()).shape[-1]
    first = torch.zeros(1, dtype=torch.long, device=point.device)
    return require_differentiable(g, torch.zeros_like(point[:1]), given.take(first).value())


def _dense(rows: BoxedRows | None, raw: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Affine rows and box as one matrix ``(k, n)`` or ``(B, k, n)`` in float64, and its bounds."""
    if rows is None:
        return raw.new_zeros(0, raw.shape[-1], dtype=torch.float64), None, None
    A, lower, upper = rows.dense()
    A = A.double()
    shared = A.shape[:-2].numel() == 1
    A = A.reshape(A.shape[-2:]) if shared else A.expand(*raw.shape[:-1], *A.shape[-2:]).flatten(0, -3)
    return A, None if lower is None else _spread(lower, raw), None if upper is None else _spread(upper, raw)


def _spread(bound: Tensor, raw: Tensor) -> Tensor:
    """A bound ``(k,)`` or ``(*batch, k)`` as ``(B, k)`` float64."""
    return bound.double().expand(*raw.shape[:-1], bound.shape[-1]).reshape(raw.shape[:-1].numel(), bound.shape[-1])


def _flat_box(box: tuple[Tensor | None, Tensor | None] | None, raw: Tensor) -> tuple[Tensor, Tensor] | None:
    """The bounds of the coordinates, ``(B, n)`` each, infinite where absent."""
    if box is None:
        return None
    ends = [
        raw.new_full((raw.shape[-1],), absent) if bound is None else bound.detach()
        for bound, absent in zip(box, (-torch.inf, torch.inf), strict=True)
    ]
    return _spread(ends[0], raw), _spread(ends[1], raw)


def _bound(name: str, bound: Tensor | float | None, m: int, raw: Tensor, absent: float) -> Tensor:
    """A bound of the rows of g as ``(B, m)`` float64."""
    value = absent if bound is None else bound
    if not isinstance(value, Tensor):
        value = raw.new_full((), value, dtype=torch.float64)  # a fill, which a CUDA graph can capture
    value = value.to(device=raw.device, dtype=torch.float64)
    if value.dim() and value.shape[-1] != m:
        raise ShapeError(sentence(name, f"shape ({m},) or (*batch, {m}), one entry per row of g", tuple(value.shape)))
    return value.expand(*raw.shape[:-1], m).reshape(raw.shape[:-1].numel(), m)


def _join(own: Tensor, other: Tensor | None, point: Tensor, absent: float, k: int) -> Tensor:
    """The bounds of the rows of g and of the affine rows, ``(B, m + k)``."""
    if k == 0:
        return own
    return torch.cat([own, point.new_full((len(point), k), absent) if other is None else other], dim=-1)


def _known_tight(lower: Any, upper: Any, rows: BoxedRows | None) -> bool:
    """Whether all rows are seen to be equalities without a look at tensors."""
    if rows is not None or lower is None:
        return False
    return lower is upper or (not isinstance(lower, Tensor) and not isinstance(upper, Tensor) and lower == upper)


def policy_for(on_failure: OnFailure, iterations: int | None, raw: Tensor) -> OnFailure:
    """``"raise"`` is ``"nan"`` in a fixed program on a GPU, where nobody looks."""
    return "nan" if on_failure == "raise" and iterations is not None and not may_look(raw) else on_failure


def apply_policy(y: Tensor, raw: Tensor, found: NonlinearSolution, on_failure: OnFailure) -> Tensor:
    """Y ``(*batch, n)`` with the samples whose rows do not hold as the policy asks."""
    invalid = found.status == NonlinearStatus.INVALID
    failed = torch.stack([found.status == kind for kind in FAILURES]).any(0)
    if on_failure == "raise":
        _raise_for(found.status)
        return y
    if on_failure == "best":
        return torch.where(invalid.unsqueeze(-1), torch.nan, y)
    return torch.where(failed.unsqueeze(-1), raw if on_failure == "raw" else torch.nan, y)


def _raise_for(status: Tensor) -> None:
    """The error of the worst kind of failure, with the samples that it befell."""
    for kind, (error, text) in FAILURES.items():
        bad = status == kind
        if bool(bad.any()):
            samples = sample_indices(bad) if bad.dim() else []
            raise error(f"g: {text}{in_samples(samples)}; {REMEDY}", samples)
