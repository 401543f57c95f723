"""The Euclidean projection onto ``lower <= A y <= upper``: which algorithm solves which sample.

1. One row has a closed form.
2. On a GPU, problems of up to 32 rows and outputs are solved and checked in one launch; on a CPU by one compiled
   kernel.
3. Otherwise, and for samples left open, `hardnet.solvers.polyhedron.projection_steps`, or
   `hardnet.solvers.polyhedron.projection_fixed` if no value may be read.

First every row i is divided by ``2^r_i``, the power of two above its largest entry, and every sample by ``2^s``, the
power above its largest raw output and above the distance that bounds away from zero require (``lower > 0`` or
``upper < 0``). Dividing by powers of two is exact, nothing overflows, and the projection is invariant:
``y = 2^s y_scaled``, ``dual = 2^(s - r) dual_scaled``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.backends import find
from hardnet.kernels.limits import Tolerances
from hardnet.products import LARGEST_EXPONENT, exponent, power, shift, shift_each, shift_rows, times_columnwise
from hardnet.rows import Batch, in_double, ordered, step_limit, take_rows
from hardnet.solvers.polyhedron.coordinates import clamp_coordinates
from hardnet.solvers.polyhedron.problem import ALLOWED, CERTAIN, FEASIBLE, INSIDE, SOLVED
from hardnet.solvers.polyhedron.projection_fixed import fixed_program
from hardnet.solvers.polyhedron.projection_steps import STRICT, solve_in_steps
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.polyhedron.single import solve_single
from hardnet.solvers.polyhedron.touch_up import Project
from hardnet.solvers.solution import Outcome, Solution, Status, place

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
    return Solution(*map(rows.as_given, (y, dual, found.status, found.iterations, found.residual)))


def solve(
    given: Batch,
    *,
    backend: str = "auto",
    shared: SharedRows | None = None,
    again: bool = True,
    rounding: float | None = None,
) -> Outcome:
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
        size, (raw, A, lower, upper) = torch.where(size.isfinite(), size, 0.0), _harmless(valid, raw, A, lower, upper)
    units = measure(raw, size, lower, upper)
    low, high = shift_each((lower, upper), -units.row - units.sample)
    rows = given._replace(raw=shift(raw, -units.sample), A=shift_rows(A, units.row), lower=low, upper=high)
    found = _in_units(_choose(rows, backend, shared, _again(rows) if again else None, rounding), units, raw, look)
    if not look or bool((power(units.row - 1) == size).any()):  # else no row is a power of two times one output
        moved = (found.status == int(Status.SOLVED)) & (found.iterations > 0)
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


def _in_units(found: Outcome, units: Units, raw: Tensor, look: bool) -> Outcome:
    """The outcome in the original units; raw itself for samples that did not move."""
    moved = (found.iterations > 0).unsqueeze(-1)
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
) -> Outcome:
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
) -> Outcome:
    """By the solver of a box and rows, which takes bounds of single outputs as bounds; the others in stages."""
    kernel = find("box_rows", rows) if backend == "auto" and shared is None else None
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


def _beside_box(kernel: Any, rows: Batch, rounding: float, alone: Tensor | None) -> Outcome:
    """By the solver of a box and rows, the box from the rows `alone` of one output, ``(m,)``."""
    raw, A, lower, upper = rows.numbers
    assert lower is not None
    assert upper is not None
    general = torch.ones_like(A[..., 0].reshape(-1, A.shape[-2])[0], dtype=torch.bool) if alone is None else ~alone
    bounds = None if alone is None else _Bounds.of(raw, A[alone], lower[:, alone], upper[:, alone])
    infinite = raw.new_full((1, raw.shape[-1]), torch.inf)
    box = (-infinite, infinite) if bounds is None else (bounds.low, bounds.high)
    lead = A[general].unsqueeze(0) if A.dim() == 2 else A
    if lead.shape[-2] == 0:
        return _open(rows)
    y, _, some, _, status, residual = kernel.forward((raw, lead, lower[:, general], upper[:, general], *box), rounding)
    # in the unit of a raw so far away nothing says how small a violation has to be at y
    far = y.abs().amax(-1) < FARTHEST * raw.abs().amax(-1)
    status = torch.where(far, int(Status.NOT_CONVERGED), status).to(torch.int8)
    dual = torch.zeros_like(lower)
    dual[:, general] = some
    if bounds is not None:
        dual[:, ~general] = bounds.multipliers(y, raw - y - times_columnwise(lead, some))
    size = torch.maximum(raw.abs().amax(-1, keepdim=True), dual.abs().amax(-1, keepdim=True))
    side = torch.where(dual.abs() > STRICT * size, dual.sign(), 0.0)
    return Outcome(y, dual, side, status, (y != raw).any(-1).long(), residual)


def _open(rows: Batch) -> Outcome:
    """Nothing solved."""
    zero = torch.zeros_like(rows.raw[:, 0])
    dual = rows.raw.new_zeros(len(rows.raw), rows.A.shape[-2])
    status = torch.full_like(zero, int(Status.NOT_CONVERGED), dtype=torch.int8)
    return Outcome(rows.raw, dual, dual, status, torch.zeros_like(status, dtype=torch.long), zero)


def _by_kernel(kernel: Any, rows: Batch, again: Project | None, rounding: float | None) -> Outcome:
    """Solve every sample by a kernel, and those it leaves open by `solve_in_steps` where values may be read."""
    allowed = torch.inf if rounding is None else ALLOWED * rounding
    tolerances = Tolerances(INSIDE, FEASIBLE, SOLVED, STRICT, CERTAIN, allowed)
    y, dual, side, steps, residual, left, met = kernel.forward(rows, step_limit(rows.A), tolerances)
    status = torch.where(met, int(Status.SOLVED), int(Status.NOT_CONVERGED)).to(torch.int8)
    outcome = Outcome(y, dual, side, status, steps, residual)
    todo = left.nonzero().squeeze(-1) if rows.look else ()
    if len(todo) == 0:
        return outcome
    return place(outcome, todo, _in_steps(rows.take(todo), "auto", None, again, rounding, None))


def _poison(outcome: Outcome, valid: Tensor) -> Outcome:
    """NaN for the invalid samples alone."""
    status = torch.where(valid, outcome.status, int(Status.INVALID))
    bad = ~valid
    y, dual = (part.masked_fill(bad.unsqueeze(-1), torch.nan) for part in (outcome.y, outcome.dual))
    return outcome._replace(y=y, dual=dual, status=status, residual=outcome.residual.masked_fill(bad, torch.nan))


def _valid(raw: Tensor, size: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Whether raw and rows are finite, and bounds ordered, not NaN and not infinite on the wrong side: ``(B,)``."""
    numbers = raw.isfinite().all(-1) & size.isfinite().all(-1)
    return numbers & ordered(lower, upper).all(-1)


def _harmless(valid: Tensor, raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    """Replace the numbers of invalid samples by zeros and absent bounds, which every solver can handle."""
    row = valid.unsqueeze(-1)
    A = torch.where(valid.any(), A, 0.0) if A.dim() == 2 else torch.where(row.unsqueeze(-1), A, 0.0)
    bounds = torch.where(row, lower, -torch.inf), torch.where(row, upper, torch.inf)
    return torch.where(row, raw, 0.0), A, *bounds
