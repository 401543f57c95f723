"""The nearest point of a polyhedron: one operation for every number of rows, with its derivative.

    y = argmin |y - raw|  subject to  lower <= A y <= upper,  box_lower <= y <= box_upper

The arguments become one record, `hardnet.rows.Batch`. The solvers of this table state y and the status of each sample;
what one leaves open, the next takes, where values may be read. Options then say what the samples without an answer
give (`hardnet.nearest.policy`), once for all.

box alone                       clamp                         `functional.elementary`
up to 4 rows, box included      a fixed program               `few_rows`
box and rows                    in the rows' multipliers      `beside_box`: up to 8 rows, more by a kernel
anything else                   the general solver            `any_rows`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hardnet.errors import NonFiniteError, OptionError, UnsupportedSetError, sentence
from hardnet.functional.derivatives import along_tangent, keep_value
from hardnet.functional.elementary import project_box
from hardnet.functional.metric import in_metric, take_metric
from hardnet.functional.samples import raise_bad_numbers, refuse
from hardnet.functional.strict import hold_exactly, refuse_half_precision
from hardnet.kernels.backends import find as find_kernel
from hardnet.modes import full_precision, may_wait, narrow, outside_compiler, refuse_forward_tangent
from hardnet.nearest import derivative
from hardnet.nearest import few_rows as formulas
from hardnet.nearest.derivative import Pull, Route, smooth
from hardnet.nearest.policy import (
    PROVED,
    QUIET,
    Gradient,
    OnInfeasible,
    OnInvalid,
    OnUnsolved,
    Policy,
    answer,
    answered,
)
from hardnet.products import times, times_columnwise
from hardnet.rows import Batch, BoxedBatch, boxed, in_double, take_rows
from hardnet.solvers.polyhedron import box_rows, fixed
from hardnet.solvers.polyhedron.canonical import Held, canonical, inverse_of, shared_multipliers
from hardnet.solvers.polyhedron.orthogonal import prove_empty
from hardnet.solvers.polyhedron.projection import solve
from hardnet.solvers.polyhedron.shared_rows import LEAST_ROWS, SharedRows, rows_for
from hardnet.solvers.solution import Found, Solution, Status, place, solved, verdict
from hardnet.structure import MOST_BOX_ROWS, MOST_FEW_ROWS, WIDE, BoxedRows
from hardnet.tolerances import rows_met

Numbers = Sequence[Tensor | float | None]
"""A, lower and upper, and with a box its two bounds."""

# What callers use --------------------------------------------------------------------------------------------------


@full_precision
def project_rows(raw: Tensor, rows: BoxedRows, given: Policy | None = None, **options: Any) -> Tensor:
    """``argmin |y - raw|`` over the polyhedron, by the solvers from the table at the head of this file.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron.
        given: The options of `project_affine` as a record.
        **options: The same by name.
    """
    policy = (Policy(**options) if given is None else given).checked()
    return _project(raw, _numbers(rows), policy)


@full_precision
def project_affine(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    metric: Tensor | None = None,
    gradient: Gradient = "exact",
    strict: bool = False,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    shared: SharedRows | None = None,
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, differentiable in all four arguments.

    The rows may be of any number, even more than n, dependent, duplicated, redundant or equalities (lower == upper),
    in any units. The solver works in float64 whatever the dtype. A raw output inside the set (to rounding) is returned
    bit for bit, a row that bounds one output (a row of the identity) holds exactly, and a sample's answer does not
    depend on the other samples of the batch. A sample whose answer satisfies the rows but could not be proved to be the
    nearest point, for example with equalities that nearly coincide, is FEASIBLE: returned, with a `NotConvergedWarning`
    where values may be read.

    On CUDA and under torch.compile, torch.export and torch.func no value is read, and the solver is a fixed program.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or a number for all rows; None is -inf.
        upper: Like `lower`; None is +inf.
        metric: W of ``min (y - raw)'W(y - raw)``: positive ``(n,)`` or ``(*batch, n)``, or positive definite
            ``(n, n)`` or ``(*batch, n, n)``; it has a gradient too. None is the identity.
        gradient: ``"exact"``, or ``"tangent"``: raw also receives ``w_i a_i`` from an inequality row that it violates,
            if that pulls it back inside.
        strict: Whether inequalities must hold in exact arithmetic for the numbers returned, which moves them a few
            roundings inward.
        on_infeasible: What to do with an empty set. ``"raise"``: raise an `InfeasibleError` with the rows that
            contradict each other; this reads the answer. ``"nearest"``: return the compromise with the least sum of
            squared distances to the rows. ``"nan"``: return NaN for that sample alone. ``"auto"``: raise in eager mode
            on a CPU, else NaN.
        on_unsolved: What to do with a sample that is neither solved nor proved empty. ``"raise"``: raise a
            `ConvergenceError` that names the samples and carries the `.solution` of the whole batch; this reads the
            answer. ``"nan"``: return NaN for that sample alone. ``"best"``: return the last point, which may be outside
            the set; its gradient is zero. ``"auto"``: raise in eager mode on a CPU, else NaN.
        on_invalid: What to do with NaN, an infinite A or raw, or lower > upper: ``"raise"`` an error where values may
            be read, or return ``"nan"`` for that sample alone.
        shared: The result of `prepare_rows` for this A, if A is constant; by default it is computed at each call where
            that pays off.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients.
    """
    options: Any = {"metric": metric, "gradient": gradient, "strict": strict, "shared": shared}
    options |= {"on_infeasible": on_infeasible, "on_unsolved": on_unsolved, "on_invalid": on_invalid}
    return _project(raw, (A, lower, upper), Policy(**options).checked())


