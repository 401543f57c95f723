"""The projection onto sparse constant rows as one differentiable operation, with its implicit derivative.

With J the strictly active rows and all equalities, ``g = u + A_J'w`` as in `hardnet.functional.polyhedron`: raw
receives u, the active bounds w. The solver is `hardnet.solvers.polyhedron.sparse_rows`, on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import CROSSED, NOT_FINITE
from hardnet.functional.derivatives import last_derivative
from hardnet.functional.samples import raise_infeasible, reject
from hardnet.nearest.policy import OnInfeasible, OnInvalid, OnUnsolved, Policy, answer
from hardnet.solvers.polyhedron.sparse_factor import SparseRows
from hardnet.solvers.polyhedron.sparse_rows import project_sparse, split_sparse
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
        rows: The result of `hardnet.solvers.polyhedron.sparse_factor.prepare_sparse` for A.
        lower: ``(m,)`` or ``(*batch, m)``; None is -inf.
        upper: Like `lower`; None is +inf.
        on_infeasible: What to do with an empty set: ``"raise"`` an `InfeasibleError`, or return ``"nan"`` for that
            sample alone.
        on_unsolved: What to do with a sample that is not solved: as in `hardnet.functional.project_affine`.
        on_invalid: What to do with NaN or lower > upper: ``"raise"`` an error, or return ``"nan"`` for that sample.
    """
    y, dual, status, residual = _Sparse.apply(raw, lower, upper, rows)  # pyright: ignore[reportGeneralTypeIssues]
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
    batch = torch.broadcast_shapes(*shapes)
    low = raw.new_full((m,), -torch.inf) if lower is None else lower
    high = raw.new_full((m,), torch.inf) if upper is None else upper
    low, high = (bound.double().expand(*batch, m).reshape(-1, m) for bound in (low, high))
    return batch, (raw.double().expand(*batch, n).reshape(-1, n), low, high)


class _Sparse(torch.autograd.Function):
    """y and, without a derivative, dual, status and residual."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, lower: Tensor | None, upper: Tensor | None, rows: SparseRows) -> Any:
        """Solve in float64."""
        (m, n), (batch, wide) = rows.A.shape, _flatten(raw, lower, upper, *rows.A.shape)
        found = project_sparse(rows, *wide)
        tight = wide[1] == wide[2]
        ctx.rows, ctx.inputs = rows, (raw, lower, upper)
        ctx.save_for_backward(found.side, tight, found.status)
        y, dual = found.y.to(raw.dtype).view(*batch, n), found.dual.view(*batch, m)
        outputs = y, dual, found.status.view(batch), found.residual.view(batch)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """``u`` to raw, and w to the active bounds, half of it to each bound of an equality."""
        side, tight, status = ctx.saved_tensors
        sound = (status == int(Status.SOLVED)).unsqueeze(-1)
        batch, n = grads[0].shape[:-1], grads[0].shape[-1]
        grad = torch.where(sound, grads[0].double().reshape(-1, n).nan_to_num(), 0.0)
        with torch.no_grad():
            u, w = split_sparse(ctx.rows, grad, (side != 0) | tight)
            shares = 1.0, torch.where(tight, 0.5, (side < 0).double()), torch.where(tight, 0.5, (side > 0).double())
            found = [
                None
                if part is None or not needed
                else (share * own).reshape(*batch, own.shape[-1]).sum_to_size(part.shape).to(part.dtype)
                for part, needed, share, own in zip(ctx.inputs, ctx.needs_input_grad, shares, (u, w, w), strict=False)
            ]
        return *last_derivative("a projection onto sparse rows", found, [grads[0], *ctx.inputs]), None
