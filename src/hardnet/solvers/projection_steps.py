"""The projection onto ``lower <= A y <= upper`` in steps over all samples, each by the first method that serves it.

A sample inside the set is returned as it came. Constant rows that were prepared are solved in batches,
`hardnet.solvers.shared_rows`; the rest goes to Newton's method (few rows on a CPU) or a dual active set: DAQP on a CPU
where it is installed, else batched pivoting. The optimality conditions of every answer are checked; what fails is
settled by the dual active set on orthonormal bases, which also proves sets empty. An empty set is answered by the
compromise, by proximal steps. Called by `hardnet.solvers.projection`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.rows import Batch
from hardnet.solvers import compiled, orthogonal
from hardnet.solvers.active import split
from hardnet.solvers.newton import newton
from hardnet.solvers.pivoting import pivot
from hardnet.solvers.problem import SOLVED, Problem, align, careful_residual, kkt_residual, multiply, standard_form
from hardnet.solvers.proximal import compromise
from hardnet.solvers.shared_factor import SharedRows
from hardnet.solvers.shared_rows import answer as shared_answer
from hardnet.solvers.solution import Status
from hardnet.solvers.touch_up import Project, touch_up

STRICT = 1e-11
"""Part of the sample's size above which a multiplier makes its row strictly active."""
FEW_ROWS = 16
"""Most rows of an A of its own for which Newton's method is faster than a dual active set on a CPU."""
SHARED = 1e-13
"""The residual up to which multipliers spread over dependent rows replace the first ones."""
CACHE_ENTRIES = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Most entries of the tableaus that one run of pivoting holds."""


class Outcome(NamedTuple):
    """A `Solution` of a flat batch with the side of each active row: +1 upper, -1 lower, 0 inactive, ``(B, m)``."""

    y: Tensor
    dual: Tensor
    side: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor


def solve_in_steps(
    rows: Batch, backend: str, shared: SharedRows | None = None, again: Project | None = None
) -> Outcome:
    """Project a flat batch by launches over all samples at once; `again` projects what needs its last digits."""
    problem = standard_form(*rows[:4])  # pyright: ignore[reportArgumentType]
    outside = (problem.violation(problem.product) > problem.slack).any(-1)
    todo, product = outside.nonzero().squeeze(-1), problem.product
    if len(todo) == 0:
        found = _unchanged(problem)
    elif len(todo) == len(rows.raw):
        found, product = _answer(problem, backend, shared)
    elif shared is not None:
        rest = (~outside).nonzero().squeeze(-1)
        found, moved = _answer(problem, backend, shared)
        found, product = place(found, rest, _unchanged(problem.take(rest))), moved.index_copy(0, rest, product[rest])
    else:
        part, moved = _answer(problem.take(todo), backend)
        found, product = place(_unchanged(problem), todo, part), product.index_copy(0, todo, moved)
    found = found if again is None else _certain(problem, found, product, again)
    m, n = problem.size
    return found._replace(y=found.y[:, :n], dual=found.dual[:, :m], side=found.side[:, :m])


def _certain(problem: Problem, found: Outcome, product: Tensor, again: Project) -> Outcome:
    """The outcome with the last digits of the samples whose rows are not met to the certificate, given ``A y``."""
    worst = problem.beyond(found.y, product)
    index = ((found.status == Status.SOLVED) & (worst > 0)).nonzero().squeeze(-1)
    if len(index) == 0:
        return found
    part, old = problem.take(index), Outcome(*(field[index] for field in found))
    y, dual = touch_up(part, old.y, old.dual, old.iterations > 0, worst[index], again)
    moved = (y != old.y).any(-1)
    residual = torch.where(moved, careful_residual(part, y, dual), old.residual)
    steps = torch.maximum(old.iterations, moved.to(old.iterations.dtype))
    return place(found, index, old._replace(y=y, dual=dual, iterations=steps, residual=residual))


def _unchanged(problem: Problem) -> Outcome:
    """Every sample as it came: right for the samples inside, and the place for the others' answers."""
    zero, residual = torch.zeros_like(problem.lower), torch.zeros_like(problem.raw[:, 0])
    status = torch.full_like(residual, int(Status.SOLVED), dtype=torch.int8)
    return Outcome(problem.raw, zero, zero, status, torch.zeros_like(status, dtype=torch.long), residual)


def place(result: Outcome, index: Tensor, part: Outcome) -> Outcome:
    """The outcome with the samples of `index` replaced by those of `part`."""
    return Outcome(*(old.index_copy(0, index, new.to(old.dtype)) for old, new in zip(result, part, strict=True)))


def _answer(problem: Problem, backend: str, shared: SharedRows | None = None) -> tuple[Outcome, Tensor]:
    """Solve the samples outside the set, check them, and settle those that fail the check; ``A y`` beside it."""
    y, dual, iterations, finished = _first_answer(problem, backend, shared)
    product = multiply(problem.A, y)
    residual = kkt_residual(problem, y, dual, product)
    status = torch.zeros_like(iterations, dtype=torch.int8)
    outcome = Outcome(y, dual, side_of(problem, dual), status, iterations.clamp_min(1), residual)
    failed = (~(finished & (residual <= SOLVED))).nonzero().squeeze(-1)
    if len(failed):
        part = problem.take(failed)
        settled = _careful(part)
        outcome = place(outcome, failed, settled)
        product = product.index_copy(0, failed, multiply(part.A, settled.y))
    return _share(problem, outcome, product), product


