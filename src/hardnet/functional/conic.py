"""The exact projection onto any intersection of blocks, and its derivative by the implicit function theorem.

At a solution, with the derivative of the cone projection in its eigenbasis (rows, delta; see `solvers.cones`),

    W = I + sum_i dual_i D2G_i + rows' diag((1 - delta) / delta) rows   over the rows that bend,
    C = rows with delta = 0,      N = W^-1 - W^-1 C'(C W^-1 C')^+ C W^-1,

the cotangent of raw is ``u = N g``; that of every number of the set is the gradient of
``weight . G(y) - dual . DG(y) u`` at fixed y, with ``weight = -Q (S^+ C W^-1 g + bend rows u)``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hardnet.errors import (
    INDEFINITE,
    NOT_FINITE,
    InfeasibleError,
    NotConvergedWarning,
    ShapeError,
    sentence,
)
from hardnet.functional.derivatives import implicit_vjp
from hardnet.functional.samples import Policy, find_invalid, refuse, reject
from hardnet.modes import may_look, outside_compiler, refuse_transforms
from hardnet.shapes import broadcast_batch, require_float, require_like
from hardnet.solvers.blocks import Block, Intervals, Quadratics
from hardnet.solvers.conic import project_intersection as solve
from hardnet.solvers.conic_distance import local_unit
from hardnet.solvers.conic_iterate import miss
from hardnet.solvers.quadratic_root import power_of_two
from hardnet.solvers.solution import Solution, Status
from hardnet.solvers.stack import Stack

TIGHT = 1e-10
"""Beyond this distance from its cone, in the unit of y and of the multipliers, a row counts as tight."""
FAINT = 1e-3
"""Multipliers are scaled up to size one from here: below it their own rounding would count as tight."""


def project_intersection(
    raw: Tensor,
    blocks: Sequence[Block],
    *,
    tolerance: float = 1e-9,
    on_infeasible: Literal["auto", "raise", "nan"] = "auto",
    on_invalid: Policy = "raise",
) -> Tensor:
    """``argmin |y - raw|`` subject to every block, differentiable in raw and in every number.

    Samples are independent. The solver works in float64 whatever the dtype of raw; a raw output inside the set (to
    rounding) is returned bit for bit. A sample that stops above `tolerance` is reported by a `NotConvergedWarning`.

    Args:
        raw: ``(*batch, n)``.
        blocks: `Intervals`, `SecondOrder`, `SemiDefinite`, `Quadratics`; each tensor with or without batch dimensions.
        tolerance: Scale-free KKT residual below which a sample counts as solved.
        on_infeasible: What an empty set gives: an `InfeasibleError`, or NaN for that sample alone; ``"auto"`` raises
            where a look is free (on a CPU), and gives NaN elsewhere.
        on_invalid: What NaN, lower > upper or a P that is not positive semidefinite give: an error, or NaN.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients.
    """
    refuse_transforms("the projection onto a convex set")
    if on_infeasible == "auto":
        on_infeasible = "raise" if may_look(raw) else "nan"
    return _eager_project(raw, blocks, tolerance, on_infeasible, on_invalid)


def _project(
    raw: Tensor, blocks: Sequence[Block], tolerance: float, on_infeasible: Policy, on_invalid: Policy
) -> Tensor:
    """`project_intersection` in eager mode: how long it iterates depends on the data, which a graph cannot hold."""
    batch, flat, kinds = _flatten(raw, blocks)
    y, status, residual = _Project.apply(_spread(raw, batch), kinds, tolerance, *flat)
    status, residual = status.reshape(batch), residual.reshape(batch)
    if not bool((status != Status.SOLVED).any()):
        return y.reshape(*batch, raw.shape[-1])
    if on_invalid == "raise":
        _raise_invalid(raw, blocks, status == Status.INVALID)
    if on_infeasible == "raise":
        text = "the set is empty: expected a point that satisfies every constraint, got none within reach of raw"
        refuse(status == Status.INFEASIBLE, InfeasibleError, text)
    stopped = status == Status.NOT_CONVERGED
    if bool(stopped.any()):
        violation = _violation(_gather(kinds, flat), y).reshape(batch)
        _warn(residual[stopped].max().item(), violation[stopped].max().item(), stopped, tolerance)
    return y.reshape(*batch, raw.shape[-1])


_eager_project: Callable[..., Tensor] = outside_compiler(_project)


def solve_intersection(raw: Tensor, blocks: Sequence[Block], *, tolerance: float = 1e-9) -> Solution:
    """The same projection with its `Solution` (status, residual, iterations and multipliers), without gradients."""
    batch, flat, kinds = _flatten(raw, blocks)
    found = solve(_spread(raw, batch), _gather(kinds, flat), tolerance=tolerance, dtype=raw.dtype)
    return Solution(*(field.reshape(batch + field.shape[1:]) for field in found))


def _flatten(raw: Tensor, blocks: Sequence[Block]) -> tuple[torch.Size, list[Tensor], list[type[Block]]]:
    """Join the batch dimensions; every tensor then leads with B, or with 1 where it is constant."""
    require_float("raw", raw)
    if raw.dim() == 0:
        raise ShapeError(sentence("raw", "shape (*batch, n)", tuple(raw.shape), "give it an output dimension"))
    batch = raw.shape[:-1]
    named = [
        (name, field, core)
        for block in blocks
        for (name, field), core in zip(block._asdict().items(), block.cores, strict=True)
    ]
    for name, field, core in named:
        require_like(name, field, raw)
        batch = broadcast_batch(name, batch, field.shape[: field.dim() - core])
    flat = [_lead(field, core, batch) for _, field, core in named]
    return batch, flat, [type(block) for block in blocks]


def _spread(raw: Tensor, batch: torch.Size) -> Tensor:
    """Raw with the joint batch as one dimension, ``(B, n)``."""
    return raw.expand(*batch, raw.shape[-1]).reshape(batch.numel(), raw.shape[-1])


def _lead(field: Tensor, core: int, batch: torch.Size) -> Tensor:
    """One leading batch dimension: 1 for a constant, else the product of `batch`."""
    own = field.shape[field.dim() - core :]
    if field.dim() == core:
        return field.unsqueeze(0)
    return field.expand(*batch, *own).reshape(batch.numel(), *own)


def _gather(kinds: Sequence[type[Block]], flat: Sequence[Tensor]) -> list[Block]:
    """Cut a flat list of tensors back into blocks."""
    fields = iter(flat)
    return [kind(*(next(fields) for _ in kind.cores)) for kind in kinds]


def _raise_invalid(raw: Tensor, blocks: Sequence[Block], bad: Tensor) -> None:
    """Say which of the three reasons makes the samples invalid."""
    if not bool(bad.any()):
        return
    reject(bad & ~raw.isfinite().all(-1), NOT_FINITE, "raw")
    for block in blocks:
        if isinstance(block, Intervals):
            for finding in find_invalid(raw, None, block.lower, block.upper):
                reject(bad & finding.bad, finding.defect, finding.name, finding.got)
        if isinstance(block, Quadratics) and bool(block.P.isfinite().all()):
            least = torch.linalg.eigvalsh((block.P + block.P.mT).double() / 2)[..., 0]
            reject(bad & (least < 0).expand(bad.shape), INDEFINITE, "P", f"the eigenvalue {least.min().item():.3g}")
    reject(bad, NOT_FINITE, "the numbers of the set")


@torch.no_grad()
def _violation(blocks: Sequence[Block], y: Tensor) -> Tensor:
    """The largest distance of any row from its cone, in the units of the row: ``(B,)``."""
    y = y.double()
    images = [type(block)(*(field.double() for field in block)).image() for block in blocks]
    return miss(Stack(images, y), y).amax(-1)


def _warn(residual: float, violation: float, stopped: Tensor, tolerance: float) -> None:
    """One warning for all samples that stopped early."""
    text = (
        f"{int(stopped.sum())} of {stopped.numel()} projections stopped at residual {residual:.2g} "
        f"(tolerance {tolerance:g}) and violate a row by up to {violation:.2g}"
    )
    remedy = "the set may be empty, or have an empty interior"
    warnings.warn(f"{text}; {remedy}", NotConvergedWarning, stacklevel=3)


class _Project(torch.autograd.Function):
    """Solve in float64; differentiate the optimality conditions."""

    @staticmethod
    def forward(
        ctx: Any, raw: Tensor, kinds: list[type[Block]], tolerance: float, *fields: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``(y, status, residual)``; samples without an answer are NaN."""
        found = solve(raw, _gather(kinds, fields), tolerance=tolerance, dtype=raw.dtype)
        answered = (found.status == Status.SOLVED) | (found.status == Status.NOT_CONVERGED)
        y = torch.where(answered.unsqueeze(-1), found.y, torch.nan)
        ctx.save_for_backward(y, found.dual, *fields)
        ctx.kinds = kinds
        ctx.mark_non_differentiable(found.status, found.residual)
        return y.to(raw.dtype), found.status, found.residual

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """``u = N g`` to raw, and the pairing's gradient to every number."""
        y, dual, *fields = ctx.saved_tensors
        bad = y.isnan().any(-1, keepdim=True)
        y, dual = torch.where(bad, 0.0, y), torch.where(bad, 0.0, dual)
        blocks = _gather(ctx.kinds, [_sound(field.detach().double()) for field in fields])
        u, weight = _adjoint(blocks, y, dual, torch.where(bad, 0.0, grad.double()))
        needed = [i for i, field in enumerate(fields) if ctx.needs_input_grad[3 + i]]
        grads: list[Tensor | None] = [None] * len(fields)
        for i, found in zip(needed, _number_grads(ctx.kinds, fields, needed, (y, u, weight, dual)), strict=True):
            grads[i] = found
        return u.to(grad.dtype) if ctx.needs_input_grad[0] else None, None, None, *grads


