"""The derivative of the projection onto a polyhedron, from the active set that the solver found.

With u and w of `implicit_vjp` on the active rows, raw receives u, A ``-dual u' - w y'``, and the active bounds w. Small
problems on a GPU take one kernel for all of it, `hardnet.kernels.gpu.projection_backward`.

Called by `hardnet.functional.polyhedron`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.functional.derivatives import implicit_vjp, masked_vjp
from hardnet.kernels.limits import MOST_ON_CHIP
from hardnet.modes import plain
from hardnet.products import align, exponent, shift, shift_rows, times_aligned
from hardnet.rows import REALS
from hardnet.solvers.polyhedron.active import NEARLY_DEPENDENT, solve_active
from hardnet.solvers.polyhedron.projection import flatten
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.polyhedron.shared_rows import shared_vjp
from hardnet.solvers.solution import Status

RANK = 1e-10
"""Singular values of unit rows below this part of the largest count as zero in the derivative of a compromise."""

TANGENT = 1e-11
"""Part of g that u may move off the active rows before their shared factors are left for the careful way."""
LARGEST_MATRICES = 1 << 26
"""Most numbers that the samples ask of a shared A one by one."""
CORES = (1, 2, 1, 1)
"""Dimensions of raw, A, lower and upper that are not of the batch."""

Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
Gradients = tuple[Tensor | None, ...]


def gradients(
    grad: Tensor,
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    y: Tensor,
    dual: Tensor,
    side: Tensor,
    status: Tensor,
    *,
    needed: tuple[bool, ...],
    look: bool = True,
    shared: SharedRows | None = None,
) -> Gradients:
    """The cotangents of raw, A, lower and upper; zero for invalid samples, whose numbers may be NaN."""
    inputs, saved = (raw, A, lower, upper), (y, dual, side, status)
    found = _fused(grad, inputs, *saved, needed, look) if _fits(grad, *inputs, *saved) else None
    return _general(grad, inputs, *saved, needed, look, shared) if found is None else found


def _fits(grad: Tensor, raw: Tensor, A: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernel takes these: small and plain, on a GPU, and no derivative of this derivative is asked for."""
    if raw.device.type != "cuda" or torch.is_grad_enabled() or not plain(grad, raw, A, *others):
        return False
    return max(A.shape[-2:]) <= MOST_ON_CHIP and grad.numel() > 0 and raw.dtype in REALS and gpu.supported(raw.device)


def _fused(
    grad: Tensor,
    inputs: Inputs,
    y: Tensor,
    dual: Tensor,
    side: Tensor,
    status: Tensor,
    needed: tuple[bool, ...],
    look: bool,
) -> Gradients | None:
    """All of it in one launch. A sample left open sends its batch to the general path, or is NaN without a look."""
    from hardnet.kernels.gpu.projection_backward import Rules, Saved, launch

    A, batch, (m, n) = inputs[1], y.shape[:-1], inputs[1].shape[-2:]
    rules = Rules(NEARLY_DEPENDENT, int(Status.INVALID), int(Status.INFEASIBLE) if needed[1] else -1)
    saved = Saved(y.reshape(-1, n), dual.reshape(-1, m), side.reshape(-1, m), status.reshape(-1))
    apart = A.shape[:-2] == batch or status.numel() * m * n <= LARGEST_MATRICES
    dtypes = _dtypes(inputs, batch, apart)
    dtypes[1] = dtypes[1] if needed[1] and apart else None
    low, high = (None if bound is None else _rows(bound, batch, 1) for bound in inputs[2:])
    found = launch(grad.reshape(-1, n), _rows(A, batch, 2), low, high, saved, rules, dtypes)
    if look and bool(found.open.any()):
        return None
    if not look:
        found = _replace_open(found)
    matrix = None if found.matrix is None else _reduce(found.matrix, batch, A)
    if needed[1] and matrix is None:
        sound, empty = (status != int(Status.INVALID)).reshape(-1, 1), (status == int(Status.INFEASIBLE)).reshape(-1)
        w = found.lower + found.upper
        matrix = _matrix_gradient(found.raw, w, _flat(y, sound), _flat(dual, sound), empty, batch, A)
    return _deliver(found.raw, matrix, found.lower, found.upper, inputs, batch, needed)