@full_precision
def project_box_rows(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    box_lower: Tensor | float | None = None,
    box_upper: Tensor | float | None = None,
    *,
    gradient: Gradient = "exact",
    strict: bool = False,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
) -> Tensor:
    """``argmin |y - raw|  s.t.  lower <= A y <= upper,  box_lower <= y <= box_upper``, differentiable in all six.

    Every coordinate is exactly inside the box, and rows hold to rounding. A raw output inside the set is returned bit
    for bit, and a sample's answer does not depend on the other samples of the batch. The solver works in float64
    whatever the dtype.

    Args:
        raw: ``(*batch, n)``.
        A: ``(k, n)`` or ``(*batch, k, n)``; dependent and redundant rows are allowed.
        lower: ``(k,)``, ``(*batch, k)`` or a number for all rows; None is -inf, ``lower == upper`` an equality.
        upper: Like `lower`; None is +inf.
        box_lower: ``(n,)``, ``(*batch, n)`` or a number for all coordinates; None is -inf.
        box_upper: Like `box_lower`; None is +inf.
        gradient: ``"exact"``, or ``"tangent"``: raw receives the steepest descent that stays in the set, so that
            gradients that pull an active row or bound back inside pass.
        strict: Whether rows with room between their bounds must hold in exact arithmetic for the numbers returned.
        on_infeasible: What to do with an empty set: ``"auto"`` raises an `InfeasibleError` on a CPU in eager mode and
            else returns NaN for that sample; ``"raise"`` always raises; ``"nearest"`` returns the compromise with the
            least sum of squared distances to rows and box; ``"nan"`` returns NaN.
        on_unsolved: What to do with a sample that is not solved: as in `project_affine`.
        on_invalid: What to do with NaN, an infinite A or raw, or lower > upper on a CPU in eager mode: ``"raise"`` an
            error, or return ``"nan"`` for that sample alone.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients.
    """
    policy = Policy(on_infeasible, on_unsolved, on_invalid, gradient, strict).checked()
    return _project(raw, (A, lower, upper, box_lower, box_upper), policy, most_few=0)


@full_precision
@torch.no_grad()
def solve_rows(
    raw: Tensor,
    rows: BoxedRows,
    *,
    metric: Tensor | None = None,
    strict: bool = False,
    shared: SharedRows | None = None,
    best: bool = False,
) -> Solution:
    """``argmin |y - raw|`` over the polyhedron with its multipliers, ``raw - y = A'dual_rows + dual_box``.

    y equals the result of `project_rows` for SOLVED and FEASIBLE samples, and is NaN for samples that are INVALID (bad
    numbers), INFEASIBLE (an empty set) or NOT_CONVERGED.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron: m general rows, with or without a box.
        metric: W as in `project_affine`; then ``W (raw - y) = A'dual_rows + dual_box``.
        strict: Whether inequality rows must hold in exact arithmetic; if they have no room, NOT_CONVERGED.
        shared: Factors of these rows in dense form, as in `project_affine`.
        best: Whether y is the last point of a sample that is NOT_CONVERGED.

    Returns:
        `Solution`; `dual` is ``(*batch, m)``, or ``(*batch, m + n)`` with a box, whose coordinates come last.
    """
    last = "best" if best else "nan"
    policy = QUIET._replace(on_unsolved=last, strict=strict, metric=metric, shared=shared)
    record, policy = _record(raw, _numbers(rows), policy)
    record = record._replace(look=record.look and record.mode == "eager")
    if record.trivial or record.A.shape[-2] == 0:
        whole = _clamped(record)
    else:
        first = few_rows(record, policy) if _is_few(record, policy) else None
        whole = _solution(_find(record, policy, first, prove=True), record)
    y, dual = narrow(answered(whole, policy), raw.dtype, "nan"), whole.dual.to(record.raw.dtype)
    return Solution(*map(record.as_given, whole._replace(y=y, dual=dual)))