def _sound(field: Tensor) -> Tensor:
    """NaN of invalid samples as zero: LAPACK refuses a whole batch for one of them. Infinite bounds stay."""
    return torch.where(field.isnan(), torch.zeros_like(field), field)


def _adjoint(blocks: list[Block], y: Tensor, dual: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The cotangents of raw ``(B, n)`` and of the values G ``(B, r)``.

    Lengths are taken in the unit of y, and the distance is weighted so that the multipliers are of size one too: a
    weight scales the whole Hessian of the Lagrangian, so u comes out divided by it.
    """
    stack = Stack([block.image() for block in blocks], y)
    factor, unit = stack.factor(y), local_unit(y, stack, y, dual)
    lean = dual * factor / unit
    size = lean.abs().amax(-1, keepdim=True)
    weight = power_of_two(1 / size.clamp_min(FAINT))
    lean, scaled, point = lean * weight, stack.scaled(factor, unit), y / unit
    look = scaled.look(scaled.value(point) + lean)
    tolerance = torch.where(size == 0, torch.inf, TIGHT)  # raw was inside: only equalities are tight
    linear, frames = scaled.linear(point, look, tolerance)
    tight = torch.where(linear.tight.unsqueeze(-1), linear.rows, 0.0)
    # u is orthogonal to tight rows, so that their squares change nothing but the condition of the Hessian
    hessian = linear.hessian(scaled.curvature(weight, lean)) + tight.mT @ tight
    u, pull = implicit_vjp(grad, linear.rows, linear.tight, hessian)
    bent = linear.bend * (linear.rows @ u.unsqueeze(-1)).squeeze(-1)
    return weight * u, -scaled.restore(frames, pull + bent) / factor


def _number_grads(
    kinds: list[type[Block]], fields: list[Tensor], needed: list[int], at: tuple[Tensor, Tensor, Tensor, Tensor]
) -> Sequence[Tensor]:
    """The gradient of ``weight . G(y) - dual . DG(y) u`` to the needed numbers, in their own dtype."""
    if not needed:
        return []
    y, u, weight, dual = at
    with torch.enable_grad():
        leaves = [field.detach().double().requires_grad_(i in needed) for i, field in enumerate(fields)]
        stack = Stack([block.image() for block in _gather(kinds, leaves)], y)
        cuts = zip(stack.images, stack.split(weight), stack.split(dual), strict=True)
        total = torch.stack([image.pairing(y, u, own, lean) for image, own, lean in cuts]).sum()
    found = torch.autograd.grad(total, [leaves[i] for i in needed])
    return [gradient.to(fields[i].dtype) for i, gradient in zip(needed, found, strict=True)]
