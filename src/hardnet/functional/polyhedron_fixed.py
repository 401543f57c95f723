"""The projection onto a polyhedron as one fixed program of plain operations, differentiable to any order.

The active rows J come from a fixed number of pivots, `hardnet.solvers.polyhedron.fixed`, and y is

    y = raw - A_J' K^-1 (A_J raw - b_J),     K = A_J A_J'.

None of this carries a derivative or reads a value; the derivative is that of `hardnet.nearest.derivative.smooth`, an
ordinary function of raw, A and the bounds. torch.compile, torch.export, ONNX, vmap and forward mode handle it like any
other. In compiled code the pivots are one operator; in an exported program, which runs elsewhere, plain operations.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.functional.derivatives import keep_value
from hardnet.nearest.derivative import Found, smooth
from hardnet.nearest.policy import answered
from hardnet.products import times
from hardnet.rows import Batch, boxed, in_double, or_one, ordered, take_rows
from hardnet.solvers.algebra.small import refined, solve_square
from hardnet.solvers.polyhedron.canonical import Held, canonical
from hardnet.solvers.polyhedron.fixed import compiled_pivots, fixed_pivots, steps_for
from hardnet.solvers.polyhedron.orthogonal import EPS, FAR
from hardnet.solvers.polyhedron.problem import ALLOWED, INSIDE, SOLVED
from hardnet.solvers.solution import Solution, Status
from hardnet.structure import bound_size, finite_size


class _Scaled(NamedTuple):
    """The problem scaled to numbers of size one and unit rows, in float64."""

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
    wide = tuple(part.detach() for part in _full(rows))
    valid = _valid(*wide)
    problem = _scale(*_harmless(valid, *wide))
    raw_, A_, low, high = problem[:4]
    product = times(A_, raw_)
    nearest = finite_size(torch.minimum(low.abs(), high.abs()))
    slack = INSIDE * (times(A_.abs(), raw_.abs()) + nearest)
    inside = (torch.maximum(product - high, low - product) <= slack).all(-1)
    pivots = compiled_pivots if rows.mode == "compile" else partial(fixed_pivots, exported=exported)
    steps = steps_for(m, n) if steps is None else steps
    found = pivots(A_ @ A_.mT, product, low, high, slack, steps)
    bare = exported or rows.mode == "eager"
    y, weight, inverse = _on_active(problem, found.side, found.inverse, bare)
    residual = torch.where(inside, 0.0, _residual(raw_, A_, low, high, y, weight))
    empty = _proved_empty(A_, low, high, found.ray, y)
    met = inside | _met(A_, low, high, y, torch.finfo(raw.dtype).eps)
    residual = torch.where(met, residual, torch.inf)
    status = _status(valid, residual, empty)
    dual = _multipliers(problem, weight, found.ray, inside, status)
    moved = within_unit_rows(y * problem.unit, *wide[1:]).to(raw.dtype)
    value = torch.where(inside.unsqueeze(-1), raw.detach(), moved)
    y = value
    if rows.learned or rows.transformed:
        at = torch.where(inside.unsqueeze(-1), wide[0], moved.double())
        y = keep_value(_smooth(rows, at, Held(dual.double(), found.side, inverse), status, bare).to(raw.dtype), value)
    iterations = torch.where(inside, 0, steps)
    return Solution(torch.where(valid.unsqueeze(-1), y, torch.nan), dual.to(raw.dtype), status, iterations, residual)


def _smooth(rows: Batch, y: Tensor, held: Held, status: Tensor, bare: bool) -> Tensor:
    """`smooth` on the rows that the pivots ended with, and those that depend on them."""
    numbers = boxed(rows)
    held = canonical(tuple(part.detach() for part in numbers), y, held, None, bare=bare)  # pyright: ignore[reportArgumentType]
    return smooth(numbers, Found(y, held.dual, held.side, None, status, status), held)


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
    """Divide rows by their lengths and samples by their sizes."""
    size = or_one(A.abs().amax(-1))
    A = A / size.unsqueeze(-1)
    length = or_one(torch.linalg.vector_norm(A, dim=-1))
    A = A / length.unsqueeze(-1)
    low, high = (bound / size / length for bound in (lower, upper))
    asked = torch.maximum(low, -high)
    asked = torch.where((asked > 0) & asked.isfinite(), asked, 0.0)
    unit = or_one(torch.maximum(raw.abs().amax(-1, keepdim=True), asked.amax(-1, keepdim=True)))
    return _Scaled(raw / unit, A, low / unit, high / unit, unit, size * length)


def _on_active(problem: _Scaled, side: Tensor, inverse: Tensor, bare: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest point on the active rows, corrected once, its multipliers, and the inverse of their products.

    With `bare` nothing is factorized, which exported formats cannot and a device would wait for.
    """
    active = side != 0
    bound = torch.where(active, torch.where(side > 0, problem.upper, problem.lower), 0.0)
    rows = torch.where(active.unsqueeze(-1), problem.A, 0.0)
    K = rows @ rows.mT + torch.diag_embed((~active).to(rows))
    y, dual = problem.raw, torch.zeros_like(bound)
    for _ in range(2):
        right = times(rows, y) - bound
        step = refined(inverse, K, right) if bare else solve_square(K, right)
        y, dual = y - times(rows.mT, step), dual + step
    if bare:
        return y, dual, 2 * inverse - inverse @ K @ inverse
    both = active.unsqueeze(-1) & active.unsqueeze(-2)
    return y, dual, torch.where(both, torch.linalg.inv_ex(K).inverse, 0.0)


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
