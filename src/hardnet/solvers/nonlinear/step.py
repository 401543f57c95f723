"""The subproblem of every step: a stabilized quadratic program, which is a projection onto a polyhedron.

    min over d, s   1/2 d'W d + q'd + center's + |s / elastic|^2 / 2   subject to  low <= J d + s <= high

With ``W = L L'``, ``z = L'd`` and ``s = elastic sigma`` it is the projection of ``(-L^-1 q, elastic center)`` onto
``low <= [J L^-T, diag(elastic)] (z, sigma) <= high``, with the same multipliers. It is feasible whenever the rows with
``elastic = 0`` (the affine ones) are, even where the linearization of the others is not: then it is a
Levenberg-Marquardt step. With the last multipliers as the center, s vanishes where the iteration converges.

Most samples are solved in the multipliers: on a CPU by a compiled dual active-set method (`kernels.cpu`),
else by guessing the active rows (`settle_rows`); the rest by `project_affine`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import INDEPENDENT, MOST_STEP_ROWS, NOISE, PATIENCE, ROUNDS
from hardnet.solvers.algebra.small import KERNEL, compiles, product, products, solve_definite
from hardnet.solvers.polyhedron.projection import project_affine
from hardnet.solvers.solution import take

# The multipliers of a small quadratic program by guessing its active rows, for all samples of a batch at once.
#
#     low <= target - gram dual <= high,    dual_i > 0 only at the upper bound, < 0 only at the lower
#
# A guess makes its rows tight; rows whose multiplier has the wrong sign are released and violated rows are added, until
# the guess no longer changes. On a CPU, compiled code uses a dual active-set method instead.


class Bounds(NamedTuple):
    """Bounds of rows of length one, the violation that counts as zero, and which are equalities: ``(b, m)`` each."""

    low: Tensor
    high: Tensor
    slack: Tensor
    equality: Tensor


def settle_rows(
    gram: Tensor, target: Tensor, low: Tensor, high: Tensor, tight: bool, look: bool, guess: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Complementary multipliers with ``low <= target - gram dual <= high``, and which samples are solved."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    unit = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    gram = gram * (unit.unsqueeze(-1) * unit.unsqueeze(-2))
    if tight:
        dual, sound = _solve(gram, (target - high) * unit)
        return dual * unit, sound
    target, low, high = target * unit, low * unit, high * unit
    slack = NOISE * torch.maximum(target.abs(), torch.minimum(low.abs(), high.abs()))
    equality = low == high
    first = None if guess is None else guess.sign()
    side = _outside(target, low, high, slack, equality) if first is None else torch.where(equality, 1.0, first)
    dual, settled = _guess(gram, target, Bounds(low, high, slack, equality), side, look)
    return dual * unit, settled


def _guess(gram: Tensor, target: Tensor, bounds: Bounds, side: Tensor, look: bool) -> tuple[Tensor, Tensor]:
    """Guess the active rows: multipliers, and which samples are solved; with `look`, these leave the batch.

    A sample whose number of wrong rows has not decreased for `PATIENCE` rounds changes only its last wrong row in each
    round until it does: block principal pivoting, which terminates for every positive definite matrix.
    """
    dual, settled = torch.zeros_like(target), torch.zeros_like(target[:, 0], dtype=torch.bool)
    index = torch.arange(target.shape[0], device=target.device)
    least, patience = torch.full_like(index, side.shape[-1] + 1), torch.full_like(index, PATIENCE)
    place = torch.arange(1, side.shape[-1] + 1, device=target.device)
    for _ in range(ROUNDS):
        found, following, sound = _try(gram, target, bounds, side)
        wrong = following != side
        count = wrong.sum(-1)
        same = (count == 0) & sound
        patience = torch.where(count < least, PATIENCE, patience - 1)
        last = place * wrong == (place * wrong).amax(-1, keepdim=True)
        side = torch.where(wrong & ((patience >= 0).unsqueeze(-1) | last), following, side)
        least = torch.minimum(least, count)
        if not look:
            dual, settled = torch.where(settled.unsqueeze(-1), dual, found), settled | same
            continue
        dual[index], settled[index] = torch.where(same.unsqueeze(-1), found, 0.0), same
        rest = (~same & sound).nonzero().squeeze(-1)
        if len(rest) == 0:
            break
        parts = (gram, target, index, side, least, patience, *bounds)
        gram, target, index, side, least, patience, *ends = (part[rest] for part in parts)
        bounds = Bounds(*ends)
    return dual, settled


def _try(gram: Tensor, target: Tensor, bounds: Bounds, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The multipliers of a guess, the next guess, and which samples have independent rows."""
    found, sound = _tight(gram, side, target - torch.where(side > 0, bounds.high, bounds.low))
    free = _outside(target - product(gram, found), *bounds)
    held = torch.where((found * side > 0) | bounds.equality, side, 0.0)  # a multiplier of the wrong sign is released
    return found, torch.where(side == 0, free, held), sound


def _outside(value: Tensor, low: Tensor, high: Tensor, slack: Tensor, equality: Tensor) -> Tensor:
    """+1 above the upper bound, -1 below the lower, 0 between; an equality is always active."""
    side = (value > high + slack).to(value) - (value < low - slack).to(value)
    return torch.where(equality, 1.0, side)


