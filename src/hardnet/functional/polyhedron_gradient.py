"""The derivative of the projection onto a polyhedron, from the active set that the solver found.

With u and w from `implicit_vjp` on the active rows, raw receives u, A ``-dual u' - w y'``, and the active bounds w.
Small problems on a GPU do all of this in one kernel, `hardnet.kernels.gpu.projection_backward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.functional.derivatives import implicit_vjp, masked_vjp
from hardnet.kernels.limits import MOST_ACTIVE_COLUMNS, MOST_ON_CHIP
from hardnet.modes import plain
from hardnet.products import align, exponent, outer_sum, shift, shift_rows, times_aligned
from hardnet.rows import CORES, REALS, Batch, in_double
from hardnet.solvers.polyhedron.active import NEARLY_DEPENDENT, solve_active
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.polyhedron.shared_rows import shared_vjp
from hardnet.solvers.solution import Status

RANK = 1e-10
"""Singular values of unit rows below this fraction of the largest count as zero in the derivative of a compromise."""

TANGENT = 1e-11
"""How far u may leave the null space of the active rows, relative to g, before the shared factors are abandoned for the
more careful `implicit_vjp`."""
LARGEST_MATRICES = 1 << 26
"""The most numbers in the gradients of a shared A if each sample writes its own before they are summed."""
Gradients = tuple[Tensor | None, ...]


def gradients(
    grad: Tensor,
    rows: Batch,
    y: Tensor,
    dual: Tensor,
    side: Tensor,
    status: Tensor,
    *,
    needed: tuple[bool, ...],
    shared: SharedRows | None = None,
) -> Gradients:
    """The cotangents of raw, A, lower and upper; zero for samples that are invalid or not solved."""
    saved = (y, dual, side, status)
    found = _fused(grad, rows, *saved, needed) if _fits(grad, rows) else None
    return _general(grad, rows, *saved, needed, shared) if found is None else found


def _fits(grad: Tensor, rows: Batch) -> bool:
    """Whether the kernel takes these: small and plain, on a GPU, and this derivative is not differentiated itself."""
    raw, A = rows.raw, rows.A
    if raw.device.type != "cuda" or torch.is_grad_enabled() or not plain(grad):
        return False
    return max(A.shape[-2:]) <= MOST_ON_CHIP and grad.numel() > 0 and raw.dtype in REALS and gpu.supported(raw.device)


def _fused(
    grad: Tensor,
    rows: Batch,
    y: Tensor,
    dual: Tensor,
    side: Tensor,
    status: Tensor,
    needed: tuple[bool, ...],
) -> Gradients | None:
    """All gradients in one launch, or None if a sample is left open and the batch needs the general path.

    Where no value may be read, the open samples are NaN instead.
    """
    from hardnet.kernels.gpu.projection_backward import Rules, Saved, launch

    A, (m, n) = rows.A, rows.A.shape[-2:]
    rules = Rules(NEARLY_DEPENDENT, int(Status.INVALID), int(Status.INFEASIBLE) if needed[1] else -1)
    apart = A.dim() == 3 or status.numel() * m * n <= LARGEST_MATRICES
    dtypes = _dtypes(rows, apart)
    dtypes[1] = dtypes[1] if needed[1] and apart else None
    found = launch(grad, A, rows.lower, rows.upper, Saved(y, dual, side, status), rules, dtypes)
    if rows.look and bool(found.open.any()):
        return None
    if not rows.look:
        found = _replace_open(found)
    matrix = None if found.matrix is None else _reduce(found.matrix, A)
    if needed[1] and matrix is None:
        sound, empty = (status != int(Status.INVALID)).unsqueeze(-1), status == int(Status.INFEASIBLE)
        w = found.lower + found.upper
        matrix = _matrix_gradient(found.raw, w, _sound(y, sound), _sound(dual, sound), empty, A)
    return _deliver(found.raw, matrix, found.lower, found.upper, rows, needed)


def _replace_open(found: Any) -> Any:
    """NaN for the samples whose active rows are nearly dependent, which the kernel leaves open."""
    parts = {name: getattr(found, name) for name in ("raw", "matrix", "lower", "upper")}
    shape = lambda part: found.open.view(-1, *(1,) * (part.dim() - 1)) != 0
    return found._replace(
        **{name: None if part is None else part.masked_fill(shape(part), torch.nan) for name, part in parts.items()}
    )


def _dtypes(rows: Batch, apart: bool) -> list[torch.dtype | None]:
    """The dtype of a sample's gradients: float64 where they are summed over samples afterwards."""
    return [
        rows.raw.dtype if apart and (part is None or part.dim() > core) else torch.float64
        for part, core in zip(rows.numbers, CORES, strict=False)
    ]