class FixedSolution(NamedTuple):
    """y ``(*batch, n)``, NaN without an answer, `Status` ``(*batch)`` int8 and the scale-free residual ``(*batch)``."""

    y: Tensor
    status: Tensor
    residual: Tensor


def solve_affine(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    steps: int | None = None,
) -> FixedSolution:
    """The answer of the fixed program and its quality: y ``(*batch, n)``, status and residual ``(*batch)``.

    All are computed in plain operations, so that an exported graph can return them. `hardnet.solvers.Status` 0 means
    solved; the residual is the scale-free residual of the optimality conditions.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or a number for all rows; None is -inf.
        upper: Like `lower`; None is +inf.
        steps: How many pivots; by default 2 m + 10 for less than n rows, else 4 n + 10, and 2 n more for each doubling.
    """
    rows = take_rows(raw, A, lower, upper)
    found = _by_fixed_program(rows, steps)
    y = torch.where(solved(found.status).unsqueeze(-1), found.y, torch.nan).to(raw.dtype)
    return FixedSolution(*map(rows.as_given, (y, found.status, found.residual)))


# The operation -----------------------------------------------------------------------------------------------------


def _numbers(rows: BoxedRows) -> Numbers:
    return rows.A, rows.lower, rows.upper, rows.box_lower, rows.box_upper


def _project(raw: Tensor, numbers: Numbers, policy: Policy, most_few: int = MOST_FEW_ROWS) -> Tensor:
    """y ``(*batch, n)`` in the dtype of raw."""
    rows, policy = _record(raw, numbers, policy)
    if rows.boxed and (rows.A.shape[-2] == 0 or 0 in rows.shape):
        y = project_box(raw, *numbers[3:], on_invalid=policy.on_invalid)
        return y.expand(*rows.shape, y.shape[-1])
    y = nearest(rows, policy, most_few)
    return y if rows.raw is raw else narrow(rows.as_given(y), raw.dtype, policy.on_invalid)


def _record(raw: Tensor, numbers: Numbers, policy: Policy) -> tuple[Batch, Policy]:
    """The record of the call, whose box is rows where no solver takes it as a box; and the metric in its shape."""
    if policy.strict:
        refuse_half_precision(raw.dtype)
    A, lower, upper, *box = numbers
    rows = take_rows(raw, A, lower, upper, None, *box)  # pyright: ignore[reportArgumentType]
    rows = rows.dense() if rows.boxed and not _keeps_box(rows, policy) else rows
    return rows, policy if policy.metric is None else policy._replace(metric=take_metric(policy.metric, raw, rows))


def _keeps_box(rows: Batch, policy: Policy) -> bool:
    """Whether the box stays a box: beside up to 8 rows, and beside more where a kernel solves them or outputs are many.

    Without a kernel, as dense rows the box of a hierarchy of 300 series would take torch ten times as long, and of 100
    outputs half of the time.
    """
    if policy.metric is not None or policy.shared is not None:
        return False
    k, n = rows.A.shape[-2:]
    if k <= MOST_BOX_ROWS:
        return True
    wide = rows.look and rows.memory and WIDE <= n >= 2 * k
    return (wide or find_kernel("box_rows", rows) is not None) and not policy.strict and policy.gradient == "exact"


def _is_few(rows: Batch, policy: Policy, most: int = MOST_FEW_ROWS) -> bool:
    """Whether rows and box together are few enough for the fixed program."""
    m, n = rows.A.shape[-2:]
    return 0 < m + n * rows.boxed <= most and policy.metric is None and not policy.strict


