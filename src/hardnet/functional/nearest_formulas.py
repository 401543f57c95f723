"""The nearest point for few rows in plain torch: what compilers, exporters and transforms see, and the reference.

The program of `hardnet.solvers.few_rows` finds the multipliers, cut off from the graph, and they the active rows J.
Then, with the targets t of the rows in J,

    x = raw - A' dual,    y = x - A_J^+ (A_J x - t)

is the nearest point on J: a correction at x, whose rounding is that of y and not of a raw output far away. Its
derivatives, of any order, are those of ``raw - A_J^+ (A_J raw - t)``, since constant multipliers cancel.

Every operation is a call of torch, which takes longer than its numbers where samples are few: so bounds that are absent
take none, and `answer` leaves out what only `nearest` tells.

Called by `hardnet.functional.nearest`.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.functional.derivatives import LetThrough
from hardnet.rows import finite_size, ordered
from hardnet.solvers.few_rows import DOUBT, Level, levels, solve, version
from hardnet.solvers.solution import Status

ROUNDINGS = 16
"""How many roundings of the dtype a row may be off, relative to ``|a|_1 |y|_inf + |lower| + |upper|``."""
STATIONARY = 1e-8
"""How far ``raw - A' dual`` may be from y, relative to both: more says that the active rows are not to be trusted."""
TOUCHES = 8 * torch.finfo(torch.float64).eps
"""A multiplier that moves its row by less than this part of the row's terms is rounding: the row touches y without it,
and every route then agrees on the derivative at a vertex where more rows meet than are needed."""
EMPTY = 64 * torch.finfo(torch.float64).eps
"""What a row that is constant on the others may be outside its bounds, relative to the terms of all rows at raw."""
SMALLEST = torch.finfo(torch.float64).tiny
"""What terms of zero are taken for: all that is divided by them is zero."""


class Nearest(NamedTuple):
    """The nearest point of each sample.

    Attributes:
        y: ``(B, n)``; NaN where it is not solved. Differentiable.
        dual: Multipliers, ``raw - y = A' dual``, ``(B, m)``; positive at an upper bound, negative at a lower one. For
            an empty set rows that contradict each other: ``A' dual = 0`` and ``dual . bounds < 0``.
        status: `hardnet.solvers.solution.Status` ``(B,)`` int8; what is NOT_CONVERGED needs another solver.
        residual: Scale-free KKT residual ``(B,)``.
    """

    y: Tensor
    dual: Tensor
    status: Tensor
    residual: Tensor


class Scaled(NamedTuple):
    """Rows of length about 1 and their bounds, in float64; what is not finite is zero. The row is the first index.

    Attributes:
        raw: ``(B, n)``.
        rows: ``(m, B, n)``, or ``(m, 1, n)`` for all samples.
        lower: ``(m, B, 1)`` or None, like `upper`.
        upper: See there.
        unit: The power of two that each row and its bounds were divided by, ``(m, B, 1)``.
        valid: Whether all numbers of a sample are sound, ``(B, 1)``.
        far: ``|raw|_inf``, ``(B, 1)``, like the others below without derivative.
        length: ``|a_i|_1``, ``(m, B, 1)``.
        bounds: The size of the finite bounds, ``(m, B, 1)``.
        noise: The rounding of the rows' values at raw, ``(B, 1)``.
    """

    raw: Tensor
    rows: Tensor
    lower: Tensor | None
    upper: Tensor | None
    unit: Tensor
    valid: Tensor
    far: Tensor
    length: Tensor
    bounds: Tensor
    noise: Tensor


class Chosen(NamedTuple):
    """What is known of the rows, constant.

    Attributes:
        dual: Multipliers of the scaled rows, ``(m, B, 1)``; of an empty set, rows that contradict each other.
        possible: Which sets are not empty, ``(B, 1)``.
        sound: Which of these have valid numbers, ``(B, 1)``; no other has active rows.
        holds: Which rows are moved by their multiplier, and by more than rounding, ``(m, B, 1)``.
        active: These and the equalities, ``(m, B, 1)``.
    """

    dual: Tensor
    possible: Tensor
    sound: Tensor
    holds: Tensor
    active: Tensor


