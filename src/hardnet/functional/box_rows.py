"""The Euclidean projection onto a box and a few rows, with its derivative; the box stays a box.

``y = clamp(raw - A'dual, box_lower, box_upper)``, so the k multipliers of the rows determine y: see
`hardnet.solvers.polyhedron.box_rows`. Eager calls use one autograd function; under compile, export and torch.func
everything is plain tensor operations that read no value.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import NonFiniteError, OptionError, sentence
from hardnet.functional import polyhedron
from hardnet.functional.derivatives import keep_value
from hardnet.functional.polyhedron import in_exact_arithmetic, keep
from hardnet.functional.samples import raise_bad_numbers, refuse
from hardnet.functional.strict import tighten
from hardnet.kernels.backends import find
from hardnet.modes import may_wait, refuse_forward_tangent
from hardnet.nearest.derivative import Found, Pull, Route, nearest, smooth
from hardnet.nearest.policy import PROVED, Policy, answer, answered
from hardnet.products import times_columnwise
from hardnet.rows import Batch, BoxedBatch, boxed
from hardnet.solvers.polyhedron.box_rows import NO_SLOPE, Outcome, settle, solve, steps, unsettled
from hardnet.solvers.polyhedron.canonical import Held, canonical, inverse_of, shared_multipliers
from hardnet.solvers.solution import Solution, Status, solved
from hardnet.structure import MOST_BOX_ROWS, WIDE


def takes(rows: Batch, policy: Policy) -> bool:
    """Whether the box stays a box: beside up to 8 rows, and beside more where a kernel solves them or outputs are many.

    Without a kernel, as dense rows the box of a hierarchy of 300 series would take torch ten times as long, and of 100
    outputs half of the time.
    """
    k, n = rows.A.shape[-2:]
    if k <= MOST_BOX_ROWS:
        return True
    wide = rows.look and rows.memory and WIDE <= n >= 2 * k
    return (wide or find("box_rows", rows) is not None) and not policy.strict and policy.gradient == "exact"


def project(rows: Batch, policy: Policy, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """The nearest points ``(B, n)`` for a record of a box and few rows, in the dtype of its raw.

    Args:
        rows: The record of the call.
        policy: The options.
        known: Answers that the caller has found already, and for which samples, ``(B,)``; these are kept.
    """
    if policy.asks and not may_wait():
        name = "on_unsolved" if policy.on_unsolved == "raise" else "on_infeasible"
        remedy = "pass 'auto' or 'nan', which give NaN for a sample without an answer here"
        got = getattr(policy, name)
        raise OptionError(sentence(name, "no look at values in compiled or mapped code", got, remedy))
    policy, look = policy.resolved(rows.look), rows.look or policy.asks
    simple = not (look or policy.strict or policy.on_unsolved == "best")
    if simple and (kernel := find("box_rows", rows)):
        if not rows.learned:
            return kernel.answer(boxed(rows, rows.raw.dtype))
        if policy.gradient == "exact" and hasattr(kernel, "backward"):
            return nearest(_route(kernel, rows.raw.dtype), rows).y
    if policy.on_unsolved == "best" and not look:
        rows = rows._replace(memory=False)  # kernels keep no last point
    flat = boxed(rows)
    eager = rows.memory and (rows.look or find("box_rows", rows) is not None)
    y, found = (_eager if eager else _traced)(flat, rows, policy.gradient == "tangent")
    if not (look or policy.strict):
        lost = (found.status == int(Status.NOT_CONVERGED)).unsqueeze(-1)
        y = _rounded(y if policy.on_unsolved == "best" else torch.where(lost, torch.nan, y), rows)
        return y if known is None else torch.where(known[1].unsqueeze(-1), known[0], y)
    if look and known is None and not policy.strict and not bool(_open(found).any()):
        return _rounded(y, rows)
    whole = _as_asked(y, found, flat, rows, policy)
    whole = whole if known is None else keep(whole, *known)
    if policy.on_infeasible == "nearest":
        whole = whole._replace(y=_compromise(whole.y, whole.status == int(Status.INFEASIBLE), rows))
    if not look:
        return answered(whole, policy)
    if rows.look and policy.on_invalid == "raise":
        raise_bad_numbers(rows, whole.status == int(Status.INVALID))
    return answer(Solution(*map(rows.as_given, whole)), policy, rows.raw.shape[-1]).reshape(whole.y.shape)


def _open(found: Outcome) -> Tensor:
    """The samples ``(B,)`` that are not solved, or not proved to be the nearest."""
    return (found.status != int(Status.SOLVED)) | (found.residual > PROVED)


def solution(y: Tensor, found: Outcome, flat: BoxedBatch, rows: Batch) -> Solution:
    """The outcome with the multipliers of the box behind those of the rows, ``(B, k + n)``; y in the dtype of raw.

    The multipliers of the coordinates are the remainder ``raw - A'dual - y``, zero inside the box; those of an empty
    set make ``A'dual`` vanish. A point whose rows hold is FEASIBLE if nothing proves it to be the nearest.
    """
    pulled = times_columnwise(flat[1], found.dual)
    held = (found.y <= flat[4]) | (found.y >= flat[5])
    remainder = torch.where(held, flat[0] - pulled - found.y, 0.0)
    terms = times_columnwise(flat[1].abs(), found.dual.abs())
    proof = torch.where(pulled.abs() > NO_SLOPE * terms, -pulled, 0.0)
    empty = (found.status == int(Status.INFEASIBLE)).unsqueeze(-1)
    dual = torch.cat([found.dual, torch.where(empty, proof, remainder)], dim=-1)
    status = found.status.long()  # ONNX Runtime has no `where` for int8
    weak = (status == int(Status.SOLVED)) & (found.residual > PROVED)
    status = torch.where(weak, int(Status.FEASIBLE), status).to(torch.int8)
    most = torch.finfo(rows.raw.dtype).max  # a last point may lie anywhere
    y = torch.where((status == int(Status.NOT_CONVERGED)).unsqueeze(-1), y.clamp(-most, most), y)
    count = torch.full_like(status, steps(rows.A.shape[-2]), dtype=torch.long)
    return Solution(_rounded(y, rows), dual.to(rows.raw.dtype), status, count, found.residual)


def solve_boxed(flat: BoxedBatch, rows: Batch, policy: Policy) -> Solution:
    """The nearest points of a flat batch, whatever their status, without a derivative; `flat` is ``boxed(rows)``."""
    found = find_in_box(flat, rows)
    return _as_asked(found.y, found, flat, rows, policy)


def _as_asked(y: Tensor, found: Outcome, flat: BoxedBatch, rows: Batch, policy: Policy) -> Solution:
    """The `solution`, with rows that hold in exact arithmetic where that is asked for and they have room for it."""
    whole = solution(y, found, flat, rows)
    return in_exact_arithmetic(whole, lambda y: hold_in_box(y, rows, flat)) if policy.strict else whole


def hold_in_box(y: Tensor, rows: Batch, flat: BoxedBatch) -> Tensor:
    """Y inside the box, with rows that hold in exact arithmetic, by projecting onto the box and tightened rows."""
    _, A, lower, upper, *box = (part.detach() for part in flat)
    eps = torch.finfo(torch.float64).eps

    def project(point: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
        start = torch.where(point.isfinite(), point, 0.0)
        bounds = lower if low is None else low, upper if high is None else high
        found = solve(start, A, *bounds, *box, rounding=eps, mode=rows.mode)
        return torch.where((found.status == int(Status.SOLVED)).unsqueeze(-1), found.y, torch.nan)

    return tighten(y, rows, project, rows.raw.dtype)


def _rounded(y: Tensor, rows: Batch) -> Tensor:
    """Y in the dtype of raw; a sample that overflows it is an error where values may be read, else NaN."""
    dtype = rows.raw.dtype
    narrowed = y.to(dtype)
    if rows.look and not bool(narrowed.isinf().any()):
        return narrowed
    lost = (narrowed.isinf() & y.isfinite()).any(-1)
    if rows.look and bool(lost.any()):
        text = f"raw: expected a dtype that holds the nearest point, got {dtype}"
        refuse(rows.as_given(lost), NonFiniteError, text)
    return torch.where(lost.unsqueeze(-1), torch.nan, narrowed)


def _eager(flat: BoxedBatch, rows: Batch, tangent: bool) -> tuple[Tensor, Outcome]:
    """By the autograd function of all solvers, or the solver alone if no derivative is needed."""
    record = rows._replace(raw=rows.raw.detach()) if tangent else rows
    found = nearest(Route(_find, look=rows.look), record)
    assert found.place is not None
    assert found.side is not None
    whole = Outcome(found.y.detach(), found.place, found.dual, found.side, found.status, found.residual)
    return found.y + _descent(flat, whole, rows) if tangent and rows.learned else found.y, whole


def _find(rows: Batch) -> Found:
    """`find_in_box` for the derivative: with canonical multipliers."""
    flat = boxed(rows)
    found = find_in_box(flat, rows)
    dual, side = found.dual, found.side
    if find("box_rows", rows) is None:
        dual, side = shared_multipliers(flat, found.y, dual, side, found.place)
    return Found(found.y, dual, side, found.place, found.status, found.residual)


def _route(kernel: Any, dtype: torch.dtype) -> Route:
    """One launch each for the answer and its derivative, in the dtype of raw."""

    def find(rows: Batch) -> Found:
        y, place, dual, side, status, residual = kernel.forward(boxed(rows, dtype), torch.finfo(dtype).eps)
        return Found(y, dual, side, place, status, residual)

    def product(grad: Tensor, rows: Batch, found: Found, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        parts = (found.y, found.place, found.dual, found.side, found.status)
        given = (*rows.numbers, rows.box_lower, rows.box_upper)
        passed = kernel.backward(grad, boxed(rows, dtype), parts, needed)
        return tuple(
            None if part is None or like is None else part.reshape(like.shape)
            for part, like in zip(passed, given, strict=True)
        )

    return Route(find, product)


def _traced(flat: BoxedBatch, rows: Batch, tangent: bool) -> tuple[Tensor, Outcome]:
    """Solve on detached numbers, and give the answer, bit for bit, the derivative of a smooth formula."""
    rounding = torch.finfo(rows.raw.dtype).eps
    fixed: Any = tuple(part.detach() for part in flat)
    with torch.no_grad():
        found = solve(*fixed, rounding=rounding, mode=rows.mode)
    if not (rows.learned or rows.transformed):
        return found.y, found
    numbers: Any = (flat[0].detach(), *flat[1:]) if tangent else flat
    whole = Found(found.y, found.dual, found.side, found.place, found.status, found.residual)
    with torch.no_grad():
        bare = rows.mode in ("export", "eager")
        held = Held(found.dual, found.side, inverse_of(fixed, found.side, found.place, bare=bare))
        held = canonical(fixed, found.y, held, found.place, bare=bare)
    y = keep_value(smooth(numbers, whole, held), found.y)
    return y + _descent(flat, found, rows) if tangent else y, found


def _descent(flat: BoxedBatch, found: Outcome, rows: Batch) -> Tensor:
    """Zero, with the steepest descent that stays in the set as the gradient of raw."""
    refuse_forward_tangent()
    saved = flat[1].detach(), found.place, found.side, found.status
    return Pull.apply(flat[0], partial(feasible_descent, mode=rows.mode), *saved)  # pyright: ignore[reportReturnType]


def feasible_descent(
    grad: Tensor, A: Tensor, place: Tensor, side: Tensor, status: Tensor, *, mode: str = "eager"
) -> Tensor:
    """``argmin |u - g|`` over u for which y - t u stays in the set for small t: the projection of g onto a cone.

    Coordinates at their upper bound may only decrease, so u >= 0 there, and likewise for rows. The cone is again a box
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
    steepest = solve(grad, A, *ends(side), *ends(place), rounding=torch.finfo(grad.dtype).eps, mode=mode)
    return torch.where(good & (steepest.status == int(Status.SOLVED)).unsqueeze(-1), steepest.y, 0.0)


def _compromise(y: Tensor, empty: Tensor, rows: Batch) -> Tensor:
    """Solve empty sets as n + k dense rows: the general projection has the compromise."""
    if not bool(empty.any()):
        return y
    some = rows.take(empty.nonzero().squeeze(-1)).dense()
    nearest = polyhedron.project(some, Policy(on_infeasible="nearest"))
    return torch.where(empty.unsqueeze(-1), torch.zeros_like(y).masked_scatter(empty.unsqueeze(-1), nearest), y)


def find_in_box(flat: BoxedBatch, rows: Batch) -> Outcome:
    """Solve by a kernel if one takes the batch, else in plain torch; `flat` is ``boxed(rows)``.

    Samples that did not converge are settled by other solvers where values may be read.
    """
    rounding, kernel = torch.finfo(rows.raw.dtype).eps, find("box_rows", rows)
    if kernel is None:
        found = solve(*flat, rounding=rounding, mode=rows.mode)
    else:
        found = Outcome(*kernel.forward(flat, rounding))
    if not (rows.look and rows.memory) or not bool(unsettled(found.status).any()):
        return found
    return settle(found, flat, rounding)
