"""The projection onto sparse constant rows as one differentiable operation, with its implicit derivative.

With J the strictly active rows and all equalities, ``g = u + A_J'w`` as in `hardnet.functional.polyhedron`: raw
receives u, the active bounds w. The solver is `hardnet.solvers.sparse_rows`, on a CPU.

Called by `hardnet.sets.sparse`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hardnet.errors import CROSSED, NOT_FINITE, DeviceError, sentence
from hardnet.functional.samples import raise_infeasible, reject, warn_not_converged
from hardnet.modes import outside_compiler, refuse_transforms
from hardnet.solvers.solution import Status
from hardnet.solvers.sparse_factor import SparseRows
from hardnet.solvers.sparse_rows import project_sparse, split_sparse


@outside_compiler
def project_sparse_affine(
    raw: Tensor,
    rows: SparseRows,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
    *,
    on_infeasible: str = "raise",
    on_invalid: str = "raise",
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` for sparse rows, differentiable in raw and the bounds.

    Args:
        raw: ``(*batch, n)`` on the CPU.
        rows: What `hardnet.solvers.sparse_factor.prepare_sparse` made of A.
        lower: ``(m,)`` or ``(*batch, m)``; None is -inf.
        upper: Like `lower`; None is +inf.
        on_infeasible: What an empty set gives: ``"raise"`` an `InfeasibleError`, ``"nan"`` NaN for that sample alone.
        on_invalid: What NaN or lower > upper give: an error, or ``"nan"`` for that sample alone.
    """
    refuse_transforms("the projection onto sparse rows")
    if raw.device.type != "cpu":
        raise DeviceError(sentence("raw", "a tensor on the CPU beside sparse rows", raw.device, "give A densely"))
    y, dual, status, residual = _Sparse.apply(raw, lower, upper, rows)  # pyright: ignore[reportGeneralTypeIssues]
    if on_invalid == "raise":
        reject((status == Status.INVALID) & ~raw.isfinite().all(-1), NOT_FINITE, "raw")
        reject(status == Status.INVALID, CROSSED, "lower, upper")
    if on_infeasible != "nan":
        raise_infeasible(status == Status.INFEASIBLE, dual)
    warn_not_converged(status == Status.NOT_CONVERGED, residual)
    return torch.where((status == Status.INFEASIBLE).unsqueeze(-1), torch.nan, y)


class _Sparse(torch.autograd.Function):
    """y and, without derivative, dual, status and residual."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, lower: Tensor | None, upper: Tensor | None, rows: SparseRows) -> Any:
        """Solve in float64."""
        m, n = rows.A.shape
        shapes = [part.shape[:-1] for part in (raw, lower, upper) if part is not None]
        batch = torch.broadcast_shapes(*shapes)
        wide = [raw.double().expand(*batch, n).reshape(-1, n)]
        for bound, absent in ((lower, -torch.inf), (upper, torch.inf)):
            full = raw.new_full((m,), absent) if bound is None else bound
            wide.append(full.double().expand(*batch, m).reshape(-1, m))
        found = project_sparse(rows, *wide)
        tight = wide[1] == wide[2]
        ctx.rows, ctx.inputs = rows, (raw, lower, upper)
        ctx.save_for_backward(found.side, tight, found.status)
        y, dual = found.y.to(raw.dtype).view(*batch, n), found.dual.view(*batch, m)
        outputs = y, dual, found.status.view(batch), found.residual.view(batch)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    @once_differentiable  # pyright: ignore[reportArgumentType]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """``u`` to raw, and w to the active bounds, half of it to each bound of an equality."""
        side, tight, status = ctx.saved_tensors
        sound = (status == Status.SOLVED).unsqueeze(-1)
        batch, n = grads[0].shape[:-1], grads[0].shape[-1]
        grad = torch.where(sound, grads[0].double().reshape(-1, n).nan_to_num(), 0.0)
        u, w = split_sparse(ctx.rows, grad, (side != 0) | tight)
        shares = 1.0, torch.where(tight, 0.5, (side < 0).double()), torch.where(tight, 0.5, (side > 0).double())
        return *(
            None
            if part is None or not needed
            else (share * own).reshape(*batch, own.shape[-1]).sum_to_size(part.shape).to(part.dtype)
            for part, needed, share, own in zip(ctx.inputs, ctx.needs_input_grad, shares, (u, w, w), strict=False)
        ), None