def nearest(rows: Batch, policy: Policy, most_few: int = MOST_FEW_ROWS) -> Tensor:
    """The nearest points ``(B, n)`` of a record in the dtype of its raw, and what the policy gives for the others.

    Args:
        rows: The record of the call.
        policy: The options; a metric as `take_metric` returns it.
        most_few: The most rows, box included, for the fixed program.
    """
    few = _is_few(rows, policy, most_few)
    if rows.A.shape[-2] == 0 or (few and rows.trivial):
        return rows.raw
    if policy.asks and not may_wait():
        if rows.mode == "compile":
            return _uncompiled(rows, policy, most_few)
        _refuse_questions(rows, policy)
    free = rows.look and rows.mode == "eager"
    look = free or (policy.asks and rows.mode == "eager")
    rows, policy = rows._replace(look=look), policy.resolved(free)
    alone = _alone(rows, policy, few)
    if alone is not None:
        return alone
    first = few_rows(rows, policy) if few else None
    if look and first is not None and not bool((first.status != int(Status.SOLVED)).any()):
        return first.y
    found = _find(rows, policy, first)
    y = _rounded(found.y, rows) if rows.boxed else found.y
    if not look:
        return answered(found._replace(y=y), policy)
    if not bool((found.status != int(Status.SOLVED)).any()):
        return y
    if policy.on_invalid == "raise":
        raise_bad_numbers(rows, found.status == int(Status.INVALID))
    whole, box = _solution(found, rows)._replace(y=y), rows.raw.shape[-1] if rows.boxed else 0
    return answer(Solution(*map(rows.as_given, whole)), policy, box).reshape(y.shape)


def _outside_graph(rows: Batch, policy: Policy, most_few: int) -> Tensor:
    """`nearest` for a compiled graph that has to know which samples have no answer: it leaves the graph."""
    return nearest(rows._replace(mode="eager", look=True), policy, most_few)


def _refuse_questions(rows: Batch, policy: Policy) -> None:
    """Refuse what would read values where operations are mapped or exported; rows alone give NaN for ``"raise"``."""
    if rows.boxed:
        name = "on_unsolved" if policy.on_unsolved == "raise" else "on_infeasible"
        remedy = "pass 'auto' or 'nan', which give NaN for a sample without an answer here"
        got = getattr(policy, name)
        raise OptionError(sentence(name, "no look at values in mapped or exported code", got, remedy))
    if policy.on_infeasible == "nearest":
        remedy = "use on_infeasible='nan', or torch.autograd in eager mode"
        raise UnsupportedSetError(sentence("on_infeasible", "no compromise in a fixed program", "one", remedy))


_uncompiled = outside_compiler(_outside_graph)
"""A solver that reads values iterates until the last sample is done, so a compiled graph must call it uncompiled."""


class Solver(Protocol):
    """From a flat batch to its nearest points, differentiable, whatever their status; no sample raises."""

    def __call__(self, rows: Batch, policy: Policy) -> Found:
        """The answers for all samples of the record."""
        ...


def _find(rows: Batch, policy: Policy, first: Found | None, *, prove: bool = False) -> Found:
    """The nearest points of a flat batch by the solvers of the table, each for the samples still open.

    y is the last point of a sample that is NOT_CONVERGED, or NaN, and the compromise of an INFEASIBLE one if wanted.

    Args:
        rows: The record of the call; `look` says whether values may be read.
        policy: The options.
        first: What the fixed program for few rows has found, where it takes these.
        prove: Whether to look for a proof of emptiness where no value may be read, which costs more than the solve.
    """
    solver: Solver = beside_box if rows.boxed else partial(any_rows, prove=prove and first is None)
    if first is None:
        found = solver(rows, policy)
    elif rows.look:
        index = (first.status != int(Status.SOLVED)).nonzero().squeeze(-1)
        found = place(first, index, solver(rows.take(index), policy)) if len(index) else first
    elif policy.on_unsolved == "best":
        found = _choose(first.status != int(Status.SOLVED), solver(rows, policy), first)
    else:
        found = first
    if rows.look and rows.boxed and policy.on_infeasible == "nearest":
        found = _with_compromise(found, rows)
    return _in_exact_arithmetic(found, rows) if policy.strict else found


def _choose(open_: Tensor, new: Found, old: Found) -> Found:
    """The new answers of the samples in a mask ``(B,)``, where no value may be read."""
    pick = lambda one, other: torch.where(open_.view(-1, *(1 for _ in one.shape[1:])), one, other.to(one.dtype))
    pairs = zip(new, old, strict=True)
    return Found(*(None if one is None or other is None else pick(one, other) for one, other in pairs))  # pyright: ignore[reportArgumentType]


def _alone(rows: Batch, policy: Policy, few: bool) -> Tensor | None:
    """y by one program that gives NaN where it does not solve, where nothing else is asked for; else None."""
    if rows.look or policy.strict or policy.on_unsolved == "best" or not (few or rows.boxed):
        return None
    if few and (rows.learned or rows.boxed):
        return few_rows(rows, policy).y
    kernel = find_kernel("few_rows" if few else "box_rows", rows)
    if not rows.learned and kernel is not None:
        return kernel.answer(rows if few else boxed(rows, rows.raw.dtype))
    if few:
        return few_rows(rows, policy).y
    if policy.gradient == "exact" and kernel is not None and hasattr(kernel, "backward"):
        return derivative.nearest(_box_route(kernel, rows.raw.dtype), rows).y
    return None


