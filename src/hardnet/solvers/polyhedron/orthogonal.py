"""Dual active set on an orthonormal basis of the active rows: accurate but slow, for samples that others leave open.

The method of Goldfarb and Idnani, as in `hardnet.solvers.polyhedron.pivoting`, but with ``A_J' = Q R`` computed anew
from the unit rows at every step instead of an updated Gram matrix. Rows at an angle of 1e-7 keep nine digits where
their Gram matrix keeps two, and errors do not accumulate over the steps:

    y = raw - own a_p - Q R^-T (A_J (raw - own a_p) - b_J),     dual_J = R^-1 Q'(raw - own a_p - y)

with row p joining at the multiplier `own`. Its component orthogonal to the active rows, ``z = a_p - Q Q'a_p``, moves y.
If z is rounding and no active row can leave, ``ray = (1 for p, -R^-1 Q'a_p for J)`` combines the rows to ``z``. With
bounds on the wrong side of each other this proves the set empty, except for points beyond `FAR` times the sample's
size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times, times_aligned
from hardnet.solvers.polyhedron.active import solve_active, solve_unseen
from hardnet.solvers.polyhedron.pivoting import pivot
from hardnet.solvers.polyhedron.problem import EPS, FAR, Problem

FAINT = 1e-14
"""The fraction of the largest weight of a ray below which a row takes no part in a contradiction."""
CHUNK_ENTRIES = 1 << 20
"""The most entries of the rows that are processed at once."""


class Settled(NamedTuple):
    """Where the active set ended, for rows of length one.

    Attributes:
        y: ``(B, n)``.
        dual: Multipliers, or the proof of emptiness (``A'dual = 0`` and bounds on the wrong side), ``(B, m)``.
        side: +1 active at the upper bound, -1 at the lower, 0 inactive: ``(B, m)``.
        steps: ``(B,)``.
        empty: Whether the set is proved empty, ``(B,)``.
    """

    y: Tensor
    dual: Tensor
    side: Tensor
    steps: Tensor
    empty: Tensor


class _Basis(NamedTuple):
    """The active rows: their indices ``(B, k)``, which entries are in use, Q ``(B, n, k)`` and R ``(B, k, k)``."""

    chosen: Tensor
    kept: Tensor
    Q: Tensor
    R: Tensor


class _State(NamedTuple):
    sample: Tensor
    side: Tensor
    own: Tensor  # multiplier of the row that is joining
    joining: Tensor  # its index, or -1


def settle(problem: Problem, limit: int) -> Settled:
    """Solve, prove empty, or give up on every sample of a (small) problem of unit rows, in at most `limit` steps."""
    batch, m = problem.lower.shape
    size = max(1, CHUNK_ENTRIES // (m * problem.raw.shape[-1]))
    parts = [_settle(problem.take(slice(first, first + size)), limit) for first in range(0, batch, size)]
    return Settled(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _settle(problem: Problem, limit: int) -> Settled:
    nothing, index = torch.zeros_like(problem.lower), torch.arange(len(problem.raw), device=problem.raw.device)
    no_step = torch.zeros_like(index)
    result = Settled(problem.raw.clone(), nothing.clone(), nothing.clone(), no_step, no_step.bool())
    state = _State(index, nothing, nothing[:, 0], no_step - 1)
    for count in range(limit):
        state, problem = _step(problem, state, result, count)
        if len(state.sample) == 0:
            break
    return result


def _step(problem: Problem, state: _State, result: Settled, count: int) -> tuple[_State, Problem]:
    """One change of the active sets; the state is written into `result`, and finished samples are dropped."""
    basis = _basis(problem.A, state.side)
    y, dual, start = _minimizer(problem, state, basis)
    _write(result, state, y, dual, count)
    excess = _excess(problem, y, state.side)
    worst, furthest = excess.max(-1)
    row = torch.where(state.joining >= 0, state.joining, furthest)
    working = (worst > 0) | (state.joining >= 0)
    sign, missing = _violation(problem, y, row)
    across, along = _directions(problem, basis, row)
    leaving, until_leaving = _ratio_test(problem, state, dual, basis, along * sign.unsqueeze(-1))
    distance = across.square().sum(-1)
    independent = distance.sqrt() > 16 * EPS * problem.raw.shape[-1] ** 0.5
    until_tight = torch.where(independent, missing / distance, torch.inf)
    stuck = working & torch.isinf(torch.minimum(until_tight, until_leaving))
    _write_rays(result, problem, state, basis, (row, sign, across, along, missing, y, stuck))
    joins = until_tight <= until_leaving
    changed = torch.where(joins, row, leaving).unsqueeze(-1)
    side = state.side.scatter(-1, changed, torch.where(joins, sign, 0.0).unsqueeze(-1))
    own = torch.where(joins, 0.0, start + sign * until_leaving)
    state = _State(state.sample, side, own, torch.where(joins, -1, row))
    rest = (working & ~stuck).nonzero().squeeze(-1)
    return _State(*(part[rest] for part in state)), problem.take(rest)


def _basis(A: Tensor, side: Tensor) -> _Basis:
    """``A_J' = Q R`` of the active rows, with zeros in place of missing ones."""
    active = side != 0
    size = max(1, int(active.sum(-1).amax()))
    index = active.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :size]
    kept = active.gather(-1, index)
    rows = A.gather(-2, index.unsqueeze(-1).expand(-1, -1, A.shape[-1])) * kept.unsqueeze(-1)
    Q, R = torch.linalg.qr(rows.mT)
    R.diagonal(dim1=-2, dim2=-1).add_(~kept[:, : R.shape[-2]])
    return _Basis(index, kept, Q * kept[:, : Q.shape[-1]].unsqueeze(-2), R)


