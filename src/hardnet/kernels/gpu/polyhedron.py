"""The nearest point of a polyhedron on a GPU: on chip, or from memory where the rows do not fit; and its derivative."""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false, reportAssignmentType=false

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hardnet.kernels.gpu.common import CORRECTIONS, bound_size, load_as, store_from
from hardnet.kernels.gpu.launch import Launcher
from hardnet.kernels.limits import CLOSE as NEAR
from hardnet.kernels.limits import Tolerances, padded
from hardnet.rows import dense

# The dual active-set method by pivoting in one launch: one program per sample, its whole tableau in registers.
#
# The same steps and signature as the plain reference `hardnet.solvers.polyhedron.pivoting.pivot`, which explains the
# mathematics. A step of the reference takes some fifty launches over the whole batch; here it is one pass over
# registers, and each sample stops when it is finished.


MOST_ROWS = 128
"""Rows of the largest tableau that fits in the registers of one program."""
DEPENDENT = tl.constexpr(1e-11)


@triton.jit
def pivot_rows(T, value, lower, upper, slack, limit, M: tl.constexpr):
    """The basic variables, the sides, the steps, whether the sample is finished, and the tableau, all in registers."""
    row = tl.arange(0, M)
    free = lower != upper
    side = tl.zeros([M], dtype=tl.float64)
    own = tl.sum(side, 0)  # multiplier of the row that is joining
    joining = -1
    steps = 0
    excess = tl.maximum(value - upper, lower - value) - slack
    furthest = tl.argmax(excess, 0)
    working = tl.max(excess, 0) > 0
    stuck = False
    while working & (steps < limit):
        index = tl.where(joining >= 0, joining, furthest)
        here = row == index
        at = tl.sum(tl.where(here, value, 0.0), 0)
        top = tl.sum(tl.where(here, upper, 0.0), 0)
        bottom = tl.sum(tl.where(here, lower, 0.0), 0)
        sign = tl.where(at > top, 1.0, -1.0).to(tl.float64)
        missing = tl.where(at > top, at - top, bottom - at)
        column = tl.sum(tl.where(here[:, None], T, 0.0), 0)
        distance = tl.sum(tl.where(here, column, 0.0), 0)
        slope = column * sign
        shrinks = (side * slope > 1e-13) & free
        ratio = tl.where(shrinks, value / tl.where(shrinks, slope, 1.0), float("inf"))
        leaving = tl.argmin(ratio, 0)
        until_leaving = tl.maximum(tl.min(ratio, 0), 0.0)
        until_tight = tl.where(distance > DEPENDENT, missing / distance, float("inf"))
        joins = until_tight <= until_leaving
        length = tl.minimum(until_tight, until_leaving)
        stuck = length == float("inf")
        length = tl.where(stuck, 0.0, length)
        value = value - column * (sign * length)
        own = own + sign * length
        pivot = tl.where(joins, index, leaving)
        chosen = row == pivot
        if not joins:  # the column of a joining row is already computed
            column = tl.sum(tl.where(chosen[:, None], T, 0.0), 0)
        inverse = 1.0 / tl.where(stuck, 1.0, tl.sum(tl.where(chosen, column, 0.0), 0))
        T = T - (column * inverse)[:, None] * column[None, :]
        column = tl.where(chosen, -inverse, column * tl.abs(inverse))
        T = tl.where(chosen[:, None], column[None, :], tl.where(chosen[None, :], column[:, None], T))
        held = tl.where(side > 0, upper, lower)
        value = tl.where(chosen, tl.where(joins, own, held), value)
        side = tl.where(chosen, tl.where(joins, sign, 0.0), side)
        own = tl.where(joins, 0.0, own)
        joining = tl.where(joins, -1, index)
        steps += 1
        excess = tl.where(side != 0, -1.0, tl.maximum(value - upper, lower - value) - slack)
        furthest = tl.argmax(excess, 0)
        working = ((tl.max(excess, 0) > 0) | (joining >= 0)) & (length < float("inf")) & ~stuck
    return value, side, steps, ~(working | stuck), T


@triton.jit
def step_of(T, side, missing):
    """``K_J^-1 missing_J`` for the active rows J of a tableau, which holds ``-K_J^-1`` there; zero off J."""
    right = tl.where(side != 0, missing, 0.0)
    return tl.where(side != 0, -tl.sum(T * right[None, :], 1), 0.0)


@triton.jit
def bound_of(side, lower, upper):
    """The bound that an active row meets, and 0 for the others."""
    return tl.where(side > 0, upper, tl.where(side < 0, lower, 0.0))


@triton.jit
def _pivot_kernel(
    gram,
    product,
    lower_end,
    upper_end,
    slack_end,
    dual,
    sides,
    counts,
    through,
    m,
    limit,
    M: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, M)
    inside = row < m
    start = sample * m
    square = inside[:, None] & inside[None, :]
    T = tl.load(gram + start * m + row[:, None] * m + row[None, :], mask=square, other=0.0)
    value = tl.load(product + start + row, mask=inside, other=0.0)
    lower = tl.load(lower_end + start + row, mask=inside, other=float("-inf"))
    upper = tl.load(upper_end + start + row, mask=inside, other=float("inf"))
    slack = tl.load(slack_end + start + row, mask=inside, other=0.0)
    value, side, steps, done, T = pivot_rows(T, value, lower, upper, slack, limit, M)
    weight = tl.where(side != 0, value, 0.0)
    gram_again = tl.load(gram + start * m + row[:, None] * m + row[None, :], mask=square, other=0.0)
    begun = tl.load(product + start + row, mask=inside, other=0.0)
    for _ in tl.static_range(CORRECTIONS):
        reached = begun - tl.sum(gram_again * weight[None, :], 1)
        weight += step_of(T, side, reached - bound_of(side, lower, upper))
    tl.store(dual + start + row, weight, mask=inside)
    tl.store(sides + start + row, side, mask=inside)
    tl.store(counts + sample, steps)
    tl.store(through + sample, done)


