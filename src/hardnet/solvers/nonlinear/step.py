"""The subproblem of every step: a stabilized quadratic program, which is a projection onto a polyhedron.

    min over d, s   1/2 d'W d + q'd + center's + |s / elastic|^2 / 2   subject to  low <= J d + s <= high

With ``W = L L'``, ``z = L'd`` and ``s = elastic sigma`` it is the projection of ``(-L^-1 q, elastic center)`` onto
``low <= [J L^-T, diag(elastic)] (z, sigma) <= high``, with the same multipliers. It is feasible whenever the rows with
``elastic = 0`` (the affine ones) are, even where the linearization of the others is not: then it is a
Levenberg-Marquardt step. With the last multipliers as the center, s vanishes where the iteration converges.

Most samples are solved in the multipliers: on a CPU by a compiled dual active-set method (`kernels.cpu.active_set`),
else by guessing the active rows (`guesses`); the rest by `project_affine`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import MOST_STEP_ROWS
from hardnet.solvers.algebra.small import compiles, product, products
from hardnet.solvers.nonlinear.guesses import settle_rows
from hardnet.solvers.polyhedron.projection import project_affine

SOFTER, MANY = 0.1, 10
"""Elasticity, relative to a row's length, for a second attempt where guessing the active rows has failed. Where values
may be read it is made only for more than MANY rows."""
FIRM = 1e-4
"""Least elasticity of a row, relative to its length, where values may not be read."""


class Metric(NamedTuple):
    """W ``(b, n, n)``, None for the identity, with ``W^-1 J'`` ``(b, n, m)`` and ``-W^-1 q`` ``(b, n)``."""

    W: Tensor | None
    rows: Tensor
    free: Tensor

    def take(self, index: Tensor) -> Metric:
        """The metric of some samples."""
        return Metric(None if self.W is None else self.W[index], self.rows[index], self.free[index])


def solve_step(
    jacobian: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    metric: Metric | None = None,
    center: Tensor | None = None,
    *,
    tight: bool = False,
    look: bool = True,
    guess: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The step d ``(b, n)`` and the multipliers ``(b, m)``, positive at the upper bound.

    Args:
        jacobian: J, ``(b, m, n)``.
        low: ``lower - value``, ``(b, m)``.
        high: ``upper - value``, ``(b, m)``.
        elastic: ``(b, m)``; 0 for a row that must hold.
        metric: W and q; None for the identity and 0.
        center: ``(b, m)``, or None for 0.
        tight: Whether all rows are known to be equalities.
        look: Whether values may be read; if not, a sample whose active rows are not found in `ROUNDS` guesses takes
            the step of the last guess for softer rows.
        guess: Multipliers whose signs are the first guess of the active rows, ``(b, m)``, where rows are guessed.
    """
    single = tight and jacobian.shape[-2] == 1  # one equality has a formula, which is cheaper than launching a kernel
    if single or not (look and compiles(jacobian, "active_set", MOST_STEP_ROWS)):
        return _in_torch(jacobian, low, high, elastic, metric, center, tight, look, guess)
    from hardnet.kernels.cpu.active_set import solve

    across, free = (None, None) if metric is None else metric[1:]
    step, dual, settled = solve(jacobian, low, high, elastic, across, free, center)
    todo = (~settled).nonzero().squeeze(-1)
    if len(todo) == 0:
        return step, dual
    near, first = (None if part is None else part[todo] for part in (center, guess))
    own = None if metric is None else metric.take(todo)
    rest = _in_torch(jacobian[todo], low[todo], high[todo], elastic[todo], own, near, tight, look, first)
    return step.index_copy(0, todo, rest[0]), dual.index_copy(0, todo, rest[1])


def _in_torch(
    jacobian: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    metric: Metric | None,
    center: Tensor | None,
    tight: bool,
    look: bool,
    guess: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`solve_step` without compiled code."""
    across = jacobian.mT if metric is None else metric.rows
    target = torch.zeros_like(low) if metric is None else product(jacobian, metric.free)
    gram = products(jacobian, across)
    if not (look or tight):  # the system must be solvable even for a guess with more active rows than outputs
        elastic = torch.maximum(elastic, FIRM * gram.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt())
    dual, settled = _dual(gram, target, low, high, elastic, center, tight, look, guess)
    if look and not bool(settled.all()):
        todo = (~settled).nonzero().squeeze(-1)
        if gram.shape[-1] > MANY:
            near = None if center is None else center[todo]
            found, settled = _softer(gram[todo], target[todo], low[todo], high[todo], elastic[todo], near, look)
            dual = dual.index_copy(0, todo, found)
            todo = todo[~settled]
        if len(todo):
            dual = dual.index_copy(0, todo, _by_projection(jacobian, low, high, elastic, metric, center, todo))
    elif not look and not tight:
        dual = torch.where(settled.unsqueeze(-1), dual, _softer(gram, target, low, high, elastic, center, look)[0])
    step = -product(across, dual)
    return (step if metric is None else metric.free + step), dual


def _dual(
    gram: Tensor,
    target: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    center: Tensor | None,
    tight: bool = False,
    look: bool = True,
    guess: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The multipliers by guessing the active rows, and which samples are solved."""
    square = elastic.square()
    target = target if center is None else torch.addcmul(target, square, center)
    gram = gram + torch.diag_embed(square)
    if tight and gram.shape[-1] == 1:
        return (target - high) / gram.squeeze(-1), (gram > 0).view(-1)
    return settle_rows(gram, target, low, high, tight, look, guess)


def _softer(
    gram: Tensor, target: Tensor, low: Tensor, high: Tensor, elastic: Tensor, center: Tensor | None, look: bool
) -> tuple[Tensor, Tensor]:
    """The same for more elastic rows, for which contradictory active rows in a guess are harmless.

    A step leaves ``elastic^2 v / sigma^2`` of a violation v, which the next steps remove.
    """
    length = gram.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    soft = torch.where(elastic > 0, torch.maximum(elastic, SOFTER * length), 0.0)
    return _dual(gram, target, low, high, soft, center, look=look)


def _by_projection(
    jacobian: Tensor,
    low: Tensor,
    high: Tensor,
    elastic: Tensor,
    metric: Metric | None,
    center: Tensor | None,
    todo: Tensor,
) -> Tensor:
    """The multipliers of the samples `todo`, by solving the subproblem as a projection."""
    rows, soft = jacobian[todo], elastic[todo]
    goal = torch.zeros_like(rows[:, 0]) if metric is None else metric.free[todo]
    if metric is not None and metric.W is not None:
        factor = torch.linalg.cholesky(metric.W[todo])
        rows = torch.linalg.solve_triangular(factor, rows.mT, upper=False).mT
        goal = product(factor.mT, metric.free[todo])
    rest = torch.zeros_like(soft) if center is None else soft * center[todo]
    own = torch.cat([rows, torch.diag_embed(soft)], dim=-1)
    return project_affine(torch.cat([goal, rest], dim=-1), own, low[todo], high[todo]).dual
