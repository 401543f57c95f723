"""The derivative of the projection onto blocks, by the implicit function theorem.

At a solution, with the derivative of the cone projection in its eigenbasis (rows, delta; see `solvers.conic.images`),

    W = I + sum_i dual_i D2G_i + rows' diag((1 - delta) / delta) rows   over the rows that bend,
    C = rows with delta = 0,      N = W^-1 - W^-1 C'(C W^-1 C')^+ C W^-1,

the cotangent of raw is ``u = N g``; that of every number of the set is the gradient of
``weight . G(y) - dual . DG(y) u`` at fixed y, with ``weight = -Q (S^+ C W^-1 g + bend rows u)``. In compiled code
the projection is one operator with this derivative, since its iteration would be thousands of operations of the graph;
nothing is raised there, and a sample that is not solved is NaN.

Called by `hardnet.functional.conic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from hardnet.functional.derivatives import implicit_vjp
from hardnet.modes import may_look
from hardnet.products import power_above, times_tiled
from hardnet.solvers.conic.blocks import (
    Block,
    gather,
    images,
)
from hardnet.solvers.conic.distance import local_unit
from hardnet.solvers.conic.saddle import StiffSaddle
from hardnet.solvers.conic.solve import project_intersection as solve
from hardnet.solvers.conic.stack import Linear, Stack, takes
from hardnet.solvers.solution import Solution, Status

TIGHT = 1e-10
"""Beyond this distance from its cone, in the unit of y and of the multipliers, a row counts as tight."""
FAINT = 1e-3
"""Multipliers are scaled up to size one from here: below it their own rounding would count as tight."""


def cotangents(
    grad: Tensor, y: Tensor, dual: Tensor, kinds: Sequence[type[Block]], fields: Sequence[Tensor], needed: Sequence[int]
) -> tuple[Tensor, list[Tensor]]:
    """The cotangents of raw ``(B, n)``, in float64, and of the `needed` fields, each in its own dtype.

    Args:
        grad: Cotangent of y, ``(B, n)``.
        y: The answer in float64, ``(B, n)``; samples of NaN get zeros.
        dual: Multipliers, ``(B, r)``.
        kinds: The blocks that the fields make up.
        fields: The numbers of all blocks, each led by B or 1.
        needed: Which of them want a cotangent.
    """
    bad = y.isnan().any(-1, keepdim=True)
    y, dual = torch.where(bad, 0.0, y), torch.where(bad, 0.0, dual)
    blocks = gather(kinds, [_sound(field.detach()) for field in fields])
    u, weight = _adjoint(blocks, y, dual, torch.where(bad, 0.0, grad.double()))
    return u, _number_grads(kinds, fields, needed, (y, u, weight, dual))


def _sound(field: Tensor) -> Tensor:
    """NaN of invalid samples as zero: LAPACK refuses a whole batch for one of them. Infinite bounds stay."""
    return torch.where(field.isnan(), torch.zeros_like(field), field)


def _adjoint(blocks: list[Block], y: Tensor, dual: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The cotangents of raw ``(B, n)`` and of the values G ``(B, r)``.

    Lengths are taken in the unit of y, and the distance is weighted so that the multipliers are of size one too: a
    weight scales the whole Hessian of the Lagrangian, so u comes out divided by it.
    """
    stack = Stack(images(blocks), y.shape[-1])
    factors, unit = stack.factors(y), local_unit(y, stack, y, dual)
    factor = stack.spread(factors, y)
    lean = dual * factor / unit
    size = lean.abs().amax(-1, keepdim=True)
    weight = power_above(1 / size.clamp_min(FAINT))
    lean, scaled, point = lean * weight, stack.scaled(factors, unit), y / unit
    tolerance = torch.where(size == 0, torch.inf, TIGHT)  # raw was inside: only equalities are tight
    if takes(scaled, point):
        from hardnet.kernels.cpu.conic import Numbers, project_back

        u, force = project_back(grad, weight, tolerance, point, lean, Numbers(*scaled.numbers()))
        return weight * u, -force / factor
    feet = scaled.feet(scaled.value(point) + lean)
    linear, frames = scaled.linear(point, feet, tolerance)
    tight = torch.where(linear.tight.unsqueeze(-1), linear.rows, 0.0)
    # u is orthogonal to tight rows, so that their squares change nothing but the condition of the Hessian
    hessian = linear.hessian(scaled.curvature(weight, lean)) + tight.mT @ tight
    u, pull = _solve_adjoint(grad, linear, hessian)
    bent = linear.bend * times_tiled(linear.rows, u)
    return weight * u, -scaled.restore(frames, pull + bent) / factor


def _solve_adjoint(grad: Tensor, linear: Linear, hessian: Tensor) -> tuple[Tensor, Tensor]:
    """``[W C'; C 0] (u, w) = (g, 0)``: by ranks where a look is free, else by a fixed program."""
    if may_look(grad):
        return implicit_vjp(grad, linear.rows, linear.tight, hessian)
    return StiffSaddle(hessian, linear).solve(grad, torch.zeros_like(linear.delta))


