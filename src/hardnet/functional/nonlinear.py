"""Points of ``lower <= g(y, x) <= upper`` and affine rows: the nearest or a near one, with its derivative.

A sample whose rows do not hold gives an error that names it, NaN, or the last point: `apply_policy`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.errors import (
    ConvergenceError,
    DTypeError,
    InfeasibleError,
    NonFiniteError,
    OptionError,
    SampleError,
    ShapeError,
    UnsupportedSetError,
    in_samples,
    sample_indices,
    sentence,
)
from hardnet.functional.derivatives import attach, last_derivative
from hardnet.modes import full_precision, may_look, outside_compiler, refuse_transforms
from hardnet.modes import mode as around
from hardnet.nearest.policy import OnInfeasible, OnInvalid, OnUnsolved, Policy, warn_weak
from hardnet.products import times_each
from hardnet.solvers.nonlinear.nearest import solve_kkt
from hardnet.solvers.nonlinear.rows import (
    FINE,
    Derivatives,
    Function,
    Input,
    Rows,
    batched_gradient,
    relative_error,
    require_differentiable,
)
from hardnet.solvers.nonlinear.rows import jacobian as differentiate
from hardnet.solvers.nonlinear.solve import Mode, NonlinearSolution, NonlinearStatus
from hardnet.solvers.nonlinear.solve import solve_nonlinear as find_point
from hardnet.structure import BoxedRows
from hardnet.tolerances import ROUNDINGS

# One call of nonlinear rows: the user's arguments in the form the solver takes, and its solution.
#
# `call` evaluates a user's function. `Call` holds the function, its input and the options of the solver; bounds and
# rows are converted to those of a flat batch in float64.


class Limits(NamedTuple):
    """``lower <= g <= upper``, and affine rows beside a box; None where absent."""

    lower: Tensor | float | None
    upper: Tensor | float | None
    rows: BoxedRows | None

    @property
    def tight(self) -> bool:
        """Whether all rows are known to be equalities without reading tensors."""
        (lower, upper, rows), plain = self, not isinstance(self.lower, Tensor) and not isinstance(self.upper, Tensor)
        return rows is None and lower is not None and (lower is upper or bool(plain and lower == upper))


class Search(NamedTuple):
    """How a point is found.

    Attributes:
        mode: ``"nearest"`` or ``"retract"``.
        gradient: ``"exact"`` or ``"projector"``.
        tol: The allowed relative violation.
        iterations: Passes of a fixed program, or None to stop when all samples have ended.
        tight: Whether all rows are known to be equalities.
    """

    mode: Mode = "nearest"
    gradient: str = "projector"
    tol: float = 1e-10
    iterations: int | None = None
    tight: bool = False


@dataclass(frozen=True)
class Call:
    """One call of nonlinear rows.

    Attributes:
        function: g.
        derivative: Its Jacobian, or None.
        x: The input.
        count: m.
        options: How the point is found.
        start: ``(B, n)`` or None.
        dtype: The dtype of raw, to which y is rounded.
        box: The bounds of the coordinates, ``(B, n)`` each, which hold exactly; or None.
    """

    function: Function
    derivative: Function | None
    x: Input
    count: int
    options: Search
    start: Tensor | None
    dtype: torch.dtype
    box: tuple[Tensor, Tensor] | None

    def rows(self, lower: Tensor, upper: Tensor, A: Tensor, inputs: tuple[Tensor, ...] | None = None) -> Rows:
        """The rows; `inputs` replace the floating-point tensors of x."""
        x = self.x if inputs is None else self.x.replaced(inputs)
        return Rows(self.function, self.derivative, x, self.count, A, lower, upper, tight=self.options.tight)

    @property
    def inputs(self) -> int:
        """How many floating-point tensors x has."""
        return len(self.x.numbers)

    def solve(self, rows: Rows, raw: Tensor) -> NonlinearSolution:
        """The solution, rounded to the dtype of raw and clamped to the box, then checked again."""
        inside = FINE if self.dtype == torch.float64 else 4 * torch.finfo(self.dtype).eps
        mode, _, tolerance, iterations, _ = self.options
        found = find_point(
            rows, raw, mode=mode, tolerance=tolerance, start=self.start, inside=inside, iterations=iterations
        )
        return found if self.box is None and self.dtype == torch.float64 else self._rounded(rows, raw, found)

    def _rounded(self, rows: Rows, raw: Tensor, found: NonlinearSolution) -> NonlinearSolution:
        """The solution in the dtype of raw and in the box; its status changes where the rows no longer hold."""
        y = found.y.to(self.dtype).double()
        if self.box is not None:
            moved = (found.iterations > 0).unsqueeze(-1)
            y = torch.where(moved, torch.minimum(torch.maximum(y, self.box[0]), self.box[1]), y)
        error, _ = relative_error(rows, rows.evaluate(y), y, raw)
        allowed = max(self.options.tol, ROUNDINGS * torch.finfo(self.dtype).eps)
        lost = ~(error <= allowed) & (found.violation <= self.options.tol)
        status = torch.where(lost, int(NonlinearStatus.NOT_CONVERGED), found.status.long()).to(torch.int8)
        return found._replace(y=y, status=status, violation=error)


class Saved(NamedTuple):
    """What a call saves for its derivative: raw, bounds, A and the leaves, as given, and the solution."""

    inputs: tuple[Tensor, ...]
    y: Tensor
    dual: Tensor
    status: Tensor


def _held_by(values: list[Tensor]) -> list[Tensor]:
    """The leaf tensors that require a gradient in the autograd graphs of these values."""
    found: dict[int, Tensor] = {}
    pending: list[Any] = [value.grad_fn for value in values if value.grad_fn is not None]
    found.update({id(value): value for value in values if value.requires_grad and value.grad_fn is None})
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        pending.extend(following for following, _ in node.next_functions)
    return list(found.values())


def call(function: Callable[..., Any] | nn.Module, y: Tensor, x: Any) -> Any:
    """``function(y, x)``, with the parameters and buffers of a module converted to the dtype of y."""
    if isinstance(function, nn.Module):
        own = [*function.named_parameters(), *function.named_buffers()]
        moved = {name: value.to(y.dtype) for name, value in own if value.is_floating_point() and value.dtype != y.dtype}
        if moved:
            return torch.func.functional_call(function, moved, (y, x))
    try:
        return function(y, x)
    except RuntimeError as error:
        if "graph capture" in str(error):
            remedy = "make its constants tensors on the device before, as buffers of a module or in its closure"
            raise UnsupportedSetError(sentence("g", "a function that a CUDA graph can record", error, remedy)) from None
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


def probe(g: Function, jacobian: Function | None, point: Tensor, given: Input) -> tuple[int, list[Tensor]]:
    """The number of rows of g, which must be differentiable, and the tensors in g that require a gradient."""
    if point.shape[0] == 0:
        with torch.no_grad():
            return given.call(g, point).shape[-1], []
    x = given.replaced(tuple(leaf.detach() for leaf in given.numbers))
    at = torch.where(point.isfinite(), point.detach(), 0.0).requires_grad_()
    values = [require_differentiable(g, at, x)]
    if not torch.is_grad_enabled():
        return values[0].shape[-1], []
    if jacobian is not None:
        values.append(x.call(jacobian, at))
    return values[0].shape[-1], [held for held in _held_by(values) if held is not at]


def general_rows(rows: BoxedRows | None, raw: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Affine rows and box as one matrix ``(k, n)`` or ``(B, k, n)`` in float64, and its bounds."""
    if rows is None:
        return raw.new_zeros(0, raw.shape[-1], dtype=torch.float64), None, None
    A, lower, upper = rows.dense()
    A = A.double()
    shared = prod(A.shape[:-2]) == 1
    A = A.reshape(A.shape[-2:]) if shared else A.expand(*raw.shape[:-1], *A.shape[-2:]).flatten(0, -3)
    return A, None if lower is None else _spread(lower, raw), None if upper is None else _spread(upper, raw)