class Found(NamedTuple):
    """Y ``(B, n)`` with its derivative, where it is the answer ``(B, 1)``, and what it came from.

    ``missed`` is how far rows are from where they belong, ``drift`` how far y is from ``raw - A' dual``, ``(B, 1)``.
    """

    y: Tensor
    solved: Tensor
    scaled: Scaled
    chosen: Chosen
    missed: Tensor
    drift: Tensor


def nearest(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, tangent: bool = False) -> Nearest:
    """`answer` with all that is known of it."""
    y, solved, scaled, chosen, missed, drift = find(raw, A, lower, upper, tangent)
    kept = (chosen.holds | ~chosen.possible) & scaled.valid
    dual = torch.where(kept, chosen.dual / scaled.unit, 0.0).squeeze(-1).mT.to(raw.dtype)
    status = torch.where(chosen.possible, int(Status.NOT_CONVERGED), int(Status.INFEASIBLE))
    status = torch.where(scaled.valid, torch.where(solved, int(Status.SOLVED), status), int(Status.INVALID))
    residual = torch.where(scaled.valid, torch.maximum(missed, drift), 0.0).to(raw.dtype)
    return Nearest(torch.where(solved, y, torch.nan), dual, status.to(torch.int8).squeeze(-1), residual.squeeze(-1))