def _general(
    grad: Tensor,
    rows: Batch,
    y: Tensor,
    dual: Tensor,
    side: Tensor,
    status: Tensor,
    needed: tuple[bool, ...],
    shared: SharedRows | None,
) -> Gradients:
    """The gradients in plain torch: for any size and any active rows, and differentiable itself."""
    look, A_in, (point, A, low, high) = rows.look, rows.A, in_double(rows).numbers
    assert low is not None
    assert high is not None
    sound = ((status != int(Status.INVALID)) & (status != int(Status.NOT_CONVERGED))).unsqueeze(-1)
    if not look or not bool(sound.all()):
        A = torch.where(sound.unsqueeze(-1) if A.dim() == 3 else sound.any(), A, 0.0)
    tight = low == high
    active = ((side != 0) | tight) & sound
    grad = torch.where(sound & ~grad.isnan(), grad.double(), 0.0)
    unit = exponent(A.detach().abs().amax(-1))  # rows of size one, so that no square overflows
    A = shift_rows(A, unit)
    bound = shift(torch.where(active, torch.where(side > 0, high, low), 0.0), -unit)
    u, w = _derivative(align(grad), align(A, 2), align(active), status, look, shared)
    u, w = u[:, : A.shape[-1]], shift(w[:, : A.shape[-2]], -unit)
    matrix = None
    if needed[1]:
        again = torch.is_grad_enabled()  # this derivative is differentiated itself
        resolved = _resolved(point, A, bound, active) if again else None
        found = (resolved[0], shift(resolved[1], -unit)) if resolved else (_sound(y, sound), _sound(dual, sound))
        empty = status == int(Status.INFEASIBLE)
        matrix = _matrix_gradient(u, w, *found, empty, A_in)
        if look:  # otherwise an empty set is NaN and has no compromise
            samples = empty.nonzero().squeeze(-1)
            matrix = matrix + _compromise_gradient(grad, point, A, bound, active, unit, samples, A_in)
    below, above = torch.where(tight, 0.5, (side < 0).double()), torch.where(tight, 0.5, (side > 0).double())
    return _deliver(u, matrix, w * below, w * above, rows, needed)


def _derivative(
    grad: Tensor, A: Tensor, active: Tensor, status: Tensor, look: bool, shared: SharedRows | None
) -> tuple[Tensor, Tensor]:
    """``(u, w)`` of `implicit_vjp`: by the shared factors where they are accurate and nothing differentiates them."""
    if shared is not None and not torch.is_grad_enabled():
        u, w, missed = shared_vjp(grad, shared, active, look)
        if not look or not bool(((missed > TANGENT * grad.abs().amax(-1)) | (status == int(Status.INFEASIBLE))).any()):
            return u, w
    if not look and shared is None and _takes(grad, A):
        from hardnet.kernels.gpu import active_rows

        return active_rows.implicit_vjp(grad.contiguous(), A.contiguous(), active.contiguous())
    return (implicit_vjp if look else masked_vjp)(grad, A, active)


def _takes(grad: Tensor, A: Tensor) -> bool:
    """Whether the kernel for rows in memory takes these."""
    fits = A.shape[-1] <= MOST_ACTIVE_COLUMNS and A.numel() > 0 and grad.numel() > 0
    return grad.is_cuda and fits and not torch.is_grad_enabled() and plain(grad, A) and gpu.supported(grad.device)


def _deliver(
    u: Tensor, matrix: Tensor | None, below: Tensor, above: Tensor, rows: Batch, needed: tuple[bool, ...]
) -> Gradients:
    """The gradients that are needed, in the shape and dtype of their inputs."""
    raw, _, lower, upper = rows.numbers
    return (
        u.to(raw.dtype) if needed[0] else None,
        matrix if needed[1] else None,
        _reduce(below, lower) if needed[2] and lower is not None else None,
        _reduce(above, upper) if needed[3] and upper is not None else None,
    )


def _sound(tensor: Tensor, sound: Tensor) -> Tensor:
    """In float64, zero for invalid samples."""
    return torch.where(sound, tensor.double(), 0.0)


def _resolved(raw: Tensor, A: Tensor, bound: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The point y and its dual as differentiable functions of the numbers, on the active set that was found."""
    dual = solve_active(A, active, torch.where(active, times_aligned(A, raw) - bound, 0.0))
    return raw - times_aligned(A.mT, dual), dual


def _matrix_gradient(u: Tensor, w: Tensor, y: Tensor, dual: Tensor, empty: Tensor, A: Tensor) -> Tensor:
    """``-dual u' - w y'``, zero for empty sets, in the shape and dtype of A."""
    dual, w = (torch.where(empty.unsqueeze(-1), 0.0, part) for part in (dual, w))
    return outer_sum(A, (-dual, -w), (u, y)).to(A.dtype)


def _compromise_gradient(
    grad: Tensor, raw: Tensor, A: Tensor, bound: Tensor, active: Tensor, unit: Tensor, samples: Tensor, A_in: Tensor
) -> Tensor | float:
    """The gradient of ``2^unit A`` from empty sets: the derivative of ``y = raw - C^+(C raw - b)``, C of unit rows."""
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
    return _reduce(whole, A_in)


def _reduce(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient of `like` in its dtype, summed over the batch if all samples share it."""
    return (gradient.sum(0) if like.dim() < gradient.dim() else gradient).to(like.dtype)