def _spread(bound: Tensor, raw: Tensor) -> Tensor:
    """A bound ``(k,)`` or ``(*batch, k)`` as ``(B, k)`` float64."""
    return bound.double().expand(*raw.shape[:-1], bound.shape[-1]).reshape(prod(raw.shape[:-1]), bound.shape[-1])


def flat_box(box: tuple[Tensor | None, Tensor | None] | None, raw: Tensor) -> tuple[Tensor, Tensor] | None:
    """The bounds of the coordinates, ``(B, n)`` each, infinite where absent."""
    if box is None:
        return None
    ends = [
        raw.new_full((raw.shape[-1],), absent) if bound is None else bound.detach()
        for bound, absent in zip(box, (-torch.inf, torch.inf), strict=True)
    ]
    return _spread(ends[0], raw), _spread(ends[1], raw)


def bound(name: str, bound: Tensor | float | None, m: int, raw: Tensor, absent: float) -> Tensor:
    """A bound of the rows of g as ``(B, m)`` float64."""
    value = absent if bound is None else bound
    if not isinstance(value, Tensor):
        value = raw.new_full((), value, dtype=torch.float64)  # a CUDA graph can capture a fill
    value = value.to(device=raw.device, dtype=torch.float64)
    if value.dim() and value.shape[-1] != m:
        raise ShapeError(sentence(name, f"shape ({m},) or (*batch, {m}), one entry per row of g", tuple(value.shape)))
    return value.expand(*raw.shape[:-1], m).reshape(prod(raw.shape[:-1]), m)


