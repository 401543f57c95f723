"""The projection onto sparse constant rows as one differentiable operation, with its implicit derivative.

With J the strictly active rows and all equalities, ``g = u + A_J'w`` as in `hardnet.nearest.derivative`: raw
receives u, the active bounds w. The solver is `hardnet.solvers.polyhedron.sparse_rows`, on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.errors import CROSSED, NOT_FINITE
from hardnet.functional.samples import raise_infeasible, reject
from hardnet.nearest.derivative import Found, Route, nearest
from hardnet.nearest.policy import OnInfeasible, OnInvalid, OnUnsolved, Policy, answer
from hardnet.rows import Batch
from hardnet.shapes import joint_batch
from hardnet.solvers.polyhedron.sparse_rows import SparseRows, project_sparse, split_sparse
from hardnet.solvers.solution import Solution, Status


def project_sparse_affine(
    raw: Tensor,
    rows: SparseRows,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
    *,
    on_infeasible: OnInfeasible = "raise",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` for sparse rows, differentiable in raw and the bounds.

    Args:
        raw: ``(*batch, n)`` on the CPU.
        rows: The result of `hardnet.solvers.polyhedron.sparse_rows.prepare_sparse` for A.
        lower: ``(m,)`` or ``(*batch, m)``; None is -inf.
        upper: Like `lower`; None is +inf.
        on_infeasible: What to do with an empty set: ``"raise"`` an `InfeasibleError`, or return ``"nan"`` for that
            sample alone.
        on_unsolved: What to do with a sample that is not solved: as in `hardnet.functional.project_affine`.
        on_invalid: What to do with NaN or lower > upper: ``"raise"`` an error, or return ``"nan"`` for that sample.
    """
    found = nearest(_route(rows), Batch(raw, None, lower, upper))  # pyright: ignore[reportArgumentType]
    y, dual, status, residual = found.y, found.dual, found.status, found.residual
    if on_invalid == "raise":
        reject((status == int(Status.INVALID)) & ~raw.isfinite().all(-1), NOT_FINITE, "raw")
        reject(status == int(Status.INVALID), CROSSED, "lower, upper")
    if on_infeasible != "nan":
        raise_infeasible(status == int(Status.INFEASIBLE), dual)
    policy = Policy("nan", on_unsolved, on_invalid).resolved(look=True)
    return answer(Solution(y, dual, status, status, residual), policy)


@torch.no_grad()
def solve_sparse_affine(raw: Tensor, rows: SparseRows, lower: Tensor | None, upper: Tensor | None) -> Solution:
    """The full solution behind `project_sparse_affine`, without derivatives; y is NaN for unsolved samples."""
    batch, wide = _flatten(raw, lower, upper, *rows.A.shape)
    found = project_sparse(rows, *wide)
    y = torch.where((found.status == int(Status.SOLVED)).unsqueeze(-1), found.y, torch.nan)
    parts = (y.to(raw.dtype), found.dual.to(raw.dtype), found.status, found.iterations, found.residual)
    return Solution(*(part.reshape(batch + part.shape[1:]) for part in parts))


def _flatten(
    raw: Tensor, lower: Tensor | None, upper: Tensor | None, m: int, n: int
) -> tuple[torch.Size, tuple[Tensor, Tensor, Tensor]]:
    """The batch shape, and raw, lower and upper as one flat batch in float64, with infinities for absent bounds."""
    shapes = [part.shape[:-1] for part in (raw, lower, upper) if part is not None]
    batch = joint_batch(*shapes)
    low = raw.new_full((m,), -torch.inf) if lower is None else lower
    high = raw.new_full((m,), torch.inf) if upper is None else upper
    low, high = (bound.double().expand(*batch, m).reshape(-1, m) for bound in (low, high))
    return batch, (raw.double().expand(*batch, n).reshape(-1, n), low, high)


def _route(rows: SparseRows) -> Route:
    """Solve in float64; ``u`` to raw, and w to the active bounds, half of it to each bound of an equality."""

    def find(record: Batch) -> Found:
        raw, _, lower, upper = record.numbers
        (m, n), (batch, wide) = rows.A.shape, _flatten(raw, lower, upper, *rows.A.shape)
        found = project_sparse(rows, *wide)
        side = torch.where(wide[1] == wide[2], 2, found.side).to(torch.int8)
        y, dual = found.y.to(raw.dtype).view(*batch, n), found.dual.view(*batch, m)
        return Found(y, None, dual, side, found.status.view(batch), found.residual.view(batch))

    def product(grad: Tensor, record: Batch, found: Found, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        side, status = found.side, found.status.reshape(-1)
        assert side is not None
        batch, n = grad.shape[:-1], grad.shape[-1]
        grad = torch.where((status == int(Status.SOLVED)).unsqueeze(-1), grad.double().reshape(-1, n).nan_to_num(), 0.0)
        u, w = split_sparse(rows, grad, side != 0)
        shares = [torch.where(side == 2, 0.5, (side == end).double()) for end in (-1, 1)]
        give = lambda part, like: part.reshape(*batch, part.shape[-1]).sum_to_size(like.shape).to(like.dtype)
        own = (u, None, w * shares[0], w * shares[1])
        return (
            *(
                give(part, like) if wanted and part is not None and like is not None else None
                for part, like, wanted in zip(own, record.numbers, needed, strict=False)
            ),
            None,
            None,
        )

    return Route(find, product, last="a projection onto sparse rows")
