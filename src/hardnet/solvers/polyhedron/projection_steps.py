"""The projection onto ``lower <= A y <= upper`` in several stages, each sample by the first method that solves it.

A sample inside the set is returned unchanged. Constant rows that were prepared are solved in batches,
`hardnet.solvers.polyhedron.shared_rows`; the rest by a dual active set method: DAQP on a CPU if it is installed, else
batched pivoting. The optimality conditions of every answer are checked; samples that fail are solved by the dual active
set on orthonormal bases, which also proves sets empty. For an empty set, proximal steps find the compromise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise, repeat

import torch
from torch import Tensor

from hardnet.errors import MissingExtraError
from hardnet.products import times_aligned
from hardnet.rows import Batch, step_limit
from hardnet.solvers.polyhedron import orthogonal
from hardnet.solvers.polyhedron.canonical import shared_multipliers
from hardnet.solvers.polyhedron.pivoting import by_pivoting
from hardnet.solvers.polyhedron.problem import SOLVED, Problem, careful_residual, kkt_residual, standard_form
from hardnet.solvers.polyhedron.proximal import compromise
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.polyhedron.shared_rows import answer as shared_answer
from hardnet.solvers.polyhedron.touch_up import Project, touch_up
from hardnet.solvers.solution import Outcome, Status, place, take

STRICT = 1e-11
"""The fraction of the sample's size above which a multiplier makes its row strictly active."""
THREADED_ENTRIES = 2000
"""The entries of one sample's A below which DAQP is so fast that a second thread only waits for the interpreter."""

Answer = tuple[Tensor, Tensor, Tensor, Tensor]
"""y ``(B, n)``, dual ``(B, m)``, iterations ``(B,)`` and which samples are claimed to be solved ``(B,)``."""


def solve_in_steps(
    rows: Batch,
    backend: str,
    shared: SharedRows | None = None,
    again: Project | None = None,
    rounding: float | None = None,
) -> Outcome:
    """Project a flat batch in stages, each for all its samples at once.

    `again` projects the corrections of the last digits; a sample that still misses a row by more than a certificate
    with this `rounding` allows is NOT_CONVERGED.
    """
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
    found = found if again is None else _certain(problem, found, product, again, rounding)
    m, n = problem.size
    return found._replace(y=found.y[:, :n], dual=found.dual[:, :m], side=found.side[:, :m])


def _certain(problem: Problem, found: Outcome, product: Tensor, again: Project, rounding: float | None) -> Outcome:
    """The outcome with the last digits corrected where rows miss their bounds beyond `CERTAIN`, given ``A y``.

    Rows that contradict each other by the rounding of their bounds cannot be satisfied: then NOT_CONVERGED.
    """
    worst = problem.beyond(found.y, product)
    index = ((found.status == int(Status.SOLVED)) & (worst > 0)).nonzero().squeeze(-1)
    if len(index) == 0:
        return found
    part, old = problem.take(index), take(found, index)
    y, dual = touch_up(part, old.y, old.dual, old.iterations > 0, worst[index], again)
    moved = (y != old.y).any(-1)
    residual = torch.where(moved, careful_residual(part, y, dual), old.residual)
    steps = torch.maximum(old.iterations, moved.to(old.iterations.dtype))
    met = part.certified(y, rounding) if rounding is not None else torch.ones_like(moved)
    status = torch.where(met, old.status, int(Status.NOT_CONVERGED))
    return place(found, index, Outcome(y, dual, old.side, status, steps, residual))


def _unchanged(problem: Problem) -> Outcome:
    """Every sample unchanged: the answer for samples inside the set, and a placeholder for the others."""
    zero, residual = torch.zeros_like(problem.lower), torch.zeros_like(problem.raw[:, 0])
    status = torch.full_like(residual, int(Status.SOLVED), dtype=torch.int8)
    return Outcome(problem.raw, zero, zero, status, torch.zeros_like(status, dtype=torch.long), residual)


def _answer(problem: Problem, backend: str, shared: SharedRows | None = None) -> tuple[Outcome, Tensor]:
    """Solve the samples outside the set, check them, and solve those that fail more carefully; also returns ``A y``."""
    y, dual, iterations, finished = _first_answer(problem, backend, shared)
    product = times_aligned(problem.A, y)
    residual = kkt_residual(problem, y, dual, product)
    status = torch.zeros_like(iterations, dtype=torch.int8)
    outcome = Outcome(y, dual, side_of(problem, dual), status, iterations.clamp_min(1), residual)
    failed = (~(finished & (residual <= SOLVED))).nonzero().squeeze(-1)
    if len(failed):
        part = problem.take(failed)
        settled = _careful(part)
        outcome = place(outcome, failed, settled)
        product = product.index_copy(0, failed, times_aligned(part.A, settled.y))
    return _share(problem, outcome), product


