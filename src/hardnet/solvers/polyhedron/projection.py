"""The Euclidean projection onto ``lower <= A y <= upper``: which algorithm solves which sample.

1. One row has a closed form.
2. On a GPU, problems of up to 32 rows and outputs are solved and checked in one launch; on a CPU by one compiled
   kernel.
3. Otherwise, and for samples left open, in stages, or by a fixed program if no value may be read.

First every row i is divided by ``2^r_i``, the power of two above its largest entry, and every sample by ``2^s``, the
power above its largest raw output and above the distance that bounds away from zero require (``lower > 0`` or
``upper < 0``). Dividing by powers of two is exact, nothing overflows, and the projection is invariant:
``y = 2^s y_scaled``, ``dual = 2^(s - r) dual_scaled``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.errors import MissingExtraError
from hardnet.kernels.backends import find
from hardnet.kernels.limits import CLOSE
from hardnet.products import (
    LARGEST_EXPONENT,
    exponent,
    power,
    shift,
    shift_each,
    shift_rows,
    times_aligned,
    times_columnwise,
)
from hardnet.rows import Batch, in_double, ordered, step_limit, take_rows
from hardnet.solvers.polyhedron import orthogonal
from hardnet.solvers.polyhedron.active import solve_active
from hardnet.solvers.polyhedron.canonical import shared_multipliers
from hardnet.solvers.polyhedron.fixed import fixed_pivots, steps_for
from hardnet.solvers.polyhedron.orthogonal import compromise
from hardnet.solvers.polyhedron.pivoting import KERNEL_ROWS, by_pivoting
from hardnet.solvers.polyhedron.problem import (
    GENERAL,
    Problem,
    careful_residual,
    harmless,
    kkt_residual,
    standard_form,
)
from hardnet.solvers.polyhedron.shared_rows import SharedRows
from hardnet.solvers.polyhedron.shared_rows import answer as shared_answer
from hardnet.solvers.solution import Found, Solution, Status, place, take

# One row: the projection in closed form, ``y = raw - a (a'raw - clamp(a'raw, lower, upper)) / |a|^2``.


def solve_single(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Found:
    """Project onto one row per sample; the numbers must be finite and the bounds in order."""
    a = A.reshape(-1, A.shape[-1])
    square = a.square().sum(-1, keepdim=True)
    product = (a * raw).sum(-1, keepdim=True)
    target = product.clamp(lower, upper)
    excess = product - target
    size = square.sqrt() * torch.linalg.vector_norm(raw, dim=-1, keepdim=True) + target.abs()
    moved = excess.abs() > GENERAL.feasible * size
    empty = moved & (square == 0)
    dual = torch.where(moved & ~empty, excess / square, 0.0)
    y = raw - a * dual
    # correct once at y: for a raw output far outside, rounding is relative to raw, which may be much larger than y
    rest = torch.where(dual != 0, ((a * y).sum(-1, keepdim=True) - target) / square, 0.0)
    y = torch.where(moved, y - a * rest, raw)
    missed = ((a * y).sum(-1, keepdim=True) - target).abs() / torch.where(size > 0, size, 1.0)
    residual = torch.where(moved, missed, 0.0)
    dual = torch.where(empty, excess.sign(), dual)
    status, steps, residual = (part.squeeze(-1) for part in (empty * int(Status.INFEASIBLE), moved.long(), residual))
    return Found(y, None, dual, dual.sign(), status.to(torch.int8), residual, steps)


# Rows that bound one output times a power of two (``y_j <= u``, ``-2 y_j <= u``): y is clamped to meet them.


def clamp_coordinates(y: Tensor, A: Tensor, row: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Y ``(B, n)`` clamped to the bounds of the rows with a single entry that is a power of two.

    Args:
        y: ``(B, n)``, in the original units.
        A: Rows divided by ``2^row``: ``(m, n)`` or ``(B, m, n)`` with largest entries in [1/2, 1).
        row: Exponents of the rows, ``(m,)`` or ``(B, m)``.
        lower: ``(B, m)``, in the original units.
        upper: Like `lower`.
    """
    largest, place = A.abs().max(-1)
    alone = (largest == 0.5) & ((A != 0).sum(-1) == 1)
    positive = A.gather(-1, place.unsqueeze(-1)).squeeze(-1) > 0
    low, high = shift_each((lower, upper), 1 - row)
    low, high = torch.where(positive, low, -high), torch.where(positive, high, -low)
    place = place.expand_as(low)
    least = torch.full_like(y, -torch.inf).scatter_reduce(-1, place, torch.where(alone, low, -torch.inf), "amax")
    most = torch.full_like(y, torch.inf).scatter_reduce(-1, place, torch.where(alone, high, torch.inf), "amin")
    return torch.minimum(torch.maximum(y, least), most)


