"""The point with the most slack in a set with curved blocks, as one cone program for clarabel.

Variables ``(z, slack)`` with ``y = point + basis z``; each block requires an affine function of them to be in a cone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import MissingExtraError
from hardnet.solvers.conic.blocks import Block, Quadratics, SecondOrder, SemiDefinite

if TYPE_CHECKING:
    from hardnet.solvers.offline.interior import Hull


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