def _minimizer(problem: Problem, state: _State, basis: _Basis) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest point on the active rows, corrected once, its multipliers ``(B, m)``, and the current `own`."""
    row = state.joining.clamp_min(0)
    moved = problem.raw - state.own.unsqueeze(-1) * _row(problem.A, row)
    bound = torch.where(state.side > 0, problem.upper, problem.lower).gather(-1, basis.chosen)
    y = moved
    for _ in range(2):
        product = times_aligned(problem.A, y).gather(-1, basis.chosen)
        missing = torch.where(basis.kept, product - bound, 0.0)
        way = torch.linalg.solve_triangular(basis.R.mT, missing.unsqueeze(-1), upper=False)
        y = y - (basis.Q @ way).squeeze(-1)
    inner = basis.Q.mT @ (moved - y).unsqueeze(-1)
    dual = torch.linalg.solve_triangular(basis.R, inner, upper=True).squeeze(-1)
    whole = torch.zeros_like(problem.lower).scatter(-1, basis.chosen, torch.where(basis.kept, dual, 0.0))
    return y, whole, state.own


def _excess(problem: Problem, y: Tensor, side: Tensor) -> Tensor:
    """How far each inactive row is violated beyond what counts as satisfied; -1 for active rows."""
    excess = problem.violation(times_aligned(problem.A, y)) - problem.slack_at(y)
    return excess.masked_fill(side != 0, -1.0)


def _violation(problem: Problem, y: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Which bound of a row is violated, +1 or -1, and by how much."""
    product = (_row(problem.A, row) * y).sum(-1)
    upper, lower = (bound.gather(-1, row.unsqueeze(-1)).squeeze(-1) for bound in (problem.upper, problem.lower))
    above = product - upper >= lower - product
    return torch.where(above, 1.0, -1.0).to(y), torch.where(above, product - upper, lower - product).clamp_min(0.0)


def _directions(problem: Problem, basis: _Basis, row: Tensor) -> tuple[Tensor, Tensor]:
    """``z = a_p - Q Q'a_p``, orthogonalized twice for accuracy, and ``R^-1 Q'a_p`` ``(B, k)``."""
    a = _row(problem.A, row)
    inner = times_aligned(basis.Q.mT, a)
    across = a - times_aligned(basis.Q, inner)
    again = times_aligned(basis.Q.mT, across)
    across = across - times_aligned(basis.Q, again)
    along = torch.linalg.solve_triangular(basis.R, (inner + again).unsqueeze(-1), upper=True).squeeze(-1)
    return across, torch.where(basis.kept, along, 0.0)


