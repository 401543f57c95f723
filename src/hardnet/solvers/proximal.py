"""The careful way for the few: proximal steps on the dual, which need no independent rows and no feasible point.

Each step solves the problem with Gram matrix ``G + I/weight`` and product ``A raw + dual/weight`` (an augmented
Lagrangian step), which pivoting can always finish. On a polyhedron finitely many steps reach the projection.
On an empty set the multipliers run off along a certificate of emptiness, while y settles at the compromise: the
point nearest to raw among those with the least sum of squared distances to the rows' half-spaces.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.active import solve_active, split
from hardnet.solvers.optimality import SOLVED, kkt_residual
from hardnet.solvers.pivoting import pivot
from hardnet.solvers.problem import Problem, multiply

STEPS = 24
FIRST_WEIGHT, LAST_WEIGHT = 1e4, 1e8
PARALLEL = 1e-14
"""Two unit rows are parallel when their product is this close to one."""


class Settled(NamedTuple):
    """Where the careful way ended.

    Attributes:
        y: Projection, or the compromise where the set is empty, ``(B, n)``.
        dual: Multipliers, or the certificate of emptiness: ``A'dual = 0`` bounds on the wrong side, ``(B, m)``.
        side: Rows that hold y: +1 at (or beyond) the upper bound, -1 the lower, 0 free, ``(B, m)``.
        iterations: Pivots spent, ``(B,)``.
        infeasible: ``(B,)``.
    """

    y: Tensor
    dual: Tensor
    side: Tensor
    iterations: Tensor
    infeasible: Tensor


def settle(problem: Problem) -> Settled:
    """Solve, or prove empty, every sample of a (small) problem."""
    A, norm = problem.A.expand(len(problem.raw), -1, -1), problem.norm.expand_as(problem.lower)
    unit = problem._replace(A=A / norm.unsqueeze(-1), lower=problem.lower / norm, upper=problem.upper / norm)
    unit = unit._replace(norm=torch.ones_like(norm), product=problem.product / norm, slack=problem.slack / norm)
    gram = torch.bmm(unit.A, unit.A.mT)
    pair = _parallel_conflict(unit, gram)
    dual = torch.zeros_like(norm)
    best = Settled(unit.raw, dual, dual, torch.zeros_like(norm[:, 0], dtype=torch.long), (pair != 0).any(-1))
    open_, weight = torch.ones_like(best.infeasible), FIRST_WEIGHT
    for _ in range(STEPS):
        dual, side, steps = _proximal_step(unit, gram, dual, weight)
        found = _judge(unit, unit.raw - multiply(unit.A.mT, dual), side, best.iterations + steps)
        best = Settled(*(_choose(open_, new, old) for new, old in zip(found, best, strict=True)))
        open_ = open_ & ~best.infeasible & (kkt_residual(unit, best.y, best.dual) > SOLVED)
        if not bool(open_.any()):
            break
        weight = min(10 * weight, LAST_WEIGHT)
    infeasible = best.infeasible | (pair != 0).any(-1)
    certificate = torch.where((pair != 0).any(-1, keepdim=True), pair, best.dual)
    return best._replace(
        dual=torch.where(infeasible.unsqueeze(-1), certificate, best.dual) / norm, infeasible=infeasible
    )


def _judge(problem: Problem, y: Tensor, side: Tensor, iterations: Tensor) -> Settled:
    """Polish y on its active set; if what it still violates proves the set empty, return that as the multipliers.

    At the compromise the distances v to the rows satisfy ``A'v = 0`` and ``sum(bound v) = -|v|^2``.
    """
    y, dual = polish(problem, y, side)
    product = multiply(problem.A, y)
    missing = product - product.clamp(problem.lower, problem.upper)
    missing = torch.where(missing.abs() > problem.slack, missing, 0.0)
    empty = _proves_empty(problem, missing, y)
    ray = missing / missing.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    return Settled(y, torch.where(empty.unsqueeze(-1), ray, dual), side, iterations, empty)


def _choose(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *(1,) * (new.dim() - 1)), new, old)


def polish(problem: Problem, y: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """``y - A_J^+(A_J y - b_J)``, twice, and the multipliers ``(A_J')^+(raw - y)``: exact on the active set."""
    active = side != 0
    bound = torch.where(side > 0, problem.upper, problem.lower)
    for _ in range(2):
        missing = torch.where(active, multiply(problem.A, y) - bound, 0.0)
        y = y - multiply(problem.A.mT, solve_active(problem.A, active, missing))
    return y, split(problem.raw - y, problem.A, active)[1]


def _proximal_step(problem: Problem, gram: Tensor, dual: Tensor, weight: float) -> tuple[Tensor, Tensor, Tensor]:
    m = gram.shape[-1]
    regular = gram + torch.eye(m, dtype=gram.dtype, device=gram.device) / weight
    product = problem.product + dual / weight
    moved = pivot(regular, product, problem.lower, problem.upper, problem.slack, 20 * m + 100)
    return moved.dual, moved.side, moved.steps


def _proves_empty(problem: Problem, ray: Tensor, y: Tensor) -> Tensor:
    """Farkas: ``A'ray = 0`` while ``sum(upper ray+) - sum(lower ray-) < 0`` contradicts every y: ``(B,)``."""
    bound = torch.where(ray > 0, problem.upper, problem.lower)
    value = torch.where(ray != 0, ray * bound, 0.0).sum(-1)
    leak = multiply(problem.A.mT, ray).abs().sum(-1) * (1 + y.abs().amax(-1))
    return value < -(100 * leak + 1e-12 * ray.abs().sum(-1))


def _parallel_conflict(problem: Problem, gram: Tensor) -> Tensor:
    """The first pair of parallel rows whose intervals are disjoint, as a certificate; zero where there is none."""
    m = gram.shape[-1]
    same = gram > 0
    upper, lower = problem.upper.unsqueeze(-2), problem.lower.unsqueeze(-2)
    low, high = torch.where(same, lower, -upper), torch.where(same, upper, -lower)  # row j seen along row i
    slack = 10 * (problem.slack.unsqueeze(-1) + problem.slack.unsqueeze(-2))
    above = low - problem.upper.unsqueeze(-1) > slack
    clash = (gram.abs() > 1 - PARALLEL) & (above | (problem.lower.unsqueeze(-1) - high > slack))
    found, pair = clash.flatten(1).max(-1)
    at = pair.unsqueeze(-1)
    sign = torch.where(above.flatten(1).gather(-1, at), 1.0, -1.0).to(gram) * found.unsqueeze(-1)
    other = torch.where(same.flatten(1).gather(-1, at), -sign, sign)
    certificate = torch.zeros_like(problem.lower).scatter(-1, at // m, sign)
    return certificate.scatter_add(-1, at % m, other)