def _tight(gram: Tensor, side: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers that make the rows with a `side` tight, and which samples have independent rows."""
    active = (side != 0).to(gram)
    matrix = gram * (active.unsqueeze(-1) * active.unsqueeze(-2)) + torch.diag_embed(1 - active)
    return _solve(matrix, torch.where(side != 0, excess, 0.0))


def _solve(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """``matrix^-1 right``, ``(b, m)``, 0 where a pivot is too small; and which samples have large enough pivots."""
    dual, pivot = solve_definite(matrix, right.unsqueeze(-1))
    dual = dual.squeeze(-1)
    sound = (pivot > INDEPENDENT) & dual.isfinite().all(-1)
    return torch.where(sound.unsqueeze(-1), dual, 0.0), sound


SOFTER, MANY = 0.1, 10
"""Elasticity, relative to a row's length, for a second attempt where guessing the active rows has failed. Where values
may be read it is made only for more than MANY rows."""
FIRM = 1e-4
"""Least elasticity of a row, relative to its length, where values may not be read."""


class StepRows(NamedTuple):
    """The rows of a step.

    Attributes:
        jacobian: J, ``(b, m, n)``.
        low: ``lower - value``, ``(b, m)``.
        high: ``upper - value``, ``(b, m)``.
        elastic: ``(b, m)``; 0 for a row that must hold.
        center: ``(b, m)``, or None for 0.
    """

    jacobian: Tensor
    low: Tensor
    high: Tensor
    elastic: Tensor
    center: Tensor | None = None


class Metric(NamedTuple):
    """W ``(b, n, n)``, None for the identity, with ``W^-1 J'`` ``(b, n, m)`` and ``-W^-1 q`` ``(b, n)``."""

    W: Tensor | None
    rows: Tensor
    free: Tensor


def solve_step(
    rows: StepRows, metric: Metric | None = None, *, tight: bool = False, look: bool = True, guess: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The step d ``(b, n)`` and the multipliers ``(b, m)``, positive at the upper bound.

    Args:
        rows: The rows.
        metric: W and q; None for the identity and 0.
        tight: Whether all rows are known to be equalities.
        look: Whether values may be read; if not, a sample whose active rows are not found in `ROUNDS` guesses takes
            the step of the last guess for softer rows.
        guess: Multipliers whose signs are the first guess of the active rows, ``(b, m)``, where rows are guessed.
    """
    J, low, high, elastic, center = rows
    single = tight and J.shape[-2] == 1  # one equality has a formula, which is cheaper than launching a kernel
    if single or not (look and compiles(J, KERNEL, MOST_STEP_ROWS)):
        return _in_torch(rows, metric, tight, look, guess)
    from hardnet.kernels.cpu.nonlinear_step import solve_step as solve

    across, free = (None, None) if metric is None else metric[1:]
    step, dual, settled = solve(J, low, high, elastic, across, free, center)
    left = (~settled).nonzero().squeeze(-1)
    if len(left) == 0:
        return step, dual
    own, first = None if metric is None else take(metric, left), None if guess is None else guess[left]
    rest = _in_torch(take(rows, left), own, tight, look, first)
    return step.index_copy(0, left, rest[0]), dual.index_copy(0, left, rest[1])


def _in_torch(
    rows: StepRows, metric: Metric | None, tight: bool, look: bool, guess: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`solve_step` without compiled code."""
    J, low = rows.jacobian, rows.low
    across = J.mT if metric is None else metric.rows
    target = torch.zeros_like(low) if metric is None else product(J, metric.free)
    gram = products(J, across)
    if not (look or tight):  # the system must be solvable even for a guess with more active rows than outputs
        firm = torch.maximum(rows.elastic, FIRM * gram.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt())
        rows = rows._replace(elastic=firm)
    dual, settled = _dual(gram, target, rows, tight, look, guess)
    if look and not bool(settled.all()):
        left = (~settled).nonzero().squeeze(-1)
        if gram.shape[-1] > MANY:
            softer, settled = _softer(gram[left], target[left], take(rows, left), look)
            dual = dual.index_copy(0, left, softer)
            left = left[~settled]
        if len(left):
            own = None if metric is None else take(metric, left)
            dual = dual.index_copy(0, left, _by_projection(take(rows, left), own))
    elif not look and not tight:
        dual = torch.where(settled.unsqueeze(-1), dual, _softer(gram, target, rows, look)[0])
    step = -product(across, dual)
    return (step if metric is None else metric.free + step), dual


def _dual(
    gram: Tensor, target: Tensor, rows: StepRows, tight: bool = False, look: bool = True, guess: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The multipliers by guessing the active rows, and which samples are solved."""
    square = rows.elastic.square()
    target = target if rows.center is None else torch.addcmul(target, square, rows.center)
    gram = gram + torch.diag_embed(square)
    if tight and gram.shape[-1] == 1:
        return (target - rows.high) / gram.squeeze(-1), (gram > 0).view(-1)
    return settle_rows(gram, target, rows.low, rows.high, tight, look, guess)


def _softer(gram: Tensor, target: Tensor, rows: StepRows, look: bool) -> tuple[Tensor, Tensor]:
    """The same for more elastic rows, for which contradictory active rows in a guess are harmless.

    A step leaves ``elastic^2 v / sigma^2`` of a violation v, which the next steps remove.
    """
    length = gram.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    soft = torch.where(rows.elastic > 0, torch.maximum(rows.elastic, SOFTER * length), 0.0)
    return _dual(gram, target, rows._replace(elastic=soft), look=look)


def _by_projection(rows: StepRows, metric: Metric | None) -> Tensor:
    """The multipliers, by solving the subproblem as a projection."""
    J, low, high, soft, center = rows
    goal = torch.zeros_like(J[:, 0]) if metric is None else metric.free
    if metric is not None and metric.W is not None:
        factor = torch.linalg.cholesky(metric.W)
        J = torch.linalg.solve_triangular(factor, J.mT, upper=False).mT
        goal = product(factor.mT, metric.free)
    rest = torch.zeros_like(soft) if center is None else soft * center
    whole = torch.cat([J, torch.diag_embed(soft)], dim=-1)
    return project_affine(torch.cat([goal, rest], dim=-1), whole, low, high).dual
