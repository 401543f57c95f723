"""The Euclidean projection onto ``lower <= A y <= upper``: which algorithm serves which sample.

1. A sample inside the set is returned as it came.
2. One row has a closed form.
3. Constant rows that were prepared are solved in batches, `hardnet.solvers.shared_rows`. What that leaves open, and all
   else, goes to a dual active set method: DAQP on a CPU where it is installed, else batched pivoting.
   On a GPU all of this, and the check of the answer, is one launch for problems of up to 32 rows and outputs.
4. The optimality conditions of every answer are checked; what fails is settled by the dual active set on orthonormal
   bases, which also proves sets empty. An empty set is answered by the compromise, by proximal steps.

Before all this every row and every sample is divided by a power of two, `hardnet.solvers.units`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.kernels.arguments import MOST_ON_CHIP
from hardnet.solvers import compiled, orthogonal
from hardnet.solvers.active import split
from hardnet.solvers.coordinates import clamp_coordinates
from hardnet.solvers.fixed import fixed_pivots, steps_for
from hardnet.solvers.newton import newton
from hardnet.solvers.optimality import SOLVED, careful_residual, kkt_residual
from hardnet.solvers.pivoting import KERNEL_ROWS, pivot
from hardnet.solvers.problem import FEASIBLE, Problem, align, multiply, standard_form
from hardnet.solvers.proximal import compromise
from hardnet.solvers.shared_factor import SharedRows
from hardnet.solvers.shared_rows import answer as shared_answer
from hardnet.solvers.single import solve_single
from hardnet.solvers.solution import Solution, Status
from hardnet.solvers.units import LARGEST, Units, measure, power, shift, shift_rows

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


def project_affine(
    raw: Tensor, A: Tensor, lower: Tensor | None = None, upper: Tensor | None = None, *, backend: str = "auto"
) -> Solution:
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, with what the solver knows about it.

    Shapes as in `hardnet.functional.project_affine`; no autograd, nothing raised for bad samples: look at
    ``.status``. For an empty set y is the compromise with the least sum of squared distances to the rows, and
    ``.dual`` is a certificate of emptiness.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)`` or ``(*batch, m)``; None is -inf.
        upper: ``(m,)`` or ``(*batch, m)``; None is +inf.
        backend: ``"auto"``, ``"daqp"`` (needs the extra ``qp``) or ``"torch"``.
    """
    with torch.no_grad():
        batch, flat = flatten(raw, A, lower, upper)
        found = solve(*flat, backend=backend)
    y, dual = found.y.to(raw.dtype).view(*batch, A.shape[-1]), found.dual.to(raw.dtype).view(*batch, A.shape[-2])
    rest = (part.view(batch) for part in (found.status, found.iterations, found.residual))
    return Solution(y, dual, *rest)


