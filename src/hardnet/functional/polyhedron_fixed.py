"""The projection onto a polyhedron as one fixed program of plain operations, differentiable to any order.

The active rows J come from a fixed number of pivots, `hardnet.solvers.polyhedron.fixed`, and carry no derivative. With
them,

    y = raw - A_J' K^-1 (A_J raw - b_J),     K = A_J A_J',

is an ordinary function of raw, A and the bounds, which reads no value. torch.compile, torch.export, ONNX, vmap, forward
mode and higher derivatives handle it like any other. In compiled code the pivots are one operator; in an exported
program, which runs elsewhere, they are plain operations.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.functional.derivatives import keep_value
from hardnet.nearest.policy import answered
from hardnet.products import times
from hardnet.rows import Batch, bound_size, finite_size, in_double, or_one, ordered, take_rows
from hardnet.solvers.algebra.small import refined, solve_square
from hardnet.solvers.polyhedron.fixed import compiled_pivots, fixed_pivots, steps_for
from hardnet.solvers.polyhedron.orthogonal import EPS, FAR
from hardnet.solvers.polyhedron.problem import ALLOWED, INSIDE, SOLVED
from hardnet.solvers.solution import Solution, Status


class _Scaled(NamedTuple):
    """The problem scaled to numbers of size one and unit rows, in float64, differentiable."""

    raw: Tensor
    A: Tensor
    lower: Tensor
    upper: Tensor
    unit: Tensor  # (*batch, 1)
    length: Tensor  # what each row was divided by, (*batch, m)


def project_fixed(rows: Batch, steps: int | None = None) -> Solution:
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` after a fixed number of pivots, y differentiable.

    Args:
        rows: The record of the call; the answer is a flat batch, y in the dtype of its raw.
        steps: How many pivots; by default `hardnet.solvers.polyhedron.fixed.steps_for`.
    """
    raw, (m, n), exported = rows.raw, rows.A.shape[-2:], rows.mode == "export"
    wide = _full(rows)
    valid = _valid(*(part.detach() for part in wide))
    problem = _scale(*_harmless(valid, *wide))
    raw_, A_, low, high = (part.detach() for part in problem[:4])
    product = times(A_, raw_)
    nearest = finite_size(torch.minimum(low.abs(), high.abs()))
    slack = INSIDE * (times(A_.abs(), raw_.abs()) + nearest)
    inside = (torch.maximum(product - high, low - product) <= slack).all(-1)
    pivots = compiled_pivots if rows.mode == "compile" else partial(fixed_pivots, exported=exported)
    steps = steps_for(m, n) if steps is None else steps
    found = pivots(A_ @ A_.mT, product, low, high, slack, steps)
    y, dual = _on_active(problem, found.side, found.inverse, exported)
    residual = torch.where(inside, 0.0, _residual(raw_, A_, low, high, y.detach(), dual.detach()))
    empty = _proved_empty(A_, low, high, found.ray, y.detach())
    met = inside | _met(A_, low, high, y.detach(), torch.finfo(raw.dtype).eps)
    residual = torch.where(met, residual, torch.inf)
    status = _status(valid, residual, empty)
    dual = _multipliers(problem, dual.detach(), found.ray, inside, status)
    moved = within_unit_rows(y * problem.unit, *wide[1:]).to(raw.dtype)
    y = torch.where(inside.unsqueeze(-1), keep_value(moved, raw), moved)
    iterations = torch.where(inside, 0, steps)
    return Solution(torch.where(valid.unsqueeze(-1), y, torch.nan), dual.to(raw.dtype), status, iterations, residual)


def _multipliers(problem: _Scaled, dual: Tensor, ray: Tensor, inside: Tensor, status: Tensor) -> Tensor:
    """``raw - y = A'dual`` in the original units; for an empty set the weights of rows that contradict each other."""
    dual = torch.where(inside.unsqueeze(-1), 0.0, dual * problem.unit) / problem.length
    proof = ray / problem.length
    proof = proof / or_one(proof.abs().amax(-1, keepdim=True))
    kind = status.unsqueeze(-1)
    dual = torch.where(kind == int(Status.INFEASIBLE), proof, dual)
    return torch.where(kind == int(Status.INVALID), torch.nan, dual)


