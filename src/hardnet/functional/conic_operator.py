"""The projection onto blocks as one operator of a compiled graph, with the derivative of `conic_gradient`.

Its iteration would be thousands of operations of the graph. In compiled code nothing is raised: a sample that is not
solved is NaN. Called by `conic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hardnet.functional.conic_gradient import cotangents
from hardnet.solvers.blocks import Block, Intervals, Quadratics, SecondOrder, SemiDefinite, gather
from hardnet.solvers.conic import project_intersection as solve
from hardnet.solvers.solution import Status

KINDS: dict[str, type[Block]] = {kind.__name__: kind for kind in (Intervals, SecondOrder, SemiDefinite, Quadratics)}


def project_compiled(raw: Tensor, fields: Sequence[Tensor], kinds: Sequence[type[Block]], tolerance: float) -> Tensor:
    """The nearest y ``(B, n)``; fields lead with B or 1 and make up the blocks `kinds`."""
    names = " ".join(kind.__name__ for kind in kinds)
    return _project(raw, list(fields), names, tolerance)[0]  # pyright: ignore[reportCallIssue]


def _kinds(names: str) -> list[type[Block]]:
    return [KINDS[name] for name in names.split()]


@torch.library.custom_op("hardnet::project_blocks", mutates_args=())
def _project(raw: Tensor, fields: list[Tensor], kinds: str, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    found = solve(raw, gather(_kinds(kinds), fields), tolerance=tolerance, dtype=raw.dtype)
    y = torch.where((found.status == Status.SOLVED).unsqueeze(-1), found.y, torch.nan)
    return y.to(raw.dtype, copy=True), y, found.dual


@_project.register_fake  # pyright: ignore[reportFunctionMemberAccess]
def _(raw: Tensor, fields: list[Tensor], kinds: str, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    rows = sum(block.rows for block in gather(_kinds(kinds), fields))
    wide = torch.empty_like(raw, dtype=torch.float64)
    return torch.empty_like(raw), wide, wide.new_empty(raw.shape[0], rows)


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
    ctx.save_for_backward(*output[1:], *fields)
    ctx.kinds, ctx.needed = kinds, [i for i, field in enumerate(fields) if field.requires_grad]


def _derive(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    y, dual, *fields = ctx.saved_tensors
    u, *found = _backward(grad, y, dual, fields, ctx.kinds, ctx.needed)  # pyright: ignore[reportCallIssue]
    grads: list[Tensor | None] = [None] * len(fields)
    for i, gradient in zip(ctx.needed, found, strict=True):
        grads[i] = gradient
    return u, grads, None, None


_project.register_autograd(_derive, setup_context=_keep)  # pyright: ignore[reportFunctionMemberAccess]
