"""The projection onto a box and one row on a GPU: a safeguarded Newton method on chip, one sample per program.

``phi(t) = a' clamp(raw - a t, low, high)`` decreases with t and is piecewise linear. A pass moves the point
``raw - a t``, which stays in registers, and sums phi and its slope in float64. The next t is Newton's if that lies
between the last t on either side of the root, else the next breakpoint or the midpoint. The last Newton step solves
exactly over the coordinates that are free at the answer. `hardnet.kernels.cpu.nearest_box` does the same on a CPU.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import bound_size

PASSES, PATIENCE = tl.constexpr(160), tl.constexpr(20)
"""The most passes, and the number of passes after which every third one halves the bracket."""
EPS = tl.constexpr(2.0**-52)
INSIDE, SOLVED_TO, STRICT = tl.constexpr(4.0), tl.constexpr(8.0 * 2.0**-52), tl.constexpr(1e-11)
"""`INSIDE`, `SOLVED` times EPS, and `STRICT` of `hardnet.solvers.polyhedron.box_rows`."""
CORRECTION = tl.constexpr(2.0**-20)
"""Fraction of t up to which a step is applied to the current point; a longer step recomputes the point from raw."""
SOLVED, INFEASIBLE, NOT_CONVERGED, INVALID = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
EXPONENT, TWICE_ONE, LARGEST = tl.constexpr(0x7FF << 52), tl.constexpr(2046 << 52), tl.constexpr(2045 << 52)
"""The exponent bits of a float64, twice the exponent of 1 (the exponents of ``2^k`` and ``2^-k`` add up to it), and the
largest exponent that has an inverse."""


@triton.jit
def _every(good):
    """Whether all entries are true."""
    return tl.min(tl.where(good, 1, 0), 0) == 1


@triton.jit
def inverse_scale(largest):
    """``1 / p`` for the largest power of two p up to a size; 1 for zero."""
    exponent = largest.to(tl.int64, bitcast=True) & EXPONENT
    exponent = tl.where(exponent == 0, TWICE_ONE // 2, tl.minimum(exponent, LARGEST))
    return (-(exponent - TWICE_ONE)).to(tl.float64, bitcast=True)


@triton.jit
def _sweep(p, a, low, high):
    """``a'clamp(p)``, the sum of ``a^2`` over the free coordinates, and the largest ``|clamp(p)|``."""
    y = tl.minimum(tl.maximum(p, low), high)
    slope = tl.where((p == y) & (low < high), a * a, 0.0)
    return tl.sum(a * y, 0), tl.sum(slope, 0), tl.max(tl.abs(y), 0)


@triton.jit
def _next_breakpoint(p, a, low, high, sign):
    """How far t moves, up (sign 1) or down, until a coordinate at its bound becomes free; infinite if none does."""
    slope = sign * a
    falls, rises = (slope > 0.0) & (p > high), (slope < 0.0) & (p < low)
    leaves = (falls | rises) & (low < high)
    way = tl.where(leaves, p - tl.where(falls, high, low), float("inf"))
    return tl.min(way / tl.where(leaves, slope, 1.0), 0)


@triton.jit
def _bracket(start, a, low, high, under, over):
    """An interval that contains t: no breakpoint is farther from zero, if the row involves no unbounded coordinate.

    Its ends are infinite otherwise, or if the box allows the row no value between its bounds.
    """
    feels = a != 0.0
    low, high = tl.where(feels, low, 0.0), tl.where(feels, high, 0.0)
    bounded = _every((low > float("-inf")) & (high < float("inf")))
    bottom = tl.sum(tl.where(a > 0.0, a * low, a * high), 0)
    top = tl.sum(tl.where(a > 0.0, a * high, a * low), 0)
    reach = tl.abs(start) + tl.maximum(tl.abs(low), tl.abs(high))
    farthest = (1.0 + 8.0 * EPS) * tl.max(tl.where(feels, reach / tl.where(feels, tl.abs(a), 1.0), 0.0), 0)
    known = bounded & (bottom <= over) & (top >= under) & (farthest > 0.0)
    return tl.where(known, -farthest, float("-inf")), tl.where(known, farthest, float("inf"))