def answer(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, tangent: bool = False) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` by tensor operations that look at no value.

    Args:
        raw: ``(B, n)``.
        A: ``(B, m, n)`` or ``(m, n)``.
        lower: ``(B, m)``, ``(m,)`` or None.
        upper: Like `lower`.
        tangent: Whether raw gets back what would pull it inside.

    Returns:
        Y ``(B, n)``, NaN where it is not found.
    """
    found = find(raw, A, lower, upper, tangent)
    return torch.where(found.solved, found.y, torch.nan)


def find(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, tangent: bool) -> Found:
    """The active rows, y on them, and the verdict."""
    scaled = scale(raw, A, lower, upper)
    frame = levels(scaled.rows)
    dual, possible = multipliers(scaled, frame, torch.finfo(raw.dtype).eps)
    x = scaled.raw - (scaled.rows * dual.masked_fill(~possible, 0.0)).sum(0)
    chosen = choose(scaled, dual, possible, x.detach())
    target = targets(scaled, chosen)
    goal = target + let_through(scaled, chosen) if tangent else target
    best = correct(x, scaled.rows, frame, goal, chosen.active)
    y = torch.where(chosen.active.any(0), best.to(raw.dtype), raw)
    solved, missed, drift = judge(scaled, chosen, target.detach(), (best - x).detach(), y.detach())
    return Found(y, solved, scaled, chosen, missed, drift)


def scale(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Scaled:
    """Divide each row and its bounds by the power of two next to its largest entry: units do not matter."""
    rows = (A if A.dim() == 3 else A.unsqueeze(0)).double().transpose(0, 1)
    unit = rows.detach().abs().amax(-1, keepdim=True).log2().floor().nan_to_num(0.0, 0.0, 0.0).exp2()
    rows, point = rows / unit, raw.double()
    if lower is None and upper is None:
        upper = rows.new_full((len(rows),), torch.inf)
    low, high = (None if bound is None else _by_row(bound) / unit for bound in (lower, upper))
    length, far = rows.detach().abs().sum(-1, keepdim=True), point.detach().abs().amax(-1, keepdim=True)
    noise = DOUBT * far * length.amax(0)
    valid = (noise < torch.inf) & _in_order(low, high).all(0)
    bounds = reduce(torch.add, [finite_size(bound.detach()) for bound in (low, high) if bound is not None])
    rows, point = rows.nan_to_num(0.0, 0.0, 0.0), point.nan_to_num(0.0, 0.0, 0.0)
    return Scaled(point, rows, low, high, unit, valid, far, length, bounds, noise)


def _by_row(bound: Tensor) -> Tensor:
    """A bound ``(B, m)`` or ``(m,)`` in float64 as ``(m, B, 1)``."""
    return (bound if bound.dim() == 2 else bound.unsqueeze(0)).double().mT.unsqueeze(-1)


def _in_order(low: Tensor | None, high: Tensor | None) -> Tensor:
    """Whether bounds are numbers, in order, and not infinite on the wrong side."""
    if low is None or high is None:
        return low < torch.inf if high is None else high > -torch.inf  # pyright: ignore[reportOptionalOperand]
    return ordered(low, high)


def multipliers(scaled: Scaled, frame: list[Level], rounding: float) -> tuple[Tensor, Tensor]:
    """The multipliers of the scaled rows, cut off from the graph, and which sets are not empty."""
    lower, upper = (None if part is None else part.detach() for part in scaled[2:4])
    fixed = [level._replace(cross=level.cross.detach(), inverse=level.inverse.detach()) for level in frame]
    slack = torch.add(ROUNDINGS * rounding * scaled.bounds.amax(0), scaled.noise, alpha=EMPTY / DOUBT)
    value = (scaled.rows.detach() * scaled.raw.detach()).sum(-1, keepdim=True)
    return solve(fixed, value, lower, upper, scaled.noise, slack)


def choose(scaled: Scaled, dual: Tensor, possible: Tensor, x: Tensor) -> Chosen:
    """The active rows: those with a multiplier, and every equality; ``x = raw - A' dual``."""
    lower, upper, length = scaled.lower, scaled.upper, scaled.length
    terms = length * x.abs().amax(-1, keepdim=True) + scaled.bounds
    sound = scaled.valid & possible
    holds = active = (dual.abs() * length * length > TOUCHES * terms) & sound
    if lower is not None and upper is not None:
        active = holds | ((lower == upper) & sound)
    return Chosen(dual, possible, sound, holds, active)


def targets(scaled: Scaled, chosen: Chosen) -> Tensor:
    """The bound of each active row, zero for the others; an equality asks both of its bounds for half."""
    lower, upper = scaled.lower, scaled.upper
    if lower is None or upper is None:
        side = lower if upper is None else upper
    else:
        side = torch.where(chosen.dual > 0, upper, lower)
        side = torch.where((lower == upper).detach(), (lower + upper) / 2, side)
    return torch.where(chosen.active, side, 0.0)  # pyright: ignore[reportCallIssue, reportArgumentType]


def correct(x: Tensor, rows: Tensor, frame: list[Level], target: Tensor, active: Tensor) -> Tensor:
    """``x - A_J^+ (A_J x - t)``: along what the active rows after a row leave of it, these stay where they are.

    A row that depends on those after it is left out. Differentiable to any order.
    """
    after: list[Tensor] = []
    parts = zip(frame, rows.unbind(), target.unbind(), active.unbind(), strict=True)
    for level, row, goal, held in reversed(list(parts)):
        direction, inverse = (version(stack, after) for stack in (level.row, level.inverse))
        left = (row * x).sum(-1, keepdim=True) - goal
        x = torch.addcmul(x, left * inverse * held, direction, value=-1)
        after.insert(0, held)
    return x


def judge(scaled: Scaled, chosen: Chosen, target: Tensor, step: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether y ``(B, n)`` is the answer, by what rows miss and how far it drifted: see `Found`."""
    lower, upper = (None if part is None else part.detach() for part in scaled[2:4])
    point, eps = y.double(), torch.finfo(y.dtype).eps
    at = (scaled.rows.detach() * point).sum(-1, keepdim=True)
    length = point.abs().amax(-1, keepdim=True)
    goal = torch.where(chosen.active, target, at.clamp(lower, upper))
    # where all bounds of a row are 0, y = 0 is met to rounding of raw, or of 1 as in a certificate
    least = torch.where(scaled.bounds > 0, 0.0, eps * scaled.far.clamp_max(1.0))
    terms = scaled.length * (length + least) + scaled.bounds
    missed = ((at - goal).abs() / terms.clamp_min(SMALLEST)).amax(0)
    drift = step.abs().amax(-1, keepdim=True) / (scaled.far + length).clamp_min(SMALLEST)
    solved = (missed <= ROUNDINGS * eps) & (drift <= STATIONARY) & chosen.sound
    return solved, missed, drift


def let_through(scaled: Scaled, chosen: Chosen) -> Tensor:
    """Zero, with the gradient that ``gradient="tangent"`` gives to raw on top of the exact one."""
    value = (scaled.rows.detach() * scaled.raw).sum(-1, keepdim=True)
    excess = value - value.clamp(scaled.lower, scaled.upper)
    pulls = chosen.active & (excess.sign() * chosen.dual > 0)
    if scaled.lower is not None and scaled.upper is not None:
        pulls = pulls & (scaled.lower < scaled.upper)
    return LetThrough.apply(value, torch.where(pulls, chosen.dual.sign(), 0.0).detach())  # pyright: ignore[reportReturnType]