def _number_grads(
    kinds: Sequence[type[Block]],
    fields: Sequence[Tensor],
    needed: Sequence[int],
    at: tuple[Tensor, Tensor, Tensor, Tensor],
) -> list[Tensor]:
    """The gradient of ``weight . G(y) - dual . DG(y) u`` to the needed numbers, in their own dtype."""
    if not needed:
        return []
    y, u, weight, dual = at
    with torch.enable_grad():
        leaves = [field.detach().requires_grad_(i in needed) for i, field in enumerate(fields)]
        stack = Stack(images(gather(kinds, leaves)), y.shape[-1])
        cuts = zip(stack.images, stack.split(weight), stack.split(dual), strict=True)
        total = torch.stack([image.pairing(y, u, own, lean) for image, own, lean in cuts]).sum()
    found = torch.autograd.grad(total, [leaves[i] for i in needed])
    return [gradient.to(fields[i].dtype) for i, gradient in zip(needed, found, strict=True)]


KINDS: dict[str, type[Block]] = {kind.__name__: kind for kind in get_args(Block)}


def project_compiled(raw: Tensor, fields: Sequence[Tensor], kinds: Sequence[type[Block]], tolerance: float) -> Tensor:
    """The nearest y ``(B, n)``; fields lead with B or 1 and make up the blocks `kinds`."""
    names = " ".join(kind.__name__ for kind in kinds)
    return _project(raw, list(fields), names, tolerance)[0]  # pyright: ignore[reportCallIssue]


def solve_compiled(raw: Tensor, fields: Sequence[Tensor], kinds: Sequence[type[Block]], tolerance: float) -> Solution:
    """The same operator with what it knows of its answer; y is NaN where a sample is not solved."""
    names = " ".join(kind.__name__ for kind in kinds)
    y, _, dual, status, iterations, residual = _project(raw, list(fields), names, tolerance)  # pyright: ignore[reportCallIssue]
    return Solution(y, dual, status, iterations, residual)


def _kinds(names: str) -> list[type[Block]]:
    return [KINDS[name] for name in names.split()]


@torch.library.custom_op("hardnet::project_blocks", mutates_args=())
def _project(
    raw: Tensor, fields: list[Tensor], kinds: str, tolerance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    found = solve(raw, gather(_kinds(kinds), fields), tolerance=tolerance, dtype=raw.dtype)
    y = torch.where((found.status == int(Status.SOLVED)).unsqueeze(-1), found.y, torch.nan)
    return y.to(raw.dtype, copy=True), y, found.dual, found.status, found.iterations, found.residual


@_project.register_fake  # pyright: ignore[reportFunctionMemberAccess]
def _(raw: Tensor, fields: list[Tensor], kinds: str, tolerance: float) -> tuple[Tensor, ...]:
    rows = sum(block.rows for block in gather(_kinds(kinds), fields))
    wide = torch.empty_like(raw, dtype=torch.float64)
    status, iterations = (torch.empty_like(wide[:, 0], dtype=kind) for kind in (torch.int8, torch.int64))
    dual, residual = wide.new_empty(raw.shape[0], rows), torch.empty_like(wide[:, 0])
    return torch.empty_like(raw), wide, dual, status, iterations, residual


@torch.library.custom_op("hardnet::project_blocks_backward", mutates_args=())
def _backward(
    grad: Tensor, y: Tensor, dual: Tensor, fields: list[Tensor], kinds: str, needed: list[int]
) -> list[Tensor]:
    u, found = cotangents(grad, y, dual, _kinds(kinds), fields, needed)
    return [u.to(grad.dtype, copy=True), *found]


@_backward.register_fake  # pyright: ignore[reportFunctionMemberAccess]
def _(grad: Tensor, y: Tensor, dual: Tensor, fields: list[Tensor], kinds: str, needed: list[int]) -> list[Tensor]:
    return [torch.empty_like(grad), *(torch.empty_like(fields[i]) for i in needed)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, fields, kinds, _ = inputs
    ctx.save_for_backward(*output[1:3], *fields)
    ctx.kinds, ctx.needed = kinds, [i for i, field in enumerate(fields) if field.requires_grad]


def _derive(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    y, dual, *fields = ctx.saved_tensors
    u, *found = _backward(grad, y, dual, fields, ctx.kinds, ctx.needed)  # pyright: ignore[reportCallIssue]
    grads: list[Tensor | None] = [None] * len(fields)
    for i, gradient in zip(ctx.needed, found, strict=True):
        grads[i] = gradient
    return u, grads, None, None


_project.register_autograd(_derive, setup_context=_keep)  # pyright: ignore[reportFunctionMemberAccess]