# The last digits of a projection: correct rows that rounding left violated.
#
# For the solvers a row is satisfied if it is violated by up to 1e-13 of its size, and their answers carry the rounding
# of a whole solve; the certificate allows 16 roundings of the row's own terms.


ROUNDS = 2
"""The most corrections of a sample by a projection; each leaves the rounding of one product."""
LONGEST = 4.0
"""A correction on the rows at their bounds may be at most this many times as long as all violations together."""
Project = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From raw ``(B, n)``, A, lower and upper ``(B, m)`` to the nearest points and their dual, NaN if there are none."""


def touch_up(
    problem: Problem, y: Tensor, dual: Tensor, moved: Tensor, worst: Tensor, project: Project
) -> tuple[Tensor, Tensor]:
    """``y + argmin |d|  subject to  lower - A y <= A d <= upper - A y``, if that is better, and its multipliers.

    ``d = -A'w`` adds w to the dual, so that ``raw - y = A'dual`` still holds.

    The first attempt uses only the rows at their bounds, ``d = A_J^+ (clamp(A y) - A y)``, a least squares solution if
    these contradict each other by a rounding. Samples that still have a violated row, or that would move farther than
    the rows require, go to `project`, at most twice. d is solved for in its own units, so its rounding is tiny.

    Args:
        problem: In units of size one.
        y: ``(B, n)``.
        dual: ``(B, m)``.
        moved: Which samples a solver moved, ``(B,)``; the others are raw, and only `project` may move them.
        worst: `Problem.beyond` of each sample, ``(B,)``.
        project: Solves a batch of such problems.
    """
    nearby, weight, left = _on_touching_rows(problem, y)
    better = moved & (left < worst)
    y, dual = torch.where(better.unsqueeze(-1), nearby, y), torch.where(better.unsqueeze(-1), dual + weight, dual)
    worst = torch.where(better, left, worst)
    rest = (worst > 0).nonzero().squeeze(-1)
    for _ in range(ROUNDS):
        if len(rest) == 0:
            break
        part, start = problem.take(rest), y[rest]
        product = times_aligned(part.A, start)
        step, weight = project(torch.zeros_like(start), part.A, part.lower - product, part.upper - product)
        point = start + step
        left = part.beyond(point, times_aligned(part.A, point))
        better = (left < worst[rest]) & point.isfinite().all(-1)
        y = y.index_copy(0, rest, torch.where(better.unsqueeze(-1), point, start))
        dual = dual.index_add(0, rest, torch.where(better.unsqueeze(-1), weight, 0))
        worst = worst.index_copy(0, rest, torch.where(better, left, worst[rest]))
        rest = rest[better & (left > 0)]
    return y, dual


def _on_touching_rows(problem: Problem, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``y + A_J^+ (clamp(A y) - A y)`` with J the rows at their bounds, its multipliers, and its `Problem.beyond`.

    The last is infinite if the step is longer than the rows require.
    """
    product = times_aligned(problem.A, y)
    target = product.clamp(problem.lower, problem.upper) - product
    touching = problem.violation(product) >= -GENERAL.feasible * times_aligned(problem.A.abs(), y.abs())
    weight = solve_active(problem.A, touching, target)
    step = times_aligned(problem.A.mT, weight)
    near = torch.linalg.vector_norm(step, dim=-1) <= LONGEST * (target.abs() / problem.norm).sum(-1)
    left = problem.beyond(y + step, times_aligned(problem.A, y + step))
    return y + step, -weight, torch.where(near, left, torch.inf)