def within_unit_rows(y: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """Y clamped to the bounds of the rows that are ``y_j`` or ``-y_j``; this removes rounding and has no derivative."""
    A = A.detach()
    alone = ((A != 0).sum(-1) == 1) & (A.abs().amax(-1) == 1)
    plus, minus = (A == 1) & alone.unsqueeze(-1), (A == -1) & alone.unsqueeze(-1)
    value = y.detach()
    for bound, sign in ((upper, 1.0), (lower, -1.0)):
        if bound is not None:
            level = bound.detach().unsqueeze(-1)
            most = torch.where(plus if sign > 0 else minus, sign * level, torch.inf).amin(-2)
            least = torch.where(minus if sign > 0 else plus, -sign * level, -torch.inf).amax(-2)
            value = torch.minimum(torch.maximum(value, least), most)
    return keep_value(y, value)


def _full(rows: Batch) -> tuple[Tensor, ...]:
    """Raw, A, lower and upper in float64, all with the full batch dimension; absent bounds are infinite."""
    wide = in_double(rows)
    raw, A, lower, upper = wide.numbers
    return raw, A.expand(raw.shape[0], *A.shape[-2:]), lower, upper  # pyright: ignore[reportReturnType]


def _valid(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Whether a sample's numbers are valid, as in `hardnet.solvers.polyhedron.projection`: ``(*batch)``."""
    numbers = raw.isfinite().all(-1) & A.isfinite().all(-1).all(-1)
    return numbers & ordered(lower, upper).all(-1)


def _harmless(valid: Tensor, raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    row = valid.unsqueeze(-1)
    bounds = torch.where(row, lower, -torch.inf), torch.where(row, upper, torch.inf)
    return torch.where(row, raw, 0.0), torch.where(row.unsqueeze(-1), A, 0.0), *bounds


def _scale(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> _Scaled:
    """Divide rows by their lengths and samples by their sizes, without a derivative: y does not depend on them."""
    size = or_one(A.detach().abs().amax(-1))
    A = A / size.unsqueeze(-1)
    length = or_one(torch.linalg.vector_norm(A.detach(), dim=-1))
    A = A / length.unsqueeze(-1)
    low, high = (_divide(_divide(bound, size), length) for bound in (lower, upper))
    asked = torch.maximum(low.detach(), -high.detach())
    asked = torch.where((asked > 0) & asked.isfinite(), asked, 0.0)
    unit = or_one(torch.maximum(raw.detach().abs().amax(-1, keepdim=True), asked.amax(-1, keepdim=True)))
    return _Scaled(raw / unit, A, _divide(low, unit), _divide(high, unit), unit, size * length)


def _divide(bound: Tensor, by: Tensor) -> Tensor:
    """``bound / by``, with no derivative where the bound is infinite."""
    finite = bound.isfinite()
    return torch.where(finite, torch.where(finite, bound, 0.0) / by, bound.detach())


def _on_active(problem: _Scaled, side: Tensor, inverse: Tensor, exported: bool) -> tuple[Tensor, Tensor]:
    """The nearest point on the active rows, corrected once, and its multipliers; both are differentiable."""
    active = side != 0
    bound = torch.where(side > 0, problem.upper, problem.lower)
    bound = torch.where(active, bound, 0.0)
    rows = torch.where(active.unsqueeze(-1), problem.A, 0.0)
    K = rows @ rows.mT + torch.diag_embed((~active).to(rows))
    y, dual = problem.raw, torch.zeros_like(bound)
    for _ in range(2):
        step = _solve(K, times(rows, y) - bound, inverse, exported)
        y, dual = y - times(rows.mT, step), dual + step
    return y, dual


def _solve(K: Tensor, right: Tensor, inverse: Tensor, exported: bool) -> Tensor:
    """``K^-1 right``; for export, whose formats have no factorization, by the pivots' inverse, refined twice."""
    return refined(inverse, K, right) if exported else solve_square(K, right)


def _residual(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, dual: Tensor) -> Tensor:
    """The residual of `hardnet.solvers.polyhedron.problem.kkt_residual`, for unit rows."""
    stationarity = (y - raw + times(A.mT, dual)).abs().amax(-1)
    product = times(A, y)
    missed = (product - torch.minimum(torch.maximum(product + dual, lower), upper)).abs().amax(-1)
    return torch.maximum(stationarity, missed) / y.abs().amax(-1).clamp_min(1.0)


def _proved_empty(A: Tensor, lower: Tensor, upper: Tensor, ray: Tensor, y: Tensor) -> Tensor:
    """Farkas: ``A'ray = 0`` and ``sum(upper ray+) - sum(lower ray-) < 0`` prove that no y exists: ``(*batch)``."""
    bound = torch.where(ray > 0, upper, lower)
    value = torch.where(ray != 0, ray * torch.where(ray != 0, bound, 0.0), 0.0).sum(-1)
    leak = times(A.mT, ray).abs().sum(-1) + A.shape[-1] * EPS * ray.abs().sum(-1)
    return value < -FAR * leak * (1 + y.abs().amax(-1))


def _met(A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, rounding: float) -> Tensor:
    """Whether the rows hold at y within what a certificate allows for this machine epsilon: ``(*batch)``."""
    weight = A.abs().sum(-1)
    size = weight * y.abs().amax(-1, keepdim=True) + bound_size(lower, upper, weight)
    product = times(A, y)
    return (torch.maximum(product - upper, lower - product) <= ALLOWED * rounding * size).all(-1)


def _status(valid: Tensor, residual: Tensor, empty: Tensor) -> Tensor:
    """The status of each sample; the residual is infinite where a row is not met."""
    near = torch.where(residual < torch.inf, int(Status.FEASIBLE), int(Status.NOT_CONVERGED))
    status = torch.where(residual <= SOLVED, int(Status.SOLVED), near)
    status = torch.where(empty & (residual > SOLVED), int(Status.INFEASIBLE), status)
    return torch.where(valid, status, int(Status.INVALID)).to(torch.int8)


class FixedSolution(NamedTuple):
    """y ``(*batch, n)``, NaN without an answer, `Status` ``(*batch)`` int8 and the scale-free residual ``(*batch)``."""

    y: Tensor
    status: Tensor
    residual: Tensor


def solve_affine(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    steps: int | None = None,
) -> FixedSolution:
    """The answer of the fixed program and its quality: y ``(*batch, n)``, status and residual ``(*batch)``.

    All are computed in plain operations, so that an exported graph can return them. `hardnet.solvers.Status` 0 means
    solved; the residual is the scale-free residual of the optimality conditions.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or a number for all rows; None is -inf.
        upper: Like `lower`; None is +inf.
        steps: How many pivots; by default 2 m + 10 for less than n rows, else 4 n + 10, and 2 n more for each doubling.
    """
    rows = take_rows(raw, A, lower, upper)
    found = project_fixed(rows, steps)
    y = answered(found).to(raw.dtype)
    return FixedSolution(*map(rows.as_given, (y, found.status, found.residual)))
