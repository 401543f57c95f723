"""The exact projection onto any intersection of blocks, and what happens to samples that have no answer.

Eager code calls the solver in a function of autograd, compiled code as one operator; both have the
derivative of `conic_gradient`.

Called by `hardnet.sets.curved`, `hardnet.sets.intersection` and others.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import (
    INDEFINITE,
    NOT_FINITE,
    InfeasibleError,
    NotConvergedWarning,
    OptionError,
    ShapeError,
    sentence,
)
from hardnet.functional.conic_gradient import cotangents, project_compiled, solve_compiled
from hardnet.functional.derivatives import last_derivative
from hardnet.functional.samples import Policy, find_invalid, refuse, reject
from hardnet.modes import GRAPHS, may_look, may_wait, mode, refuse_transforms
from hardnet.rows import lead
from hardnet.shapes import broadcast_batch, require_float, require_like
from hardnet.solvers.conic.blocks import Block, Intervals, Quadratics, gather, images
from hardnet.solvers.conic.solve import project_intersection as solve
from hardnet.solvers.conic.stack import Stack
from hardnet.solvers.solution import Solution, Status


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
    batch, flat, kinds = _flatten(raw, blocks)
    if mode() in GRAPHS:  # which raise nothing
        return project_compiled(_spread(raw, batch), flat, kinds, tolerance).reshape(*batch, raw.shape[-1])
    if on_infeasible == "raise" and not may_wait():
        remedy = "use 'auto' or 'nan', and constraint.solve for the status"
        raise OptionError(sentence("on_infeasible", "no error inside a capture", "'raise'", remedy))
    looks = may_look(raw) or on_infeasible == "raise"
    y, status, residual = _Project.apply(_spread(raw, batch), kinds, tolerance, looks, *flat)
    if looks and bool((status != int(Status.SOLVED)).any()):
        found = y, status.reshape(batch), residual.reshape(batch)
        _answer(raw, blocks, found, gather(kinds, flat), tolerance, (on_infeasible, on_invalid))
    return y.reshape(*batch, raw.shape[-1])


def _answer(
    raw: Tensor,
    blocks: Sequence[Block],
    found: tuple[Tensor, Tensor, Tensor],
    flat: list[Block],
    tolerance: float,
    policies: tuple[str, str],
) -> None:
    """Raise or warn about samples that are not solved, as far as the policies ask."""
    (y, status, residual), (on_infeasible, on_invalid) = found, policies
    if on_invalid == "raise":
        _raise_invalid(raw, blocks, status == int(Status.INVALID))
    if on_infeasible == "raise":
        text = "the set is empty: expected a point that satisfies every constraint, got none within reach of raw"
        refuse(status == int(Status.INFEASIBLE), InfeasibleError, text)
    stopped = status == int(Status.NOT_CONVERGED)
    if bool(stopped.any()):
        violation = _violation(flat, y).reshape(stopped.shape)
        _warn(residual[stopped].max().item(), violation[stopped].max().item(), stopped, tolerance)


def solve_intersection(raw: Tensor, blocks: Sequence[Block], *, tolerance: float = 1e-9) -> Solution:
    """The same projection with its `Solution` (status, residual, iterations and multipliers), without gradients."""
    refuse_transforms("the projection onto a convex set")
    batch, flat, kinds = _flatten(raw, blocks)
    if mode() in GRAPHS:
        found = solve_compiled(_spread(raw, batch), flat, kinds, tolerance)
    else:
        found = solve(_spread(raw, batch), gather(kinds, flat), tolerance=tolerance, dtype=raw.dtype)
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
    flat = [lead(field, batch, core) for _, field, core in named]
    return batch, flat, [type(block) for block in blocks]


def _spread(raw: Tensor, batch: torch.Size) -> Tensor:
    """Raw with the joint batch as one dimension, ``(B, n)``."""
    return raw.expand(*batch, raw.shape[-1]).reshape(batch.numel(), raw.shape[-1])


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
    return Stack(images(blocks), y.shape[-1]).miss(y).amax(-1)


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
        ctx: Any, raw: Tensor, kinds: list[type[Block]], tolerance: float, looks: bool, *fields: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``(y, status, residual)``; samples without an answer are NaN, unfinished ones too where none is warned of."""
        found = solve(raw, gather(kinds, fields), tolerance=tolerance, dtype=raw.dtype)
        answered = found.status == int(Status.SOLVED)
        if looks:
            answered = answered | (found.status == int(Status.NOT_CONVERGED))
        y = torch.where(answered.unsqueeze(-1), found.y, torch.nan)
        ctx.save_for_backward(y, found.dual, raw, *fields)
        ctx.kinds = kinds
        ctx.mark_non_differentiable(found.status, found.residual)
        return y.to(raw.dtype), found.status, found.residual

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """``u = N g`` to raw, and the pairing's gradient to every number."""
        y, dual, raw, *fields = ctx.saved_tensors
        needed = [i for i in range(len(fields)) if ctx.needs_input_grad[4 + i]]
        with torch.no_grad():
            u, found = cotangents(grad, y, dual, ctx.kinds, fields, needed)
            u = u.to(grad.dtype) if ctx.needs_input_grad[0] else None
        grads: list[Tensor | None] = [None] * len(fields)
        for i, gradient in zip(needed, found, strict=True):
            grads[i] = gradient
        u, *grads = last_derivative("a projection onto curved sets", [u, *grads], [grad, raw, *fields])
        return u, None, None, None, *grads
