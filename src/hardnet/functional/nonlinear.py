"""Points of ``lower <= g(y, x) <= upper`` and affine rows: the nearest or a near one, with its derivative.

A sample whose rows do not hold gives an error that names it, NaN, or the last point: `apply_policy`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import (
    ConvergenceError,
    InfeasibleError,
    NonFiniteError,
    OptionError,
    SampleError,
    in_samples,
    sample_indices,
    sentence,
)
from hardnet.functional.nonlinear_call import Call, bound, dense, flat_box, join, known_tight, probe
from hardnet.functional.nonlinear_gradient import NonlinearProjection
from hardnet.modes import full_precision, may_look, outside_compiler, refuse_transforms
from hardnet.modes import mode as around
from hardnet.nearest.policy import OnInfeasible, OnInvalid, OnUnsolved, Policy, warn_weak
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
CHOICES = {
    NonlinearStatus.INVALID: "pass on_invalid='nan'",
    NonlinearStatus.INFEASIBLE_LOCAL: "pass on_infeasible='nan', or 'nearest' for the least violated point",
    NonlinearStatus.NOT_CONVERGED: "pass on_unsolved='nan', or 'best' for the last point",
}
"""What else could be asked for."""
OLD_NAMES: dict[str, dict[str, Any]] = {
    "raise": {"on_infeasible": "raise", "on_unsolved": "raise", "on_invalid": "raise"},
    "nan": {"on_infeasible": "nan", "on_unsolved": "nan", "on_invalid": "nan"},
    "best": {"on_infeasible": "nearest", "on_unsolved": "best", "on_invalid": "nan"},
    "raw": {"on_infeasible": "nan", "on_unsolved": "nan", "on_invalid": "nan"},
}
"""``on_failure``, as these were called together until 0.2, in today's words; ``"raw"`` has none."""


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
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    on_failure: OnFailure | None = None,
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
        on_infeasible: For samples whose violation no small move reduces: ``"raise"`` an error that names them,
            ``"nan"``, or ``"nearest"``: the least violated point found; ``"auto"`` raises on a CPU and gives NaN
            elsewhere.
        on_unsolved: For other samples whose rows do not hold: the same, or ``"best"``: the least violated point found.
        on_invalid: For bad numbers: ``"raise"`` or ``"nan"``.
        on_failure: Deprecated: the three above in one word, or ``"raw"``: raw itself, with the identity as gradient.
        iterations: None: until every sample has stopped. A number: exactly that many passes, so that a CUDA graph can
            capture it, forward and backward; on a GPU ``"raise"`` then acts as ``"nan"``.
    """
    policy = policy_of(on_infeasible, on_unsolved, on_invalid, on_failure)
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
    y = apply_policy(y, found, policy, iterations)
    return beyond(raw, y, found) if on_failure == "raw" else y


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
    A, low, high = dense(rows, raw)
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


def policy_of(
    on_infeasible: OnInfeasible, on_unsolved: OnUnsolved, on_invalid: OnInvalid, on_failure: OnFailure | None
) -> Policy:
    """The policy, checked; the word of version 0.2 stands for all three."""
    policy = Policy(on_infeasible, on_unsolved, on_invalid)
    if on_failure is not None:
        if on_failure not in OLD_NAMES:
            raise OptionError(sentence("on_failure", " or ".join(map(repr, OLD_NAMES)), repr(on_failure)))
        own = OLD_NAMES[on_failure]
        said = ", ".join(f"{name}={value!r}" for name, value in own.items())
        instead = "" if on_failure == "raw" else f": write {said}"
        warnings.warn(f"on_failure={on_failure!r} is deprecated{instead}", DeprecationWarning, stacklevel=4)
        policy = policy._replace(**own)
    return policy.checked()


def apply_policy(y: Tensor, found: NonlinearSolution, policy: Policy, iterations: int | None) -> Tensor:
    """Y ``(*batch, n)`` with what the policy gives for samples whose rows do not hold.

    A sample that meets its rows, but is no regular nearest point, is warned of, once for a layer. Inside a fixed
    program on a GPU no value is read: there an error is NaN.
    """
    look, kinds = may_look(y), found.status
    policy = policy.resolved(look)
    wait = look or iterations is None
    given = {
        NonlinearStatus.INVALID: policy.on_invalid if look else "nan",
        NonlinearStatus.INFEASIBLE_LOCAL: policy.on_infeasible,
        NonlinearStatus.NOT_CONVERGED: policy.on_unsolved,
    }
    bad = torch.stack([kinds == kind for kind, asked in given.items() if asked in ("raise", "nan")] or [kinds < 0])
    bad = bad.any(0).unsqueeze(-1)
    if wait:
        clean = found._replace(y=torch.where(bad, torch.nan, y.detach()))
        for kind, asked in given.items():
            if asked == "raise":
                _refuse(kind, clean)
        weak = (kinds == NonlinearStatus.FEASIBLE_ONLY) | (kinds == NonlinearStatus.DEGENERATE)
        warn_weak(weak, "satisfy their rows, but are no regular nearest points", policy.once)
    return torch.where(bad, torch.nan, y)


def beyond(raw: Tensor, y: Tensor, found: NonlinearSolution) -> Tensor:
    """Y, and raw itself for samples whose rows do not hold."""
    failed = torch.stack([found.status == kind for kind in FAILURES]).any(0)
    return torch.where(failed.unsqueeze(-1), raw, y)


def _refuse(kind: NonlinearStatus, found: NonlinearSolution) -> None:
    """Raise the error for one kind of failure, naming its samples; where it did not converge, with the solution."""
    bad, (error, text) = found.status == kind, FAILURES[kind]
    if bool(bad.any()):
        samples = sample_indices(bad) if bad.dim() else []
        whole = f"g: {text}{in_samples(samples)}; start nearer (start=), or {CHOICES[kind]}"
        raise error(whole, samples, found) if error is ConvergenceError else error(whole, samples)  # pyright: ignore[reportCallIssue]