def flatten(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[torch.Size, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """One flat batch in float64: raw ``(B, n)``, A ``(m, n)`` or ``(B, m, n)``, bounds ``(B, m)`` with infinities."""
    m, n = A.shape[-2:]
    shapes = [raw.shape[:-1], A.shape[:-2], *(bound.shape[:-1] for bound in (lower, upper) if bound is not None)]
    batch = torch.broadcast_shapes(*shapes)
    raw = raw.double().expand(*batch, n).reshape(-1, n)
    A = A.double()
    shared = A.dim() == 2 or A.shape[:-2].numel() == 1 < batch.numel()
    A = A.reshape(m, n) if shared else A.expand(*batch, m, n).reshape(-1, m, n)
    ends = []
    for bound, absent in ((lower, -torch.inf), (upper, torch.inf)):
        full = raw.new_full((m,), absent) if bound is None else bound.double()
        ends.append(full.expand(*batch, m).reshape(-1, m))
    return batch, (raw, A, ends[0], ends[1])


def solve(
    raw: Tensor,
    A: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    backend: str = "auto",
    look: bool = True,
    shared: SharedRows | None = None,
) -> Outcome:
    """Project a flat batch in float64 (see `flatten`), in the units that came in.

    Without a `look` at any value the host never waits for the device: every sample takes the same program, and what
    that leaves open is NOT_CONVERGED. A constant A that was prepared comes with its factors, `shared`.
    """
    size = A.abs().amax(-1)
    valid = _valid(raw, size, lower, upper)
    if not look or not bool(valid.all()):
        size, (raw, A, lower, upper) = torch.where(size.isfinite(), size, 0.0), _harmless(valid, raw, A, lower, upper)
    units = measure(raw, size, lower, upper)
    low, high = (shift(bound, -units.row - units.sample) for bound in (lower, upper))
    rows = shift_rows(A, units.row)
    found = _in_units(_choose(shift(raw, -units.sample), rows, low, high, backend, look, shared), units, raw)
    if not look or bool((power(units.row - 1) == size).any()):  # else no row is a power of two times one output
        moved = (found.status == Status.SOLVED) & (found.iterations > 0)
        exact = clamp_coordinates(found.y, rows, units.row, lower, upper)
        found = found._replace(y=torch.where(moved.unsqueeze(-1), exact, found.y))
    return _poison(found, valid)


def _in_units(found: Outcome, units: Units, raw: Tensor) -> Outcome:
    """The outcome in the units that came in; raw itself where it did not move."""
    empty = (found.status == Status.INFEASIBLE).unsqueeze(-1)
    smallest = torch.where(found.dual != 0, units.row, LARGEST).amin(-1, keepdim=True)
    dual = shift(found.dual, torch.where(empty, smallest, units.sample) - units.row)
    # a proof of emptiness has no size of its own: its largest weight is one
    dual = torch.where(empty, dual / dual.abs().amax(-1, keepdim=True), dual)
    moved = (found.iterations > 0).unsqueeze(-1)
    y = torch.where(moved, shift(found.y, units.sample), raw)
    return found._replace(y=y, dual=dual)


def _choose(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, backend: str, look: bool, shared: SharedRows | None
) -> Outcome:
    """The solver for this shape."""
    if A.shape[-2] == 1:
        return _one_row(raw, A, lower, upper)
    if backend == "auto" and _fits_kernel(A):
        return _by_kernel(raw, A, lower, upper, look)
    if not look:
        return _fixed_program(raw, A, lower, upper, shared)
    return _solve_in_steps(raw, A, lower, upper, backend, shared)


def _fits_kernel(A: Tensor) -> bool:
    """Whether a sample's whole problem fits one program of a GPU; one row has a closed form."""
    m, n = A.shape[-2:]
    return A.device.type == "cuda" and 1 < m <= MOST_ON_CHIP and n <= MOST_ON_CHIP and gpu.supported(A.device)


def _by_kernel(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, look: bool = True) -> Outcome:
    """Every sample by one launch; those that it leaves open in steps, if one may look for them."""
    from hardnet.kernels.gpu.projection import project

    raw, A, lower, upper = (part.contiguous() for part in (raw, A, lower, upper))
    tolerances = (FEASIBLE, SOLVED, STRICT)
    y, dual, side, steps, residual, unsolved = project(raw, A, lower, upper, _step_limit(A), tolerances)
    status = torch.where(unsolved & ~(residual <= SOLVED), int(Status.NOT_CONVERGED), int(Status.SOLVED))
    outcome = Outcome(y, dual, side, status.to(torch.int8), steps, residual)
    if not look:
        return outcome
    todo = unsolved.nonzero().squeeze(-1)
    if len(todo) == 0:
        return outcome
    own = A if A.dim() == 2 else A[todo]
    return _place(outcome, todo, _solve_in_steps(raw[todo], own, lower[todo], upper[todo], "auto"))


def _solve_in_steps(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, backend: str, shared: SharedRows | None = None
) -> Outcome:
    """Project a flat batch by launches over all samples at once."""
    problem = standard_form(raw, A, lower, upper)
    outside = (problem.violation(problem.product) > problem.slack).any(-1)
    todo = outside.nonzero().squeeze(-1)
    if len(todo) in (0, len(raw)):
        found = _answer(problem, backend, shared) if len(todo) else _unchanged(problem)
    elif shared is not None:
        rest = (~outside).nonzero().squeeze(-1)
        found = _place(_answer(problem, backend, shared), rest, _unchanged(problem.take(rest)))
    else:
        found = _place(_unchanged(problem), todo, _answer(problem.take(todo), backend))
    m, n = problem.size
    return found._replace(y=found.y[:, :n], dual=found.dual[:, :m], side=found.side[:, :m])


def _fixed_program(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, shared: SharedRows | None = None) -> Outcome:
    """All samples by the same pivots: in the kernel of a GPU where it holds the rows, else a fixed number of them."""
    problem = standard_form(raw, A, lower, upper)
    m, n = problem.size
    y, dual, steps = _fixed_answer(problem, shared)
    residual = kkt_residual(problem, y, dual)
    inside = (problem.violation(problem.product) <= problem.slack).all(-1)
    status = torch.where(inside | (residual <= SOLVED), int(Status.SOLVED), int(Status.NOT_CONVERGED)).to(torch.int8)
    keep = inside.unsqueeze(-1)
    dual = torch.where(keep, 0.0, dual)
    side = _side(problem, dual)
    return Outcome(y[:, :n], dual[:, :m], side[:, :m], status, torch.where(inside, 0, steps.clamp_min(1)), residual)


def _fixed_answer(problem: Problem, shared: SharedRows | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Y, dual and steps of every sample, corrected once on its active rows where the pivots are plain operations."""
    m, n = problem.size
    if shared is not None:
        y, dual, _ = shared_answer(problem, shared, look=False)
        return y, dual, torch.ones_like(y[:, 0], dtype=torch.long)
    if problem.raw.device.type == "cuda" and m <= KERNEL_ROWS and gpu.HAS_TRITON:
        return _by_pivoting(problem)[:3]
    unit = problem.of_unit_rows()
    steps = steps_for(m, n)
    found = fixed_pivots(torch.bmm(unit.A, unit.A.mT), unit.product, unit.lower, unit.upper, unit.slack, steps)
    bound = torch.where(found.side > 0, unit.upper, unit.lower)
    y, dual = unit.raw, torch.zeros_like(unit.lower)
    for _ in range(3):
        step = multiply(found.inverse, torch.where(found.side != 0, multiply(unit.A, y) - bound, 0.0))
        y, dual = y - multiply(unit.A.mT, step), dual + step
    return y, dual / problem.norm, torch.full_like(y[:, 0], steps, dtype=torch.long)


def _poison(outcome: Outcome, valid: Tensor) -> Outcome:
    """NaN for the invalid samples alone."""
    status = torch.where(valid, outcome.status, int(Status.INVALID))
    bad = ~valid
    y, dual = (part.masked_fill(bad.unsqueeze(-1), torch.nan) for part in (outcome.y, outcome.dual))
    return outcome._replace(y=y, dual=dual, status=status, residual=outcome.residual.masked_fill(bad, torch.nan))


def _one_row(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Outcome:
    found = solve_single(raw, A, lower, upper)
    status = found.empty.to(torch.int8) * int(Status.INFEASIBLE)
    return Outcome(found.y, found.dual, found.dual.sign(), status, found.moved.long(), found.residual)


def _valid(raw: Tensor, size: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Finite raw and rows, bounds that are no NaN, in order, and not infinite on the wrong side: ``(B,)``."""
    numbers = raw.isfinite().all(-1) & size.isfinite().all(-1)
    return numbers & ((lower <= upper) & (lower < torch.inf) & (upper > -torch.inf)).all(-1)


def _harmless(valid: Tensor, raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    """Replace the numbers of invalid samples by zeros and open bounds, which no solver stumbles over."""
    row = valid.unsqueeze(-1)
    A = torch.where(valid.any(), A, 0.0) if A.dim() == 2 else torch.where(row.unsqueeze(-1), A, 0.0)
    bounds = torch.where(row, lower, -torch.inf), torch.where(row, upper, torch.inf)
    return torch.where(row, raw, 0.0), A, *bounds


def _unchanged(problem: Problem) -> Outcome:
    """Every sample as it came: right for the samples inside, and the place for the others' answers."""
    zero, residual = torch.zeros_like(problem.lower), torch.zeros_like(problem.raw[:, 0])
    status = torch.full_like(residual, int(Status.SOLVED), dtype=torch.int8)
    return Outcome(problem.raw, zero, zero, status, torch.zeros_like(status, dtype=torch.long), residual)


def _place(result: Outcome, index: Tensor, part: Outcome) -> Outcome:
    return Outcome(*(old.index_copy(0, index, new.to(old.dtype)) for old, new in zip(result, part, strict=True)))


def _answer(problem: Problem, backend: str, shared: SharedRows | None = None) -> Outcome:
    """Solve the samples outside the set, check them, and settle those that fail the check."""
    y, dual, iterations, finished = _first_answer(problem, backend, shared)
    product = multiply(problem.A, y)
    residual = kkt_residual(problem, y, dual, product)
    status = torch.zeros_like(iterations, dtype=torch.int8)
    outcome = Outcome(y, dual, _side(problem, dual), status, iterations.clamp_min(1), residual)
    failed = (~(finished & (residual <= SOLVED))).nonzero().squeeze(-1)
    if len(failed):
        outcome = _place(outcome, failed, _careful(problem.take(failed)))
        product = product.index_copy(0, failed, multiply(problem.A, outcome.y)[failed])
    return _share(problem, outcome, product)


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
    return _by_pivoting(problem)


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


def _by_pivoting(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    found = pivot(gram, *scaled, limit=_step_limit(problem.A))
    dual = align(found.dual) / norm
    return problem.raw - multiply(problem.A.mT, dual), dual, found.steps, found.finished


def _step_limit(A: Tensor) -> int:
    """Steps of pivoting after which a sample is given up."""
    return 10 * sum(A.shape[-2:]) + 50


def _side(problem: Problem, dual: Tensor) -> Tensor:
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
    side = _side(part, dual)
    residual = kkt_residual(part, old.y, dual)
    better = (residual <= SHARED) & ((side * touch >= 0) | part.equality).all(-1)
    keep = better.unsqueeze(-1)
    shared = old._replace(dual=torch.where(keep, dual, old.dual), side=torch.where(keep, side, old.side))
    return _place(outcome, chosen, shared._replace(residual=torch.where(better, residual, old.residual)))


def _careful(problem: Problem) -> Outcome:
    """The samples that the first answer left open: solved, proved empty, or given up."""
    unit = problem.of_unit_rows()
    found = orthogonal.settle(unit, _step_limit(problem.A))
    residual = careful_residual(unit, found.y, found.dual)
    status = torch.where(residual <= SOLVED, int(Status.SOLVED), int(Status.NOT_CONVERGED))
    status = torch.where(found.empty, int(Status.INFEASIBLE), status).to(torch.int8)
    outcome = Outcome(found.y, found.dual / problem.norm, found.side, status, found.steps.clamp_min(1), residual)
    empty = found.empty.nonzero().squeeze(-1)
    if len(empty) == 0:
        return outcome
    y, side, steps = compromise(unit.take(empty))
    held = Outcome(y, outcome.dual[empty], side, status[empty], found.steps[empty] + steps + 1, residual[empty])
    return _place(outcome, empty, held)
