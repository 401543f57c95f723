"""Options of the projection onto a polyhedron: a gradient that does not vanish, and exact rows.

Called by `hardnet.functional.polyhedron`, `hardnet.functional.solve` and `hardnet.layers.hardnet_aff`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import OptionError, sentence
from hardnet.functional.strict import MARGINS, refuse_without_room, tighten
from hardnet.modes import refuse_forward_tangent
from hardnet.products import times
from hardnet.solvers.active import solve_unseen

INSETS = (*MARGINS, 8192.0, 65536.0)
"""Distance to the bound tried in turn, in roundings of the row; the last are beyond the tolerance of the solver."""

Bound = Tensor | None
Project = Callable[[Tensor, Tensor, Bound, Bound], Tensor]


class _Tangent(torch.autograd.Function):
    """The identity on y that lets through to raw what would pull a violated row back inside."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, raw: Tensor, A: Tensor, side: Tensor, beside: Tensor) -> Tensor:
        """Y as it is."""
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep the rows, which of them raw violates, and which have a share in the gradient."""
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """``g`` to y; ``sum of w_i a_i`` to raw over the violated rows with ``side_i w_i > 0``, ``w = (A_J')^+ g``."""
        (grad,), (A, side, beside) = grads, ctx.saved_tensors
        w = solve_unseen(A, beside, times(A, grad.to(A)))
        return grad, times(A.mT, torch.where(side * w > 0, w, 0.0)).to(grad), None, None, None


def along_tangent(y: Tensor, raw: Tensor, A: Tensor, lower: Bound, upper: Bound, *, every: bool = False) -> Tensor:
    """Y with the backward along the tangent cone: what pushes a violated row deeper outside is dropped, as always.

    The gradient is shared among the violated rows, or among `every` row for the closed form, which keeps them all.
    """
    refuse_forward_tangent()
    rows, side = _violated(y, raw, A, lower, upper)
    return _Tangent.apply(y, raw.expand_as(y), rows, side, torch.ones_like(side).bool() if every else side != 0)  # pyright: ignore[reportReturnType]


@torch.no_grad()
def _violated(y: Tensor, raw: Tensor, A: Tensor, lower: Bound, upper: Bound) -> tuple[Tensor, Tensor]:
    """Unit rows in float64 and, for the inequalities that raw violates and that hold y, +1 above or -1 below."""
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


def hold_exactly(
    y: Tensor, A: Tensor, lower: Bound, upper: Bound, project: Project, on_invalid: str = "raise"
) -> Tensor:
    """Y whose inequalities hold for these very numbers in exact arithmetic, by projection on tightened bounds.

    The correction is a few roundings long and is left out of the derivative; an equality keeps its rounding. A sample
    whose rows leave no room is an error where a look is free and NaN was not asked for, else NaN.
    """
    if y.dtype not in (torch.float32, torch.float64):
        remedy = "project in float32 and round yourself"
        raise OptionError(sentence("strict", "outputs of float32 or float64", y.dtype, remedy))
    shape, (m, n) = y.shape, A.shape[-2:]
    rows = A.detach().expand(*shape[:-1], m, n).reshape(-1, m, n)
    low, high = (
        None if bound is None else bound.detach().expand(*shape[:-1], m).reshape(-1, m) for bound in (lower, upper)
    )
    onto = lambda point, least, most: project(point, rows.double(), least, most)
    exact = tighten(y.reshape(-1, n), (rows, low, high), onto, y.dtype, INSETS).view(shape)
    refuse_without_room(y, exact, shape[:-1], on_invalid)
    return exact
