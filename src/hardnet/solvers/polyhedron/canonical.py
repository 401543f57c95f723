"""The multipliers of a nearest point made canonical: the same whoever found the point.

Where rows depend on each other, many multipliers explain the same y. A bound of a single output takes what it can, and
the rows at their bounds share the rest: the least-norm multipliers of the right sign of rows of length one, which are
unique.

With J the independent rows that a solver holds and ``a_i = S_i A_J`` for all rows i that depend on them and touch y,
the multipliers mu of all have ``S'mu = dual_J``. The least-norm ones are ``mu = max(S v, 0)`` with ``S'max(S v, 0) =
dual_J``: a few Newton steps on the set of rows that act.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import power_near, times
from hardnet.rows import BoxedBatch, or_one
from hardnet.solvers.polyhedron.active import factorize_rows
from hardnet.solvers.polyhedron.problem import EPS, GENERAL
from hardnet.tolerances import row_tolerance

TOUCHING_DEPENDENT = 1e-9
"""The part of a unit row outside the span of the rows that a solver holds below which it depends on these."""
ROUNDINGS = 16
"""Roundings of its terms by which the sum of all rows may differ for the shared multipliers."""
CHANGES = 4
"""How often the set of rows that share may change."""
SCHULZ = 24
"""Steps for an inverse where nothing may be factorized."""


class Held(NamedTuple):
    """What holds y, as a solver states it or canonically.

    Attributes:
        dual: Multipliers of the rows as given, ``(B, m)``.
        side: The side of each row that acts, an equality on any: +1 upper, -1 lower, 0 for the others, ``(B, m)``.
        inverse: ``(C C')^+`` of the acting unit rows over the free outputs, zero elsewhere: ``(B, m, m)``.
    """

    dual: Tensor
    side: Tensor
    inverse: Tensor


def unit_rows(A: Tensor, place: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Unit rows without the columns that a box holds, ``(B, m, n)``, and the power and the length they were divided by.

    Both factors are kept apart, since their product may overflow. The rows of a box have a place, ``(B, n)``.
    """
    power = power_near(A.detach().abs().amax(-1))
    A = A / power.unsqueeze(-1)
    length = or_one(torch.linalg.vector_norm(A.detach(), dim=-1))
    rows = A / length.unsqueeze(-1)
    return rows if place is None else torch.where((place == 0).unsqueeze(-2), rows, 0.0), power, length


def inverse_of(numbers: BoxedBatch, side: Tensor, place: Tensor | None, *, bare: bool = False) -> Tensor:
    """`Held.inverse` of the rows that a solver holds, less those that depend on the ones before them."""
    rows = torch.where((side != 0).unsqueeze(-1), unit_rows(numbers[1], place)[0], 0.0)
    factor = factorize_rows(rows)
    eye = torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)
    if bare:
        found = torch.stack([factor.solve(column.expand(side.shape)) for column in eye], -1)
    else:
        gram = _between(factor.clear, factor.clear, rows @ rows.mT) + torch.diag_embed((~factor.clear).to(rows))
        found = torch.linalg.inv_ex(gram).inverse
        found = found @ (2 * eye - gram @ found)
    return _between(factor.clear, factor.clear, found)