def _replace_open(found: Any) -> Any:
    """NaN for the samples whose active rows are nearly dependent, which the kernel leaves open."""
    parts = {name: getattr(found, name) for name in ("raw", "matrix", "lower", "upper")}
    shape = lambda part: found.open.view(-1, *(1,) * (part.dim() - 1)) != 0
    return found._replace(
        **{name: None if part is None else part.masked_fill(shape(part), torch.nan) for name, part in parts.items()}
    )


def _dtypes(inputs: Inputs, batch: torch.Size, apart: bool) -> list[torch.dtype | None]:
    """In which dtype a sample hands out its gradients: float64 where they are summed afterwards."""
    return [
        inputs[0].dtype if apart and (part is None or part.shape[:-core] == batch) else torch.float64
        for part, core in zip(inputs, CORES, strict=True)
    ]


def _rows(tensor: Tensor, batch: torch.Size, core: int) -> Tensor:
    """One flat batch of what each sample has, or what all share alone: a copy only where some samples share."""
    own = tensor.shape[-core:]
    if tensor.shape[:-core].numel() == 1:
        return tensor.reshape(own)
    return tensor.expand(*batch, *own).reshape(-1, *own)


def _general(
    grad: Tensor,
    inputs: Inputs,
    y: Tensor,
    dual: Tensor,
    side: Tensor,
    status: Tensor,
    needed: tuple[bool, ...],
    look: bool,
    shared: SharedRows | None,
) -> Gradients:
    """In plain torch: for any size and any active rows, and differentiable itself."""
    A, (batch, (point, rows, low, high)) = inputs[1], flatten(*inputs)
    sound = (status != int(Status.INVALID)).reshape(-1, 1)
    if not look or not bool(sound.all()):
        rows = torch.where(sound.unsqueeze(-1) if rows.dim() == 3 else sound.any(), rows, 0.0)
    tight, side = low == high, side.reshape(low.shape)
    active = ((side != 0) | tight) & sound
    grad = grad.double().reshape(point.shape)
    grad = torch.where(sound & ~grad.isnan(), grad, 0.0)
    unit = exponent(rows.detach().abs().amax(-1))  # rows of size one: no square of them overflows
    rows = shift_rows(rows, unit)
    bound = shift(torch.where(active, torch.where(side > 0, high, low), 0.0), -unit)
    u, w = _derivative(align(grad), align(rows, 2), align(active), status, look, shared)
    u, w = u[:, : rows.shape[-1]], shift(w[:, : rows.shape[-2]], -unit)
    matrix = None
    if needed[1]:
        again = torch.is_grad_enabled()  # a derivative of this derivative is asked for
        resolved = _resolved(point, rows, bound, active) if again else None
        found = (resolved[0], shift(resolved[1], -unit)) if resolved else (_flat(y, sound), _flat(dual, sound))
        empty = (status == int(Status.INFEASIBLE)).reshape(-1)
        matrix = _matrix_gradient(u, w, *found, empty, batch, A)
        if look:  # without one an empty set is NaN
            samples = empty.nonzero().squeeze(-1)
            matrix = matrix + _compromise_gradient(grad, point, rows, bound, active, unit, samples, batch, A)
    below, above = torch.where(tight, 0.5, (side < 0).double()), torch.where(tight, 0.5, (side > 0).double())
    return _deliver(u, matrix, w * below, w * above, inputs, batch, needed)


