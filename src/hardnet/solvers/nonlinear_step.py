"""The subproblem of every step: a stabilised quadratic program, which is a projection onto a polyhedron.

    min over d, s   1/2 d'W d + q'd + centre's + |s / elastic|^2 / 2   subject to  low <= J d + s <= high

With ``W = L L'``, ``z = L'd`` and ``s = elastic sigma`` it is the projection of ``(-L^-1 q, elastic centre)`` onto
``low <= [J L^-T, diag(elastic)] (z, sigma) <= high``, whose multipliers are those of the rows. It has a point whenever
the rows with ``elastic = 0`` (the affine ones) have one, also where the linearisation of the others has none: then it
is a Levenberg-Marquardt step. With the last multipliers as the centre, s vanishes where the iteration converges.

Most samples are settled by Newton's method on the active set, in the multipliers; the rest by `project_affine`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.projection import project_affine
from hardnet.solvers.small import product, products, solve_definite

ROUNDS = 8
"""Guesses of the active set before a sample is left to the projection."""
NOISE = 1e-12
"""Part of the size of a row's numbers by which it may miss a bound and count as holding."""
INDEPENDENT = 1e-13
"""Least pivot of unit rows for which elimination is trusted."""


class Metric(NamedTuple):
    """W ``(b, n, n)``, None for the identity, with ``W^-1 J'`` ``(b, n, m)`` and ``-W^-1 q`` ``(b, n)``."""

    W: Tensor | None
    rows: Tensor
    free: Tensor


def solve_step(
    jacobian: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    metric: Metric | None = None,
    centre: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The step d ``(b, n)`` and the multipliers ``(b, m)``, positive at the upper bound.

    Args:
        jacobian: J, ``(b, m, n)``.
        low: ``lower - value``, ``(b, m)``.
        high: ``upper - value``, ``(b, m)``.
        elastic: ``(b, m)``; 0 for a row that may not give way.
        metric: W and q; None for the identity and 0.
        centre: ``(b, m)``, or None for 0.
    """
    across = jacobian.mT if metric is None else metric.rows
    target = torch.zeros_like(low) if metric is None else product(jacobian, metric.free)
    if centre is not None:
        target = target + elastic.square() * centre
    gram = products(jacobian, across).clone()
    gram.diagonal(dim1=-2, dim2=-1).add_(elastic.square())
    dual, settled = _settle(gram, target, low, high)
    todo = (~settled).nonzero().squeeze(-1)
    if len(todo):
        dual = dual.index_copy(0, todo, _by_projection(jacobian, low, high, elastic, metric, centre, todo))
    step = -product(across, dual)
    return (step if metric is None else metric.free + step), dual


def _by_projection(
    jacobian: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    metric: Metric | None,
    centre: Tensor | None,
    todo: Tensor,
) -> Tensor:
    """The multipliers of the samples `todo` by the projection that the subproblem is."""
    rows, soft = jacobian[todo], elastic[todo]
    goal = torch.zeros_like(rows[:, 0]) if metric is None else metric.free[todo]
    if metric is not None and metric.W is not None:
        factor = torch.linalg.cholesky(metric.W[todo])
        rows = torch.linalg.solve_triangular(factor, rows.mT, upper=False).mT
        goal = product(factor.mT, metric.free[todo])
    rest = torch.zeros_like(soft) if centre is None else soft * centre[todo]
    own = torch.cat([rows, torch.diag_embed(soft)], dim=-1)
    return project_affine(torch.cat([goal, rest], dim=-1), own, low[todo], high[todo]).dual


def _settle(gram: Tensor, target: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers with ``low <= target - gram dual <= high``, complementary, and which samples were settled."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    unit = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    gram = gram * unit.unsqueeze(-1) * unit.unsqueeze(-2)
    target, low, high = target * unit, low * unit, high * unit
    equality = low == high
    if bool(equality.all()):
        dual, sound = _tight(gram, torch.ones_like(target), target - high)
        return dual * unit, sound
    slack = NOISE * torch.maximum(target.abs(), torch.minimum(low.abs(), high.abs()))
    dual, settled = torch.zeros_like(target), torch.zeros(len(target), dtype=torch.bool, device=target.device)
    index = torch.arange(len(target), device=target.device)
    side = _outside(target, low, high, slack, equality)
    for _ in range(ROUNDS):
        guess, sound = _tight(gram, side, target - torch.where(side > 0, high, low))
        value = target - product(gram, guess)
        following = _outside(value + guess, low, high, slack, equality)
        same = (following == side).all(-1) & sound
        dual[index], settled[index] = torch.where(same.unsqueeze(-1), guess, 0.0), same
        rest = (~same).nonzero().squeeze(-1)
        if len(rest) == 0:
            break
        gram, target, low, high, slack, equality, index = (
            part[rest] for part in (gram, target, low, high, slack, equality, index)
        )
        side = following[rest]
    return dual * unit, settled


def _outside(value: Tensor, low: Tensor, high: Tensor, slack: Tensor, equality: Tensor) -> Tensor:
    """+1 above the upper bound, -1 below the lower, 0 between; an equality is always active."""
    side = (value > high + slack).to(value) - (value < low - slack).to(value)
    return torch.where(equality, 1.0, side)


def _tight(gram: Tensor, side: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers that make the rows of `side` tight, and which samples have independent ones."""
    active = (side != 0).to(gram)
    matrix = gram * (active.unsqueeze(-1) * active.unsqueeze(-2))
    matrix.diagonal(dim1=-2, dim2=-1).add_(1 - active)
    right = torch.where(side != 0, excess, 0.0)
    dual, pivot = solve_definite(matrix, right.unsqueeze(-1))
    dual = dual.squeeze(-1)
    sound = (pivot > INDEPENDENT) & dual.isfinite().all(-1)
    return torch.where(sound.unsqueeze(-1), dual, 0.0), sound