def canonical(numbers: BoxedBatch, y: Tensor, held: Held, place: Tensor | None, *, bare: bool = False) -> Held:
    """The canonical multipliers; no value is read. Where a few steps do not find them, those of the solver.

    Args:
        numbers: In float64 and without derivatives.
        y: ``(B, n)``.
        held: The multipliers of a solver, and the inverse of its independent rows.
        place: Which outputs a bound of the box holds, ``(B, n)``; None without a box.
        bare: Whether nothing may be factorized: exported formats cannot, and a device would wait for it.
    """
    raw, A, lower, upper, *_ = numbers
    rows, power, length = unit_rows(A, place)
    rows = rows.expand(raw.shape[0], *A.shape[-2:])  # len() would fix the batch of a graph
    scaled = (bound / power for bound in (lower, upper))
    low, high = scaled
    at, slack = times(A / power.unsqueeze(-1), y), row_tolerance(A / power.unsqueeze(-1), y, low, high, EPS)
    above, below = (at - high).abs() <= slack, (at - low).abs() <= slack
    inverse, tight = held.inverse, (lower == upper).expand(at.shape)
    own = inverse.diagonal(dim1=-2, dim2=-1) != 0
    touching, gram = (above | below) & ~own, rows @ rows.mT
    weight = inverse @ _between(own, touching, gram)
    weight = weight + inverse @ (_between(own, touching, gram) - _between(own, own, gram) @ weight)
    apart = torch.linalg.vector_norm(rows - weight.mT @ rows, dim=-1)
    whole = torch.linalg.vector_norm(rows, dim=-1)
    touching = touching & (whole > TOUCHING_DEPENDENT) & (apart <= TOUCHING_DEPENDENT * whole)
    S = torch.where(touching.unsqueeze(-1), weight.mT, torch.diag_embed(own.to(rows)))
    sign = torch.where(own, held.side.to(rows).sign(), torch.where(above, 1.0, -1.0))
    stated = held.dual * power * length
    dual = torch.where(own, stated + times(weight, torch.where(touching, stated, 0.0)), 0.0)
    size = torch.maximum(raw.abs().amax(-1, keepdim=True), dual.abs().amax(-1, keepdim=True))
    acting, mu, turned = own | touching, dual, torch.zeros_like(gram)
    fits = touching.any(-1, keepdim=True)
    for _ in range(CHANGES):
        kept = S * acting.unsqueeze(-1)
        turned = _inverse(kept.mT @ kept + torch.diag_embed((~own).to(rows)), bare)
        mu = times(S, times(turned, dual))
        good = (own | touching) & (tight | (mu * sign > GENERAL.strict * size))
        steady = (good == acting).all(-1, keepdim=True)
        fits = touching.any(-1, keepdim=True) & steady
        acting = good
    kept = S * acting.unsqueeze(-1)
    mu = torch.where(acting, mu, 0.0)
    fits = fits & ((times(kept.mT, mu) - dual).abs().amax(-1, keepdim=True) <= GENERAL.strict * size)
    pulled, terms = times(rows.mT, mu - stated), times(rows.mT.abs(), mu.abs() + stated.abs())
    exact = pulled.abs() <= ROUNDINGS * EPS * (terms + raw.abs().amax(-1, keepdim=True))
    fits = fits & exact.all(-1, keepdim=True)
    both = kept @ turned @ inverse @ turned @ kept.mT
    return Held(
        torch.where(fits, mu / length / power, held.dual),
        torch.where(fits, torch.where(acting, sign, 0.0), torch.where(own, sign, 0.0)),
        torch.where(fits.unsqueeze(-1), both, inverse),
    )


def _between(left: Tensor, right: Tensor, matrix: Tensor) -> Tensor:
    """The entries of ``(B, m, m)`` between the rows of two masks, zero elsewhere."""
    return torch.where(left.unsqueeze(-1) & right.unsqueeze(-2), matrix, 0.0)


def _inverse(matrix: Tensor, bare: bool) -> Tensor:
    """The inverse of positive definite matrices ``(B, m, m)``; by Newton's steps for it where nothing is factorized."""
    if not bare:
        return torch.linalg.inv_ex(matrix).inverse
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    found = eye / matrix.abs().sum(-1).amax(-1, keepdim=True).unsqueeze(-1)
    for _ in range(SCHULZ):
        found = found @ (2 * eye - matrix @ found)
    return found


def shared_multipliers(
    numbers: BoxedBatch, y: Tensor, dual: Tensor, side: Tensor, place: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The canonical dual and side ``(B, m)``; values are read, and only rows that touch y idly call for work."""
    raw, A, lower, upper, *box = numbers
    near = 2 * row_tolerance(A, y, lower, upper, EPS)
    at = times(A, y)
    idle = (torch.minimum((at - upper).abs(), (at - lower).abs()) <= near) & (side == 0)
    index = (idle.any(-1) & y.isfinite().all(-1)).nonzero().squeeze(-1)
    if len(index) == 0:
        return dual, side
    take = lambda part: part if len(part) == 1 else part[index]
    some = (raw[index], *(take(part) for part in (A, lower, upper, *box)))
    where = None if place is None else place[index]
    held = Held(dual[index], side[index], inverse_of(some, side[index], where))  # pyright: ignore[reportArgumentType]
    found = canonical(some, y[index], held, where)  # pyright: ignore[reportArgumentType]
    tight = (lower == upper).expand(dual.shape)[index] & (side[index] == 2)
    code = torch.where(tight, 2, found.side).to(side.dtype)
    return dual.index_copy(0, index, found.dual), side.index_copy(0, index, code)