# The projection onto ``lower <= A y <= upper`` in several stages, each sample by the first method that solves it.
#
# A sample inside the set is returned unchanged. Constant rows that were prepared are solved in batches,
# `hardnet.solvers.polyhedron.shared_rows`; the rest by a dual active set method: DAQP on a CPU if it is installed, else
# batched pivoting. The optimality conditions of every answer are checked; samples that fail are solved by the dual
# active set on orthonormal bases, which also proves sets empty. For an empty set, proximal steps find the compromise.


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
) -> Found:
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
    assert found.side is not None
    return found._replace(y=found.y[:, :n], dual=found.dual[:, :m], side=found.side[:, :m])


def _certain(problem: Problem, found: Found, product: Tensor, again: Project, rounding: float | None) -> Found:
    """The outcome with the last digits corrected where rows miss their bounds beyond `GENERAL.certain`, given ``A y``.

    Rows that contradict each other by the rounding of their bounds cannot be satisfied: then NOT_CONVERGED.
    """
    worst = problem.beyond(found.y, product)
    index = ((found.status == int(Status.SOLVED)) & (worst > 0)).nonzero().squeeze(-1)
    if len(index) == 0:
        return found
    part, old = problem.take(index), take(found, index)
    y, dual = touch_up(part, old.y, old.dual, old.steps > 0, worst[index], again)
    moved = (y != old.y).any(-1)
    residual = torch.where(moved, careful_residual(part, y, dual), old.residual)
    steps = torch.maximum(old.steps, moved.to(old.steps.dtype))
    met = part.certified(y, rounding) if rounding is not None else torch.ones_like(moved)
    status = torch.where(met, old.status, int(Status.NOT_CONVERGED))
    return place(found, index, Found(y, None, dual, old.side, status, residual, steps))


def _unchanged(problem: Problem) -> Found:
    """Every sample unchanged: the answer for samples inside the set, and a placeholder for the others."""
    zero, residual = torch.zeros_like(problem.lower), torch.zeros_like(problem.raw[:, 0])
    status = torch.full_like(residual, int(Status.SOLVED), dtype=torch.int8)
    return Found(problem.raw, None, zero, zero, status, residual, torch.zeros_like(status, dtype=torch.long))


def _answer(problem: Problem, backend: str, shared: SharedRows | None = None) -> tuple[Found, Tensor]:
    """Solve the samples outside the set, check them, and solve those that fail more carefully; also returns ``A y``."""
    y, dual, iterations, finished = _first_answer(problem, backend, shared)
    product = times_aligned(problem.A, y)
    residual = kkt_residual(problem, y, dual, product)
    status = torch.zeros_like(iterations, dtype=torch.int8)
    outcome = Found(y, None, dual, side_of(problem, dual), status, residual, iterations.clamp_min(1))
    failed = (~(finished & (residual <= GENERAL.solved))).nonzero().squeeze(-1)
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
    strict = weight.abs() > GENERAL.strict * weight.abs().amax(-1, keepdim=True).clamp_min(1.0)
    return torch.where(strict, weight.sign(), 0.0)


def _share(problem: Problem, outcome: Found) -> Found:
    """Where rows touch y with a zero multiplier, the canonical multipliers."""
    lead = problem.A.unsqueeze(0) if problem.shared else problem.A
    solved = (outcome.status == int(Status.SOLVED)).unsqueeze(-1)
    y = torch.where(solved, outcome.y, torch.nan)
    flat = (problem.raw, lead, problem.lower, problem.upper, problem.raw[:1], problem.raw[:1])
    assert outcome.side is not None
    dual, side = shared_multipliers(flat, y, outcome.dual, outcome.side, None)
    return outcome._replace(dual=dual, side=side)