def pivot(
    gram: Tensor, product: Tensor, lower: Tensor, upper: Tensor, slack: Tensor, limit: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multipliers, sides, steps and which samples are finished, as the reference returns them.

    Args:
        gram: ``A A'`` of unit rows, ``(B, m, m)`` in float64; not modified.
        product: ``A raw``, ``(B, m)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        slack: Violation that still counts as satisfied, ``(B, m)``.
        limit: Most steps.
    """
    batch, m = product.shape
    dual, side = product.new_empty(batch, m), product.new_empty(batch, m)  # dense, whatever the strides of product
    steps = torch.empty(batch, dtype=torch.long, device=product.device)
    through = torch.empty(batch, dtype=torch.bool, device=product.device)
    parts = [part.contiguous() for part in (gram, product, lower, upper, slack)]
    size = padded(m)
    warps = {16: 2, 32: 4, 64: 4, 128: 8}[size]
    launch = _pivot_kernel[(batch,)]
    with torch.cuda.device_of(product):  # Triton launches on the current device
        launch(*parts, dual, side, steps, through, m, limit, M=size, num_warps=warps)  # pyright: ignore[reportCallIssue]
    return dual, side, steps, through


# ``argmin |y - raw|  subject to  lower <= A y <= upper`` for small problems in one launch, one sample per program.
#
# The whole computation for a sample happens on chip: its unit, the test whether raw is inside, the Gram matrix,
# pivoting, y, and the residual of the optimality conditions. Samples that remain open (invalid numbers, an empty set,
# a residual above the tolerance, a row that touches y without a multiplier) are flagged for the general path.


COMPUTE = tl.constexpr(tl.float64)
INFINITY = tl.constexpr(float("inf"))
CLOSE = tl.constexpr(NEAR)


@triton.jit
def power_above(size):
    """The power of two above a positive number, ``2^e`` with the exponent of `torch.frexp`."""
    exponent = (size.to(tl.int64, bitcast=True) >> 52) & 2047
    return ((exponent + 1) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _finite_size(bound):
    """``|bound|``, and 0 where there is none."""
    return tl.where(tl.abs(bound) < INFINITY, tl.abs(bound), 0.0)


@triton.jit
def nearest_size(lower, upper):
    """The smaller ``|bound|`` of a row, and 0 where there is none."""
    return _finite_size(tl.minimum(tl.abs(lower), tl.abs(upper)))


@triton.jit
def violation(product, lower, upper):
    """The violation of each row, negative inside."""
    return tl.maximum(product - upper, lower - product)


@triton.jit
def _project_on_chip(
    raw, A, lower, upper, y, dual, sides, counts, residuals, open_flags, met_flags, m, n, limit,
    EACH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, INSIDE: tl.constexpr, FEASIBLE: tl.constexpr,
    SOLVED: tl.constexpr, STRICT: tl.constexpr, CERTAIN: tl.constexpr, ALLOWED: tl.constexpr,
):  # fmt: skip
    """Project one sample; names and tolerances as in `solvers.polyhedron.projection`."""
    sample = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, M)
    column = tl.arange(0, N)
    places = (sample * m * n if EACH else 0) + row[:, None] * n + column[None, :]
    matrix = tl.load(A + places, mask=(row < m)[:, None] & (column < n)[None, :], other=0.0)
    start = tl.load(raw + sample * n + column, mask=column < n, other=0.0)
    low = tl.load(lower + sample * m + row, mask=row < m, other=-INFINITY)
    high = tl.load(upper + sample * m + row, mask=row < m, other=INFINITY)

    norm = tl.sqrt(tl.sum(matrix * matrix, axis=1))
    sound = (low <= high) & (low < INFINITY) & (high > -INFINITY) & (norm < INFINITY)
    valid = (tl.min(sound.to(tl.int32), axis=0) > 0) & (tl.max(tl.where(tl.abs(start) < INFINITY, 0, 1), axis=0) == 0)
    norm = tl.where(norm > 0.0, norm, 1.0)
    product = tl.sum(matrix * start[None, :], axis=1)
    excess = violation(product, low, high)
    size = tl.maximum(tl.max(tl.abs(start), axis=0), tl.max(excess / norm, axis=0))
    length = tl.sqrt(tl.sum(start * start, axis=0))
    nearest = nearest_size(low, high)
    slack = FEASIBLE * (norm * length + nearest)
    tight = INSIDE * (tl.sum(tl.abs(matrix) * tl.abs(start)[None, :], axis=1) + nearest)
    inside = tl.max(excess - tight, axis=0) <= 0.0
    seen = tl.where(tl.max(excess - CLOSE * slack, axis=0) <= 0.0, tight, slack)
    unit = power_above(tl.where(valid & (size > 0.0), size, 1.0))
    point = start / unit
    low, high, product, slack, seen = low / unit, high / unit, product / unit, slack / unit, seen / unit

    rows = matrix / norm[:, None]
    gram = tl.dot(rows, tl.trans(rows), input_precision="ieee", out_dtype=COMPUTE)
    begin = tl.where(valid & ~inside, limit, 0)
    value, side, steps, through, T = pivot_rows(
        gram, product / norm, low / norm, high / norm, seen / norm, begin, M
    )  # fmt: skip
    weight = tl.where(side != 0.0, value, 0.0)
    found = point - tl.sum(matrix * (weight / norm)[:, None], axis=0)
    at_y = tl.sum(matrix * found[None, :], axis=1)
    for _ in tl.static_range(CORRECTIONS):
        step = step_of(T, side, (at_y - bound_of(side, low, high)) / norm)
        weight += step
        found -= tl.sum(matrix * (step / norm)[:, None], axis=0)
        at_y = tl.sum(matrix * found[None, :], axis=1)
    multiplier = weight / norm

    stationarity = tl.max(tl.abs(found - point + tl.sum(matrix * multiplier[:, None], axis=0)), axis=0)
    moved = tl.minimum(tl.maximum(at_y + weight * norm, low), high)
    complementarity = tl.max(tl.abs(at_y - moved) / norm, axis=0)
    residual = tl.maximum(stationarity, complementarity) / tl.maximum(tl.max(tl.abs(found), axis=0), 1.0)
    strict = tl.abs(weight) > STRICT * tl.maximum(tl.max(tl.abs(weight), axis=0), 1.0)
    active = tl.where(strict & (weight > 0.0), 1.0, tl.where(strict & (weight < 0.0), -1.0, 0.0))
    touches = (at_y >= high - 10 * slack) | (at_y <= low + 10 * slack) | (low == high)
    idle = tl.max(tl.where(touches & (active == 0.0) & (row < m), 1, 0), axis=0) > 0
    left = violation(at_y, low, high)
    certain = tl.max(left - CERTAIN * tl.sum(tl.abs(matrix) * tl.abs(found)[None, :], axis=1), axis=0) <= 0.0
    weight = tl.sum(tl.abs(matrix), axis=1)
    allowed = ALLOWED * (weight * tl.max(tl.abs(found), axis=0) + bound_size(low, high, weight))
    # a violation that is small relative to a far raw still counts
    judged = tl.where(tl.max(left - allowed, axis=0) <= 0.0, residual, INFINITY)
    solved = valid & (inside | (through & (residual <= SOLVED) & certain & ~idle))

    tl.store(y + sample * n + column, tl.where(inside, start, found * unit), mask=column < n)
    tl.store(dual + sample * m + row, tl.where(inside, 0.0, multiplier * unit), mask=row < m)
    tl.store(sides + sample * m + row, tl.where(inside, 0.0, active).to(tl.int8), mask=row < m)
    tl.store(counts + sample, tl.where(inside, 0, tl.maximum(steps, 1)))
    tl.store(residuals + sample, tl.where(inside, 0.0, judged))
    tl.store(open_flags + sample, ~solved)
    tl.store(met_flags + sample, valid & (inside | (judged <= SOLVED)))


@cache
def _chip_launcher(m: int, n: int, each: bool, tolerances: Tolerances) -> Launcher:
    """The kernel for problems of this size."""
    M, N = padded(m), padded(n)
    constants: dict[str, Any] = {"EACH": int(each), "M": M, "N": N}
    constants |= {name.upper(): value for name, value in tolerances._asdict().items()}
    return Launcher(_project_on_chip, constants | {"num_warps": 2 if M == 16 else 4})


def project_on_chip(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, limit: int, tolerances: Tolerances
) -> tuple[Tensor, ...]:
    """y, dual, side (int8), steps, residual, which samples are open, and which are met, of a flat float64 batch.

    Args:
        raw: ``(B, n)``.
        A: ``(B, m, n)`` or ``(m, n)``.
        lower: ``(B, m)``, infinite where there is none.
        upper: Like lower.
        limit: Most steps.
        tolerances: What counts as met.
    """
    (batch, n), m = raw.shape, A.shape[-2]
    y, dual = torch.empty_like(raw), torch.empty_like(lower)
    side, steps = raw.new_empty(batch, m, dtype=torch.int8), raw.new_empty(batch, dtype=torch.long)
    residual, (unsolved, met) = raw.new_empty(batch), (raw.new_empty(batch, dtype=torch.bool) for _ in range(2))
    tensors = (raw, A, lower, upper, y, dual, side, steps, residual, unsolved, met)
    _chip_launcher(m, n, A.dim() == 3, tolerances).launch((batch, 1, 1), tensors, (m, n, limit))
    return y, dual, side, steps, residual, unsolved, met


# ``argmin |y - raw|  subject to  lower <= A y <= upper`` for rows that do not fit on chip, one sample at a time.
#
# The dual active-set method of Goldfarb and Idnani: the most violated row joins the active ones J, and rows whose
# multipliers vanish on the way leave. A stays in memory and is read once for each row that joins. What changes is the
# pseudo-inverse of the active unit rows, ``(A_J')^+``, at most n x n numbers in a workspace that stays in the cache.
# A row a has the part ``z = a - A_J'r``, ``r = (A_J')^+ a``, outside their span; joining and leaving are rank-one
# changes.
#
# A program takes one sample after another; its threads meet at barriers, since they share the workspace.


UNRELATED, AGAIN = tl.constexpr(1e-11), tl.constexpr(0.25)
"""Squared distance of a unit row from the span of the active ones below which it depends on them, and below which it is
made orthogonal to them once more."""
SHRINKS, FIRST = tl.constexpr(1e-13), tl.constexpr(1e100)
"""Slope up to which a multiplier counts as not shrinking, and how much an equality comes before other rows."""
PROGRAMS, ROWS, MOST_WARPS = 1056, 8, 8
"""The most programs at a time (8 on each of 132 multiprocessors), rows of a tile, and the most warps of a program."""


@triton.jit
def _images(inverse, scratch, vector, count, n, N: tl.constexpr, R: tl.constexpr):
    """``(A_J')^+ v`` by slots, and in the scratch memory."""
    column, slot = tl.arange(0, N), tl.arange(0, R)
    start = 0
    while start < count:
        rows = start + slot
        mask = (rows < count)[:, None] & (column < n)[None, :]
        tile = tl.load(inverse + rows[:, None] * n + column[None, :], mask=mask, other=0.0)
        tl.store(scratch + rows, tl.sum(tile * vector[None, :], 1), mask=rows < count)
        start += R
    tl.debug_barrier()
    return tl.load(scratch + column, mask=column < count, other=0.0)


@triton.jit
def _combination(A, lengths, order, scratch, count, n, N: tl.constexpr, R: tl.constexpr):
    """``A_J' r`` of the active unit rows, for the weights in the scratch memory."""
    column, slot = tl.arange(0, N), tl.arange(0, R)
    total = tl.zeros([N], tl.float64)
    start = 0
    while start < count:
        rows = start + slot
        some = rows < count
        index = tl.load(order + rows, mask=some, other=0).to(tl.int64)
        weight = tl.load(scratch + rows, mask=some, other=0.0) * tl.load(lengths + index, mask=some, other=0.0)
        tile = tl.load(A + index[:, None] * n + column[None, :], mask=some[:, None] & (column < n)[None, :], other=0.0)
        total += tl.sum(tile * weight[:, None], 0)
        start += R
    tl.debug_barrier()
    return total


@triton.jit
def _outside(A, lengths, order, inverse, scratch, vector, count, n, N: tl.constexpr, R: tl.constexpr):
    """The part z of a vector outside the span of the active rows, and ``r = (A_J')^+ v``; the scratch memory has r."""
    r = _images(inverse, scratch, vector, count, n, N, R)
    z = vector - _combination(A, lengths, order, scratch, count, n, N, R)
    if tl.sum(z * z, 0) < AGAIN * tl.sum(vector * vector, 0):
        r += _images(inverse, scratch, z, count, n, N, R)
        z = z - _combination(A, lengths, order, scratch, count, n, N, R)
        column = tl.arange(0, N)
        tl.store(scratch + column, r, mask=column < count)
        tl.debug_barrier()
    return z, r


@triton.jit
def _change(inverse, scratch, way, count, n, N: tl.constexpr, R: tl.constexpr):
    """Subtract the scratch weights times a vector from the rows of the inverse."""
    column, slot = tl.arange(0, N), tl.arange(0, R)
    start = 0
    while start < count:
        rows = start + slot
        mask = (rows < count)[:, None] & (column < n)[None, :]
        places = inverse + rows[:, None] * n + column[None, :]
        weight = tl.load(scratch + rows, mask=rows < count, other=0.0)
        tl.store(places, tl.load(places, mask=mask, other=0.0) - weight[:, None] * way[None, :], mask=mask)
        start += R
    tl.debug_barrier()


@triton.jit
def _join(inverse, order, scratch, z, row, count, n, N: tl.constexpr, R: tl.constexpr):
    """The row takes the last slot; the scratch memory has its r."""
    column = tl.arange(0, N)
    square = tl.sum(z * z, 0)
    way = z / square
    _change(inverse, scratch, way, count, n, N, R)
    tl.store(inverse + count * n + column, way, mask=column < n)
    tl.store(order + count, row)
    tl.debug_barrier()


@triton.jit
def _leave(inverse, order, scratch, slot, count, n, N: tl.constexpr, R: tl.constexpr):
    """The row of a slot leaves, and the last one takes its place."""
    column = tl.arange(0, N)
    own = tl.load(inverse + slot * n + column, mask=column < n, other=0.0)
    _images(inverse, scratch, own / tl.sum(own * own, 0), count, n, N, R)
    _change(inverse, scratch, own, count, n, N, R)
    last = tl.load(inverse + (count - 1) * n + column, mask=column < n, other=0.0)
    moved = tl.load(order + count - 1)
    tl.debug_barrier()
    tl.store(inverse + slot * n + column, last, mask=column < n)
    tl.store(order + slot, moved)
    tl.debug_barrier()


@triton.jit
def _measure(A, lower, upper, lengths, dual, side, start, m, n, INSIDE: tl.constexpr, FEASIBLE: tl.constexpr,
             N: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """Clear a sample's results, and look at raw: whether all is valid, inside, near the set, and the largest size."""
    column, slot = tl.arange(0, N), tl.arange(0, R)
    length = tl.sqrt(tl.sum(start * start, 0))
    sound, inside, near = 1, 1, 1
    size = tl.max(tl.abs(start), 0)
    first = 0
    while first < m:
        rows = first + slot
        some = rows < m
        mask = some[:, None] & (column < n)[None, :]
        tile = tl.load(A + rows[:, None] * n + column[None, :], mask=mask, other=0.0)
        low = tl.load(lower + rows, mask=some, other=-INFINITY)
        high = tl.load(upper + rows, mask=some, other=INFINITY)
        norm = tl.sqrt(tl.sum(tile * tile, 1))
        good = (low <= high) & (low < INFINITY) & (high > -INFINITY) & (norm < INFINITY)
        sound = sound & tl.min(tl.where(good, 1, 0), 0)
        norm = tl.where(norm > 0.0, norm, 1.0)
        excess = violation(tl.sum(tile * start[None, :], 1), low, high)
        size = tl.maximum(size, tl.max(excess / norm, 0))
        nearest = nearest_size(low, high)
        tight = INSIDE * (tl.sum(tl.abs(tile) * tl.abs(start)[None, :], 1) + nearest)
        inside = inside & tl.min(tl.where(excess <= tight, 1, 0), 0)
        near = near & tl.min(tl.where(excess <= CLOSE * FEASIBLE * (norm * length + nearest), 1, 0), 0)
        tl.store(lengths + rows, 1.0 / norm, mask=some)
        tl.store(dual + rows, tl.zeros([R], tl.float64), mask=some)
        tl.store(side + rows, tl.zeros([R], tl.int8), mask=some)
        first += R
    tl.debug_barrier()
    valid = (sound == 1) & (tl.max(tl.where(tl.abs(start) < INFINITY, 0, 1), 0) == 0)
    return valid, inside == 1, near == 1, size


@triton.jit
def _furthest(A, lower, upper, lengths, side, start, y, near, m, n, INSIDE: tl.constexpr, FEASIBLE: tl.constexpr,
              N: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """The most violated row, and by how much its unit row is; -1 if all hold. Equalities come first."""
    column, slot = tl.arange(0, N), tl.arange(0, R)
    length = tl.sqrt(tl.sum(start * start, 0))
    best, found = tl.zeros([R], tl.float64), tl.zeros([R], tl.int32) - 1
    first = 0
    while first < m:
        rows = first + slot
        some = rows < m
        mask = some[:, None] & (column < n)[None, :]
        tile = tl.load(A + rows[:, None] * n + column[None, :], mask=mask, other=0.0)
        low = tl.load(lower + rows, mask=some, other=-INFINITY)
        high = tl.load(upper + rows, mask=some, other=INFINITY)
        scale = tl.load(lengths + rows, mask=some, other=1.0)
        waits = tl.load(side + rows, mask=some, other=1).to(tl.int32) == 0
        slack = FEASIBLE * (length / scale + nearest_size(low, high))
        if near:
            slack = INSIDE * (tl.sum(tl.abs(tile) * tl.abs(start)[None, :], 1) + nearest_size(low, high))
        excess = (violation(tl.sum(tile * y[None, :], 1), low, high) - slack) * scale
        excess = tl.where((low == high) & (excess > 0.0), excess + FIRST, excess)
        better = waits & (excess > best)
        found = tl.where(better, rows, found)
        best = tl.where(better, excess, best)
        first += R
    return tl.max(tl.where(best == tl.max(best, 0), found, -1), 0)


@triton.jit
def _pull(inverse, scratch, count, n, N: tl.constexpr, R: tl.constexpr):
    """``((A_J')^+)' s`` for the weights s in the scratch memory."""
    column, slot = tl.arange(0, N), tl.arange(0, R)
    total = tl.zeros([N], tl.float64)
    start = 0
    while start < count:
        rows = start + slot
        mask = (rows < count)[:, None] & (column < n)[None, :]
        tile = tl.load(inverse + rows[:, None] * n + column[None, :], mask=mask, other=0.0)
        total += tl.sum(tile * tl.load(scratch + rows, mask=rows < count, other=0.0)[:, None], 0)
        start += R
    tl.debug_barrier()
    return total


@triton.jit
def _missing(A, lower, upper, lengths, order, side, scratch, y, unit, count, n, N: tl.constexpr, R: tl.constexpr):
    """How far y is beyond the bounds of the active unit rows, into the scratch memory."""
    column, slot = tl.arange(0, N), tl.arange(0, R)
    start = 0
    while start < count:
        rows = start + slot
        some = rows < count
        index = tl.load(order + rows, mask=some, other=0).to(tl.int64)
        tile = tl.load(A + index[:, None] * n + column[None, :], mask=some[:, None] & (column < n)[None, :], other=0.0)
        above = tl.load(side + index, mask=some, other=0).to(tl.int32) > 0
        bound = tl.load(tl.where(above, upper + index, lower + index), mask=some, other=0.0) / unit
        scale = tl.load(lengths + index, mask=some, other=0.0)
        tl.store(scratch + rows, (tl.sum(tile * y[None, :], 1) - bound) * scale, mask=some)
        start += R
    tl.debug_barrier()


@triton.jit
def _sample(
    raw, A, lower, upper, y_end, dual, side, count_end, residual_end, open_end, met_end, inverse, order, scratch,
    lengths, m, n, limit,
    N: tl.constexpr, R: tl.constexpr, INSIDE: tl.constexpr, FEASIBLE: tl.constexpr, SOLVED: tl.constexpr,
    STRICT: tl.constexpr, CERTAIN: tl.constexpr, ALLOWED: tl.constexpr,
):  # fmt: skip
    """Project one sample; names and tolerances as in `_project_on_chip`."""
    column, slot = tl.arange(0, N), tl.arange(0, R)
    start = tl.load(raw + column, mask=column < n, other=0.0)
    valid, inside, near, size = _measure(A, lower, upper, lengths, dual, side, start, m, n, INSIDE, FEASIBLE, N, R)
    unit = power_above(tl.where(valid & (size > 0.0), size, 1.0))
    y = start
    weight = tl.zeros([N], tl.float64)  # of the active unit rows, by slot
    own = tl.sum(weight, 0)  # of the row that is joining
    count, steps, stuck, joining = 0, 0, 0, -1
    going = tl.where(valid & (inside == 0), 1, 0)
    while going == 1:
        if joining < 0:
            joining = _furthest(A, lower, upper, lengths, side, start, y, near, m, n, INSIDE, FEASIBLE, N, R)
        going = tl.where((joining >= 0) & (steps < limit), 1, 0)
        if going == 1:
            scale = tl.load(lengths + joining)
            row = tl.load(A + joining.to(tl.int64) * n + column, mask=column < n, other=0.0) * scale
            at = tl.sum(row * y, 0)
            top, bottom = tl.load(upper + joining) * scale, tl.load(lower + joining) * scale
            sign = tl.where((own > 0.0) | ((own == 0.0) & (at > top)), 1.0, -1.0)
            missing = tl.maximum(tl.where(sign > 0.0, at - top, bottom - at), 0.0)
            z, r = _outside(A, lengths, order, inverse, scratch, row, count, n, N, R)
            distance = tl.sum(z * z, 0)
            apart = (distance > UNRELATED) & (count < n)
            index = tl.load(order + column, mask=column < count, other=0).to(tl.int64)
            low = tl.load(lower + index, mask=column < count, other=0.0)
            free = low != tl.load(upper + index, mask=column < count, other=0.0)
            held = tl.load(side + index, mask=column < count, other=0).to(tl.float64)
            shrinks = free & (held * sign * r > SHRINKS)
            ratio = tl.where(shrinks, tl.abs(weight) / tl.where(shrinks, tl.abs(r), 1.0), INFINITY)
            leaving, until_leaving = tl.argmin(ratio, 0), tl.min(ratio, 0)
            until_tight = tl.where(apart, missing / tl.where(apart, distance, 1.0), INFINITY)
            length = tl.minimum(until_tight, until_leaving)
            stuck = tl.where(length < INFINITY, 0, 1)
            length = tl.where(stuck == 1, 0.0, length)
            y = y - z * tl.where(apart, sign * length, 0.0)
            weight = weight - r * (sign * length)
            own = own + sign * length
            steps += 1
            going = 1 - stuck
            if stuck == 0:
                if until_tight <= until_leaving:
                    _join(inverse, order, scratch, z, joining, count, n, N, R)
                    tl.store(side + joining, tl.where(sign > 0.0, 1, -1).to(tl.int8))
                    weight = tl.where(column == count, own, weight)
                    own = own * 0.0
                    count += 1
                    joining = joining * 0 - 1
                else:
                    gone = tl.load(order + leaving)
                    last = tl.sum(tl.where(column == count - 1, weight, 0.0), 0)
                    _leave(inverse, order, scratch, leaving, count, n, N, R)
                    tl.store(side + gone, (leaving * 0).to(tl.int8))
                    weight = tl.where(column == leaving, last, weight)
                    count -= 1
                    weight = tl.where(column < count, weight, 0.0)
                tl.debug_barrier()
    through = (joining < 0) & (stuck == 0)

    # in units of size one, and to rounding
    point, y, weight = start / unit, y / unit, weight / unit
    for _ in tl.static_range(CORRECTIONS):
        _missing(A, lower, upper, lengths, order, side, scratch, y, unit, count, n, N, R)
        step = _pull(inverse, scratch, count, n, N, R)
        y -= step
        weight += _images(inverse, scratch, step, count, n, N, R)
    tl.store(scratch + column, weight, mask=column < count)
    tl.debug_barrier()
    stationarity = tl.max(tl.abs(y - point + _combination(A, lengths, order, scratch, count, n, N, R)), 0)
    largest = tl.maximum(tl.max(tl.abs(weight), 0), 1.0)
    index = tl.load(order + column, mask=column < count, other=0).to(tl.int64)
    tl.store(dual + index, weight * tl.load(lengths + index, mask=column < count, other=0.0), mask=column < count)
    tl.debug_barrier()

    reach, length = tl.max(tl.abs(y), 0), tl.sqrt(tl.sum(point * point, 0))
    complementarity, idle, certain, allowed = reach * 0.0, 0, 1, 1
    first = 0
    while first < m:
        rows = first + slot
        some = rows < m
        mask = some[:, None] & (column < n)[None, :]
        tile = tl.load(A + rows[:, None] * n + column[None, :], mask=mask, other=0.0)
        low = tl.load(lower + rows, mask=some, other=-INFINITY) / unit
        high = tl.load(upper + rows, mask=some, other=INFINITY) / unit
        scale = tl.load(lengths + rows, mask=some, other=1.0)
        multiplier = tl.load(dual + rows, mask=some, other=0.0)
        norm = 1.0 / scale
        at = tl.sum(tile * y[None, :], 1)
        moved = tl.minimum(tl.maximum(at + multiplier * norm * norm, low), high)
        complementarity = tl.maximum(complementarity, tl.max(tl.abs(at - moved) * scale, 0))
        strict = tl.abs(multiplier) * norm > STRICT * largest
        active = tl.where(strict, tl.where(multiplier > 0.0, 1, -1), 0)
        slack = FEASIBLE * (norm * length + nearest_size(low, high))
        touches = (at >= high - 10 * slack) | (at <= low + 10 * slack) | (low == high)
        idle = idle | tl.max(tl.where(touches & (active == 0) & some, 1, 0), 0)
        left, weigh = violation(at, low, high), tl.sum(tl.abs(tile), 1)
        sure = left <= CERTAIN * tl.sum(tl.abs(tile) * tl.abs(y)[None, :], 1)
        certain = certain & tl.min(tl.where(sure, 1, 0), 0)
        misses = left > ALLOWED * (weigh * reach + bound_size(low, high, weigh))  # false for infinity times 0
        allowed = allowed & tl.min(tl.where(misses, 0, 1), 0)
        tl.store(side + rows, tl.where(inside, 0, active).to(tl.int8), mask=some)
        tl.store(dual + rows, tl.where(inside, 0.0, multiplier * unit), mask=some)
        first += R
    residual = tl.maximum(stationarity, complementarity) / tl.maximum(reach, 1.0)
    judged = tl.where(allowed == 1, residual, INFINITY)
    solved = valid & (inside | (through & (residual <= SOLVED) & (certain == 1) & (idle == 0)))
    tl.store(y_end + column, tl.where(inside, start, y * unit), mask=column < n)
    tl.store(count_end, tl.where(inside, 0, tl.maximum(steps, 1)).to(tl.int64))
    tl.store(residual_end, tl.where(inside, 0.0, judged))
    tl.store(open_end, solved == 0)
    tl.store(met_end, valid & (inside | (judged <= SOLVED)))
    tl.debug_barrier()


@triton.jit
def _project_from_memory(
    raw, A, lower, upper, y, dual, side, counts, residuals, open_flags, met_flags, inverse, order, scratch, lengths,
    m, n, limit, batch,
    EACH: tl.constexpr, N: tl.constexpr, R: tl.constexpr, INSIDE: tl.constexpr, FEASIBLE: tl.constexpr,
    SOLVED: tl.constexpr, STRICT: tl.constexpr, CERTAIN: tl.constexpr, ALLOWED: tl.constexpr,
):  # fmt: skip
    """Every program takes one sample after another, in a workspace of its own."""
    program = tl.program_id(0).to(tl.int64)
    sample = program
    while sample < batch:
        _sample(
            raw + sample * n, A + sample * (m * n * EACH), lower + sample * m, upper + sample * m, y + sample * n,
            dual + sample * m, side + sample * m, counts + sample, residuals + sample, open_flags + sample,
            met_flags + sample, inverse + program * n * n, order + program * n, scratch + program * n,
            lengths + program * m, m, n, limit, N, R, INSIDE, FEASIBLE, SOLVED, STRICT, CERTAIN, ALLOWED,
        )  # fmt: skip
        sample += tl.num_programs(0)


@triton.jit
def _derive(
    grad, A, active, u_end, w_end, inverse, order, scratch, lengths, m, n, batch,
    EACH: tl.constexpr, N: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """``u = g - A_J'w``, ``w = (A_J')^+ g`` of every sample; a row that depends on those before gets no share."""
    program = tl.program_id(0).to(tl.int64)
    column, place = tl.arange(0, N), tl.arange(0, M)
    inverse, order, scratch, lengths = (
        inverse + program * n * n,
        order + program * n,
        scratch + program * n,
        lengths + program * m,
    )
    sample = program
    while sample < batch:
        own = A + sample * (m * n * EACH)
        chosen = tl.load(active + sample * m + place, mask=place < m, other=0).to(tl.int32) != 0
        tl.store(w_end + sample * m + place, place * 0.0, mask=place < m)
        count = 0
        index = tl.min(tl.where(chosen, place, M), 0)
        while index < M:
            row = tl.load(own + index.to(tl.int64) * n + column, mask=column < n, other=0.0)
            square = tl.sum(row * row, 0)
            scale = 1.0 / tl.sqrt(tl.where(square > 0.0, square, 1.0))
            tl.store(lengths + index, scale)
            tl.debug_barrier()
            z, _ = _outside(own, lengths, order, inverse, scratch, row * scale, count, n, N, R)
            if (tl.sum(z * z, 0) > UNRELATED) & (count < n):
                _join(inverse, order, scratch, z, index, count, n, N, R)
                count += 1
            index = tl.min(tl.where(chosen & (place > index), place, M), 0)
        vector = tl.load(grad + sample * n + column, mask=column < n, other=0.0)
        w = _images(inverse, scratch, vector, count, n, N, R)
        u = vector - _combination(own, lengths, order, scratch, count, n, N, R)
        w += _images(inverse, scratch, u, count, n, N, R)  # remove what rounding left of the active rows in u
        u -= _combination(own, lengths, order, scratch, count, n, N, R)
        index = tl.load(order + column, mask=column < count, other=0).to(tl.int64)
        w = w * tl.load(lengths + index, mask=column < count, other=0.0)
        tl.store(w_end + sample * m + index, w, mask=column < count)
        tl.store(u_end + sample * n + column, u, mask=column < n)
        tl.debug_barrier()
        sample += tl.num_programs(0)


def _workspace(batch: int, m: int, n: int, like: Tensor) -> tuple[int, tuple[Tensor, ...]]:
    """How many programs run, and for each an n x n matrix, n indices, n numbers, and a number for each row."""
    programs = min(batch, PROGRAMS)
    new = lambda *shape: like.new_empty(programs, *shape)
    return programs, (new(n, n), new(n).to(torch.int32), new(n), new(m))


def _sizes(n: int) -> dict[str, Any]:
    """The padded outputs, the rows of a tile, and the warps of a program."""
    N = padded(n)
    return {"N": N, "R": ROWS, "num_warps": max(1, min(MOST_WARPS, N // 32))}


@cache
def _memory_launcher(n: int, each: bool, tolerances: Tolerances) -> Launcher:
    """The kernel for problems with n outputs and any number of rows."""
    constants = {"EACH": int(each)} | {name.upper(): value for name, value in tolerances._asdict().items()}
    return Launcher(_project_from_memory, constants | _sizes(n))


def project_from_memory(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, limit: int, tolerances: Tolerances
) -> tuple[Tensor, ...]:
    """The same as `project_on_chip`, for any number of rows."""
    (batch, n), m = raw.shape, A.shape[-2]
    y, dual = torch.empty_like(raw), torch.empty_like(lower)
    side, steps = raw.new_empty(batch, m, dtype=torch.int8), raw.new_empty(batch, dtype=torch.long)
    residual, (unsolved, met) = raw.new_empty(batch), (raw.new_empty(batch, dtype=torch.bool) for _ in range(2))
    programs, workspace = _workspace(batch, m, n, raw)
    tensors = (raw, A, lower, upper, y, dual, side, steps, residual, unsolved, met, *workspace)
    _memory_launcher(n, A.dim() == 3, tolerances).launch((programs, 1, 1), tensors, (m, n, limit, batch))
    return y, dual, side, steps, residual, unsolved, met


@cache
def _derivative_launcher(m: int, n: int, each: bool) -> Launcher:
    """The kernel of the derivative."""
    return Launcher(_derive, {"EACH": int(each), "M": padded(m)} | _sizes(n))


def implicit_vjp(grad: Tensor, A: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `hardnet.nearest.derivative.masked_vjp`: u ``(B, n)`` and w ``(B, m)``, in one launch.

    Args:
        grad: ``(B, n)`` in float64.
        A: ``(m, n)`` or ``(B, m, n)``.
        active: ``(B, m)`` bool.
    """
    (batch, n), m = grad.shape, A.shape[-2]
    u, w = torch.empty_like(grad), grad.new_empty(batch, m)
    programs, workspace = _workspace(batch, m, n, grad)
    tensors = (grad, A, active, u, w, *workspace)
    _derivative_launcher(m, n, A.dim() == 3).launch((programs, 1, 1), tensors, (m, n, batch))
    return u, w


# The derivative of the projection onto a small polyhedron in one launch, one sample per program.
#
# With J the active rows, U their unit rows ``S A_J``, and g the cotangent of y,
#
#     v = (U U')^-1 U g,   u = g - U'v,   w = S v:     raw receives u,  A  -dual u' - w y',  the active bounds w.
#
# Everything is computed on chip in float64. A sample whose active rows are nearly dependent, or whose set is empty
# while the gradient of A is wanted, is flagged for the general path of `hardnet.nearest.derivative`.


WARPS = {256: 1, 512: 1, 1024: 2}
"""By the size of the padded A: the fewest warps whose registers hold A and its Gram matrix on sm_90."""
TINY = torch.finfo(torch.float64).tiny


class Saved(NamedTuple):
    """Results of the forward on a flat batch: y ``(B, n)``, dual and side ``(B, m)``, status ``(B,)``."""

    y: Tensor
    dual: Tensor
    side: Tensor
    status: Tensor


class Rules(NamedTuple):
    """The smallest trusted pivot of unit rows; the status of samples with zero gradients; the status of open ones."""

    tolerance: float
    invalid: int
    refused: int


class Found(NamedTuple):
    """The gradients of each sample, of A only if wanted, and 1 for the samples left open."""

    raw: Tensor
    matrix: Tensor | None
    lower: Tensor
    upper: Tensor
    open: Tensor


@triton.jit
def _load_bound(bound, sample, row, m, KIND: tl.constexpr):
    """A bound of one sample; ``KIND`` is shared 1, per sample 2."""
    return load_as(bound + (sample * m if KIND == 2 else 0) + row, row < m, COMPUTE)


@triton.jit
def _invert(tile, active, tolerance, M: tl.constexpr):
    """The inverse of a Gram matrix of unit rows, the identity off the active ones; and if all pivots are clear.

    Symmetric Gauss-Jordan sweeps as rank-one updates, which leave ``2 I - T^-1``, as in `affine_blocks`. Inactive rows
    need no sweep. The pivots are the squares of those of the Cholesky factor.
    """
    row = tl.arange(0, M)
    regular = True
    k = tl.min(tl.where(active, row, M), axis=0)
    while k < M:
        unit = tl.where(row == k, 1.0, 0.0).to(COMPUTE)
        column = tl.sum(tile * unit[None, :], axis=1)
        pivot = tl.sum(column * unit, axis=0)
        clear = pivot > tolerance  # false for NaN
        regular = regular & clear
        vector = column - unit
        tile = tl.fma(-vector[:, None], (vector / tl.where(clear, pivot, 1.0))[None, :], tile)
        k = tl.min(tl.where(active & (row > k), row, M), axis=0)
    return tl.where(row[:, None] == row[None, :], 2.0, 0.0) - tile, regular


@triton.jit
def _split(vector, rows, active, inverse):
    """``u = g - U'v`` and ``v = (U U')^-1 U g``; inactive rows are masked, as zero times an infinite g is NaN."""
    product = tl.where(active, tl.sum(rows * vector[None, :], axis=1), 0.0)
    multiplier = tl.sum(inverse * product[None, :], axis=1)
    return vector - tl.sum(rows * multiplier[:, None], axis=0), multiplier


@triton.jit
def _backward(
    grad, A, lower, upper, y, dual, side, status, grad_raw, grad_A, grad_lower, grad_upper, open_flag, m, n, tolerance,
    EACH: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, MATRIX: tl.constexpr, INVALID: tl.constexpr,
    REFUSED: tl.constexpr, TINY: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One sample; A is per sample or shared, bounds are absent (0), shared (1) or per sample (2)."""
    sample = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, M), tl.arange(0, N)
    exists = row < m
    state = tl.load(status + sample)
    sound = state != INVALID
    sides = tl.load(side + sample * m + row, mask=exists, other=0)
    tight = row < 0  # none: an absent bound equals no other
    if LOWER and UPPER:
        tight = exists & (_load_bound(lower, sample, row, m, LOWER) == _load_bound(upper, sample, row, m, UPPER))
    active = ((sides != 0) | tight) & sound

    start = sample * m * n
    places, inside = row[:, None] * n + column[None, :], exists[:, None] & (column < n)[None, :]
    rows = load_as(A + (start if EACH else 0) + places, inside, COMPUTE)
    # scaled after the product: Triton cannot feed a float64 product from values selected by narrow integers like `side`
    gram = tl.dot(rows, tl.trans(rows), input_precision="ieee", out_dtype=COMPUTE)
    rows = tl.where(active[:, None], rows, 0.0)  # an inactive row may contain anything, even NaN
    scale = tl.where(active, 1.0 / tl.sqrt(tl.maximum(tl.sum(rows * rows, axis=1), TINY)), 0.0)
    rows = rows * scale[:, None]
    identity = tl.where(row[:, None] == row[None, :], 1.0, 0.0).to(COMPUTE)
    gram = tl.where(active[:, None] & active[None, :], gram * scale[:, None] * scale[None, :], identity)
    inverse, regular = _invert(gram, active, tolerance, M)

    vector = load_as(grad + sample * n + column, column < n, COMPUTE)
    vector = tl.where(sound & (vector == vector), vector, 0.0)
    u, v = _split(vector, rows, active, inverse)
    u, rest = _split(u, rows, active, inverse)  # remove what rounding left of the active rows in u
    w = (v + rest) * scale
    store_from(grad_raw + sample * n + column, u, column < n)
    store_from(grad_lower + sample * m + row, w * tl.where(tight, 0.5, tl.where(sides < 0, 1.0, 0.0)), exists)
    store_from(grad_upper + sample * m + row, w * tl.where(tight, 0.5, tl.where(sides > 0, 1.0, 0.0)), exists)
    if MATRIX:
        at = load_as(y + sample * n + column, (column < n) & sound, COMPUTE)
        weight = load_as(dual + sample * m + row, exists & sound, COMPUTE)
        change = -weight[:, None] * u[None, :] - w[:, None] * at[None, :]
        store_from(grad_A + start + places, change, inside)
    tl.store(open_flag + sample, ((not regular) | (state == REFUSED)).to(tl.int8))


@cache
def _gradient_launcher(
    m: int, n: int, each: bool, lower: int, upper: int, matrix: bool, invalid: int, refused: int
) -> Launcher:
    """The kernel for samples of this shape; sizes are powers of two, at least 16."""
    height, width = padded(m), padded(n)
    kinds = {"EACH": each, "LOWER": lower, "UPPER": upper, "MATRIX": matrix}
    states = {"INVALID": invalid, "REFUSED": refused, "TINY": TINY}
    sizes = {"M": height, "N": width, "num_warps": WARPS[height * width]}
    return Launcher(_backward, kinds | states | sizes)


def launch_backward(
    grad: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    saved: Saved,
    rules: Rules,
    dtypes: Sequence[torch.dtype | None],
) -> Found:
    """The gradients of a flat batch in one launch, without reading a value on the host.

    Args:
        grad: Cotangent of y, ``(B, n)``; NaN counts as 0.
        A: ``(m, n)`` or ``(B, m, n)``, with m and n up to 32.
        lower: ``(m,)``, ``(B, m)`` or None.
        upper: Like `lower`.
        saved: What the forward found.
        rules: Which samples have zero gradients or are left open.
        dtypes: Dtypes of the gradients of raw, A (None: not wanted), lower and upper.
    """
    (batch, n), m = grad.shape, A.shape[-2]
    shapes = ((batch, n), (batch, m, n), (batch, m), (batch, m))
    parts = [
        None if dtype is None else grad.new_empty(shape, dtype=dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    found = Found(*parts, grad.new_empty(batch, dtype=torch.int8))
    low, high = (0 if bound is None else bound.dim() for bound in (lower, upper))
    kernel = _gradient_launcher(m, n, A.dim() == 3, low, high, found.matrix is not None, rules.invalid, rules.refused)
    inputs = tuple(dense(part, grad) for part in (grad, A, lower, upper, *saved))
    outputs = tuple(found.raw if part is None else part for part in found)
    kernel.launch((batch, 1, 1), (*inputs, *outputs), (m, n, rules.tolerance))
    return found