def _derivative(
    grad: Tensor, rows: Tensor, active: Tensor, status: Tensor, look: bool, shared: SharedRows | None
) -> tuple[Tensor, Tensor]:
    """``(u, w)`` of `implicit_vjp`: with the factors of constant rows where these hold and are not differentiated."""
    if shared is not None and not torch.is_grad_enabled():
        u, w, missed = shared_vjp(grad, shared, active, look)
        if not look or not bool(
            ((missed > TANGENT * grad.abs().amax(-1)) | (status.flatten() == int(Status.INFEASIBLE))).any()
        ):
            return u, w
    return (implicit_vjp if look else masked_vjp)(grad, rows, active)


def _deliver(
    u: Tensor,
    matrix: Tensor | None,
    below: Tensor,
    above: Tensor,
    inputs: Inputs,
    batch: torch.Size,
    needed: tuple[bool, ...],
) -> Gradients:
    """The gradients that are needed, in the shape and dtype of what they are for."""
    raw, _, lower, upper = inputs
    return (
        _reduce(u, batch, raw) if needed[0] else None,
        matrix if needed[1] else None,
        _reduce(below, batch, lower) if needed[2] and lower is not None else None,
        _reduce(above, batch, upper) if needed[3] and upper is not None else None,
    )


def _flat(tensor: Tensor, sound: Tensor) -> Tensor:
    return torch.where(sound, tensor.double().reshape(len(sound), -1), 0.0)


def _resolved(raw: Tensor, A: Tensor, bound: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The point y and dual as differentiable functions of the numbers, on the active set that was found."""
    dual = solve_active(A, active, torch.where(active, times_aligned(A, raw) - bound, 0.0))
    return raw - times_aligned(A.mT, dual), dual


def _matrix_gradient(
    u: Tensor, w: Tensor, y: Tensor, dual: Tensor, empty: Tensor, batch: torch.Size, A: Tensor
) -> Tensor:
    """``-dual u' - w y'`` but for empty sets; for a shared A the sum over the batch, without a matrix per sample."""
    dual, w = (torch.where(empty.unsqueeze(-1), 0.0, part) for part in (dual, w))
    if A.dim() == 2:
        return -(dual.mT @ u + w.mT @ y).to(A.dtype)
    left, right = torch.stack([dual, w], -1), torch.stack([u, y], -2)
    return _reduce(torch.bmm(-left, right), batch, A)


def _compromise_gradient(
    grad: Tensor,
    raw: Tensor,
    A: Tensor,
    bound: Tensor,
    active: Tensor,
    unit: Tensor,
    samples: Tensor,
    batch: torch.Size,
    A_in: Tensor,
) -> Tensor | float:
    """What ``2^unit A`` receives from empty sets: the derivative of ``y = raw - C^+(C raw - b)``, C of unit rows."""
    if len(samples) == 0:
        return 0.0
    with torch.enable_grad():
        rows = (A.expand(len(raw), *A.shape[-2:]) if A.dim() == 2 else A).detach()[samples].requires_grad_()
        scale = active[samples] / torch.linalg.vector_norm(rows, dim=-1).clamp_min(torch.finfo(rows.dtype).tiny)
        C = rows * scale.unsqueeze(-1)
        excess = times_aligned(C, raw.detach()[samples]) - bound.detach()[samples] * scale
        y = raw.detach()[samples] - times_aligned(torch.linalg.pinv(C, rtol=RANK), excess)
    (own,) = torch.autograd.grad(y, rows, grad.detach()[samples])
    own = shift_rows(own, unit if unit.dim() == 1 else unit[samples])
    whole = rows.new_zeros(len(raw), *rows.shape[1:]).index_copy(0, samples, own)
    return _reduce(whole, batch, A_in)


def _reduce(gradient: Tensor, batch: torch.Size, like: Tensor) -> Tensor:
    """Sum over the batch dimensions that `like` was shared along, in its dtype."""
    core = gradient.shape[1:]
    return gradient.reshape(*batch, *core).sum_to_size(like.shape).to(like.dtype)