def join(own: Tensor, other: Tensor | None, point: Tensor, absent: float, k: int) -> Tensor:
    """The bounds of the rows of g and of the affine rows, ``(B, m + k)``."""
    if k == 0:
        return own
    return torch.cat([own, point.new_full((point.shape[0], k), absent) if other is None else other], dim=-1)


# The derivative of a nearest point on nonlinear rows, by the implicit function theorem.
#
# At ``y - raw + J'dual = 0``, ``g_A(y) = bound_A`` on the active rows A, with ``W = I + sum_i dual_i Hess g_i`` and C
# the gradients of the active rows, let ``[W C'; C 0] (p, q) = (cotangent of y, 0)``. Then
#
#     raw receives p,    the bound of active row i receives q_i,
#     every number z of g receives  -d/dz [ p . sum_i dual_i grad_y g_i + q . g_A ]  with y, dual, p and q held fixed.
#
# ``gradient="projector"`` sets W = I and dual = 0: ``p = (I - C^+ C) cotangent``, the projection onto the tangent
# space.
#
# Where the backward pass is itself differentiated, the derivative is that of two Newton steps on the KKT system
# (`differentiable`).


TOUCHING = 1e-8
"""Part of a row's scale within which it counts as active, where there is no multiplier to tell."""


def _find(problem: Call, raw: Tensor, lower: Tensor, upper: Tensor, A: Tensor, *leaves: Tensor) -> Any:
    """y and the rest of the solution, from raw, bounds, A, the tensors of x and those in g."""
    lower, upper, A = lower.detach(), upper.detach(), A.detach()
    inputs = tuple(leaf.detach() for leaf in leaves[: problem.inputs])
    found = problem.solve(problem.rows(lower, upper, A, inputs), raw.detach())
    y = found.y.clone() if found.y is raw else found.y
    return (y, *found[1:]), (y, found.dual, found.status)