def _careful(problem: Problem) -> Found:
    """Solve, prove empty, or give up the samples that the first answer left open."""
    unit = problem.of_unit_rows()
    found = orthogonal.settle(unit, step_limit(problem.A))
    residual = careful_residual(unit, found.y, found.dual)
    status = torch.where(residual <= GENERAL.solved, int(Status.SOLVED), int(Status.NOT_CONVERGED))
    status = torch.where(found.empty, int(Status.INFEASIBLE), status).to(torch.int8)
    outcome = Found(found.y, None, found.dual / problem.norm, found.side, status, residual, found.steps.clamp_min(1))
    empty = found.empty.nonzero().squeeze(-1)
    if len(empty) == 0:
        return outcome
    y, side, steps = compromise(unit.take(empty))
    held = Found(y, None, outcome.dual[empty], side, status[empty], residual[empty], found.steps[empty] + steps + 1)
    return place(outcome, empty, held)


# The projection onto ``lower <= A y <= upper`` without reading values: all samples run the same program.
#
# Prepared rows are solved in batches, `hardnet.solvers.polyhedron.shared_rows`, others by a fixed number of pivots.
# Samples that are not solved by that are NOT_CONVERGED.


def fixed_program(rows: Batch, shared: SharedRows | None, rounding: float | None = None) -> Found:
    """Solve all samples by the same program: shared factors, a GPU kernel if the rows fit, or a fixed number of pivots.

    If a row is violated by more than a certificate allows for this machine epsilon, `rounding`, the sample's residual
    is infinite, however small the violation is relative to a raw far away.
    """
    inside, problem = _split(standard_form(*rows[:4]))  # pyright: ignore[reportArgumentType]
    m, n = problem.size
    y, dual, steps = _answer_fixed(problem, shared)
    product = times_aligned(problem.A, y)
    residual = kkt_residual(problem, y, dual, product)
    if rounding is not None:
        residual = torch.where(problem.certified(y, rounding, product), residual, torch.inf)
    status = torch.where(inside | (residual <= GENERAL.solved), int(Status.SOLVED), int(Status.NOT_CONVERGED)).to(
        torch.int8
    )
    keep = inside.unsqueeze(-1)
    dual = torch.where(keep, 0.0, dual)
    side = side_of(problem, dual)
    return Found(y[:, :n], None, dual[:, :m], side[:, :m], status, residual, torch.where(inside, 0, steps.clamp_min(1)))


def _split(problem: Problem) -> tuple[Tensor, Problem]:
    """Which samples are inside ``(B,)``, and the problem, whose slack for samples near the set is `inside`."""
    excess, slack = problem.violation(problem.product), GENERAL.inside * problem.size_at(problem.raw)
    close = (excess <= CLOSE * problem.slack).all(-1, keepdim=True)
    return (excess <= slack).all(-1), problem._replace(slack=torch.where(close, slack, problem.slack))


