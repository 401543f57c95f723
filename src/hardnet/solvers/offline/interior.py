"""Offline analysis of a constant convex set: its affine hull and a point well inside it, relative to the hull.

Linear rows alone need linear programs (HiGHS, through scipy); curved blocks need a cone solver (clarabel). Both come
with the extra ``offline`` and run once, on the CPU in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import InfeasibleError, MissingExtraError, UnsupportedSetError
from hardnet.solvers.conic.blocks import Block, Intervals, Quadratics, SecondOrder, SemiDefinite

# The point with the most slack in a set with curved blocks, as one cone program for clarabel.
#
# Variables ``(z, slack)`` with ``y = point + basis z``; each block requires an affine function of them to be in a cone.


class Demand(NamedTuple):
    """``offset + y_rows y - slack_column slack`` in a cone: ``(r,)``, ``(r, n)``, ``(r,)`` and the type of cone."""

    offset: Tensor
    y_rows: Tensor
    slack_column: Tensor
    cone: str


def most_slack_conic(hull: Hull, curved: Sequence[Block], cap: float | None) -> tuple[Tensor, float] | None:
    """Maximize the slack common to all blocks; None where it is unbounded or the solver fails."""
    lengths = torch.linalg.vector_norm(hull.rows.A @ hull.basis, dim=-1)
    demands = [Demand(hull.rows.b, -hull.rows.A, lengths, "orthant"), *(_demand(block) for block in curved)]
    if cap is not None:
        nothing = torch.zeros(1, len(hull.point), dtype=torch.float64)
        demands.append(Demand(cap * _one(), nothing, _one(), "orthant"))
    matrix = torch.cat([torch.cat([-own.y_rows @ hull.basis, own.slack_column.unsqueeze(-1)], 1) for own in demands])
    right = torch.cat([own.offset + own.y_rows @ hull.point for own in demands])
    found = _maximize_last(matrix, right, [(own.cone, len(own.offset)) for own in demands])
    return None if found is None else (found[:-1], found[-1].item())


def _maximize_last(matrix: Tensor, right: Tensor, cones: list[tuple[str, int]]) -> Tensor | None:
    """``max u_last`` subject to ``right - matrix u`` in the product of the cones."""
    try:
        import clarabel
        from scipy import sparse
    except ImportError:
        raise MissingExtraError("clarabel", "offline") from None
    solver: Any = clarabel  # its names come from a compiled module
    cost = torch.zeros(matrix.shape[1], dtype=torch.float64)
    cost[-1] = -1
    settings = solver.DefaultSettings()
    settings.verbose = False
    quadratic, rows = sparse.csc_matrix((len(cost), len(cost))), sparse.csc_matrix(matrix.numpy())
    kinds = [_cone(solver, kind, size) for kind, size in cones]
    solution = solver.DefaultSolver(quadratic, cost.numpy(), rows, right.numpy(), kinds, settings).solve()
    if solution.status not in (solver.SolverStatus.Solved, solver.SolverStatus.AlmostSolved):
        return None
    return torch.tensor(solution.x, dtype=torch.float64)


def _demand(block: Block) -> Demand:
    """The condition of a curved block on y and the slack."""
    if isinstance(block, SecondOrder):  # (c'y + d - slack, A y + b)
        offset = torch.cat([block.d.reshape(1), block.b])
        y_rows = torch.cat([block.c.unsqueeze(0), block.A])
        return Demand(offset, y_rows, torch.cat([_one(), torch.zeros_like(block.b)]), "second-order")
    if isinstance(block, SemiDefinite):  # F0 + sum y F - slack I
        eye = torch.eye(block.F0.shape[-1], dtype=torch.float64)
        return Demand(_triangle(block.F0), _triangle(block.F).mT, _triangle(eye), "semidefinite")
    if isinstance(block, Quadratics):
        return _quadratic_demand(block)
    raise TypeError(f"a curved block was expected, got {type(block).__name__}")


def _quadratic_demand(block: Quadratics) -> Demand:
    """``1/2 |R y|^2 <= h`` with ``h = -(q'y + r + slack)`` as ``|(2 R y, 1 - 2 h)| <= 1 + 2 h``."""
    values, vectors = torch.linalg.eigh(block.P)
    R = values.clamp_min(0).sqrt().unsqueeze(-1) * vectors.mT
    zeros = torch.zeros(len(R), dtype=torch.float64)
    offset = torch.cat([(1 - 2 * block.r).reshape(1), zeros, (1 + 2 * block.r).reshape(1)])
    y_rows = torch.cat([-2 * block.q.unsqueeze(0), 2 * R, 2 * block.q.unsqueeze(0)])
    return Demand(offset, y_rows, torch.cat([2 * _one(), zeros, -2 * _one()]), "second-order")


def _triangle(matrix: Tensor) -> Tensor:
    """The upper triangle column by column, off-diagonal entries times sqrt 2, as clarabel expects it."""
    k = matrix.shape[-1]
    column, row = torch.tril_indices(k, k)
    weight = torch.where(row == column, 1.0, 2.0**0.5).double()
    return (matrix + matrix.mT)[..., row, column] / 2 * weight


def _cone(clarabel: Any, kind: str, size: int) -> Any:
    """The clarabel object for a cone."""
    if kind == "orthant":
        return clarabel.NonnegativeConeT(size)
    if kind == "second-order":
        return clarabel.SecondOrderConeT(size)
    return clarabel.PSDTriangleConeT(round((2 * size + 0.25) ** 0.5 - 0.5))


def _one() -> Tensor:
    """A vector with the single entry 1."""
    return torch.ones(1, dtype=torch.float64)


THIN = 1e-8
"""A set whose interior point has at most this slack counts as having no interior; of its size, if that is below 1."""


class Halfspaces(NamedTuple):
    """``A y <= b`` with rows of norm one, and ``C y = d``."""

    A: Tensor
    b: Tensor
    C: Tensor
    d: Tensor


class Hull(NamedTuple):
    """The affine hull ``{point + basis z}`` and the inequality rows that are not implicit equalities.

    Attributes:
        point: A point of the hull, ``(n,)``.
        basis: Orthonormal columns, ``(n, k)``; the identity where there is no equality.
        rows: The inequality rows that cut the hull.
        implicit: Indices of the inequality rows that are implicit equalities.
    """

    point: Tensor
    basis: Tensor
    rows: Halfspaces
    implicit: list[int]


def halfspaces(blocks: Sequence[Intervals], n: int) -> Halfspaces:
    """Stack the rows of intervals: finite bounds as ``A y <= b``, pairs of equal bounds as ``C y = d``."""
    A = torch.cat([torch.zeros(0, n, dtype=torch.float64), *(block.A for block in blocks)])
    none = torch.zeros(0, dtype=torch.float64)
    lower = torch.cat([none, *(block.lower.expand(len(block.A)) for block in blocks)])
    upper = torch.cat([none, *(block.upper.expand(len(block.A)) for block in blocks)])
    norm = torch.linalg.vector_norm(A, dim=-1)
    norm = torch.where(norm > 0, norm, 1)
    A, lower, upper = A / norm.unsqueeze(-1), lower / norm, upper / norm
    equal = lower == upper
    above, below = upper.isfinite() & ~equal, lower.isfinite() & ~equal
    return Halfspaces(
        torch.cat([A[above], -A[below]]), torch.cat([upper[above], -lower[below]]), A[equal], lower[equal]
    )


def affine_hull(rows: Halfspaces) -> Hull:
    """Find the rows that hold with equality on the whole set, by one linear program, and move them to C.

    ``max sum t`` subject to ``A z + t <= a b``, ``C z = a d``, ``0 <= t <= 1``, ``a >= 1``: scaling the set up by a
    gives ``t = 1`` to every row that can have slack, and ``t = 0`` to every implicit equality.

    Raises:
        InfeasibleError: No point satisfies all rows.
    """
    m, n = rows.A.shape
    A = torch.cat([rows.A, torch.eye(m, dtype=torch.float64), -rows.b.unsqueeze(-1)], dim=1)
    C = torch.cat([rows.C, rows.C.new_zeros(len(rows.C), m), -rows.d.unsqueeze(-1)], dim=1)
    cost = torch.cat([torch.zeros(n), -torch.ones(m), torch.zeros(1)]).double()
    bounds = [(None, None)] * n + [(0, 1)] * m + [(1, None)]
    result = _linear_program(cost, A, torch.zeros(m).double(), C, torch.zeros(len(C)).double(), bounds)
    if result.status != 0:
        raise InfeasibleError("constraint: expected a set that holds some point, got affine rows that contradict")
    tight = torch.as_tensor(result.x[n : n + m]) < 0.5
    moved = Halfspaces(
        rows.A[~tight], rows.b[~tight], torch.cat([rows.C, rows.A[tight]]), torch.cat([rows.d, rows.b[tight]])
    )
    return hull_of(moved, tight.nonzero().flatten().tolist())


def hull_of(rows: Halfspaces, implicit: list[int] | None = None) -> Hull:
    """The solutions of ``C y = d`` as ``point + basis z``, and the inequalities that cut them."""
    n = rows.C.shape[-1]
    point = torch.linalg.pinv(rows.C) @ rows.d if len(rows.C) else torch.zeros(n, dtype=torch.float64)
    basis = torch.eye(n, dtype=torch.float64)
    if len(rows.C):
        _, values, directions = torch.linalg.svd(rows.C)
        rank = int((values > max(rows.C.shape) * 1e-13 * values.max()).sum())
        basis = directions[rank:].mT.contiguous()
    return Hull(point, basis, cutting(rows, basis, 1e-13), implicit or [])


def cutting(rows: Halfspaces, basis: Tensor, eps: float) -> Halfspaces:
    """The inequality rows that vary along the hull; each of the others holds either everywhere on it or nowhere."""
    cuts = torch.linalg.vector_norm(rows.A @ basis, dim=-1) > 1000 * eps
    return rows._replace(A=rows.A[cuts], b=rows.b[cuts])


def interior_point(hull: Hull, curved: Sequence[Block], most: float = 1.0) -> Tensor:
    """A point well inside: the analytic center of a bounded set of linear rows, else the point with the most slack.

    The largest ball may be near one end of a long set; the analytic center, which minimizes ``-sum log slack``, does
    not depend on the units of the coordinates. It exists where the set is bounded.

    Where the slack is unbounded, the point has `most` of it.

    Raises:
        InfeasibleError: The linear and the curved parts have no common point.
        UnsupportedSetError: The set has no interior relative to the affine hull of its linear part.
    """
    if not hull.basis.shape[-1]:
        return hull.point
    found, slack = most_slack(hull, curved, None) or most_slack(hull, curved, most) or (None, 0.0)
    if found is None or slack < -THIN:
        raise InfeasibleError("constraint: expected a set that holds some point, got parts that do not meet")
    if slack <= THIN:
        text = f"it has no interior (slack {slack:.1e}; implicit equalities found: rows {hull.implicit})"
        raise UnsupportedSetError(f"method 'rayen' cannot enforce this set: {text}; use method='cvx' or 'projection'")
    if not curved:
        found = _analytic_center(hull.rows.A @ hull.basis, hull.rows.b - hull.rows.A @ hull.point, found)
    return hull.point + hull.basis @ found


def center_of(rows: Halfspaces, curved: Sequence[Block]) -> tuple[Tensor, Tensor]:
    """The interior point of these rows and blocks, ``(n,)``, and the basis of their affine hull ``(n, k)``.

    Rows alone are looked at in the unit of their largest bound, where that is less than 1: the programs have absolute
    tolerances.
    """
    size = 1.0 if curved else largest_bound(rows)
    unit = min(size, 1.0)
    hull = affine_hull(rows._replace(b=rows.b / unit, d=rows.d / unit))
    return unit * interior_point(hull, curved, size / unit), hull.basis


def largest_bound(rows: Halfspaces) -> float:
    """The size of the largest bound; 1 where all are 0."""
    return torch.cat([rows.b, rows.d, rows.b.new_zeros(1)]).abs().max().item() or 1.0


def least_slack(rows: Halfspaces, curved: Sequence[Block], y: Tensor) -> float:
    """The least slack of the inequalities at y: negative outside, positive strictly inside, inf if there are none."""
    slacks = [rows.b - rows.A @ y]
    for block in curved:
        if isinstance(block, SecondOrder):
            slacks.append(block.c @ y + block.d - torch.linalg.vector_norm(block.A @ y + block.b))
        elif isinstance(block, SemiDefinite):
            slacks.append(torch.linalg.eigvalsh(block.F0 + torch.einsum("k,kij->ij", y, block.F))[0])
        elif isinstance(block, Quadratics):
            slacks.append(-(0.5 * y @ block.P @ y + block.q @ y + block.r))
    joined = torch.cat([slack.reshape(-1) for slack in slacks])
    return joined.min().item() if joined.numel() else torch.inf


def most_slack(hull: Hull, curved: Sequence[Block], cap: float | None) -> tuple[Tensor, float] | None:
    """The z with the most slack (up to `cap`), for linear rows the center of the largest ball; None if unbounded."""
    if curved:
        return most_slack_conic(hull, curved, cap)
    A, k = hull.rows.A @ hull.basis, hull.basis.shape[-1]
    lengths = torch.linalg.vector_norm(A, dim=-1, keepdim=True)
    cost = torch.zeros(k + 1).double()
    cost[-1] = -1
    free = torch.zeros(0, k + 1).double()
    bounds = [(None, None)] * k + [(None, cap)]
    result = _linear_program(
        cost, torch.cat([A, lengths], dim=1), hull.rows.b - hull.rows.A @ hull.point, free, free[:, 0], bounds
    )
    if result.status != 0:
        return None
    return torch.as_tensor(result.x[:k]), float(result.x[-1])


def _analytic_center(A: Tensor, b: Tensor, start: Tensor, iterations: int = 100) -> Tensor:
    """``argmin -sum log(b - A z)`` by damped Newton from an interior `start`; `start` where there is no minimum."""
    z = start
    for _ in range(iterations):
        inverse_slack = 1 / (b - A @ z)
        scaled = A * inverse_slack.unsqueeze(-1)
        factor, singular = torch.linalg.cholesky_ex(scaled.mT @ scaled)
        if singular:
            return start
        step = torch.cholesky_solve((scaled.mT @ torch.ones_like(b)).unsqueeze(-1), factor).squeeze(-1)
        decrement = torch.linalg.vector_norm(scaled @ step)
        z = z - step / (1 + decrement)
        if decrement < 1e-9:
            return z
    return start


def _linear_program(cost: Tensor, A: Tensor, b: Tensor, C: Tensor, d: Tensor, bounds: list[Any]) -> Any:
    """``min cost z`` subject to ``A z <= b``, ``C z = d`` and bounds, by HiGHS."""
    try:
        from scipy.optimize import linprog
    except ImportError:
        raise MissingExtraError("scipy", "offline") from None
    return linprog(cost.numpy(), A.numpy(), b.numpy(), C.numpy(), d.numpy(), bounds, method="highs")