def _through(
    problem: Call, grad: Tensor, saved: Sequence[Tensor], inputs: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """The implicit derivative; if it is differentiated again, the derivative of Newton steps on the KKT system."""
    known = Saved(tuple(inputs), saved[0].detach(), *saved[1:])  # a saved output comes with its autograd graph
    if torch.is_grad_enabled() and problem.options.gradient == "exact":
        return differentiable(problem, grad, known, needed)
    with torch.no_grad():
        found = _once(problem, grad, known, needed)
    return last_derivative("gradient='projector', which is no derivative", found, [grad, *inputs])


def _once(problem: Call, grad: Tensor, saved: Saved, needed: Sequence[bool]) -> list[Tensor | None]:
    """The first derivative."""
    (raw, lower, upper, A, *leaves), y, dual, status = saved
    rows = problem.rows(lower, upper, A)
    at, dual, active, sound = working(problem, rows, raw, y, dual, status)
    grad, y = torch.where(sound & ~grad.isnan(), grad, 0.0), stand_in(y, sound)
    look = problem.options.iterations is None and may_look(grad)
    p, q = solve_kkt(at, active, grad, status == NonlinearStatus.DEGENERATE, look)
    count = problem.count
    below, above = sides(rows, dual, at.value)
    found: list[Tensor | None] = [p, q * below, q * above, None, *(None for _ in leaves)]
    if needed[3] and A.shape[-2]:
        matrix = -(dual[:, count:, None] * p.unsqueeze(-2) + q[:, count:, None] * y.unsqueeze(-2))
        found[3] = matrix.sum(0) if A.dim() == 2 else matrix
    if any(needed[4:]):
        at_y = _Held(y, dual[:, :count], p, q[:, :count], sound.squeeze(-1))
        found[4:] = _of_numbers(problem, leaves, at_y, needed[4:])
    return [part if need else None for part, need in zip(found, needed, strict=True)]


class _Held(NamedTuple):
    """What is held fixed while numbers move: y ``(B, n)``, the multipliers of g, p, q, and which samples are sound."""

    y: Tensor
    dual: Tensor
    p: Tensor
    q: Tensor
    sound: Tensor


def _of_numbers(problem: Call, leaves: list[Tensor], at: _Held, needed: Sequence[bool]) -> list[Tensor | None]:
    """``-d/dz [p . sum_i dual_i grad_y g_i + q . g]`` for the tensors z of x and those in g."""
    count, (y, dual, p, q, sound) = problem.inputs, at
    chosen = None if not may_look(y) or bool(sound.all()) else sound.nonzero().squeeze(-1)
    with torch.enable_grad():
        inputs = tuple(leaf.detach().requires_grad_(need) for leaf, need in zip(leaves[:count], needed, strict=False))
        none = y.new_zeros(len(y), 0)
        rows = problem.rows(none, none, y.new_zeros(0, y.shape[-1]), inputs)
        if chosen is not None:  # g at bad samples may not be finite
            rows, y, dual, p, q = rows.take(chosen), y[chosen], dual[chosen], p[chosen], q[chosen]
        point = y.detach().requires_grad_()
        value, slope = rows.slope(point, dual)
        total = -(p * slope).sum() - (q * value).sum()
    wanted = [*inputs, *leaves[count:]]
    asked = [leaf for leaf, need in zip(wanted, needed, strict=True) if need]
    if not total.requires_grad or not asked:
        return [None] * len(leaves)
    found = iter(torch.autograd.grad(total, asked, allow_unused=True, retain_graph=True))
    return [next(found) if need else None for need in needed]


def stand_in(y: Tensor, sound: Tensor) -> Tensor:
    """Y with that of the first sound sample in place of those of samples ``(B, 1)`` that are not; zeros without any."""
    first = sound.long().argmax(0, keepdim=True).expand(1, y.shape[-1])
    instead = torch.where(sound.any(), y.gather(0, first), 0.0) if len(y) else y[:0].sum(0)
    return torch.where(sound, y, instead)


def working(
    problem: Call, rows: Rows, raw: Tensor, y: Tensor, dual: Tensor, status: Tensor
) -> tuple[Derivatives, Tensor, Tensor, Tensor]:
    """Derivatives at y, the multipliers to use, the active rows ``(B, M)``, and which samples have a derivative."""
    exact = ((status == NonlinearStatus.OK) | (status == NonlinearStatus.DEGENERATE)).unsqueeze(-1)
    exact = exact if problem.options.gradient == "exact" else torch.zeros_like(exact)
    sound = (exact | (status <= NonlinearStatus.FEASIBLE_ONLY).unsqueeze(-1)) | (
        status == NonlinearStatus.DEGENERATE
    ).unsqueeze(-1)
    point = stand_in(y, sound)
    used = torch.where(exact, dual, 0.0)
    at = rows.evaluate(point, (lambda *_: used) if problem.options.gradient == "exact" else None)
    hessian = None if at.hessian is None else at.hessian.nan_to_num()
    at = Derivatives(at.value.nan_to_num(), at.jacobian.nan_to_num(), hessian)
    scale = rows.scale(at.jacobian, 1 + y.abs().amax(-1, keepdim=True))
    near = torch.minimum((at.value - rows.lower).abs(), (rows.upper - at.value).abs()) <= TOUCHING * scale
    moved = (y != raw).any(-1, keepdim=True)
    active = (rows.equality | torch.where(exact, dual != 0, near & moved)) & sound
    return at, used, active, sound


def sides(rows: Rows, dual: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of q that the lower and the upper bound receive; for an equality half each."""
    at_upper = torch.where(dual == 0, rows.upper - value <= value - rows.lower, dual > 0).to(value)
    at_upper = torch.where(rows.equality, 0.5, at_upper)
    return 1 - at_upper, at_upper


def differentiable(problem: Call, grad: Tensor, saved: Saved, needed: Sequence[bool]) -> list[Tensor | None]:
    """The first derivative as a function that can itself be differentiated.

    A Newton step on the KKT system from the solution, with the matrix held fixed, has the correct first derivative; one
    more step, with the matrix differentiated too, then has the correct second derivative.
    """
    (raw, lower, upper, A, *leaves), y, dual, status = saved
    with torch.no_grad():
        rows = problem.rows(lower, upper, A)
        at, used, active, sound = working(problem, rows, raw, y, dual, status)
    attached = problem.rows(lower, upper, A, tuple(leaves[: problem.inputs]))
    curved = problem.options.gradient == "exact"
    side = sides(rows, used, at.value)
    clean = torch.where(sound & ~grad.isnan(), grad, 0.0)
    with torch.enable_grad():
        if may_look(y) and not bool(sound.all()):  # the sound samples alone: others are not finite somewhere
            index = sound.squeeze(-1).nonzero().squeeze(-1)
            rows, attached = rows.take(index), attached.take(index)
            raw, y, used, active, sound = (part[index] for part in (raw, y, used, active, sound))
            lower, upper, clean = lower[index], upper[index], clean[index]
            side = side[0][index], side[1][index]
        bound = torch.where(active, side[0] * lower.nan_to_num(0, 0, 0) + side[1] * upper.nan_to_num(0, 0, 0), 0.0)
        with torch.no_grad():
            K = _system(rows, y, used, active, curved)[0]
        point, multiplier = _newton(attached, K, raw, bound, y, used, active, curved)
        K, _ = _system(attached, point, multiplier, active, curved)
        point, _ = _newton(attached, K, raw, bound, point, multiplier, active, curved)
        point = torch.where(sound, point, 0.0)
    asked = [part for part, need in zip(saved.inputs, needed, strict=True) if need]
    found = iter(torch.autograd.grad(point, asked, clean, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _system(rows: Rows, y: Tensor, dual: Tensor, active: Tensor, curved: bool) -> tuple[Tensor, Tensor]:
    """``[W C'; C 0]`` with ones for the inactive rows, ``(B, n + M, n + M)``, and the Jacobian; differentiable."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        point = y if y.requires_grad else y.detach().requires_grad_()
        value, slope = rows.slope(point, dual[:, : rows.curved])
        J = batched_gradient(value, point, create_graph=again)
        H = batched_gradient(slope, point, create_graph=again) if curved else 0.0
    J = torch.cat([J, rows.A.expand(len(y), *rows.A.shape[-2:])], dim=-2)
    C = torch.where(active.unsqueeze(-1), J, 0.0)
    W = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device) + H
    corner = torch.diag_embed((~active).to(y))
    K = torch.cat([torch.cat([W.expand(len(y), -1, -1), C.mT], -1), torch.cat([C, corner], -1)], -2)
    return K, J


def _newton(
    rows: Rows, K: Tensor, raw: Tensor, bound: Tensor, y: Tensor, dual: Tensor, active: Tensor, curved: bool
) -> tuple[Tensor, Tensor]:
    """One Newton step on the KKT system from (y, dual); with `curved` False the multipliers do not act on y."""
    with torch.enable_grad():
        point = y if y.requires_grad else y.detach().requires_grad_()
        value, slope = rows.slope(point, dual[:, : rows.curved])
    affine = rows.A.expand(len(y), *rows.A.shape[-2:])
    value = torch.cat([value, times_each(affine, y)], dim=-1)
    slope = slope + times_each(affine.mT, dual[:, rows.curved :])
    off = raw - raw.detach() if not curved else None
    first = y - raw + slope if off is None else -off
    second = torch.where(active, value - bound, 0.0)
    second = second - second.detach()  # the solution is taken as exact: only derivatives are needed
    first = first - first.detach()
    step = torch.linalg.solve_ex(K, torch.cat([first, second], -1).unsqueeze(-1)).result.squeeze(-1)
    n = y.shape[-1]
    return y - step[:, :n], dual - torch.where(active, step[:, n:], 0.0)


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
    limits = Limits(lower, upper, rows)
    options = Search(mode, "projector" if mode == "retract" else gradient, tol, iterations, limits.tight)
    y, found = _project(raw, g, x, limits, jacobian, options, start)
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
    limits = Limits(lower, upper, rows)
    options = Search(mode, "projector", tol, iterations, limits.tight)
    with torch.no_grad():
        return _project(raw.detach(), g, x, limits, jacobian, options, start)[1]


def project_rows_and_functions(
    raw: Tensor, parts: Sequence[Any], x: Any, limits: Limits, options: Search, start: Tensor | None
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
    return _project(raw, function, x, limits, derivative if known else None, options, start)


@full_precision
def _project(
    raw: Tensor,
    g: Function,
    x: Any,
    limits: Limits,
    jacobian: Function | None,
    options: Search,
    start: Tensor | None,
) -> tuple[Tensor, NonlinearSolution]:
    """Y with its derivative, in the dtype of raw, and the solution with the batch of raw."""
    exported = around() == "export" and options.iterations is not None and options.mode == "retract"
    if not exported:
        remedy = "give the layer a retraction with a fixed number of passes: mode='retract', iterations=8"
        refuse_transforms("nonlinear rows", exporting=remedy)
    batch, n = raw.shape[:-1], raw.shape[-1]
    point = raw.double().reshape(prod(batch), n)
    given = Input.of(x, batch)
    m, held = probe(g, jacobian, point, given)
    lower, upper, rows = limits
    A, low, high = general_rows(rows, raw)
    lower_all = join(bound("lower", lower, m, raw, -torch.inf), low, point, -torch.inf, A.shape[-2])
    upper_all = join(bound("upper", upper, m, raw, torch.inf), high, point, torch.inf, A.shape[-2])
    first = None if start is None else start.detach().double().expand_as(raw).reshape(prod(batch), n)
    box = None if rows is None or not rows.boxed else (rows.box_lower, rows.box_upper)
    problem = Call(g, jacobian, given, m, options, first, raw.dtype, flat_box(box, raw))
    if exported:  # the graph has only the forward pass
        y, *rest = problem.solve(problem.rows(lower_all, upper_all, A), point)
    else:
        inputs = point, lower_all, upper_all, A, *given.numbers, *held
        y, *rest = attach(partial(_find, problem), partial(_through, problem), inputs)
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
