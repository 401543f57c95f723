"""The nearest point for few rows in plain torch, for compilers, exporters and transforms; the reference for kernels.

    minimize |d|  subject to  lower_i <= value_i + a_i . d <= upper_i,   d = -sum_i dual_i a_i

Leave out the last row and solve. If the answer d satisfies the last row, it is the answer. If the row is above its
upper bound (below its lower one) there, the nearest point with the row is *on* that bound: if it were inside, it would
be nearest without the row too. So pin the row to that bound, project its direction out of the others, and solve these
again. One row is a clamp, and k rows are k - 1 rows solved twice: 2^k - 1 tests in all, whatever the numbers are. Every
row may have two bounds, which the test tells apart.

If the rows before the last have a common point and pinning the last one leaves none, there is none with the last row
either: the line from a point inside to d would cross the bound. So an empty set is detected where a row is constant on
the pinned rows and outside its bounds; the combination of rows that is zero is then returned in place of multipliers.

The active rows J and their multipliers are detached from the graph. Then, with the targets t of the rows in J,

    x = raw - A_J' dual,    y = x - A_J^+ (A_J x - t)

is the nearest point on J. The correction is made at x, so its rounding is relative to y and not to a raw output far
away. Its derivatives, of any order, are those of ``raw - A_J^+ (A_J raw - t)``, since the multipliers cancel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.tolerances import FEW_ROWS
from hardnet.nearest.derivative import Pull, inwards
from hardnet.products import times_columnwise, times_rowwise
from hardnet.rows import or_one, ordered
from hardnet.solvers.solution import Found, Status
from hardnet.structure import bound_size


class Scaled(NamedTuple):
    """Rows of length about 1 and their bounds, in float64; invalid samples are zero and have no bounds.

    ``length`` is ``|a_i|_1`` and ``bounds`` the `bound_size` of each row, both ``(B, m)`` without a derivative.
    """

    raw: Tensor
    rows: Tensor
    lower: Tensor
    upper: Tensor
    shrink: Tensor
    valid: Tensor
    length: Tensor
    bounds: Tensor


class Chosen(NamedTuple):
    """Multipliers of the scaled rows ``(B, m)``, which rows are active ``(B, m)``, which sets are empty ``(B, 1)``."""

    dual: Tensor
    active: Tensor
    empty: Tensor


def nearest(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, tangent: bool = False) -> Found:
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` by tensor operations that read no value.

    y is NaN for samples that are not solved; a NOT_CONVERGED one needs another solver.

    Args:
        raw: ``(B, n)``.
        A: ``(B, m, n)`` or ``(m, n)``.
        lower: ``(B, m)``, ``(m,)`` or None.
        upper: Like `lower`.
        tangent: Whether raw also receives the gradient that would pull it inside.
    """
    scaled = scale(raw, A, lower, upper)
    fixed = Scaled(*(part.detach() for part in scaled))
    chosen = choose(fixed, torch.finfo(raw.dtype).eps)
    target = targets(scaled, chosen)
    if tangent:
        target = target + let_through(scaled, chosen)
    rows = torch.where(chosen.active.unsqueeze(-1), scaled.rows, 0.0)
    # adding zero turns -0.0 into 0.0, so that subtracting it leaves every bit of a raw output inside the set
    x = scaled.raw - (times_columnwise(rows, chosen.dual) + 0)
    step = solve_active(rows, times_rowwise(rows, x) - target)
    y = (x - (step + 0)).to(raw.dtype)
    status, residual = judge(fixed, chosen, target.detach(), y.detach(), step.detach())
    dual = (chosen.dual * fixed.shrink).to(raw.dtype)
    solved = (status == int(Status.SOLVED)).unsqueeze(-1)
    return Found(torch.where(solved, y, torch.nan), None, dual, None, status, residual.to(raw.dtype))