def _first_answer(problem: Problem, backend: str, shared: SharedRows | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if shared is not None:
        y, dual, settled = shared_answer(problem, shared, look=True)
        return _or_dual_active_set(problem, (y, dual, torch.ones_like(settled, dtype=torch.long), settled))
    if backend == "auto" and _few_rows(problem):
        return _or_dual_active_set(problem, newton(problem))
    return _dual_active_set(problem, backend)


def _dual_active_set(problem: Problem, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    on_cpu = problem.raw.device.type == "cpu"
    if backend == "daqp" or (backend == "auto" and on_cpu and compiled.available()):
        return compiled.solve_compiled(problem)
    return by_pivoting(problem)


def _few_rows(problem: Problem) -> bool:
    """Whether Newton's method is worth its try: at most half as many rows as outputs, and cheap ones, on a CPU."""
    m, n = problem.size
    return problem.raw.device.type == "cpu" and 2 * m <= n and (problem.shared or m <= FEW_ROWS)


def _or_dual_active_set(
    problem: Problem, found: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What was found, with the samples that did not settle by the dual active set."""
    rest = (~found[-1]).nonzero().squeeze(-1)
    if len(rest) == 0:
        return found
    others = _dual_active_set(problem.take(rest), "auto")
    return tuple(old.index_copy(0, rest, new) for old, new in zip(found, others, strict=True))  # pyright: ignore[reportReturnType]


def by_pivoting(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batched pivoting, in chunks whose tableaus fit the cache (CPU) or the memory (GPU)."""
    batch, m = problem.lower.shape
    size = max(1, CACHE_ENTRIES.get(problem.raw.device.type, 1 << 27) // (m * m))
    parts = [_pivot_chunk(problem.take(slice(first, first + size))) for first in range(0, batch, size)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))  # pyright: ignore[reportReturnType]


def _pivot_chunk(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    norm, (m, _) = problem.norm, problem.size
    gram = (problem.A @ problem.A.mT) / (norm.unsqueeze(-1) * norm.unsqueeze(-2))
    gram = gram.expand(len(problem.raw), -1, -1)[:, :m, :m].clone(memory_format=torch.contiguous_format)
    scaled = ((part / norm)[:, :m] for part in (problem.product, problem.lower, problem.upper, problem.slack))
    found = pivot(gram, *scaled, limit=step_limit(problem.A))
    dual = align(found.dual) / norm
    return problem.raw - multiply(problem.A.mT, dual), dual, found.steps, found.finished


def step_limit(A: Tensor) -> int:
    """Steps of pivoting after which a sample is given up."""
    return 10 * sum(A.shape[-2:]) + 50


def side_of(problem: Problem, dual: Tensor) -> Tensor:
    """The sign of each multiplier that is more than rounding."""
    weight = dual * problem.norm
    strict = weight.abs() > STRICT * weight.abs().amax(-1, keepdim=True).clamp_min(1.0)
    return torch.where(strict, weight.sign(), 0.0)


def _share(problem: Problem, outcome: Outcome, product: Tensor) -> Outcome:
    """Where rows touch y without a multiplier, spread the multipliers by the pseudo-inverse if their signs allow."""
    slack = 10 * problem.slack
    touch = (product >= problem.upper - slack).to(product) - (product <= problem.lower + slack).to(product)
    touch = torch.where(problem.equality, 1.0, touch)
    solved = outcome.status == Status.SOLVED
    chosen = (solved & ((touch != 0) & (outcome.side == 0)).any(-1)).nonzero().squeeze(-1)
    if len(chosen) == 0:
        return outcome
    part, touch = problem.take(chosen), touch[chosen]
    old = Outcome(*(field[chosen] for field in outcome))
    _, dual = split(part.raw - old.y, part.A, (touch != 0) | (old.side != 0))
    side = side_of(part, dual)
    residual = kkt_residual(part, old.y, dual)
    better = (residual <= SHARED) & ((side * touch >= 0) | part.equality).all(-1)
    keep = better.unsqueeze(-1)
    shared = old._replace(dual=torch.where(keep, dual, old.dual), side=torch.where(keep, side, old.side))
    return place(outcome, chosen, shared._replace(residual=torch.where(better, residual, old.residual)))


def _careful(problem: Problem) -> Outcome:
    """The samples that the first answer left open: solved, proved empty, or given up."""
    unit = problem.of_unit_rows()
    found = orthogonal.settle(unit, step_limit(problem.A))
    residual = careful_residual(unit, found.y, found.dual)
    status = torch.where(residual <= SOLVED, int(Status.SOLVED), int(Status.NOT_CONVERGED))
    status = torch.where(found.empty, int(Status.INFEASIBLE), status).to(torch.int8)
    outcome = Outcome(found.y, found.dual / problem.norm, found.side, status, found.steps.clamp_min(1), residual)
    empty = found.empty.nonzero().squeeze(-1)
    if len(empty) == 0:
        return outcome
    y, side, steps = compromise(unit.take(empty))
    held = Outcome(y, outcome.dual[empty], side, status[empty], found.steps[empty] + steps + 1, residual[empty])
    return place(outcome, empty, held)