def _solution(found: Found, rows: Batch) -> Solution:
    """What was found with the multipliers of the box behind those of the rows, ``(B, m + n)``.

    The multipliers of the outputs are the remainder ``raw - A'dual - y``, zero inside the box; those of an empty set
    make ``A'dual`` vanish.
    """
    status = found.status.to(torch.int8)
    if not rows.boxed:
        return Solution(found.y, found.dual, status, found.steps, found.residual)
    raw, A, _, _, low, high = boxed(rows)
    dual, y = found.dual.double(), found.y.double()
    pulled = times_columnwise(A, dual)
    remainder = torch.where((y <= low) | (y >= high), raw - pulled - y, 0.0)
    terms = times_columnwise(A.abs(), dual.abs())
    proof = torch.where(pulled.abs() > box_rows.NO_SLOPE * terms, -pulled, 0.0)
    empty = (found.status == int(Status.INFEASIBLE)).unsqueeze(-1)
    dual = torch.cat([dual, torch.where(empty, proof, remainder)], dim=-1).to(rows.raw.dtype)
    return Solution(_rounded(found.y, rows), dual, status, found.steps, found.residual)


def _clamped(rows: Batch) -> Solution:
    """A box alone: the multiplier of an output is ``raw - y``; rows without bounds have zero multipliers."""
    y = project_box(rows.raw, rows.box_lower, rows.box_upper, on_invalid="nan")
    status = torch.where(y.isnan().any(-1), int(Status.INVALID), int(Status.SOLVED)).to(torch.int8)
    dual = rows.raw.new_zeros(len(y), rows.A.shape[-2])
    dual = torch.cat([dual, rows.raw - y], dim=-1) if rows.boxed else dual
    return Solution(y, dual, status, torch.zeros_like(status, dtype=torch.long), (y - y).abs().sum(-1))


def _rounded(y: Tensor, rows: Batch) -> Tensor:
    """Y in the dtype of raw; a sample that overflows it is an error where values may be read, else NaN."""
    dtype = rows.raw.dtype
    if y.dtype == dtype:
        return y
    most = torch.finfo(dtype).max
    lost = (y.abs() > most).any(-1) & y.isfinite().all(-1)
    if rows.look and bool(lost.any()):
        refuse(rows.as_given(lost), NonFiniteError, f"raw: expected a dtype that holds the nearest point, got {dtype}")
    return y.to(dtype) if rows.look else torch.where(lost.unsqueeze(-1), torch.nan, y.to(dtype))


def _with_compromise(found: Found, rows: Batch) -> Found:
    """The same with the compromise of empty sets, by the general solver on n + k rows."""
    index = (found.status == int(Status.INFEASIBLE)).nonzero().squeeze(-1)
    if len(index) == 0:
        return found
    y = any_rows(rows.take(index).dense(), QUIET).y
    return found._replace(y=found.y.index_copy(0, index, y.to(found.y.dtype)))


def _in_exact_arithmetic(found: Found, rows: Batch) -> Found:
    """Points whose rows hold in exact arithmetic; where rows leave no room for it, a sample is not solved."""
    again = lambda record: _answers((beside_box if rows.boxed else any_rows)(record, QUIET))
    found = found._replace(y=_rounded(found.y, rows))
    start = _answers(found)
    exact = hold_exactly(start, rows, again)
    lost = exact.isnan().any(-1) & ~start.isnan().any(-1)
    status = torch.where(lost, int(Status.NOT_CONVERGED), found.status.long()).to(torch.int8)
    return found._replace(y=torch.where(exact.isnan(), found.y, exact), status=status)


def _answers(found: Found) -> Tensor:
    """y, NaN for samples without an answer."""
    return torch.where(solved(found.status).unsqueeze(-1), found.y, torch.nan)


# Few rows ----------------------------------------------------------------------------------------------------------


MOST_CLAMPED = 4.0
"""How far a clamp may move the point that the fixed program found, in roundings of the largest output."""


