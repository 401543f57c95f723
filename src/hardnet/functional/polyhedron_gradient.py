"""The derivative of the projection onto a polyhedron, from the active set that the solver found.

With u and w of `implicit_vjp` on the active rows, raw receives u, A ``-dual u' - w y'``, and the active bounds w.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional.implicit import implicit_vjp
from hardnet.solvers.active import solve_active
from hardnet.solvers.problem import multiply
from hardnet.solvers.projection import flatten
from hardnet.solvers.solution import Status

RANK = 1e-10
"""Singular values of unit rows below this part of the largest count as zero in the derivative of a compromise."""


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
) -> tuple[Tensor | None, ...]:
    """The cotangents of raw, A, lower and upper; zero for invalid samples, whose numbers may be NaN."""
    batch, (point, rows, low, high) = flatten(raw, A, lower, upper)
    sound = (status != Status.INVALID).reshape(-1, 1)
    if rows.dim() == 3 and not bool(sound.all()):
        rows = torch.where(sound.unsqueeze(-1), rows, 0.0)
    tight, side = low == high, side.reshape(low.shape)
    active = ((side != 0) | tight) & sound
    grad = grad.double().reshape(point.shape)
    grad = torch.where(sound & ~grad.isnan(), grad, 0.0)
    u, w = implicit_vjp(grad, rows, active)
    bound = torch.where(active, torch.where(side > 0, high, low), 0.0)
    matrix = None
    if needed[1]:
        again = torch.is_grad_enabled()  # a derivative of this derivative is asked for
        found = _resolved(point, rows, bound, active) if again else (_flat(y, sound), _flat(dual, sound))
        empty = (status == Status.INFEASIBLE).reshape(-1)
        matrix = _matrix_gradient(u, w, *found, empty, batch, A)
        matrix = matrix + _compromise_gradient(grad, point, rows, bound, active, empty.nonzero().squeeze(-1), batch, A)
    below, above = torch.where(tight, 0.5, (side < 0).double()), torch.where(tight, 0.5, (side > 0).double())
    return (
        _reduce(u, batch, raw) if needed[0] else None,
        matrix,
        _reduce(w * below, batch, lower) if needed[2] and lower is not None else None,
        _reduce(w * above, batch, upper) if needed[3] and upper is not None else None,
    )


def _flat(tensor: Tensor, sound: Tensor) -> Tensor:
    return torch.where(sound, tensor.double().reshape(len(sound), -1), 0.0)


def _resolved(raw: Tensor, A: Tensor, bound: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The point y and dual as differentiable functions of the numbers, on the active set that was found."""
    dual = solve_active(A, active, torch.where(active, multiply(A, raw) - bound, 0.0))
    return raw - multiply(A.mT, dual), dual


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
    samples: Tensor,
    batch: torch.Size,
    A_in: Tensor,
) -> Tensor | float:
    """What A receives from empty sets: the derivative of ``y = raw - C^+(C raw - b)`` with the active unit rows C."""
    if len(samples) == 0:
        return 0.0
    with torch.enable_grad():
        rows = (A.expand(len(raw), *A.shape[-2:]) if A.dim() == 2 else A).detach()[samples].requires_grad_()
        scale = active[samples] / torch.linalg.vector_norm(rows, dim=-1).clamp_min(torch.finfo(rows.dtype).tiny)
        unit = rows * scale.unsqueeze(-1)
        excess = multiply(unit, raw.detach()[samples]) - bound.detach()[samples] * scale
        y = raw.detach()[samples] - multiply(torch.linalg.pinv(unit, rtol=RANK), excess)
    (own,) = torch.autograd.grad(y, rows, grad.detach()[samples])
    whole = rows.new_zeros(len(raw), *rows.shape[1:]).index_copy(0, samples, own)
    return _reduce(whole, batch, A_in)


def _reduce(gradient: Tensor, batch: torch.Size, like: Tensor) -> Tensor:
    """Sum over the batch dimensions that `like` was shared along, in its dtype."""
    core = gradient.shape[1:]
    return gradient.reshape(*batch, *core).sum_to_size(like.shape).to(like.dtype)
