"""Shared derivatives: the implicit derivative of a projection, values with another gradient, and batches under vmap.

At ``y = argmin h(y)  subject to  c_J(y) = 0`` with Hessian W of the Lagrangian and gradient rows C of the active
constraints, a perturbation of the optimality conditions moves y by the inverse of ``[W C'; C 0]``. Its transpose maps
the cotangent g of y to

    u = W^-1 (g - C'w) = (W^-1 - W^-1 C'(C W^-1 C')^+ C W^-1) g,      w = (C W^-1 C')^+ C W^-1 g.

u is the cotangent of raw, and w the one of the right-hand sides of the active constraints; every other number p of the
set receives ``-d/dp (dual . C(p) u + w . c(y; p))`` at fixed y, dual, u and w.

`attach` gives values found without autograd such a derivative; `keep_value` and `leak_gradient` give a value another
gradient; `along_tangent` adds the gradient that pulls violated rows back inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.modes import refuse_forward_tangent
from hardnet.nearest.derivative import Pull
from hardnet.nearest.derivative import last_derivative as last_derivative
from hardnet.products import times
from hardnet.solvers.polyhedron.active import solve_unseen, split

Bound = Tensor | None
Find = Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]]
PullBack = Callable[[Tensor, Sequence[Any], Sequence[Any], Sequence[bool]], Sequence[Bound]]


def implicit_vjp(grad: Tensor, C: Tensor, active: Tensor, hessian: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``(u, w)`` with ``[W C_J'; C_J 0] (u, w) = (g, 0)``; dependent rows share w through the pseudo-inverse.

    Args:
        grad: Cotangent g of y, ``(B, n)``.
        C: Gradient rows, ``(m, n)`` for all samples or ``(B, m, n)``.
        active: Which rows are active, ``(B, m)``; w is zero on the others.
        hessian: W, symmetric positive definite ``(B, n, n)``, or None for the identity.
    """
    if hessian is None:
        return split(grad, C, active)
    factor = torch.linalg.cholesky(hessian)
    rows = torch.linalg.solve_triangular(factor, C.mT.expand(*hessian.shape[:-2], *C.mT.shape[-2:]), upper=False).mT
    white = torch.linalg.solve_triangular(factor, grad.unsqueeze(-1), upper=False).squeeze(-1)
    tangent, multiplier = split(white, rows, active)
    back = torch.linalg.solve_triangular(factor.mT, tangent.unsqueeze(-1), upper=True)
    return back.squeeze(-1), multiplier


class Implicit(torch.autograd.Function):
    """Values that are found without autograd, with the derivative that belongs to them: `attach`."""

    @staticmethod
    def forward(ctx: Any, find: Find, pull: PullBack, what: str | None, *inputs: Tensor | None) -> Any:
        """The values; only the first has a derivative."""
        values, saved = find(*inputs)
        ctx.save_for_backward(*saved, *inputs)
        ctx.pull, ctx.what, ctx.count = pull, what, len(saved)
        ctx.mark_non_differentiable(*values[1:])
        return values if len(values) > 1 else values[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Bound, ...]:
        """Those of the inputs that want one, in their shapes and dtypes."""
        kept, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]  # read once: a checkpoint computes them again
        saved, inputs = kept[: ctx.count], kept[ctx.count :]
        with torch.set_grad_enabled(torch.is_grad_enabled() and ctx.what is None):
            found = [
                None if own is None or not need else own.sum_to_size(given.shape).to(given.dtype)
                for own, given, need in zip(ctx.pull(grads[0], saved, inputs, needed), inputs, needed, strict=True)
            ]
        if ctx.what is not None:
            found = last_derivative(ctx.what, found, [grads[0], *inputs])
        return None, None, None, *found


def attach(find: Find, pull: PullBack, inputs: Sequence[Bound], what: str | None = None) -> Any:
    """The values that `find` gives for the inputs, of which the first has the derivative that `pull` gives.

    Args:
        find: ``inputs -> (values, saved)``: tensors, and what the derivative needs beside the inputs.
        pull: ``(cotangent of the first value, saved, inputs, which are needed) -> cotangents of the inputs``, None for
            those that are not needed; more batch dimensions than an input has are summed.
        inputs: Tensors, or None.
        what: A phrase that names the function where the cotangents cannot be differentiated again; None where they can.
    """
    return Implicit.apply(find, pull, what, *inputs)


def keep_value(y: Tensor, value: Tensor) -> Tensor:
    """`value`, bit for bit, with the gradient of y."""
    return value.detach() + (y - y.detach())