def _answer_fixed(problem: Problem, shared: SharedRows | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Y, dual and steps of every sample; after pivots in plain operations y is corrected twice on its active rows."""
    m, n = problem.size
    if shared is not None:
        y, dual, _ = shared_answer(problem, shared, look=False)
        return y, dual, torch.ones_like(y[:, 0], dtype=torch.long)
    if problem.raw.device.type == "cuda" and m <= KERNEL_ROWS and gpu.HAS_TRITON:
        return by_pivoting(problem)[:3]
    unit = problem.of_unit_rows()
    steps = steps_for(m, n)
    found = fixed_pivots(torch.bmm(unit.A, unit.A.mT), unit.product, unit.lower, unit.upper, unit.slack, steps)
    bound = torch.where(found.side > 0, unit.upper, unit.lower)
    y, dual = unit.raw, torch.zeros_like(unit.lower)
    for _ in range(3):
        step = times_aligned(found.inverse, torch.where(found.side != 0, times_aligned(unit.A, y) - bound, 0.0))
        y, dual = y - times_aligned(unit.A.mT, step), dual + step
    return y, dual / problem.norm, torch.full_like(y[:, 0], steps, dtype=torch.long)


FARTHEST = 1e-9
"""The size of y, relative to raw, below which the verdict is left to a solver that measures y in its own unit."""


def project_affine(
    raw: Tensor, A: Tensor, lower: Tensor | None = None, upper: Tensor | None = None, *, backend: str = "auto"
) -> Solution:
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, as a full `Solution`.

    Shapes are as in `hardnet.functional.project_affine`. It has no autograd and raises nothing for bad samples: see
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
        rows = in_double(take_rows(raw, A, lower, upper))
        found = solve(rows._replace(look=True), backend=backend)
    y, dual = found.y.to(raw.dtype), found.dual.to(raw.dtype)
    return Solution(*map(rows.as_given, (y, dual, found.status, found.steps, found.residual)))


def solve(
    given: Batch,
    *,
    backend: str = "auto",
    shared: SharedRows | None = None,
    again: bool = True,
    rounding: float | None = None,
) -> Found:
    """Project a record in float64 (`hardnet.rows.in_double`), in its original units.

    If no value may be read, the host never waits for the device: every sample runs the same program, and samples that
    it does not solve are NOT_CONVERGED. `shared` are the factors of a constant A that was prepared. With `again`, rows
    that rounding left violated are corrected; a sample is NOT_CONVERGED if one is still violated by more than a
    certificate allows for this machine epsilon, `rounding`.
    """
    (raw, A, lower, upper), look = given.numbers, given.look
    assert lower is not None
    assert upper is not None
    size = torch.maximum(A.amax(-1), -A.amin(-1))  # |A| would be a copy of A
    valid = _valid(raw, size, lower, upper)
    sound = look and bool(valid.all())
    if not sound:
        size, (raw, A, lower, upper) = torch.where(size.isfinite(), size, 0.0), harmless(valid, raw, A, lower, upper)
    units = measure(raw, size, lower, upper)
    low, high = shift_each((lower, upper), -units.row - units.sample)
    rows = given._replace(raw=shift(raw, -units.sample), A=shift_rows(A, units.row), lower=low, upper=high)
    found = _in_units(_choose(rows, backend, shared, _again(rows) if again else None, rounding), units, raw, look)
    if not look or bool((power(units.row - 1) == size).any()):  # else no row is a power of two times one output
        moved = (found.status == int(Status.SOLVED)) & (found.steps > 0)
        exact = clamp_coordinates(found.y, rows.A, units.row, lower, upper)
        found = found._replace(y=torch.where(moved.unsqueeze(-1), exact, found.y))
    return found if sound else _poison(found, valid)


class Units(NamedTuple):
    """Exponents of rows ``(m,)`` or ``(B, m)`` and of samples ``(B, 1)``, as int32."""

    row: Tensor
    sample: Tensor


def measure(raw: Tensor, size: Tensor, lower: Tensor, upper: Tensor) -> Units:
    """The units of raw ``(B, n)``, bounds ``(B, m)`` and rows with largest entries `size`, ``(m,)`` or ``(B, m)``."""
    row = exponent(size)
    asked = torch.maximum(lower, -upper)
    asked = torch.where((asked > 0) & asked.isfinite(), exponent(asked) - row, -LARGEST_EXPONENT)
    largest = raw.abs().amax(-1, keepdim=True)
    sample = torch.where(largest > 0, exponent(largest), -LARGEST_EXPONENT)
    sample = torch.maximum(sample, asked.amax(-1, keepdim=True)) if asked.shape[-1] else sample
    return Units(row, sample.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT))


def _in_units(found: Found, units: Units, raw: Tensor, look: bool) -> Found:
    """The outcome in the original units; raw itself for samples that did not move."""
    moved = (found.steps > 0).unsqueeze(-1)
    y = torch.where(moved, shift(found.y, units.sample), raw)
    empty = (found.status == int(Status.INFEASIBLE)).unsqueeze(-1)
    proved = bool(empty.any()) if look else found.dual.shape[-1] == 1  # else only one row has a proof
    if not proved:
        return found._replace(y=y, dual=shift(found.dual, units.sample - units.row))
    smallest = torch.where(found.dual != 0, units.row, LARGEST_EXPONENT).amin(-1, keepdim=True)
    dual = shift(found.dual, torch.where(empty, smallest, units.sample) - units.row)
    # a proof of emptiness has no natural size: scale its largest weight to one
    dual = torch.where(empty, dual / dual.abs().amax(-1, keepdim=True), dual)
    return found._replace(y=y, dual=dual)


def _again(rows: Batch) -> Project:
    """A function that projects corrections: from their numbers to nearest points and dual, NaN if there are none."""

    def project(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        found = solve(Batch(raw, A, lower, upper, mode=rows.mode, look=True, memory=rows.memory), again=False)
        solved = (found.status == int(Status.SOLVED)).unsqueeze(-1)
        return torch.where(solved, found.y, torch.nan), torch.where(solved, found.dual, torch.nan)

    return project


def _choose(
    rows: Batch, backend: str, shared: SharedRows | None, again: Project | None, rounding: float | None
) -> Found:
    """The solver for rows of this shape, in units of size one."""
    if rows.A.shape[-2] == 1:
        return solve_single(*rows.numbers)  # pyright: ignore[reportArgumentType]
    own = backend == "auto" and shared is None
    alone = _alone(rows.A) if own and rows.look and rows.raw.is_cpu else None
    kernel = find("any_rows", rows) if own and alone is None else None
    if kernel is not None:
        return _by_kernel(kernel, rows, again, rounding)
    if rows.look:
        return _in_steps(rows, backend, shared, again, rounding, alone)
    return fixed_program(rows, shared, rounding)


def _alone(A: Tensor) -> Tensor | None:
    """Which rows of a shared A bound one output, ``(m,)``; None if there are none, or each sample has an A."""
    alone = (A != 0).sum(-1) == 1 if A.dim() == 2 else None
    return alone if alone is not None and bool(alone.any()) else None


def _in_steps(
    rows: Batch,
    backend: str,
    shared: SharedRows | None,
    again: Project | None,
    rounding: float | None,
    alone: Tensor | None,
) -> Found:
    """By the solver of a box and rows, which takes bounds of single outputs as bounds; the others in stages."""
    lead = rows.A if alone is None else rows.A[~alone]  # one row has a kernel of its own
    kernel = find("box_rows", rows._replace(A=lead)) if backend == "auto" and shared is None else None
    if kernel is None or rounding is None:
        return solve_in_steps(rows, backend, shared, again, rounding)
    found = _beside_box(kernel, rows, rounding, alone)
    todo = (found.status != int(Status.SOLVED)).nonzero().squeeze(-1)
    if len(todo) == 0:
        return found
    return place(found, todo, solve_in_steps(rows.take(todo), backend, shared, again, rounding))


class _Bounds(NamedTuple):
    """Rows of one output, ``a y_j`` between bounds, as bounds of that output.

    Attributes:
        output: j of each row, ``(B, k)``.
        entry: a, ``(k,)``.
        below: The lower bound that each row is for its output, ``(B, k)``.
        above: The upper one.
        low: The largest lower bound of each output, ``(B, n)``.
        high: The smallest upper one.
    """

    output: Tensor
    entry: Tensor
    below: Tensor
    above: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> _Bounds:
        """Those of rows A ``(k, n)`` with one entry each."""
        entry, output = A.sum(-1), (A != 0).int().argmax(-1).expand(len(raw), -1)
        below = torch.where(entry > 0, lower / entry, upper / entry)
        above = torch.where(entry > 0, upper / entry, lower / entry)
        low = torch.full_like(raw, -torch.inf).scatter_reduce(1, output, below, "amax")
        high = torch.full_like(raw, torch.inf).scatter_reduce(1, output, above, "amin")
        return cls(output, entry, below, above, low, high)

    def multipliers(self, y: Tensor, push: Tensor) -> Tensor:
        """What each row pushes, ``(B, k)``; rows with the same bound share evenly."""
        total = torch.zeros_like(self.below)
        for side, bound in ((-1, self.below), (1, self.above)):
            held = (side * push.gather(1, self.output) > 0) & (y.gather(1, self.output) == bound)
            count = torch.zeros_like(y).scatter_add(1, self.output, held.double()).gather(1, self.output)
            total = total + torch.where(held, push.gather(1, self.output) / self.entry / count.clamp_min(1.0), 0.0)
        return total


def _beside_box(kernel: Any, rows: Batch, rounding: float, alone: Tensor | None) -> Found:
    """By the solver of a box and rows, the box from the rows `alone` of one output, ``(m,)``."""
    raw, A, lower, upper = rows.numbers
    assert lower is not None
    assert upper is not None
    general = torch.ones_like(A[..., 0].reshape(-1, A.shape[-2])[0], dtype=torch.bool) if alone is None else ~alone
    bounds = None if alone is None else _Bounds.of(raw, A[alone], lower[:, alone], upper[:, alone])
    infinite = raw.new_full((1, raw.shape[-1]), torch.inf)
    box = (-infinite, infinite) if bounds is None else (bounds.low, bounds.high)
    lead = A[general].unsqueeze(0) if A.dim() == 2 else A
    y, _, some, _, status, residual = kernel.forward((raw, lead, lower[:, general], upper[:, general], *box), rounding)
    # in the unit of a raw so far away nothing says how small a violation has to be at y
    far = y.abs().amax(-1) < FARTHEST * raw.abs().amax(-1)
    status = torch.where(far, int(Status.NOT_CONVERGED), status).to(torch.int8)
    dual = torch.zeros_like(lower)
    dual[:, general] = some
    if bounds is not None:
        dual[:, ~general] = bounds.multipliers(y, raw - y - times_columnwise(lead, some))
    size = torch.maximum(raw.abs().amax(-1, keepdim=True), dual.abs().amax(-1, keepdim=True))
    side = torch.where(dual.abs() > GENERAL.strict * size, dual.sign(), 0.0)
    return Found(y, None, dual, side, status, residual, (y != raw).any(-1).long())


def _by_kernel(kernel: Any, rows: Batch, again: Project | None, rounding: float | None) -> Found:
    """Solve every sample by a kernel, and those it leaves open by `solve_in_steps` where values may be read."""
    allowed = torch.inf if rounding is None else GENERAL.allowed * rounding
    tolerances = GENERAL._replace(allowed=allowed)
    y, dual, side, steps, residual, left, met = kernel.forward(rows, step_limit(rows.A), tolerances)
    status = torch.where(met, int(Status.SOLVED), int(Status.NOT_CONVERGED)).to(torch.int8)
    outcome = Found(y, None, dual, side, status, residual, steps)
    todo = left.nonzero().squeeze(-1) if rows.look else ()
    if len(todo) == 0:
        return outcome
    return place(outcome, todo, _in_steps(rows.take(todo), "auto", None, again, rounding, None))


def _poison(outcome: Found, valid: Tensor) -> Found:
    """NaN for the invalid samples alone."""
    status = torch.where(valid, outcome.status, int(Status.INVALID))
    bad = ~valid
    y, dual = (part.masked_fill(bad.unsqueeze(-1), torch.nan) for part in (outcome.y, outcome.dual))
    return outcome._replace(y=y, dual=dual, status=status, residual=outcome.residual.masked_fill(bad, torch.nan))


def _valid(raw: Tensor, size: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Whether raw and rows are finite, and bounds ordered, not NaN and not infinite on the wrong side: ``(B,)``."""
    numbers = raw.isfinite().all(-1) & size.isfinite().all(-1)
    return numbers & ordered(lower, upper).all(-1)