@triton.jit
def load_row(pointer, sample, columns, mask, n, EACH: tl.constexpr):
    """One row in float64, zero beyond n; EACH is 1 per sample, 0 shared, 2 one number for all coordinates."""
    row = pointer + sample * n * EACH + columns
    loaded = tl.where(mask, tl.load(pointer), 0.0) if EACH == 2 else tl.load(row, mask=mask, other=0.0)
    return loaded.to(tl.float64)


@triton.jit
def forward(
    y, place, dual, side, status, residual, raw, A, lower, upper, low, high, n, rounding,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, ANSWER_ONLY: tl.constexpr,
):  # fmt: skip
    """Y ``(B, n)``, NaN where it is not solved; unless `ANSWER_ONLY`, place, dual, side, status and residual too.

    Place is ``(B, n)``, dual and side are ``(B, 1)``, status and residual ``(B,)``.

    `rounding` is the rounding of the dtype of the answer. ROWS to HIGH are 1 for numbers per sample, 0 for shared ones;
    LOW and HIGH are 2 for one number for all coordinates.
    """
    sample = tl.program_id(0).to(tl.int64)
    _project(
        y, place, dual, side, status, residual, raw, A, lower, upper, low, high, sample, n, rounding, BLOCK=BLOCK,
        ROWS=ROWS, LOWER=LOWER, UPPER=UPPER, LOW=LOW, HIGH=HIGH, ANSWER_ONLY=ANSWER_ONLY,
    )  # fmt: skip


