"""The Euclidean projection onto ``lower <= A y <= upper``: which algorithm serves which sample.

1. One row has a closed form.
2. On a GPU all of it, and the check of the answer, is one launch for problems of up to 32 rows and outputs; on a CPU
   one pass of compiled code.
3. Elsewhere, and for what that leaves open, `hardnet.solvers.polyhedron.projection_steps`; without a look at any value
   `hardnet.solvers.polyhedron.projection_fixed`.

Before all this every row i is divided by ``2^r_i``, the power above its largest entry, a sample by ``2^s``: the power
above its largest raw output and above the distance that a bound on the far side of zero asks for (``lower > 0`` or
``upper < 0``). Powers of two are exact to divide by, and nothing overflows; every projection is invariant:
``y = 2^s y_scaled``, ``dual = 2^(s - r) dual_scaled``.

Called by `hardnet.functional.polyhedron`, `hardnet.functional.polyhedron_gradient` and others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.kernels.cpu.launch import HAS_NUMBA, nearest_of_rows
from hardnet.kernels.limits import MOST_ON_CHIP, MOST_ROWS_TO_AN_OUTPUT
from hardnet.modes import plain
from hardnet.products import LARGEST_EXPONENT, exponent, power, shift, shift_each, shift_rows
from hardnet.rows import Batch, ordered, step_limit
from hardnet.shapes import joint_batch
from hardnet.solvers.polyhedron.coordinates import clamp_coordinates
from hardnet.solvers.polyhedron.problem import ALLOWED, CERTAIN, FEASIBLE, INSIDE, SOLVED
from hardnet.solvers.polyhedron.projection_fixed import fixed_program
from hardnet.solvers.polyhedron.projection_steps import STRICT, solve_in_steps
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.polyhedron.single import solve_single
from hardnet.solvers.polyhedron.touch_up import Project
from hardnet.solvers.solution import Outcome, Solution, Status, place


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
    batch = joint_batch(*shapes)
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
    again: bool = True,
    rounding: float | None = None,
) -> Outcome:
    """Project a flat batch in float64 (see `flatten`), in the units that came in.

    Without a `look` at any value the host never waits for the device: every sample takes the same program, and what
    that leaves open is NOT_CONVERGED. A constant A that was prepared comes with its factors, `shared`. Rows that
    rounding left violated are met `again`; a sample is NOT_CONVERGED if that leaves one violated by more than a
    certificate allows for numbers of this `rounding`.
    """
    size = torch.maximum(A.amax(-1), -A.amin(-1))  # |A| would be a copy of A
    valid = _valid(raw, size, lower, upper)
    sound = look and bool(valid.all())
    if not sound:
        size, (raw, A, lower, upper) = torch.where(size.isfinite(), size, 0.0), _harmless(valid, raw, A, lower, upper)
    units = measure(raw, size, lower, upper)
    low, high = shift_each((lower, upper), -units.row - units.sample)
    rows = shift_rows(A, units.row)
    batch = Batch(shift(raw, -units.sample), rows, low, high)
    found = _in_units(_choose(batch, backend, look, shared, _again if again else None, rounding), units, raw, look)
    if not look or bool((power(units.row - 1) == size).any()):  # else no row is a power of two times one output
        moved = (found.status == int(Status.SOLVED)) & (found.iterations > 0)
        exact = clamp_coordinates(found.y, rows, units.row, lower, upper)
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
    """The outcome in the units that came in; raw itself where it did not move."""
    moved = (found.iterations > 0).unsqueeze(-1)
    y = torch.where(moved, shift(found.y, units.sample), raw)
    empty = (found.status == int(Status.INFEASIBLE)).unsqueeze(-1)
    proved = bool(empty.any()) if look else found.dual.shape[-1] == 1  # of several rows only who looks has a proof
    if not proved:
        return found._replace(y=y, dual=shift(found.dual, units.sample - units.row))
    smallest = torch.where(found.dual != 0, units.row, LARGEST_EXPONENT).amin(-1, keepdim=True)
    dual = shift(found.dual, torch.where(empty, smallest, units.sample) - units.row)
    # a proof of emptiness has no size of its own: its largest weight is one
    dual = torch.where(empty, dual / dual.abs().amax(-1, keepdim=True), dual)
    return found._replace(y=y, dual=dual)


def _again(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest points of a batch of corrections and their dual, NaN where there is none."""
    found = solve(raw, A, lower, upper, again=False)
    solved = (found.status == int(Status.SOLVED)).unsqueeze(-1)
    return torch.where(solved, found.y, torch.nan), torch.where(solved, found.dual, torch.nan)


