"""The derivative of the projection onto a box and a few rows, from the active bounds that the solver found.

With F the free coordinates, J the active rows and g the cotangent of y,

    w = (A_JF A_JF')^-1 A_JF g_F,   u_F = g_F - A_JF' w:

raw receives u, active row bounds w, the bound of a held coordinate ``g_i - a_i'w``, and A_J ``-dual u' - w y'``.
Coordinates that touch a bound with a zero multiplier are free, and such rows are inactive. The two equal bounds of a
fixed coordinate or an equality receive half each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import OptionError, sentence
from hardnet.kernels.backends import find
from hardnet.modes import plain
from hardnet.products import times_columnwise, times_rowwise
from hardnet.rows import Batch, BoxedBatch
from hardnet.solvers.polyhedron.box_factor import factorize_rows
from hardnet.solvers.polyhedron.box_problem import power_near
from hardnet.solvers.polyhedron.box_rows import Outcome, solve
from hardnet.solvers.solution import Status, solved


class Cotangents(NamedTuple):
    """What the inputs receive, sample by sample; for A only w, used by `matrix_cotangent` for ``-dual u' - w y'``."""

    raw: Tensor
    w: Tensor
    lower: Tensor
    upper: Tensor
    box_lower: Tensor
    box_upper: Tensor


def differentiable(inputs: BoxedBatch, found: Outcome) -> Tensor:
    """Y ``(B, n)`` as a smooth function of all six inputs, on the active bounds found: correct to any order.

    ``y_F = raw_F - A_JF' dual`` with ``A_JF A_JF' dual = A_J base - target_J``, where base is raw on F and the bounds
    elsewhere.
    """
    good = solved(found.status).unsqueeze(-1)
    raw, A, lower, upper, low, high = _harmless(inputs, good)
    free, active = (found.place == 0) & good, (found.side != 0) & good
    base = torch.where(free, raw, _held(found.place, low, high))
    scale = power_near(A.detach().abs().amax(-1))
    rows = A / scale.unsqueeze(-1)
    miss = times_rowwise(rows, base) - _held(found.side, lower, upper) / scale
    chosen = torch.where(free.unsqueeze(-2) & active.unsqueeze(-1), rows, 0.0)
    dual = factorize_rows(chosen).solve(torch.where(active, miss, 0.0))
    return base - times_columnwise(chosen, dual)


def cotangents(grad: Tensor, inputs: BoxedBatch, found: Outcome, *, tangent: bool) -> Cotangents:
    """The first derivative in one pass, for the cotangent `grad` ``(B, n)`` of y."""
    good = solved(found.status).unsqueeze(-1)
    A = torch.where(inputs[1].isfinite(), inputs[1], 0.0)
    free, active = (found.place == 0) & good, (found.side != 0) & good
    grad = torch.where(good & ~grad.isnan(), grad, 0.0)
    w = _weights(grad, inputs, A, found)
    rest = grad - times_columnwise(A, torch.where(active, w, 0.0))
    at = lambda code, part, value: torch.where(code == part, value, torch.where(code == 2, 0.5 * value, 0.0))
    sides = at(found.side, -1, w), at(found.side, 1, w)
    held = torch.where(free, 0.0, rest)
    to_raw = torch.where(free, rest, 0.0)
    to_raw = feasible_descent(grad, A, found, good) if tangent else to_raw
    return Cotangents(to_raw, w, *sides, at(found.place, -1, held), at(found.place, 1, held))


def _weights(grad: Tensor, inputs: BoxedBatch, A: Tensor, found: Outcome) -> Tensor:
    """``w = (A_JF')^+ g_F`` ``(B, k)``, 0 off the active rows J and for rows that depend on others."""
    plainly = plain(grad) and not torch.is_grad_enabled()
    kernel = find("box_rows", Batch(inputs[0], A, None, None, memory=plainly))
    if hasattr(kernel, "pull_back"):
        return kernel.pull_back(grad, A, found.place, found.side)
    good = solved(found.status).unsqueeze(-1)
    free, active = (found.place == 0) & good, (found.side != 0) & good
    scale = power_near(A.abs().amax(-1))
    chosen = torch.where(free.unsqueeze(-2) & active.unsqueeze(-1), A / scale.unsqueeze(-1), 0.0)
    return factorize_rows(chosen).solve(times_rowwise(chosen, grad)) / scale


def matrix_cotangent(found: Cotangents, y: Tensor, dual: Tensor, side: Tensor, u: Tensor, *, shared: bool) -> Tensor:
    """``-dual u' - w y'`` on the active rows, ``(B, k, n)``, or ``(1, k, n)`` summed over samples that share A."""
    active = side != 0
    w, dual = (torch.where(active, part, 0.0) for part in (found.w, dual))
    y = torch.where(y.isfinite(), y, 0.0)
    if shared:
        return -(dual.mT @ u + w.mT @ y).unsqueeze(0)
    return -(dual.unsqueeze(-1) * u.unsqueeze(-2) + w.unsqueeze(-1) * y.unsqueeze(-2))


def feasible_descent(grad: Tensor, A: Tensor, found: Outcome, good: Tensor, mode: str = "eager") -> Tensor:
    """``argmin |u - g|`` over u for which y - t u stays in the set for small t: the projection of g onto a cone.

    Coordinates at their upper bound may only decrease, so u >= 0 there, and likewise for rows. The cone is again a box
    and rows.
    """
    ends = lambda code: (
        torch.where((code == 1) | (code == 2), 0.0, -torch.inf).double(),
        torch.where((code == -1) | (code == 2), 0.0, torch.inf).double(),
    )
    place = torch.where(good, found.place, 0)
    side = torch.where(good, found.side, 0)
    steepest = solve(grad, A, *ends(side), *ends(place), rounding=torch.finfo(grad.dtype).eps, mode=mode)
    return torch.where(good & (steepest.status == int(Status.SOLVED)).unsqueeze(-1), steepest.y, 0.0)


def _harmless(inputs: BoxedBatch, good: Tensor) -> BoxedBatch:
    """The inputs with zeros for samples without an answer and for infinite bounds, so that no derivative is NaN."""
    clean = lambda part, keep: torch.where(keep & part.isfinite(), part, 0.0)
    raw, A, *bounds = inputs
    A = torch.where(A.isfinite(), A, 0.0)
    return clean(raw, good), A, *(clean(bound, torch.ones_like(good)) for bound in bounds)  # pyright: ignore[reportReturnType]


def _held(code: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The bound that a code selects: -1 the lower, 1 the upper, 2 the middle of both, 0 none (zero)."""
    middle = torch.where(code == 2, 0.5 * low + 0.5 * high, 0.0)
    return torch.where(code == 1, high, torch.where(code == -1, low, middle))


def differentiate_again(grad: Tensor, inputs: BoxedBatch, found: Outcome, tangent: bool) -> tuple[Tensor | None, ...]:
    """The first derivative in a form that can be differentiated again: autograd on the smooth formula."""
    if tangent:
        remedy = "pass gradient='exact'"
        raise OptionError(sentence("gradient", "'exact' where derivatives are differentiated", "'tangent'", remedy))
    wanted = [part for part in inputs if part.requires_grad]
    y = differentiable(inputs, found)
    parts = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(parts) if part.requires_grad else None for part in inputs)


def deliver(
    passed: Cotangents, grad: Tensor, inputs: BoxedBatch, found: Outcome, needed: tuple[bool, ...], tangent: bool
) -> tuple[Tensor | None, ...]:
    """The gradient of each input that needs one, summed over the samples if all share it."""
    summed = lambda part, like: part.sum(0, keepdim=True) if len(like) == 1 < len(part) else part
    parts: list[Tensor | None] = [None] * 6
    for number, part in ((0, passed.raw), (2, passed.lower), (3, passed.upper), (4, passed.box_lower)):
        parts[number] = summed(part, inputs[number]) if needed[number] else None
    parts[5] = summed(passed.box_upper, inputs[5]) if needed[5] else None
    if needed[1]:
        u = cotangents(grad, inputs, found, tangent=False).raw if tangent else passed.raw
        shared = len(inputs[1]) == 1
        parts[1] = matrix_cotangent(passed, found.y, found.dual, found.side, u, shared=shared)
    return tuple(parts)


class Tangent(torch.autograd.Function):
    """Zero, with the steepest feasible descent as the gradient of raw."""

    generate_vmap_rule = True

    @staticmethod
    def forward(raw: Tensor, A: Tensor, place: Tensor, side: Tensor, status: Tensor, mode: str) -> Tensor:
        """Zero."""
        return torch.zeros_like(raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Save A, the active bounds and the status."""
        ctx.save_for_backward(*inputs[1:5])
        ctx.mode = inputs[5]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The projection of the cotangent onto the cone of feasible descent."""
        A, place, side, status = ctx.saved_tensors
        found = Outcome(grads[0], place, side, side, status, status)
        descent = feasible_descent(grads[0], A, found, (status == 0).unsqueeze(-1), ctx.mode)
        return descent, None, None, None, None, None