@triton.jit
def finish(
    y, left, raw, A, lower, upper, low, high, batch, n, rounding,
    BLOCK: tl.constexpr, SHARE: tl.constexpr, ROWS: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """Y of the samples that `hardnet.kernels.gpu.nearest_box_short` left open; a program checks SHARE samples."""
    first = tl.program_id(0).to(tl.int64) * SHARE
    own = first + tl.arange(0, SHARE)
    if tl.max(tl.load(left + own, mask=own < batch, other=0).to(tl.int32), 0) == 1:
        for i in range(SHARE):
            sample = first + i
            if tl.load(left + sample, mask=sample < batch, other=0) == 1:
                _project(
                    y, y, y, y, y, y, raw, A, lower, upper, low, high, sample, n, rounding, BLOCK=BLOCK,
                    ROWS=ROWS, LOWER=LOWER, UPPER=UPPER, LOW=LOW, HIGH=HIGH, ANSWER_ONLY=True,
                )  # fmt: skip


@triton.jit
def _project(
    y, place, dual, side, status, residual, raw, A, lower, upper, low, high, sample, n, rounding,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, ANSWER_ONLY: tl.constexpr,
):  # fmt: skip
    """One sample in float64."""
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    start, a = load_row(raw, sample, columns, mask, n, 1), load_row(A, sample, columns, mask, n, ROWS)
    least, most = load_row(low, sample, columns, mask, n, LOW), load_row(high, sample, columns, mask, n, HIGH)
    under, over = tl.load(lower + sample * LOWER).to(tl.float64), tl.load(upper + sample * UPPER).to(tl.float64)
    sound = (tl.abs(start) < float("inf")) & (tl.abs(a) < float("inf"))
    sound = sound & (least <= most) & (least < float("inf")) & (most > float("-inf"))
    valid = _every(sound) & (under <= over) & (under < float("inf")) & (over > float("-inf"))
    # an invalid sample continues as a row of zeros without bounds, which is solved immediately
    start, a = tl.where(valid, start, 0.0), tl.where(valid, a, 0.0)
    least, most = tl.where(valid, least, 0.0), tl.where(valid, most, 0.0)
    shrink = inverse_scale(tl.max(tl.abs(a), 0))
    a = a * shrink
    under, over = tl.where(valid, under * shrink, float("-inf")), tl.where(valid, over * shrink, float("inf"))

    product, terms = tl.sum(a * start, 0), tl.sum(tl.abs(a * start), 0)
    weight = tl.sum(tl.abs(a), 0)
    limits = bound_size(under, over, weight)
    slack = INSIDE * rounding * (terms + limits)
    boxed = _every((start >= least) & (start <= most))
    inside = boxed & (product <= over + slack) & (product >= under - slack) & (slack < float("inf"))

    p = start
    phi, slope, largest = _sweep(p, a, least, most)
    target = tl.minimum(tl.maximum(phi, under), over)
    t = tl.full([], 0.0, tl.float64)
    back, ahead = _bracket(start, a, least, most, under, over)
    passes, stuck = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    misses = tl.abs(phi - target) > 2.0 * EPS * (weight * largest + limits)
    going = tl.where(misses & (inside == 0), 1, 0)
    while going != 0:
        miss = phi - target
        # an end on the wrong side of t comes from the rounding of a far raw, and is dropped
        back = tl.where(miss > 0.0, 0.0, tl.where(back < 0.0, back, float("-inf")))
        ahead = tl.where(miss > 0.0, tl.where(ahead > 0.0, ahead, float("inf")), 0.0)
        newton = miss / tl.where(slope > 0.0, slope, 1.0)
        bounded = (back > float("-inf")) & (ahead < float("inf"))
        halve = bounded & (passes > PATIENCE) & (passes % 3 == 0)
        between = ((newton > back) & (newton < ahead)) | (tl.abs(newton) <= CORRECTION * tl.abs(t))
        taken = (slope > 0.0) & between & (halve == 0)
        step = tl.where(taken, newton, tl.where(bounded, back + 0.5 * (ahead - back), 0.0))
        if (taken == 0) & (bounded == 0):
            sign = tl.where(miss > 0.0, 1.0, -1.0).to(tl.float64)
            far = _next_breakpoint(p, a, least, most, sign)
            stuck = tl.where(far < float("inf"), 0, 1)  # the row is as close to its target as the box allows
            step = tl.where(far < float("inf"), sign * far * (1.0 + 4.0 * EPS), 0.0)
        t, back, ahead = t + step, back - step, ahead - step
        # from raw, so that overshooting steps leave no rounding; small steps from p, because t does not resolve them
        p = tl.where(tl.abs(step) > CORRECTION * tl.abs(t), start - a * t, p - a * step)
        phi, slope, largest = _sweep(p, a, least, most)
        passes += 1
        misses = tl.abs(phi - target) > 2.0 * EPS * (weight * largest + limits)
        going = tl.where(misses & (stuck == 0) & (passes < PASSES), 1, 0)

    # check the result: the row holds, and the point that was moved step by step is raw - a t
    miss, size = tl.abs(phi - target), weight * largest + limits
    far = tl.max(tl.abs(start), 0)
    weighed = tl.max(tl.abs(a), 0) * tl.abs(t)
    answer = tl.minimum(tl.maximum(p, least), most)
    again = tl.minimum(tl.maximum(start - a * t, least), most)
    reach = tl.maximum(tl.maximum(far, largest), weighed)
    moved = tl.max(tl.abs(answer - again), 0)
    left = tl.where(inside, 0.0, miss / tl.where(size > 0.0, size, 1.0))
    pressed = (stuck == 1) & (slope == 0.0)
    empty = pressed & (miss > INSIDE * rounding * (weight * largest + tl.abs(target)))
    solved = pressed | ((left <= SOLVED_TO) & (moved <= 8.0 * SOLVED_TO * reach))
    solved = inside | (solved & (size < float("inf")))  # relative to an infinite size every miss would be zero
    ended = tl.where(empty, INFEASIBLE, tl.where(solved, SOLVED, NOT_CONVERGED))
    ended = tl.where(valid, ended, INVALID)

    rounded = answer.to(y.dtype.element_ty)
    held = _every(tl.abs(rounded) < float("inf"))  # it may overflow a narrower dtype
    tl.store(y + sample * n + columns, tl.where((ended == SOLVED) & held, rounded, float("nan")), mask=mask)
    if not ANSWER_ONLY:
        code = tl.where(p > most, 1, 0) - tl.where(p < least, 1, 0)
        code = tl.where(least == most, 2, code)
        tl.store(place + sample * n + columns, code.to(tl.int8), mask=mask)
        direction = tl.where(t > 0.0, 1, tl.where(t < 0.0, -1, 0))
        active = tl.where(weighed > STRICT * tl.maximum(far, weighed), direction, 0)
        tl.store(side + sample, tl.where(under == over, 2, active).to(tl.int8))
        witness = tl.where(phi > target, 1.0, -1.0).to(tl.float64)
        tl.store(dual + sample, tl.where(empty, witness, t) * shrink)
        tl.store(status + sample, ended.to(tl.int8))
        tl.store(residual + sample, left)