def few_rows(rows: Batch, policy: Policy) -> Found:
    """The fixed program for up to 4 rows, box included; NaN for samples that it does not solve.

    With J the active rows (those with a multiplier, and every equality) and g the cotangent of y,

        w = (A_J A_J')^-1 A_J g,   u = g - A_J' w:     raw receives u,  A_J  -dual u' - w y',  the active bounds w.

    Where rows depend on each other, the later ones are dropped: their multiplier and w are zero. The program puts an
    output on its bound up to rounding, and a clamp removes that rounding; where the clamp moves y by more (nearly
    dependent rows, raw far away), the sample is left open.
    """
    dense = rows.dense() if rows.boxed else rows
    found = fixed_program(dense, policy.gradient)
    found = found._replace(y=_bits_of_raw(found.y, dense)) if rows.look else found
    if not rows.boxed:
        return found
    point, k = found.y.detach(), rows.A.shape[-2]
    held = point if rows.box_lower is None else torch.maximum(point, rows.box_lower.detach())
    held = held if rows.box_upper is None else torch.minimum(held, rows.box_upper.detach())
    limit = MOST_CLAMPED * torch.finfo(point.dtype).eps * held.abs().amax(-1)
    kept = (held - point).abs().amax(-1) <= limit
    y = torch.where(kept.unsqueeze(-1), keep_value(found.y, held), torch.nan)
    status = torch.where(kept | (found.status != int(Status.SOLVED)), found.status.long(), int(Status.NOT_CONVERGED))
    dual, side = found.dual[:, :k], found.dual[:, k:].sign().to(torch.int8)
    return found._replace(y=y, dual=dual, place=side, status=status.to(torch.int8))


def fixed_program(rows: Batch, gradient: str) -> Found:
    """The nearest point of few rows by a kernel if one takes them, else by the formulas; no value is read."""
    tangent = gradient == "tangent" and rows.mode != "export"  # an exported graph has no gradient
    if gradient == "tangent":
        refuse_forward_tangent()
    kernel = find_kernel("few_rows", rows)
    if kernel is not None:
        return by_kernel(rows, tangent, kernel)
    if rows.learned or not rows.memory:
        return formulas.nearest(*rows.numbers, tangent)
    with torch.inference_mode():  # hundreds of operations, each a fifth faster without version counters
        found = formulas.nearest(*rows.numbers)
    return Found(*(None if part is None else part.clone() for part in found))  # pyright: ignore[reportArgumentType]