def _ratio_test(problem: Problem, state: _State, dual: Tensor, basis: _Basis, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The active inequality whose multiplier reaches zero first, and the step that takes it there."""
    value, side, equality = (part.gather(-1, basis.chosen) for part in (dual, state.side, problem.equality))
    largest = slope.abs().amax(-1, keepdim=True)
    shrinks = basis.kept & (side * slope > FAINT * largest) & ~equality
    length, place = torch.where(shrinks, value / slope, torch.inf).min(-1)
    return basis.chosen.gather(-1, place.unsqueeze(-1)).squeeze(-1), length.clamp_min(0.0)


def _write(result: Settled, state: _State, y: Tensor, dual: Tensor, count: int) -> None:
    result.y[state.sample], result.dual[state.sample], result.side[state.sample] = y, dual, state.side
    result.steps[state.sample] = count


def _write_rays(result: Settled, problem: Problem, state: _State, basis: _Basis, found: tuple[Tensor, ...]) -> None:
    """Write the proofs of emptiness of the samples that are stuck, if they are valid proofs."""
    row, sign, across, along, missing, y, stuck = found
    ray = torch.zeros_like(problem.lower).scatter(-1, basis.chosen, -along).scatter(-1, row.unsqueeze(-1), 1.0)
    ray = ray * sign.unsqueeze(-1)
    largest = ray.abs().amax(-1, keepdim=True)
    ray = torch.where(ray.abs() > FAINT * largest, ray, 0.0)
    leak = across.abs().sum(-1) + problem.raw.shape[-1] * EPS * ray.abs().sum(-1)
    empty = stuck & (missing > FAR * leak * (1 + y.abs().amax(-1)))
    chosen = state.sample[empty]
    result.dual[chosen], result.empty[chosen] = (ray / largest)[empty], True


def _row(A: Tensor, index: Tensor) -> Tensor:
    """Row ``index[b]`` of sample b: ``(B, n)``."""
    return A[torch.arange(len(A), device=A.device), index]


# Whether the last iterate of a solver proves ``lower <= A y <= upper`` empty, in plain operations that read no value.
#
# On an empty set a program of fixed length stops with active rows J and a violated row j that depends on them,
# ``a_j = A_J'r``. Then ``ray = e_j - r`` has ``A'ray = 0``, and if the bounds, weighted by it, add up below zero, no y
# satisfies these rows (Farkas). This gives a status where the host reads no value.


NO_WEIGHT = 1e-12
"""The fraction of the largest weight of a ray below which a weight is rounding."""


def prove_empty(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, side: Tensor) -> Tensor:
    """Weights of rows that contradict each other, ``(B, m)``, the largest of size one; zero if that is not proved.

    Args:
        raw: ``(B, n)``, float64.
        A: ``(m, n)`` or ``(B, m, n)``.
        lower: ``(B, m)``, -inf where absent.
        upper: ``(B, m)``, inf where absent.
        y: The last iterate, ``(B, n)``.
        side: Its active rows: +1 at the upper bound, -1 at the lower, 0 inactive: ``(B, m)``.
    """
    length = torch.linalg.vector_norm(A, dim=-1)
    length = torch.where(length > 0, length, 1.0)
    rows = (A / length.unsqueeze(-1)).expand(len(y), *A.shape[-2:])
    lower, upper = lower / length, upper / length
    ray = _dependence(rows, lower, upper, y, side != 0)
    bound = torch.where(ray > 0, upper, lower)
    value = torch.where(ray != 0, ray * torch.where(ray != 0, bound, 0.0), 0.0).sum(-1)
    leak = times(rows.mT, ray).abs().sum(-1) + A.shape[-1] * EPS * ray.abs().sum(-1)
    # the rest of A'ray could make up for the violation at a point that far away, which is not counted as a solution
    reach = FAR * torch.maximum(raw.abs().amax(-1), y.abs().amax(-1))
    proof = ray / length
    proof = proof / proof.abs().amax(-1, keepdim=True)
    return torch.where((value < -leak * reach).unsqueeze(-1), proof, 0.0)


def _dependence(rows: Tensor, lower: Tensor, upper: Tensor, y: Tensor, active: Tensor) -> Tensor:
    """``e_j - r`` for the most violated row j off J, with ``A_J'r`` nearest to ``a_j``; signed by the violated side."""
    product = times(rows, y)
    above, below = product - upper, lower - product
    worst = torch.where(active, -torch.inf, torch.maximum(above, below)).argmax(-1, keepdim=True)
    joining = torch.zeros_like(product).scatter(-1, worst, 1.0)
    joining = torch.where(above > below, joining, -joining)
    ray = joining - solve_unseen(rows, active, times(rows, times(rows.mT, joining)))
    return torch.where(ray.abs() > NO_WEIGHT * ray.abs().amax(-1, keepdim=True), ray, 0.0)


# The compromise on an empty set, by proximal steps on the dual, which need no feasible point.
#
# Each step solves the problem with Gram matrix ``G + I/weight`` and product ``A raw + dual/weight`` (an augmented
# Lagrangian step), which pivoting can always finish. The multipliers diverge along a proof of emptiness, while y
# converges to the compromise: the point nearest to raw among those with the least sum of squared distances to the rows.


MOST_PROXIMAL = 24
FIRST_WEIGHT, LAST_WEIGHT = 1e4, 1e8
BALANCED = 1e-10
"""How large ``A'v`` may be at the compromise, relative to the distances v to the rows."""


def compromise(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Y ``(B, n)``, its active rows ``(B, m)`` (+1 at or beyond the upper bound, -1 the lower), and the steps.

    The samples have unit rows and empty sets. At the compromise the distances v to the rows satisfy ``A'v = 0``.
    """
    gram = torch.bmm(problem.A, problem.A.mT)
    dual, y, side = torch.zeros_like(problem.lower), problem.raw, torch.zeros_like(problem.lower)
    open_, steps = torch.ones_like(y[:, 0], dtype=torch.bool), torch.zeros_like(y[:, 0], dtype=torch.long)
    weight = FIRST_WEIGHT
    for _ in range(MOST_PROXIMAL):
        dual, new_side, taken = _proximal_step(problem, gram, dual, weight)
        found = _polish(problem, problem.raw - times_aligned(problem.A.mT, dual), new_side)
        keep = open_.unsqueeze(-1)
        y, side, steps = torch.where(keep, found, y), torch.where(keep, new_side, side), steps + taken * open_
        open_ = open_ & ~_balanced(problem, y)
        if not bool(open_.any()):
            break
        weight = min(10 * weight, LAST_WEIGHT)
    return y, side, steps


def _balanced(problem: Problem, y: Tensor) -> Tensor:
    product = times_aligned(problem.A, y)
    missing = product - product.clamp(problem.lower, problem.upper)
    return times_aligned(problem.A.mT, missing).abs().amax(-1) <= BALANCED * missing.abs().amax(-1)


def _polish(problem: Problem, y: Tensor, side: Tensor) -> Tensor:
    """``y - A_J^+(A_J y - b_J)``, twice: exact on the active set."""
    active = side != 0
    bound = torch.where(side > 0, problem.upper, problem.lower)
    for _ in range(2):
        missing = torch.where(active, times_aligned(problem.A, y) - bound, 0.0)
        y = y - times_aligned(problem.A.mT, solve_active(problem.A, active, missing))
    return y


def _proximal_step(problem: Problem, gram: Tensor, dual: Tensor, weight: float) -> tuple[Tensor, Tensor, Tensor]:
    m = gram.shape[-1]
    regular = gram + torch.eye(m, dtype=gram.dtype, device=gram.device) / weight
    product = problem.product + dual / weight
    moved = pivot(regular, product, problem.lower, problem.upper, problem.slack, 20 * m + 100)
    return moved.dual, moved.side, moved.steps
