"""The derivative of the projection onto a box and a few rows, from the places that the solver found.

With F the free coordinates, J the active rows and g the cotangent of y,

    w = (A_JF A_JF')^-1 A_JF g_F,   u_F = g_F - A_JF' w:

raw receives u, active row bounds w, coordinates at a bound pass ``g_i - a_i'w`` to it, and A_J ``-dual u' - w y'``.
Coordinates that touch a bound without a multiplier are free, rows that do so inactive. Fixed coordinates and equalities
share what they pass evenly between their two equal bounds. Called by `hardnet.functional.box_rows`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.box_factor import factorise_rows
from hardnet.solvers.box_problem import power_of_two
from hardnet.solvers.box_rows import Outcome, solve
from hardnet.solvers.solution import Status

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""A flat batch: raw ``(B, n)``, A ``(1 or B, k, n)``, lower and upper ``(1 or B, k)``, of the box ``(1 or B, n)``."""


class Cotangents(NamedTuple):
    """What the six inputs receive, sample by sample; A as the pairs ``-dual u' - w y'``."""

    raw: Tensor
    w: Tensor
    lower: Tensor
    upper: Tensor
    box_lower: Tensor
    box_upper: Tensor


def differentiable(inputs: Inputs, found: Outcome) -> Tensor:
    """Y ``(B, n)`` as a smooth function of all six, on the places that were found: right to any order.

    ``y_F = raw_F - A_JF' dual`` with ``A_JF A_JF' dual = A_J base - target_J``, where base is raw on F and the bounds
    elsewhere.
    """
    good = (found.status == int(Status.SOLVED)).unsqueeze(-1)
    raw, A, lower, upper, low, high = _harmless(inputs, good)
    free, active = (found.place == 0) & good, (found.side != 0) & good
    base = torch.where(free, raw, _held(found.place, low, high))
    scale = power_of_two(A.detach().abs().amax(-1))
    rows = A / scale.unsqueeze(-1)
    miss = (rows * base.unsqueeze(-2)).sum(-1) - _held(found.side, lower, upper) / scale
    chosen = torch.where(free.unsqueeze(-2) & active.unsqueeze(-1), rows, 0.0)
    dual = factorise_rows(chosen).solve(torch.where(active, miss, 0.0))
    return base - (chosen * dual.unsqueeze(-1)).sum(-2)


def cotangents(grad: Tensor, inputs: Inputs, found: Outcome, *, tangent: bool) -> Cotangents:
    """The same to first order in one pass, for the cotangent `grad` ``(B, n)`` of y."""
    good = (found.status == int(Status.SOLVED)).unsqueeze(-1)
    A = torch.where(inputs[1].isfinite(), inputs[1], 0.0)
    free, active = (found.place == 0) & good, (found.side != 0) & good
    grad = torch.where(good & ~grad.isnan(), grad, 0.0)
    scale = power_of_two(A.abs().amax(-1))
    rows = A / scale.unsqueeze(-1)
    chosen = torch.where(free.unsqueeze(-2) & active.unsqueeze(-1), rows, 0.0)
    w = factorise_rows(chosen).solve((chosen * grad.unsqueeze(-2)).sum(-1)) / scale
    rest = grad - (A * torch.where(active, w, 0.0).unsqueeze(-1)).sum(-2)
    at = lambda code, part, value: torch.where(code == part, value, torch.where(code == 2, 0.5 * value, 0.0))
    sides = at(found.side, -1, w), at(found.side, 1, w)
    held = torch.where(free, 0.0, rest)
    to_raw = torch.where(free, rest, 0.0)
    to_raw = feasible_descent(grad, A, found, good) if tangent else to_raw
    return Cotangents(to_raw, w, *sides, at(found.place, -1, held), at(found.place, 1, held))


def matrix_cotangent(found: Cotangents, y: Tensor, dual: Tensor, side: Tensor, u: Tensor, *, shared: bool) -> Tensor:
    """``-dual u' - w y'`` on the active rows, ``(B, k, n)``, or ``(1, k, n)`` summed over samples that share A."""
    active = side != 0
    w, dual = (torch.where(active, part, 0.0) for part in (found.w, dual))
    y = torch.where(y.isfinite(), y, 0.0)
    if shared:
        return -(dual.mT @ u + w.mT @ y).unsqueeze(0)
    return -(dual.unsqueeze(-1) * u.unsqueeze(-2) + w.unsqueeze(-1) * y.unsqueeze(-2))


def feasible_descent(grad: Tensor, A: Tensor, found: Outcome, good: Tensor) -> Tensor:
    """``argmin |u - g|`` over u for which y - t u stays in the set for small t: the projection of g on a cone.

    Coordinates at their upper bound may only fall, so u >= 0 there; likewise for rows: a box and rows again.
    """
    ends = lambda code: (
        torch.where((code == 1) | (code == 2), 0.0, -torch.inf).double(),
        torch.where((code == -1) | (code == 2), 0.0, torch.inf).double(),
    )
    place = torch.where(good, found.place, 0)
    side = torch.where(good, found.side, 0)
    steepest = solve(grad, A, *ends(side), *ends(place), rounding=torch.finfo(grad.dtype).eps)
    return torch.where(good & (steepest.status == int(Status.SOLVED)).unsqueeze(-1), steepest.y, 0.0)


def _harmless(inputs: Inputs, good: Tensor) -> Inputs:
    """Zeros for samples without an answer and for infinite bounds, so that no derivative meets a NaN."""
    clean = lambda part, keep: torch.where(keep & part.isfinite(), part, 0.0)
    raw, A, *bounds = inputs
    A = torch.where(A.isfinite(), A, 0.0)
    return clean(raw, good), A, *(clean(bound, torch.ones_like(good)) for bound in bounds)  # pyright: ignore[reportReturnType]


def _held(code: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The bound that a code names: -1 the lower, 1 the upper, 2 the middle of both, 0 none."""
    middle = torch.where(code == 2, 0.5 * low + 0.5 * high, 0.0)
    return torch.where(code == 1, high, torch.where(code == -1, low, middle))
