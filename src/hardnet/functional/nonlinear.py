"""Points of ``lower <= g(y, x) <= upper`` and affine rows: the nearest or a near one, with its derivative.

A sample whose rows do not hold gives an error that names it, NaN, the best point found, or raw: `apply_policy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import ConvergenceError, InfeasibleError, NonFiniteError, SampleError, in_samples, sample_indices
from hardnet.functional.nonlinear_call import Call, bound, flat_box, general_rows, join, known_tight, probe
from hardnet.functional.nonlinear_gradient import NonlinearProjection
from hardnet.modes import full_precision, may_look, outside_compiler, refuse_transforms
from hardnet.modes import mode as around
from hardnet.solvers.nonlinear.derivatives import Function
from hardnet.solvers.nonlinear.input import Input
from hardnet.solvers.nonlinear.iterate import Mode
from hardnet.solvers.nonlinear.status import NonlinearSolution, NonlinearStatus
from hardnet.structure import BoxedRows

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

    The derivative is that of the KKT system with the Hessian of the Lagrangian, with respect to raw, the bounds, x, A,
    and every tensor in g that requires a gradient; it can be differentiated again. `solve_nonlinear` returns the
    status of each sample.

    Args:
        raw: ``(*batch, n)``.
        g: ``(y, x) -> (*batch, m)``; it must treat each sample independently, and is called in float64.
        x: The input of g, of any structure: tensors of a sample's own and tensors that all samples share, of any sizes.
        lower: ``(m,)``, ``(*batch, m)`` or a number; None is -inf.
        upper: Like `lower`; None is inf.
        rows: Affine rows and a box, which must hold too.
        jacobian: ``(y, x) -> (*batch, m, n)``; by default g is differentiated.
        mode: ``"nearest"``, or ``"retract"``: a feasible point by Gauss-Newton steps, cheaper but farther.
        gradient: ``"exact"``, or ``"projector"``: the projection onto the tangent space, without the curvature. A
            retraction supports only ``"projector"``.
        tol: Allowed violation, relative to the scale of each row.
        start: Where the iteration starts, ``(*batch, n)``; by default raw.
        on_failure: For samples whose rows do not hold: ``"raise"`` an error that names them, ``"nan"``, ``"best"``:
            the least violated finite point found (NaN where there is none: INVALID), ``"raw"``.
        iterations: None: until every sample has stopped. A number: exactly that many passes, so that a CUDA graph can
            capture it, forward and backward; on a GPU ``"raise"`` then acts as ``"nan"``.
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
        tight=known_tight(lower, upper, rows),
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
    """`project_nonlinear` without a derivative, with the full solution: nothing is raised, check ``.status``."""
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
            tight=known_tight(lower, upper, rows),
        )[1]


def project_rows_and_functions(
    raw: Tensor, parts: Sequence[Any], x: Any, **arguments: Any
) -> tuple[Tensor, NonlinearSolution]:
    """`project_nonlinear` for several sets, each with ``values`` and, if given, a ``derivative``.

    Returns y, with its derivative, and the solution; the caller applies the policy for failures.
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
    exported = around() == "export" and iterations is not None and mode == "retract"
    if not exported:
        remedy = "give the layer a retraction with a fixed number of passes: mode='retract', iterations=8"
        refuse_transforms("nonlinear rows", exporting=remedy)
    batch, n = raw.shape[:-1], raw.shape[-1]
    point = raw.double().reshape(prod(batch), n)
    given = Input.of(x, batch)
    m, held = probe(g, jacobian, point, given)
    A, low, high = general_rows(rows, raw)
    lower_all = join(bound("lower", lower, m, raw, -torch.inf), low, point, -torch.inf, A.shape[-2])
    upper_all = join(bound("upper", upper, m, raw, torch.inf), high, point, torch.inf, A.shape[-2])
    first = None if start is None else start.detach().double().expand_as(raw).reshape(prod(batch), n)
    box = None if rows is None or not rows.boxed else (rows.box_lower, rows.box_upper)
    problem = Call(g, jacobian, given, m, mode, gradient, tol, first, raw.dtype, flat_box(box, raw), iterations, tight)
    if exported:  # the graph has only the forward pass
        y, *rest = problem.solve(problem.rows(lower_all, upper_all, A), point)
    else:
        y, *rest = NonlinearProjection.apply(problem, point, lower_all, upper_all, A, *given.numbers, *held)
    found = NonlinearSolution(y.detach(), *rest)
    shaped = [part.reshape((*batch, *part.shape[1:])) for part in found]
    y = y.reshape(raw.shape).to(raw.dtype)
    return y, NonlinearSolution(y.detach(), *shaped[1:])


def policy_for(on_failure: OnFailure, iterations: int | None, raw: Tensor) -> OnFailure:
    """The policy for failures; ``"raise"`` becomes ``"nan"`` in a fixed program on a GPU, where no value is read."""
    return "nan" if on_failure == "raise" and iterations is not None and not may_look(raw) else on_failure


def apply_policy(y: Tensor, raw: Tensor, found: NonlinearSolution, on_failure: OnFailure) -> Tensor:
    """Y ``(*batch, n)`` with the policy applied to samples whose rows do not hold."""
    invalid = found.status == NonlinearStatus.INVALID
    failed = torch.stack([found.status == kind for kind in FAILURES]).any(0)
    if on_failure == "raise":
        _raise_for(found.status)
        return y
    if on_failure == "best":
        return torch.where(invalid.unsqueeze(-1), torch.nan, y)
    return torch.where(failed.unsqueeze(-1), raw if on_failure == "raw" else torch.nan, y)


def _raise_for(status: Tensor) -> None:
    """Raise the error for the worst kind of failure, naming its samples."""
    for kind, (error, text) in FAILURES.items():
        bad = status == kind
        if bool(bad.any()):
            samples = sample_indices(bad) if bad.dim() else []
            raise error(f"g: {text}{in_samples(samples)}; {REMEDY}", samples)
