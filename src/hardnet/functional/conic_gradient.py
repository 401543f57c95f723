"""The derivative of the projection onto blocks, by the implicit function theorem.

At a solution, with the derivative of the cone projection in its eigenbasis (rows, delta; see `solvers.conic.images`),

    W = I + sum_i dual_i D2G_i + rows' diag((1 - delta) / delta) rows   over the rows that bend,
    C = rows with delta = 0,      N = W^-1 - W^-1 C'(C W^-1 C')^+ C W^-1,

the cotangent of raw is ``u = N g``; that of every number of the set is the gradient of
``weight . G(y) - dual . DG(y) u`` at fixed y, with ``weight = -Q (S^+ C W^-1 g + bend rows u)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hardnet.functional.derivatives import implicit_vjp
from hardnet.kernels.cpu.conic import project_back, takes
from hardnet.kernels.limits import FAINT, TIGHT
from hardnet.modes import may_look, plain
from hardnet.products import power_above, times_tiled
from hardnet.solvers.conic.blocks import (
    Block,
    gather,
    images,
)
from hardnet.solvers.conic.distance import local_unit
from hardnet.solvers.conic.saddle import StiffSaddle
from hardnet.solvers.conic.stack import Linear, Stack


def cotangents(
    grad: Tensor,
    y: Tensor,
    dual: Tensor,
    kinds: Sequence[type[Block]],
    fields: Sequence[Tensor],
    needed: Sequence[int],
    operator: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The cotangents of raw ``(B, n)``, in float64, and of the `needed` fields, each in its own dtype.

    Args:
        grad: Cotangent of y, ``(B, n)``.
        y: The answer in float64, ``(B, n)``; samples of NaN get zeros.
        dual: Multipliers, ``(B, r)``.
        kinds: The blocks that the fields make up.
        fields: The numbers of all blocks, each led by B or 1.
        needed: Which of them want a cotangent.
        operator: Whether an operator of torch calls, where autograd is off whatever is asked, and `torch.func` is not.
    """
    bad = y.isnan().any(-1, keepdim=True)
    y, dual = torch.where(bad, 0.0, y), torch.where(bad, 0.0, dual)
    clean = [_sound(field.detach()) for field in fields]
    exact = torch.where(bad, 0.0, grad.double())
    if plain(y, *clean) and takes(y, kinds, clean):
        u, weight = project_back(exact, y, dual, kinds, clean)
    else:
        u, weight = _adjoint(gather(kinds, clean), y, dual, exact)
    return u, _number_grads(kinds, fields, needed, (y, u, weight, dual), operator)


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
    operator: bool,
) -> list[Tensor]:
    """The gradient of ``weight . G(y) - dual . DG(y) u`` to the needed numbers, in their own dtype."""
    if not needed:
        return []
    y, u, weight, dual = at

    def total(wanted: list[Tensor]) -> Tensor:
        leaves = [field.detach() for field in fields]
        for i, leaf in zip(needed, wanted, strict=True):
            leaves[i] = leaf
        stack = Stack(images(gather(kinds, leaves)), y.shape[-1])
        cuts = zip(stack.images, stack.split(weight), stack.split(dual), strict=True)
        return torch.stack([image.pairing(y, u, own, lean) for image, own, lean in cuts]).sum()

    wanted = [fields[i].detach() for i in needed]
    if operator:
        found = torch.func.grad(total)(wanted)
    else:
        with torch.enable_grad():
            found = torch.autograd.grad(total([leaf.requires_grad_() for leaf in wanted]), wanted)
    return [gradient.to(fields[i].dtype) for i, gradient in zip(needed, found, strict=True)]
