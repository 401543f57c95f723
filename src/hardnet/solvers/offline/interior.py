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
from hardnet.solvers.offline.interior_cone import most_slack_conic

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