def linearized(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """The value ``(*batch, 1)`` of a function at a point ``(*batch, n)``, and its slope ``(*batch, n)``."""
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        leaf = point if point.requires_grad else point.detach().clone().requires_grad_()
        value = function(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf, create_graph=keep)
    return (value, slope) if keep else (value.detach(), slope)


def leak_gradient(y: Tensor, raw: Tensor, leak: float) -> Tensor:
    """The value of y with gradient ``(1 - leak) dy/draw + leak I``: a share bypasses the enforcement.

    The result is biased, but never opposes the true gradient of a projection, since both agree on its range.
    """
    if y.shape != raw.shape:
        expected = f"the shape of y, {tuple(y.shape)}"
        raise ShapeError(sentence("raw", expected, tuple(raw.shape), "use leak=0 with this method"))
    through = y.detach() + (1 - leak) * (y - y.detach())
    return through + leak * (raw - raw.detach())


def join_batches(
    mapped: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...], cores: tuple[int, ...], share: bool = True
) -> tuple[tuple[int, int], list[Any]]:
    """The mapped size and batch size of the first argument, and all arguments with these two dimensions merged.

    Args:
        mapped: Size of the mapped dimension.
        in_dims: The position of the mapped dimension in each argument, or None.
        inputs: Tensors with one batch dimension or none (shared), or None.
        cores: How many dimensions each has after the batch.
        share: Whether an argument that is neither mapped nor batched may stay shared.
    """
    samples = inputs[0].shape[0] if in_dims[0] != 0 else inputs[0].shape[1]
    sizes = (mapped, samples)
    return sizes, [_join(*item, sizes, share) for item in zip(inputs, in_dims, cores, strict=True)]


def _join(tensor: Tensor | None, at: int | None, core: int, sizes: tuple[int, int], share: bool) -> Tensor | None:
    """A tensor with `core` trailing dimensions, its mapped and batch dimensions merged; a shared one may stay so."""
    if tensor is None or (at is None and tensor.dim() == core and share):
        return tensor
    tensor = tensor.unsqueeze(0) if at is None else tensor.movedim(at, 0)
    if tensor.dim() == core + 1:  # shared by the batch of each mapped call
        tensor = tensor.unsqueeze(1)
    return tensor.expand(*sizes, *tensor.shape[2:]).flatten(0, 1)


def _along_rows(grad: Tensor, A: Tensor, side: Tensor, beside: Tensor) -> Tensor:
    """``sum of w_i a_i`` over the violated rows with ``side_i w_i > 0``, ``w = (A_J')^+ g``."""
    w = solve_unseen(A, beside, times(A, grad.to(A)))
    return times(A.mT, torch.where(side * w > 0, w, 0.0)).to(grad)


def along_tangent(y: Tensor, raw: Tensor, A: Tensor, lower: Bound, upper: Bound, *, every: bool = False) -> Tensor:
    """Y with a backward along the tangent cone: raw also receives what pulls a violated row back inside.

    The part that pushes such a row further outside is dropped, as in the exact gradient. The gradient is shared among
    the violated rows, or among all rows with `every`, for the closed form, which holds the satisfied ones too.
    """
    refuse_forward_tangent()
    rows, side = _violated(y, raw, A, lower, upper)
    beside = torch.ones_like(side).bool() if every else side != 0
    return y + Pull.apply(raw.expand_as(y), _along_rows, rows, side, beside)  # pyright: ignore[reportOperatorIssue]


@torch.no_grad()
def _violated(y: Tensor, raw: Tensor, A: Tensor, lower: Bound, upper: Bound) -> tuple[Tensor, Tensor]:
    """Unit rows in float64, and the side of the inequalities that raw violates and y meets: +1 above, -1 below."""
    rows = A.detach().double()
    length = torch.linalg.vector_norm(rows / rows.abs().amax(-1, keepdim=True).clamp_min(1e-300), dim=-1, keepdim=True)
    scale = rows.abs().amax(-1, keepdim=True).clamp_min(1e-300) * length.clamp_min(1e-300)
    rows = rows / scale
    size = 64 * torch.finfo(y.dtype).eps * (1 + y.detach().double().abs().amax(-1, keepdim=True))
    at_raw, at_y = (times(rows, point.detach().double()) for point in (raw, y))
    side = torch.zeros_like(at_y)
    for bound, sign, other in ((upper, 1.0, lower), (lower, -1.0, upper)):
        if bound is not None:
            level = bound.detach().double() / scale.squeeze(-1)
            tight = (sign * (at_raw - level) > 0) & ((at_y - level).abs() <= size)
            side = torch.where(tight & (other is None or (bound != other)), sign, side)
    return rows, side