def scale(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Scaled:
    """Divide each row and its bounds by the power of two at or below its largest entry, so that units do not matter."""
    rows = (A if A.dim() == 3 else A.unsqueeze(0)).double()
    entries = rows.detach().abs()
    size = entries.amax(-1)  # not used to detect NaN: in ONNX the maximum of NaN and a number may be the number
    sound = (entries < torch.inf).all(-1).all(-1, keepdim=True)
    rows = torch.where(sound.unsqueeze(-1), rows, 0.0)
    shrink = size.log2().floor().neg().nan_to_num(0.0, 0.0, 0.0).exp2()  # 1 for a row of zeros
    low, high = (
        shrink.new_full((1, 1), absent) * shrink if bound is None else bound.double() * shrink
        for bound, absent in ((lower, -torch.inf), (upper, torch.inf))
    )
    valid = sound & (raw.detach().abs() < torch.inf).all(-1, keepdim=True) & ordered(low, high).all(-1, keepdim=True)
    rows, low, high = (
        rows * shrink.unsqueeze(-1),
        torch.where(valid, low, -torch.inf),
        torch.where(valid, high, torch.inf),
    )
    length = rows.detach().abs().sum(-1)
    bounds = bound_size(low.detach(), high.detach(), length)
    return Scaled(torch.where(valid, raw.double(), 0.0), rows, low, high, shrink, valid, length, bounds)


def choose(scaled: Scaled, rounding: float) -> Chosen:
    """The active rows: those with a multiplier, and every equality."""
    raw, rows, lower, upper, _, _, length, bounds = scaled
    terms = length.amax(-1, keepdim=True) * raw.abs().amax(-1, keepdim=True)
    noise, slack = (
        FEW_ROWS.doubt * terms,
        FEW_ROWS.empty * terms + FEW_ROWS.roundings * rounding * bounds.amax(-1, keepdim=True),
    )
    small = coordinates(rows)
    dual, empty = multipliers(small, (small * small).sum(-1), times_rowwise(rows, raw), lower, upper, noise, slack)
    dual = torch.where(empty | _holds_its_row(dual, scaled), dual, 0.0)
    return Chosen(dual, ((dual != 0) | (lower == upper)) & ~empty, empty)


def _holds_its_row(dual: Tensor, scaled: Scaled) -> Tensor:
    """Whether a multiplier moves its row by more than the rounding of the row's terms: ``(B, m)``."""
    length, size = scaled.length, (scaled.raw - times_columnwise(scaled.rows, dual)).abs().amax(-1, keepdim=True)
    return dual.abs() * length * length > FEW_ROWS.touches * (length * size + scaled.bounds)


def targets(scaled: Scaled, chosen: Chosen) -> Tensor:
    """The bound of each active row, zero for the others; for an equality the mean of both, so that each gets half."""
    lower, upper = scaled.lower, scaled.upper
    equal = (lower == upper).detach()
    side = torch.where(chosen.dual > 0, upper, lower)
    return torch.where(chosen.active, torch.where(equal, (lower + upper) / 2, side), 0.0)


def solve_active(rows: Tensor, right: Tensor) -> Tensor:
    """``A_J^+ r`` for rows ``(B, m, n)`` that are zero outside J and r ``(B, m)``: ``(B, n)``, by Gram-Schmidt.

    A row that depends on the rows before it is left out. Differentiable to any order.
    """
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    total = torch.zeros_like(rows[..., 0, :])
    for row, rest in zip(rows.unbind(-2), right.split(1, -1), strict=True):
        square, left = row.detach().square().sum(-1, keepdim=True), row
        for direction, inverse, weight in kept:
            share = (left * direction).sum(-1, keepdim=True) * inverse
            left, rest = left - share * direction, rest - share * weight
        own = left.square().sum(-1, keepdim=True)
        clear = own > FEW_ROWS.dependent * square
        inverse = torch.where(clear, torch.where(clear, own, 1.0).reciprocal(), 0.0)
        kept.append((left, inverse, rest))
        total = total + rest * inverse * left
    return total


def judge(scaled: Scaled, chosen: Chosen, target: Tensor, y: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Status and KKT residual ``(B,)``: how far rows are from their targets, and y from ``raw - A' dual``."""
    raw, rows, lower, upper, _, valid, *sizes = scaled
    point, eps, far = y.double(), torch.finfo(y.dtype).eps, raw.abs().amax(-1, keepdim=True)
    at = times_rowwise(rows, point)
    length = point.abs().amax(-1, keepdim=True)
    goal = torch.where(chosen.active, target, at.clamp(lower, upper))
    # where all bounds of a row are 0, tolerate rounding of raw, or of 1 if that is smaller, as in a certificate
    least = torch.where(sizes[1] > 0, 0.0, eps * far.clamp_max(1.0))
    terms = sizes[0] * (length + least) + sizes[1]
    missed = ((at - goal).abs() / or_one(terms)).amax(-1, keepdim=True)
    size = far + length
    drift = step.abs().amax(-1, keepdim=True) / or_one(size)
    counted = size + terms.amax(-1, keepdim=True) < torch.inf  # relative to infinity any error would be zero
    solved = (missed <= FEW_ROWS.roundings * eps) & (drift <= FEW_ROWS.stationary) & counted
    status = torch.where(solved, int(Status.SOLVED), int(Status.NOT_CONVERGED))
    status = torch.where(chosen.empty, int(Status.INFEASIBLE), status)
    status = torch.where(valid, status, int(Status.INVALID)).to(torch.int8)
    return status.squeeze(-1), torch.maximum(missed, drift).squeeze(-1)


def let_through(scaled: Scaled, chosen: Chosen) -> Tensor:
    """Zero, with the gradient that ``gradient="tangent"`` gives to raw on top of the exact one."""
    value = times_rowwise(scaled.rows.detach(), scaled.raw)
    outside = torch.where(chosen.dual > 0, value > scaled.upper, value < scaled.lower) & (chosen.dual != 0)
    pulls = outside & chosen.active & (scaled.lower < scaled.upper)
    return Pull.apply(value, inwards, torch.where(pulls, chosen.dual.sign(), 0.0).detach())  # pyright: ignore[reportReturnType]


def multipliers(
    rows: Tensor,
    square: Tensor,
    value: Tensor,
    lower: Tensor,
    upper: Tensor,
    noise: Tensor,
    slack: Tensor,
    pinned: int = 0,
) -> tuple[Tensor, Tensor]:
    """The multipliers ``(B, k)``, positive at an upper bound, and which sets are empty ``(B, 1)``; reads no value.

    Args:
        rows: The rows with the pinned ones projected out, ``(B, k, d)``, in coordinates that keep angles and lengths.
        square: The squared length of each whole row, ``(B, k)``.
        value: The current value of each row, ``(B, k)``.
        lower: ``(B, k)``.
        upper: ``(B, k)``.
        noise: The rounding of the values, ``(B, 1)``.
        slack: How far a constant row may be outside its bounds, ``(B, 1)``.
        pinned: How many rows are pinned.
    """
    last, at, others = rows[..., -1, :], value[..., -1:], rows[..., :-1, :]
    own = (last * last).sum(-1, keepdim=True)
    full = pinned >= rows.shape[-1]  # nothing is left of a row once as many are pinned as there are coordinates
    constant = own <= (2.0 if full else FEW_ROWS.dependent) * square[..., -1:]
    own = torch.where(constant, 1.0, own)
    if rows.shape[-2] == 1:
        return _solve_one(at - at.clamp(lower, upper), own, constant, slack)
    before = (square[..., :-1], lower[..., :-1], upper[..., :-1])
    free, hopeless = multipliers(others, before[0], value[..., :-1], *before[1:], noise, slack, pinned)
    cross = times_rowwise(others, last)
    moves = cross * free
    reached = at - moves.sum(-1, keepdim=True)
    target = reached.clamp(lower[..., -1:], upper[..., -1:])
    excess = reached - target
    doubt = FEW_ROWS.doubt * (at.abs() + moves.abs().sum(-1, keepdim=True) + target.abs()) + noise
    share, step = cross / own, (at - target) / own
    reduced = others - share.unsqueeze(-1) * last.unsqueeze(-2)
    held, contradicts = multipliers(
        reduced, before[0], value[..., :-1] - cross * step, *before[1:], noise, slack, pinned + 1
    )
    mine = torch.where(contradicts, 0.0, step) - (share * held).sum(-1, keepdim=True)
    # the multiplier of a violated row has the sign of the excess, except for rounding
    mine = torch.where(excess > 0, mine.clamp_min(0), mine.clamp_max(0))
    lost = constant & (excess.abs() > slack)
    leaves = (excess.abs() > doubt) & ~constant & ~hopeless
    free = torch.where(lost & ~hopeless, 0.0, free)
    alone = torch.where(lost & ~hopeless, excess.sign(), 0.0)
    dual = torch.where(leaves, torch.cat((held, mine), -1), torch.cat((free, alone), -1))
    return dual, hopeless | lost | (leaves & contradicts)


def _solve_one(excess: Tensor, own: Tensor, constant: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """The multiplier of one row that is outside its bounds by `excess`, and whether its set is empty."""
    empty = constant & (excess.abs() > slack)
    return torch.where(constant, torch.where(empty, excess.sign(), 0.0), excess / own), empty


def coordinates(rows: Tensor) -> Tensor:
    """Rows ``(B, m, n)`` in at most m coordinates that keep angles and lengths: L of ``rows = L Q``, Q orthonormal.

    By Gram-Schmidt, since the rounding of a Gram matrix would lose the angle between nearly parallel rows.
    """
    m, n = rows.shape[-2:]
    if n <= m:
        return rows
    rest, columns = rows, []
    for k in range(m):
        pivot = rest[..., k, :]
        square = (pivot * pivot).sum(-1, keepdim=True)
        whole = rows[..., k, :]
        dependent = square <= FEW_ROWS.dependent * (whole * whole).sum(-1, keepdim=True)
        direction = torch.where(dependent, 0.0, pivot / torch.where(dependent, 1.0, square).sqrt())
        column = times_rowwise(rest, direction)
        rest = rest - column.unsqueeze(-1) * direction.unsqueeze(-2)
        columns.append(column)
    return torch.stack(columns, -1)