def by_kernel(rows: Batch, tangent: bool, kernel: Any) -> Found:
    """The same as `hardnet.nearest.few_rows.nearest`, one launch each for forward and backward.

    Args:
        rows: The record of the call.
        tangent: Whether raw also receives the gradient that would pull it inside.
        kernel: The operation of a backend, with `forward` and `backward`.
    """

    def find(rows: Batch) -> Found:
        y, dual, status, residual = kernel.forward(rows)
        return Found(y, None, dual, None, status, residual)

    def product(grad: Tensor, rows: Batch, found: Found, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        parts = (found.y, found.dual, found.status)
        raw, A, *bounds = kernel.backward(grad, rows, parts, needed[1], tangent)
        sums = (
            part.sum(0) if wanted and bound is not None and bound.dim() == 1 else part if wanted else None
            for part, bound, wanted in zip(bounds, (rows.lower, rows.upper), needed[2:4], strict=True)
        )
        return raw, A, *sums, None, None

    return derivative.nearest(Route(find, product, tangent), rows)


def _bits_of_raw(y: Tensor, rows: Batch) -> Tensor:
    """Y ``(B, n)``, with the bits of raw for samples whose raw already satisfies all rows to rounding; reads values.

    Only sets with an equality need this. The derivative stays the one of y, which moves along the equalities.
    """
    if rows.lower is None or rows.upper is None or not bool((rows.lower == rows.upper).any()):
        return y
    return torch.where(_holds(rows), keep_value(y, rows.raw), y)


def _holds(rows: Batch) -> Tensor:
    """Whether every row holds at raw up to rounding of its terms ``sum |a_j raw_j| + |bound|``: ``(B, 1)``."""
    point, A, low, high = (part.detach().double() for part in rows.numbers if part is not None)
    product = times(A, point)
    target = product.clamp(low, high)
    terms = times(A.abs(), point.abs()) + target.abs()
    rounding = 4 * torch.finfo(rows.raw.dtype).eps
    return ((product - target).abs() <= rounding * terms).all(-1, keepdim=True) & terms.isfinite().all(-1, keepdim=True)


# A box and rows ----------------------------------------------------------------------------------------------------


def beside_box(rows: Batch, policy: Policy) -> Found:
    """``y = clamp(raw - A'dual, box_lower, box_upper)``: the k multipliers of the rows determine y, in float64."""
    if policy.on_unsolved == "best" and not rows.look:
        rows = rows._replace(memory=False)  # kernels keep no last point
    tangent = policy.gradient == "tangent"
    record = rows._replace(raw=rows.raw.detach()) if tangent else rows
    if rows.memory and (rows.look or find_kernel("box_rows", rows) is not None):
        found = derivative.nearest(Route(_in_box, look=rows.look), record)
    else:
        flat = boxed(record)
        constants: Any = tuple(part.detach() for part in flat)
        with torch.no_grad():
            found = box_rows.solve(*constants, rounding=torch.finfo(rows.raw.dtype).eps, mode=rows.mode)
        bare = rows.mode in ("export", "eager")
        dual, side, place_ = found.dual, found.side, found.place
        assert side is not None
        held = lambda: Held(dual, side, inverse_of(constants, side, place_, bare=bare))
        found = _smooth(record, found, held, bare, flat)
    if tangent and (rows.learned or rows.transformed):
        found = found._replace(y=found.y + _descent(rows, found))
    return found


def _in_box(rows: Batch) -> Found:
    """By a kernel if one takes the batch, else in plain torch, with canonical multipliers.

    Samples that did not converge are settled by other solvers where values may be read.
    """
    flat, rounding, kernel = boxed(rows), torch.finfo(rows.raw.dtype).eps, find_kernel("box_rows", rows)
    if kernel is None:
        found = box_rows.solve(*flat, rounding=rounding, mode=rows.mode)
    else:
        found = Found(*kernel.forward(flat, rounding))
    found = box_rows.settle(found, flat, rounding) if rows.look else found
    if kernel is not None or found.side is None:
        return found
    dual, side = shared_multipliers(flat, found.y, found.dual, found.side, found.place)
    return found._replace(dual=dual, side=side)


def _box_route(kernel: Any, dtype: torch.dtype) -> Route:
    """One launch each for the answer and its derivative, in the dtype of raw."""

    def find(rows: Batch) -> Found:
        return Found(*kernel.forward(boxed(rows, dtype), torch.finfo(dtype).eps))

    def product(grad: Tensor, rows: Batch, found: Found, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        given = (*rows.numbers, rows.box_lower, rows.box_upper)
        passed = kernel.backward(grad, boxed(rows, dtype), found[:5], needed)
        return tuple(
            None if part is None or like is None else part.reshape(like.shape)
            for part, like in zip(passed, given, strict=True)
        )

    return Route(find, product)


def _descent(rows: Batch, found: Found) -> Tensor:
    """Zero, with the steepest descent that stays in the set as the gradient of raw."""
    refuse_forward_tangent()
    raw, A, *_ = boxed(rows)
    saved = A.detach(), found.place, found.side, found.status
    return Pull.apply(raw, partial(feasible_descent, mode=rows.mode), *saved)  # pyright: ignore[reportReturnType]


def feasible_descent(
    grad: Tensor, A: Tensor, place: Tensor, side: Tensor, status: Tensor, *, mode: str = "eager"
) -> Tensor:
    """``argmin |u - g|`` over u for which y - t u stays in the set for small t: the projection of g onto a cone.

    Outputs at their upper bound may only decrease, so u >= 0 there, and likewise for rows. The cone is again a box
    and rows.
    """
    if torch.is_grad_enabled() and mode == "eager":
        remedy = "pass gradient='exact'"
        raise OptionError(sentence("gradient", "'exact' where derivatives are differentiated", "'tangent'", remedy))
    good = solved(status).unsqueeze(-1)
    ends = lambda code: (
        torch.where((code == 1) | (code == 2), 0.0, -torch.inf).double(),
        torch.where((code == -1) | (code == 2), 0.0, torch.inf).double(),
    )
    grad, place, side = torch.where(good, grad, 0.0), torch.where(good, place, 0), torch.where(good, side, 0)
    A = torch.where(A.isfinite(), A, 0.0)
    steepest = box_rows.solve(grad, A, *ends(side), *ends(place), rounding=torch.finfo(grad.dtype).eps, mode=mode)
    return torch.where(good & (steepest.status == int(Status.SOLVED)).unsqueeze(-1), steepest.y, 0.0)


# Any rows ----------------------------------------------------------------------------------------------------------


def any_rows(rows: Batch, policy: Policy, *, prove: bool = False) -> Found:
    """By `hardnet.solvers.polyhedron.projection` in eager code, by a fixed program elsewhere, in the policy's metric.

    With `prove` it looks for a proof of emptiness where no value may be read.
    """
    found = _euclidean(rows, policy.shared, prove) if policy.metric is None else _in_metric(rows, policy)
    return found._replace(y=along_tangent(found.y, *rows.numbers)) if policy.gradient == "tangent" else found


def _euclidean(rows: Batch, shared: SharedRows | None, prove: bool = False) -> Found:
    if rows.mode != "eager" or not (rows.look or rows.raw.is_cuda):
        return _by_fixed_program(rows)
    many = rows.A.dim() == 2 and rows.A.shape[-2] >= LEAST_ROWS
    shared = rows_for(rows, shared) if many else None
    found = derivative.nearest(Route(partial(_in_eager_code, shared=shared), look=rows.look, shared=shared), rows)
    if rows.look or not prove or found.side is None:  # a solver that may read values has tried this proof already
        return found
    proof = prove_empty(*in_double(rows).numbers, found.y.detach().double(), found.side)  # pyright: ignore[reportArgumentType]
    empty = (found.status == int(Status.NOT_CONVERGED)) & (proof != 0).any(-1)
    status = torch.where(empty, int(Status.INFEASIBLE), found.status).to(torch.int8)
    return found._replace(status=status, dual=torch.where(empty.unsqueeze(-1), proof, found.dual))


def _in_eager_code(rows: Batch, shared: SharedRows | None) -> Found:
    """Solve in float64, and judge the rows at y in the dtype of raw."""
    found = solve(in_double(rows), shared=shared, rounding=torch.finfo(rows.raw.dtype).eps)
    assert found.side is not None
    found = found._replace(y=found.y.to(rows.raw.dtype), side=found.side.to(torch.int8))
    return found._replace(status=_judged(found, rows))


def _judged(found: Found, rows: Batch) -> Tensor:
    """The status of y in the dtype of raw; FEASIBLE where rows are met but nothing proves it nearest."""
    if not rows.look:  # the residual of a sample that misses a row is infinite
        near = (found.status == int(Status.NOT_CONVERGED)) & found.residual.isfinite()
        return torch.where(near, int(Status.FEASIBLE), found.status).to(torch.int8)
    weak = (found.status != int(Status.SOLVED)) | (found.residual > PROVED)
    if not bool(weak.any()):
        return found.status
    doubtful = torch.where((found.status == int(Status.SOLVED)) & weak, int(Status.FEASIBLE), found.status)
    return torch.where(weak, verdict(doubtful, _met(rows, found.y)), found.status).to(torch.int8)


def _met(rows: Batch, y: Tensor) -> Tensor:
    """Whether all rows hold at y ``(B, n)`` by the certificate's terms: ``(B,)``."""
    _, A, lower, upper = (None if part is None else part.detach().double() for part in rows.numbers)
    assert A is not None
    return rows_met(A, y.detach().double(), lower, upper, torch.finfo(rows.raw.dtype).eps).all(-1)


def _in_metric(rows: Batch, policy: Policy) -> Found:
    """Solve in the variables of the metric, in which the multipliers are the same; the rows are judged at y."""
    assert policy.metric is not None
    again = lambda record: _answers(_euclidean(record, None))
    whole = in_metric(rows, policy.metric, partial(_euclidean, shared=None), again, policy.on_invalid)
    found = whole.found
    residual, status = torch.maximum(found.residual, whole.left), verdict(found.status, _met(rows, whole.y))
    return found._replace(y=whole.y, dual=found.dual.to(rows.raw.dtype), status=status, residual=residual)


# Fixed programs, for graphs and transforms -------------------------------------------------------------------------


def _by_fixed_program(rows: Batch, steps: int | None = None) -> Found:
    """A fixed number of pivots, y differentiable to any order."""
    found, inverse = fixed.project_fixed(rows, steps)
    bare = rows.mode in ("export", "eager")
    assert found.side is not None
    return _smooth(rows, found, lambda: Held(found.dual.double(), found.side, inverse), bare)  # pyright: ignore[reportArgumentType]


def _smooth(rows: Batch, found: Found, held: Callable[[], Held], bare: bool, flat: BoxedBatch | None = None) -> Found:
    """What was found, y with the derivative of `smooth` on canonical multipliers if one may be needed.

    Args:
        rows: The record.
        found: The answer without a derivative.
        held: What the solver held y by.
        bare: Whether nothing may be factorized.
        flat: ``boxed(rows)``, if the caller has it.
    """
    if not (rows.learned or rows.transformed):
        return found
    numbers = boxed(rows) if flat is None else flat
    constants: Any = tuple(part.detach() for part in numbers)
    with torch.no_grad():
        own = canonical(constants, found.y.double(), held(), found.place, bare=bare)
    y = smooth(numbers, found, own).to(found.y.dtype)
    return found._replace(y=keep_value(y, found.y))
