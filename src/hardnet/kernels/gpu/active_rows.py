"""``argmin |y - raw|  subject to  lower <= A y <= upper`` for rows that do not fit on chip, one sample at a time.

The dual active-set method of Goldfarb and Idnani: the most violated row joins the active ones J, and rows whose
multipliers vanish on the way leave. A stays in memory and is read once for each row that joins. What changes is the
pseudo-inverse of the active unit rows, ``(A_J')^+``, at most n x n numbers in a workspace that stays in the cache. A
row a has the part ``z = a - A_J'r``, ``r = (A_J')^+ a``, outside their span; joining and leaving are rank-one changes.

A program takes one sample after another; its threads meet at barriers, since they share the workspace.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hardnet.kernels.gpu.common import CORRECTIONS, bound_size
from hardnet.kernels.gpu.launch import Launcher
from hardnet.kernels.gpu.projection import CLOSE, INFINITY, nearest_size, power_above, violation
from hardnet.kernels.limits import Tolerances, padded

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
    """Project one sample; names and tolerances as in `hardnet.kernels.gpu.projection`."""
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
def _project(
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
def _launcher(n: int, each: bool, tolerances: Tolerances) -> Launcher:
    """The kernel for problems with n outputs and any number of rows."""
    constants = {"EACH": int(each)} | {name.upper(): value for name, value in tolerances._asdict().items()}
    return Launcher(_project, constants | _sizes(n))


def project(
    raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, limit: int, tolerances: Tolerances
) -> tuple[Tensor, ...]:
    """The same as `hardnet.kernels.gpu.projection.project`, for any number of rows."""
    (batch, n), m = raw.shape, A.shape[-2]
    y, dual = torch.empty_like(raw), torch.empty_like(lower)
    side, steps = raw.new_empty(batch, m, dtype=torch.int8), raw.new_empty(batch, dtype=torch.long)
    residual, (unsolved, met) = raw.new_empty(batch), (raw.new_empty(batch, dtype=torch.bool) for _ in range(2))
    programs, workspace = _workspace(batch, m, n, raw)
    tensors = (raw, A, lower, upper, y, dual, side, steps, residual, unsolved, met, *workspace)
    _launcher(n, A.dim() == 3, tolerances).launch((programs, 1, 1), tensors, (m, n, limit, batch))
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