def _choose(
    rows: Batch, backend: str, look: bool, shared: SharedRows | None, again: Project | None, rounding: float | None
) -> Outcome:
    """The solver for rows of this shape, in units of size one."""
    if rows.A.shape[-2] == 1:
        return solve_single(*rows[:4])  # pyright: ignore[reportArgumentType]
    if backend == "auto" and _fits_kernel(rows.A):
        return _by_kernel(rows, look, again, rounding)
    if backend == "auto" and look and shared is None and _compiles(rows.A):
        return _compiled(rows, again, rounding)
    return solve_in_steps(rows, backend, shared, again, rounding) if look else fixed_program(rows, shared, rounding)


def _fits_kernel(A: Tensor) -> bool:
    """Whether a sample's whole problem fits one program of a GPU; one row has a closed form."""
    m, n = A.shape[-2:]
    return A.device.type == "cuda" and 1 < m <= MOST_ON_CHIP and n <= MOST_ON_CHIP and gpu.supported(A.device)


def _by_kernel(rows: Batch, look: bool, again: Project | None = None, rounding: float | None = None) -> Outcome:
    """Every sample by one launch; those that it leaves open in steps, if one may look for them."""
    from hardnet.kernels.gpu.projection import Tolerances, project

    raw, A, lower, upper = (part.contiguous() for part in rows[:4] if part is not None)
    allowed = torch.inf if rounding is None else ALLOWED * rounding
    tolerances = Tolerances(INSIDE, FEASIBLE, SOLVED, STRICT, CERTAIN, allowed)
    y, dual, side, steps, residual, unsolved, met = project(raw, A, lower, upper, step_limit(A), tolerances)
    status = torch.where(met, int(Status.SOLVED), int(Status.NOT_CONVERGED))
    outcome = Outcome(y, dual, side, status.to(torch.int8), steps, residual)
    if not look:
        return outcome
    todo = unsolved.nonzero().squeeze(-1)
    if len(todo) == 0:
        return outcome
    return place(outcome, todo, solve_in_steps(rows.take(todo), "auto", None, again, rounding))


def _compiles(A: Tensor) -> bool:
    """Whether compiled code is the fastest: on a CPU, and with Gram matrices that are not much larger than A."""
    m, n = A.shape[-2:]
    return HAS_NUMBA and A.is_cpu and A.numel() > 0 and m <= MOST_ROWS_TO_AN_OUTPUT * n and plain(A)


def _compiled(rows: Batch, again: Project | None, rounding: float | None) -> Outcome:
    """Every sample by compiled code; those that it leaves open in steps."""
    tolerances = (FEASIBLE, SOLVED, STRICT, CERTAIN)
    y, dual, side, steps, residual, unsolved = nearest_of_rows(*rows[:4], step_limit(rows.A), tolerances)  # pyright: ignore[reportArgumentType]
    outcome = Outcome(y, dual, side, torch.zeros_like(steps, dtype=torch.int8), steps, residual)
    todo = unsolved.nonzero().squeeze(-1)
    if len(todo) == 0:
        return outcome
    return place(outcome, todo, solve_in_steps(rows.take(todo), "auto", None, again, rounding))


def _poison(outcome: Outcome, valid: Tensor) -> Outcome:
    """NaN for the invalid samples alone."""
    status = torch.where(valid, outcome.status, int(Status.INVALID))
    bad = ~valid
    y, dual = (part.masked_fill(bad.unsqueeze(-1), torch.nan) for part in (outcome.y, outcome.dual))
    return outcome._replace(y=y, dual=dual, status=status, residual=outcome.residual.masked_fill(bad, torch.nan))


def _valid(raw: Tensor, size: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Finite raw and rows, bounds that are no NaN, in order, and not infinite on the wrong side: ``(B,)``."""
    numbers = raw.isfinite().all(-1) & size.isfinite().all(-1)
    return numbers & ordered(lower, upper).all(-1)


def _harmless(valid: Tensor, raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    """Replace the numbers of invalid samples by zeros and open bounds, which no solver stumbles over."""
    row = valid.unsqueeze(-1)
    A = torch.where(valid.any(), A, 0.0) if A.dim() == 2 else torch.where(row.unsqueeze(-1), A, 0.0)
    bounds = torch.where(row, lower, -torch.inf), torch.where(row, upper, torch.inf)
    return torch.where(row, raw, 0.0), A, *bounds