def _first_answer(problem: Problem, backend: str, shared: SharedRows | None) -> Answer:
    if shared is not None:
        y, dual, settled = shared_answer(problem, shared, look=True)
        return _or_dual_active_set(problem, (y, dual, torch.ones_like(settled, dtype=torch.long), settled))
    return _dual_active_set(problem, backend)


def _dual_active_set(problem: Problem, backend: str) -> Answer:
    on_cpu = problem.raw.device.type == "cpu"
    if backend == "daqp" or (backend == "auto" and on_cpu and has_daqp()):
        return _by_daqp(problem)
    return by_pivoting(problem)


def _or_dual_active_set(problem: Problem, found: Answer) -> Answer:
    """The answers found, with the samples that did not settle solved by the dual active set."""
    rest = (~found[-1]).nonzero().squeeze(-1)
    if len(rest) == 0:
        return found
    others = _dual_active_set(problem.take(rest), "auto")
    return tuple(old.index_copy(0, rest, new) for old, new in zip(found, others, strict=True))  # pyright: ignore[reportReturnType]


def has_daqp() -> bool:
    """Whether DAQP, a compiled dual active-set solver, can be imported: the extra ``qp``."""
    return find_spec("daqp") is not None and find_spec("numpy") is not None


def _by_daqp(problem: Problem) -> Answer:
    """Solve sample by sample with DAQP, on torch's number of threads if a solve takes long enough."""
    if not has_daqp():
        raise MissingExtraError("daqp", "qp")
    batch, (m, n) = len(problem.raw), problem.size
    iterations, finished = torch.zeros(batch, dtype=torch.long), torch.zeros(batch, dtype=torch.bool)
    found = torch.zeros_like(problem.raw), torch.zeros_like(problem.lower), iterations, finished
    threads = min(torch.get_num_threads(), batch) if m * n >= THREADED_ENTRIES else min(1, batch)
    bounds = [batch * part // max(threads, 1) for part in range(threads + 1)]
    spans = [slice(first, last) for first, last in pairwise(bounds)]
    if threads == 1:
        _solve_span(problem, found, spans[0])
    elif threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda span: _solve_span(problem, found, span), spans))
    return found


def _solve_span(problem: Problem, found: Answer, span: slice) -> None:
    """Write the samples of one span into `found`, which shares its memory with numpy."""
    import daqp
    import numpy as np

    # detached, since no_grad of the calling thread does not reach the threads of a pool
    m, n = problem.size
    linear = (-problem.raw.detach()[:, :n]).contiguous().numpy()
    matrix = problem.A.detach()[..., :m, :n].contiguous().numpy()
    lower, upper = (bound.detach()[:, :m].contiguous().numpy() for bound in (problem.lower, problem.upper))
    sense = np.where(lower == upper, 5, 0).astype(np.int32)
    hessian = np.eye(n)
    rows = repeat(matrix) if problem.shared else matrix[span]
    answers = [
        daqp.solve(hessian, *sample, primal_tol=1e-13)
        for sample in zip(linear[span], rows, upper[span], lower[span], sense[span], strict=False)
    ]
    points, _, flags, infos = zip(*answers, strict=True)
    y, dual, iterations, finished = (part.numpy() for part in found)
    y[span, :n], finished[span] = points, np.array(flags) == 1
    dual[span, :m], iterations[span] = [info["lam"] for info in infos], [info["iterations"] for info in infos]


def side_of(problem: Problem, dual: Tensor) -> Tensor:
    """The sign of each multiplier that exceeds rounding, else 0."""
    weight = dual * problem.norm
    strict = weight.abs() > STRICT * weight.abs().amax(-1, keepdim=True).clamp_min(1.0)
    return torch.where(strict, weight.sign(), 0.0)


def _share(problem: Problem, outcome: Outcome) -> Outcome:
    """Where rows touch y with a zero multiplier, the canonical multipliers."""
    lead = problem.A.unsqueeze(0) if problem.shared else problem.A
    solved = (outcome.status == int(Status.SOLVED)).unsqueeze(-1)
    y = torch.where(solved, outcome.y, torch.nan)
    flat = (problem.raw, lead, problem.lower, problem.upper, problem.raw[:1], problem.raw[:1])
    dual, side = shared_multipliers(flat, y, outcome.dual, outcome.side, None)
    return outcome._replace(dual=dual, side=side)


def _careful(problem: Problem) -> Outcome:
    """Solve, prove empty, or give up the samples that the first answer left open."""
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
