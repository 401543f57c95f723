"""The nearest point of a box and rows on a GPU, one sample per program: one row, several rows, and all gradients."""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import bound_size
from hardnet.kernels.gpu.polyhedron import DEPENDENT, pivot_rows, step_of

# The projection onto a box and one row on a GPU: a safeguarded Newton method on chip, one sample per program.
#
# ``phi(t) = a' clamp(raw - a t, low, high)`` decreases with t and is piecewise linear. A pass moves the point
# ``raw - a t``, which stays in registers, and sums phi and its slope in float64. The next t is Newton's if that lies
# between the last t on either side of the root, else the next breakpoint or the midpoint. The last Newton step solves
# exactly over the coordinates that are free at the answer. `hardnet.kernels.cpu.nearest_box` does the same on a CPU.


PASSES, PATIENCE = tl.constexpr(160), tl.constexpr(20)
"""The most passes, and the number of passes after which every third one halves the bracket."""
EPS = tl.constexpr(2.0**-52)
INSIDE, SOLVED_TO, STRICT = tl.constexpr(4.0), tl.constexpr(8.0 * 2.0**-52), tl.constexpr(1e-11)
"""`INSIDE` and `STRICT` of `hardnet.kernels.limits`, and `SOLVED_ROUNDINGS` of the solver in plain torch."""
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
    """Y of the samples that `forward_short` left open; a program checks SHARE samples."""
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


# The projection onto a box and several rows on a GPU: a globalized Newton method on chip, one sample per program.
#
# ``y(dual) = clamp(raw - A'dual, low, high)``, so k multipliers determine y. They maximize a concave, piecewise
# quadratic function with the gradient ``A y(dual)`` less the bounds that the multipliers select. A step maximizes the
# piece at hand, with the right signs of the multipliers, by pivoting on the Gram matrix of the free coordinates
# (`hardnet.kernels.gpu.polyhedron`), and searches along the way there; where the function grows forever, the way
# proves that the set is empty. Newton steps on the active rows then move the point in small steps, so that rows hold
# to rounding of y, however far away raw was. `hardnet.solvers.polyhedron.box_rows` explains those steps, the checks
# and the verdict.


FEASIBLE = tl.constexpr(4)
"""The status of a point in the set that is not proved to be the nearest."""
STEPS, ATTEMPTS, POLISHES, TRIALS = tl.constexpr(200), tl.constexpr(4), tl.constexpr(8), tl.constexpr(60)
"""The most steps with a search, attempts to end with steps without one, such steps, and points that a search tries."""
SOFT = tl.constexpr(1e-10)
"""What is added to the diagonal of the Gram matrix of unit rows, so that a step exists: it holds the multipliers back,
not the answer."""
ENOUGH, SETTLED = tl.constexpr(0.1), tl.constexpr(1e-6)
"""Fraction of its slope at the start to which a search reduces the slope, and the same where no coordinate is free."""
VERIFIED, NO_SLOPE = tl.constexpr(11.0), tl.constexpr(64 * 2.0**-52)
"""`VERIFIED` and `NO_SLOPE` of `hardnet.solvers.polyhedron.box_rows`."""


@triton.jit
def _clamp(value, low, high):
    """The nearest number between two."""
    return tl.minimum(tl.maximum(value, low), high)


@triton.jit
def times(A, vector):
    """``A v``."""
    return tl.sum(A * vector[None, :], 1)


@triton.jit
def transposed(A, weights):
    """``A' w``."""
    return tl.sum(A * weights[:, None], 0)


@triton.jit
def load_rows(A, sample, k, n, EACH: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """The rows ``(K, N)`` of a sample in float64, zero beyond k and n; EACH is 1 per sample, 0 shared."""
    row, column = tl.arange(0, K)[:, None], tl.arange(0, N)[None, :]
    places = sample * k * n * EACH + row * n + column
    return tl.load(A + places, mask=(row < k) & (column < n), other=0.0).to(tl.float64)


@triton.jit
def gram_of(A, rows, K: tl.constexpr, DOT: tl.constexpr):
    """``A R'`` for R the rows of A over some coordinates; if ``DOT``, by the matrix units."""
    row = tl.arange(0, K)
    gram = tl.zeros([K, K], tl.float64)
    if DOT:
        gram = tl.dot(A, tl.trans(rows), gram, input_precision="ieee", out_dtype=tl.float64)
    else:
        for i in range(K):
            here = row == i
            column = times(A, tl.sum(tl.where(here[:, None], rows, 0.0), 0))
            gram = tl.where(here[None, :], column[:, None], gram)
    return gram


@triton.jit
def sweep(T, chosen, tolerance, K: tl.constexpr):
    """The tableau with the chosen rows swept in, as `pivot_rows` leaves it; and those that had a clear pivot."""
    row = tl.arange(0, K)
    swept = tl.zeros([K], tl.float64)
    i = tl.min(tl.where(chosen != 0.0, row, K), 0)
    while i < K:
        here = row == i
        column = tl.sum(tl.where(here[:, None], T, 0.0), 0)
        pivot = tl.sum(tl.where(here, column, 0.0), 0)
        if pivot > tolerance:
            inverse = 1.0 / pivot
            T = T - (column * inverse)[:, None] * column[None, :]
            column = tl.where(here, -inverse, column * inverse)
            T = tl.where(here[:, None], column[None, :], tl.where(here[None, :], column[:, None], T))
            swept = tl.where(here, 1.0, swept)
        i = tl.min(tl.where((chosen != 0.0) & (row > i), row, K), 0)
    return T, swept


@triton.jit
def solve_swept(T, gram, swept, missing):
    """``K_J^-1 missing_J`` for the swept rows J, refined once; zero off J."""
    step = step_of(T, swept, missing)
    return step + step_of(T, swept, missing - tl.sum(gram * step[None, :], 1))


@triton.jit
def unit_scales(gram, rows, K: tl.constexpr):
    """``1 / |r_i|`` for the rows over some coordinates, with a given length where they are zero there."""
    place = tl.arange(0, K)
    squares = tl.sum(tl.where(place[:, None] == place[None, :], gram, 0.0), 1)
    squares = tl.where(squares > 0.0, squares, rows)
    return 1.0 / tl.sqrt(tl.where(squares > 0.0, squares, 1.0))


@triton.jit
def _climb(q, c, low, high, dual, way, toward, lower, upper):
    """The slope of the dual function along the way at a point, how fast the slope falls, and its terms.

    A multiplier of zero selects the bound `toward` which it goes: the slope ahead of the point, or behind it.
    """
    y = _clamp(q, low, high)
    falls = tl.sum(tl.where((q == y) & (low < high), c * c, 0.0), 0)
    selects = tl.where(dual != 0.0, dual, toward)
    price = tl.where(way != 0.0, tl.where(selects > 0.0, upper, lower), 0.0) * way
    terms = tl.sum(tl.abs(c * y), 0) + tl.sum(tl.abs(price), 0)
    return tl.sum(c * y, 0) - tl.sum(price, 0), falls, terms


@triton.jit
def _until_change(q, c, low, high):
    """How much longer the way goes until a coordinate at its bound becomes free; infinite if none does."""
    down, up = (c > 0.0) & (q > high), (c < 0.0) & (q < low)
    leaves = (down | up) & (low < high)
    way = tl.where(leaves, q - tl.where(down, high, low), float("inf"))
    return tl.min(way / tl.where(leaves, c, 1.0), 0)


@triton.jit
def _search(p, c, low, high, dual, way, lower, upper):
    """How far to go along ``raw - A'(dual + t way)``; whether that is the whole way, and on one piece.

    The last number is 1 where the function grows forever.

    No multiplier may change its sign beyond t = 1. Up to there, the way ends at multipliers with the right signs.
    """
    steepest, _, terms = _climb(p, c, low, high, dual, way, way, lower, upper)
    shrinks = dual * way < 0.0
    ratio = tl.abs(dual) / tl.where(shrinks, tl.abs(way), 1.0)
    cap = tl.min(tl.where(shrinks & (ratio >= 1.0), ratio, float("inf")), 0)
    box = tl.maximum(tl.where(low > float("-inf"), tl.abs(low), 0.0), tl.where(high < float("inf"), tl.abs(high), 0.0))
    span, fastest = 2.0 * tl.max(tl.abs(p) + box, 0), tl.max(tl.abs(c), 0)
    t = tl.minimum(1.0, tl.where(fastest > 0.0, span / tl.where(fastest > 0.0, fastest, 1.0), 1.0))
    t = tl.where(t > 0.0, t, 1.0)
    first, last = t * 0.0, t * 0.0 + float("inf")
    slope, endless = steepest, 0
    passes = 0
    going = tl.where(steepest > 4.0 * EPS * terms, 1, 0)
    flat = going == 0
    while going == 1:
        q = p - t * c
        slope, falls, _ = _climb(q, c, low, high, dual + t * way, way, -way, lower, upper)
        # where no coordinate is free, the next step would know no curvature: go on to where one is
        fair = tl.where(falls > 0.0, ENOUGH, SETTLED) * steepest
        good = (tl.abs(slope) <= fair) | ((slope > 0.0) & (t >= cap))
        first, last = tl.where(slope > 0.0, t, first), tl.where(slope > 0.0, last, t)
        bounded = last < float("inf")
        newton = t + slope / tl.where(falls > 0.0, falls, 1.0)
        taken = (falls > 0.0) & (newton > first) & (newton < last) & ((passes % 3 != 2) | (bounded == 0))
        after = tl.where(taken, newton, tl.where(bounded, 0.5 * (first + last), t))
        if (good == 0) & (taken == 0) & (bounded == 0):
            far = t + _until_change(q, c, low, high) * (1.0 + 4.0 * EPS)
            endless = tl.where((far == float("inf")) & (cap == float("inf")), 1, 0)
            after = far
        narrow = bounded & (first > 0.0) & (last - first <= ENOUGH * last)
        passes += 1
        going = tl.where(good | narrow | (endless == 1) | (passes >= TRIALS), 0, 1)
        if (going == 0) & (good == 0) & (endless == 0):
            after = first + _until_change(p - first * c, c, low, high) * (1.0 + 4.0 * EPS)
            after = tl.where(after < last, after, first)
        t = tl.where(good | (endless == 1), t, tl.minimum(after, cap))
    same = tl.abs(slope) <= SETTLED * steepest
    return tl.where(flat, 0.0, t), flat | (t == 1.0), flat | ((t == 1.0) & same), endless


@triton.jit
def _judge(start, A, lower, upper, low, high, p, dual, length, limits, rounding):
    """Whether the rows hold at ``clamp(p)``, and the residual in units of what counts as solved: see the CPU kernel."""
    y = _clamp(p, low, high)
    product, reach, far = times(A, y), tl.max(tl.abs(y), 0), tl.max(tl.abs(start), 0)
    size = length * reach + limits
    target = _clamp(product + length * dual, lower, upper)
    miss = tl.max(tl.abs(product - target) / tl.where(size > 0.0, size, 1.0), 0)
    outside = tl.maximum(tl.maximum(product - upper, lower - product), 0.0)
    floor = tl.where(limits > 0.0, 0.0, rounding * length)
    good = (outside <= VERIFIED * rounding * (size + floor)) & (size < float("inf"))
    again = _clamp(start - transposed(A, dual), low, high)
    weight = tl.max(transposed(tl.abs(A), tl.abs(dual)), 0)
    whole = tl.maximum(tl.maximum(far, reach), weight)
    moved = tl.max(tl.abs(y - again), 0) / tl.where(whole > 0.0, whole, 1.0)
    return tl.min(tl.where(good, 1, 0), 0), tl.maximum(miss, moved / 8.0) / SOLVED_TO


@triton.jit
def _contradicts(A, v, lower, upper, low, high, rounding):
    """Whether the minimum of ``v'A y`` over the box exceeds the most that the rows allow, by more than rounding."""
    slope, terms = transposed(A, v), transposed(tl.abs(A), tl.abs(v))
    corner = tl.where(slope > 0.0, low, high)
    slope = tl.where((tl.abs(corner) == float("inf")) & (tl.abs(slope) <= NO_SLOPE * terms), 0.0, slope)
    corner = tl.where(slope == 0.0, 0.0, corner)
    most = tl.where(v == 0.0, 0.0, tl.where(v > 0.0, upper, lower)) * v
    slack = INSIDE * rounding * (tl.sum(terms * tl.abs(corner), 0) + tl.sum(tl.abs(most), 0))
    return tl.sum(slope * corner, 0) - tl.sum(most, 0) > slack


@triton.jit
def _witness(A, way, dual, lower, upper, low, high, rounding, k, K: tl.constexpr):
    """Weights of rows that contradict each other in the box: the way, the dual, or one row; zero if none do."""
    row = tl.arange(0, K)
    found = tl.zeros([K], tl.float64)
    tried, empty = 0, 0
    while (tried < 2 * k + 2) & (empty == 0):
        single = tl.where(row == tried // 2 - 1, 1.0 - 2.0 * (tried % 2), 0.0)
        v = tl.where(tried == 0, way, tl.where(tried == 1, dual, single))
        largest = tl.max(tl.abs(v), 0)
        v = v / tl.where(largest > 0.0, largest, 1.0)
        empty = tl.where(_contradicts(A, v, lower, upper, low, high, rounding), 1, 0)
        found = tl.where(empty == 1, v, found)
        tried += 1
    return found, empty


@triton.jit
def forward_rows(
    y, place, dual, side, status, residual, raw, A, lower, upper, low, high, k, n, rounding,
    K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, ANSWER_ONLY: tl.constexpr,
):  # fmt: skip
    """Y ``(B, n)``, NaN where it is not in the set; unless `ANSWER_ONLY`, place, dual, side, status and residual too.

    Shapes as in `hardnet.solvers.polyhedron.box_rows.Outcome`; the codes ROWS to HIGH as in `nearest_box.forward`.
    """
    sample = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, K), tl.arange(0, N)
    inside_n, inside_k = column < n, row < k
    start, rows = load_row(raw, sample, column, inside_n, n, 1), load_rows(A, sample, k, n, ROWS, K, N)
    least, most = load_row(low, sample, column, inside_n, n, LOW), load_row(high, sample, column, inside_n, n, HIGH)
    under = tl.load(lower + sample * k * LOWER + row, mask=inside_k, other=float("-inf")).to(tl.float64)
    over = tl.load(upper + sample * k * UPPER + row, mask=inside_k, other=float("inf")).to(tl.float64)
    sound = (tl.abs(start) < float("inf")) & (tl.max(tl.abs(rows), 0) < float("inf"))
    sound = sound & (tl.sum(tl.where(rows == rows, 0.0, 1.0), 0) == 0.0)
    sound = sound & (least <= most) & (least < float("inf")) & (most > float("-inf"))
    bounds = (under <= over) & (under < float("inf")) & (over > float("-inf"))
    valid = (tl.min(tl.where(sound, 1, 0), 0) == 1) & (tl.min(tl.where(bounds, 1, 0), 0) == 1)
    # an invalid sample continues as rows of zeros without bounds, which is solved immediately
    start, rows = tl.where(valid, start, 0.0), tl.where(valid, rows, 0.0)
    least, most = tl.where(valid, least, 0.0), tl.where(valid, most, 0.0)
    shrink = inverse_scale(tl.max(tl.abs(rows), 1))
    rows = rows * shrink[:, None]
    under, over = tl.where(valid, under * shrink, float("-inf")), tl.where(valid, over * shrink, float("inf"))

    # the unit of the sample, a power of two
    p = _clamp(start, least, most)
    product = times(rows, p)
    away = tl.maximum(product - over, under - product)
    away = tl.max(tl.where(away < float("inf"), away, 0.0), 0)
    unit = inverse_scale(tl.maximum(tl.maximum(tl.max(tl.abs(start), 0), tl.max(tl.abs(p), 0)), away))
    start, least, most, under, over = start * unit, least * unit, most * unit, under * unit, over * unit

    length = tl.sum(tl.abs(rows), 1)
    limits = bound_size(under, over, length)
    product, terms = times(rows, start), times(tl.abs(rows), tl.abs(start))
    slack = INSIDE * rounding * (terms + limits)
    holds = (product <= over + slack) & (product >= under - slack) & (slack < float("inf"))
    boxed = tl.min(tl.where((start >= least) & (start <= most), 1, 0), 0) == 1
    inside = boxed & (tl.min(tl.where(holds, 1, 0), 0) == 1)

    p = start
    far = tl.max(tl.abs(start), 0)
    equal = under == over
    squares = tl.sum(rows * rows, 1)
    weight = tl.zeros([K], tl.float64)
    way, before, guess = weight, weight, weight
    steps, polishes, again, endless, met = 0, 0, 0, 0, 1
    worst = far * 0.0
    polishing = 0
    going = tl.where(inside, 0, 1)
    while going == 1:
        answer = _clamp(p, least, most)
        reach = tl.max(tl.abs(answer), 0)
        size = length * reach + limits
        product = times(rows, answer)
        # the point is accurate to rounding of raw, and less so after long steps
        near = EPS * tl.where(polishing == 1, 4.0, 64.0) * far
        free = (p > least - near) & (p < most + near) & (least < most)
        gram = gram_of(rows, tl.where(free[None, :], rows, 0.0), K, K >= 16)
        scale = unit_scales(gram, squares, K)
        diagonal = row[:, None] == row[None, :]
        curvature = 1.0 / (scale * scale)
        gram = gram * scale[:, None] * scale[None, :]
        value, high_end, low_end = product * scale, over * scale, under * scale
        push = weight / scale
        soft = tl.where(polishing == 1, 0.0, SOFT).to(tl.float64)
        # a row without free coordinates has no curvature: the way is mostly its own, up to where it gets some
        gram = tl.where(diagonal, tl.where(gram > 0.0, 1.0, 0.0).to(tl.float64) + soft, gram)
        goal = product + curvature * weight
        target = _clamp(goal, under, over)
        if polishing == 1:
            guess = tl.where((goal != target) | equal, 1.0, 0.0).to(tl.float64)
        T, chosen = sweep(gram, guess, DEPENDENT, K)
        if polishing == 1:  # a row that depends on the others keeps its multiplier
            bound, stays = target * scale, guess != 0.0
        else:
            start_value = value + tl.sum(gram * push[None, :], 1)
            rough = EPS * (2.0 * size * scale + 4.0 * tl.sum(tl.abs(gram) * tl.abs(push)[None, :], 1))
            # the rows of the last step, if they solve this piece too
            bound = tl.where(guess > 0.0, high_end, tl.where(guess < 0.0, low_end, 0.0))
            tried = step_of(T, chosen, start_value - bound)
            rest = start_value - tl.sum(gram * tried[None, :], 1)
            wrong = ((rest > high_end + rough) | (rest < low_end - rough)) & (chosen == 0.0)
            wrong = wrong | ((tried * guess < 0.0) & (equal == 0)) | ((guess != 0.0) & (chosen == 0.0))
            if (steps == 0) | (tl.max(tl.where(wrong, 1, 0), 0) == 1):
                _, guess, _, _, T = pivot_rows(gram, start_value, low_end, high_end, rough, 8 * K + 20, K)
            chosen = guess
            bound, stays = tl.where(guess > 0.0, high_end, tl.where(guess < 0.0, low_end, 0.0)), guess != 0.0
        held = chosen != 0.0
        dropped = tl.where(stays, 0.0, push)
        missing = value - bound + tl.sum(gram * dropped[None, :], 1)
        missing = tl.where(held & (tl.abs(missing) > EPS * size * scale), missing, 0.0)
        step = solve_swept(T, gram, chosen, missing) * scale
        step = tl.where(held, step, tl.where(stays, 0.0, -weight))
        if polishing == 1:
            p = p - transposed(rows, step)
            weight = weight + step
            polishes += 1
            if (tl.max(tl.abs(step), 0) == 0.0) | (polishes >= POLISHES):
                met, worst = _judge(start, rows, under, over, least, most, p, weight, length, limits, rounding)
                again += 1
                done = ((met == 1) & (worst <= 1.0)) | (again == ATTEMPTS) | (steps >= STEPS)
                going = tl.where(done, 0, 1)
                polishing, polishes = 0, 0
                weight = tl.where(done, weight, before)
                guess = before * 0.0
                p = tl.where(done, p, start - transposed(rows, weight))
        else:
            # rounding must not give a multiplier the wrong sign
            signed = tl.where(chosen > 0.0, tl.maximum(step, -weight), tl.minimum(step, -weight))
            way = tl.where(equal | (held == 0), step, signed)
            c = transposed(rows, way)
            c = tl.where(tl.abs(c) > NO_SLOPE * transposed(tl.abs(rows), tl.abs(way)), c, 0.0)
            t, whole, kept, endless = _search(p, c, least, most, weight, way, under, over)
            weight = weight + t * way
            p = start - transposed(rows, weight)
            steps += 1
            # after a vain attempt, only where the piece was the same
            settled = kept | (whole & (again == 0))
            polishing = tl.where(settled | (steps >= STEPS), 1, 0)
            before = weight
            if endless == 1:
                going, met, worst = 0, 0, far * 0.0 + float("inf")

    empty = 0
    witness = weight
    if (inside == 0) & ((met == 0) | (worst > 1.0)):
        witness, empty = _witness(rows, way, weight, under, over, least, most, rounding, k, K)
    ended = tl.where(met == 1, tl.where(worst <= 1.0, SOLVED, FEASIBLE), NOT_CONVERGED)
    ended = tl.where(valid, tl.where(inside, SOLVED, tl.where(empty == 1, INFEASIBLE, ended)), INVALID)

    # in the units given, and inside the box as given: a bound may have vanished beside a large raw
    given = load_row(raw, sample, column, inside_n, n, 1)
    floor, top = load_row(low, sample, column, inside_n, n, LOW), load_row(high, sample, column, inside_n, n, HIGH)
    answer = tl.where(inside, given, _clamp(_clamp(p, least, most) / unit, floor, top))
    rounded = answer.to(y.dtype.element_ty)
    kept = tl.min(tl.where(tl.abs(rounded) < float("inf"), 1, 0), 0) == 1  # it may overflow a narrower dtype
    good = ((ended == SOLVED) | (ended == FEASIBLE)) & kept
    tl.store(y + sample * n + column, tl.where(good, rounded, float("nan")), mask=inside_n)
    if not ANSWER_ONLY:
        code = tl.where(p > most, 1, 0) - tl.where(p < least, 1, 0)
        code = tl.where(floor == top, 2, code)
        tl.store(place + sample * n + column, code.to(tl.int8), mask=inside_n)
        pulls = tl.max(tl.abs(rows), 1) * tl.abs(weight)
        strict = pulls > STRICT * tl.maximum(far, tl.max(pulls, 0))
        direction = tl.where(strict, tl.where(weight > 0.0, 1, -1), 0)
        tl.store(side + sample * k + row, tl.where(equal, 2, direction).to(tl.int8), mask=inside_k)
        final = tl.where(empty == 1, witness, weight / unit) * shrink
        tl.store(dual + sample * k + row, final, mask=inside_k)
        tl.store(status + sample, tl.where(good | (ended > 0), ended, NOT_CONVERGED).to(tl.int8))
        tl.store(residual + sample, tl.where(inside, 0.0, worst * SOLVED_TO))


# The derivative of the projection onto a box and few rows on a GPU: all gradients of one sample in one program.
#
# `hardnet.nearest.derivative` has the formulas and the same in plain torch.


UNRELATED = tl.constexpr(1e-14)
"""The squared distance of a unit row from the span of those before it below which its gradient is left to them."""
GRADIENT_CORRECTIONS = tl.constexpr(3)
"""Corrections of the multipliers by what they leave of the gradient along the rows."""


@triton.jit
def _share(code, part: tl.constexpr, value):
    """The value for the bound with this code, and half of it where both bounds are equal."""
    return tl.where(code == part, value, tl.where(code == 2, 0.5 * value, 0.0))


@triton.jit
def _store(pointer, value, mask):
    """Store in the dtype of the memory."""
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def backward(
    grad_raw, grad_A, grad_lower, grad_upper, grad_low, grad_high, grad, A, y, place, dual, side, status, k, n,
    K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, MATRIX: tl.constexpr, BOX: tl.constexpr,
):  # fmt: skip
    """The gradients of every sample; those of A and of the box if ``MATRIX`` and ``BOX``; zero for unanswered samples.

    ROWS is 1 if A is per sample.
    """
    sample = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, K), tl.arange(0, N)
    inside_k, inside_n = row < k, column < n
    state = tl.load(status + sample).to(tl.int32)
    good = (state == SOLVED) | (state == FEASIBLE)
    at = tl.load(place + sample * n + column, mask=inside_n, other=2).to(tl.int32)
    sides = tl.load(side + sample * k + row, mask=inside_k, other=0).to(tl.int32)
    free, active = (at == 0) & good, (sides != 0) & good
    vector = tl.load(grad + sample * n + column, mask=inside_n, other=0.0).to(tl.float64)
    vector = tl.where(good & (vector == vector), vector, 0.0)
    rows = load_rows(A, sample, k, n, ROWS, K, N)
    rows = tl.where(active[:, None] & (tl.abs(rows) < float("inf")), rows, 0.0)
    shrink = inverse_scale(tl.max(tl.abs(rows), 1))
    rows = rows * shrink[:, None]
    chosen = rows * tl.where(free, 1.0, 0.0)[None, :]
    # Triton cannot feed a float64 product of the matrix units from values selected by narrow integers like `place`
    gram = gram_of(rows, chosen, K, False)
    scale = unit_scales(gram, row * 0.0, K)
    gram = tl.where(row[:, None] == row[None, :], 1.0, gram * scale[:, None] * scale[None, :])
    T, swept = sweep(gram, tl.where(active, 1.0, 0.0), UNRELATED, K)
    w = step_of(T, swept, times(chosen, vector) * scale)
    for _ in tl.static_range(GRADIENT_CORRECTIONS):
        rest = vector - transposed(chosen, w * scale)
        w += step_of(T, swept, times(chosen, rest) * scale)
    w = w * scale
    rest = tl.where(good, vector - transposed(rows, w), 0.0)
    w = w * shrink
    u = tl.where(free, rest, 0.0)
    _store(grad_raw + sample * n + column, u, inside_n)
    _store(grad_lower + sample * k + row, _share(sides, -1, w), inside_k)
    _store(grad_upper + sample * k + row, _share(sides, 1, w), inside_k)
    if BOX:
        held = tl.where(free, 0.0, rest)
        _store(grad_low + sample * n + column, _share(at, -1, held), inside_n)
        _store(grad_high + sample * n + column, _share(at, 1, held), inside_n)
    if MATRIX:
        answer = tl.load(y + sample * n + column, mask=inside_n, other=0.0).to(tl.float64)
        answer = tl.where(tl.abs(answer) < float("inf"), answer, 0.0)
        weight = tl.where(active, tl.load(dual + sample * k + row, mask=inside_k, other=0.0), 0.0)
        change = -weight[:, None] * u[None, :] - w[:, None] * answer[None, :]
        places = sample * k * n + row[:, None] * n + column[None, :]
        _store(grad_A + places, change, inside_k[:, None] & inside_n[None, :])


# A box and one row of float32 numbers on a GPU: approach the multiplier in float32, refine it in pairs of float32.
#
# ``y = clamp(raw - a t, low, high)`` with t as the sum of two float32 numbers is accurate to the rounding of y.
# Newton's method in float32 comes near the root with half the registers and a third of the instructions of float64.
# Then the row is summed without rounding at exactly the y that would be stored, and t is corrected until the row
# misses its bound by no more than the rounding of the free coordinates. Samples that do not get there (far raws,
# terms too small for float32, empty sets, invalid numbers) are left to the float64 kernel.


SHORT_PASSES, SHORT_CORRECTIONS = tl.constexpr(16), tl.constexpr(4)
"""The most passes in float32, and the most corrections in float64 after them."""
NEAR = tl.constexpr(2.0**-17)
"""Fraction of t for a step, or of the bound for a miss, below which the rest is left to the corrections."""
FEW = tl.constexpr(1.0 / 16.0)
"""Fraction of the steepest slope below which Newton's step may overshoot the root by far."""
SHORT_INSIDE, ROUNDING = tl.constexpr(4.0 * 2.0**-23), tl.constexpr(2.0**-23)
SMALL = tl.constexpr(2.0**-100)
"""Mean size of a row's terms above which they lose no digits to float32 underflow."""
SOUND, OUTSIDE, WRONG = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _bound(pointer, sample, columns, mask, n, absent, EACH: tl.constexpr):
    """The bounds of all coordinates, `absent` beyond n; one number for all coordinates takes a single register."""
    each = pointer + sample * n * EACH + columns
    return tl.load(pointer) if EACH == 2 else tl.load(each, mask=mask, other=absent)


@triton.jit
def _finite(value):
    """``|value|``, zero for an infinite one."""
    return tl.where(tl.abs(value) < float("inf"), tl.abs(value), 0.0)


@triton.jit
def _add_exactly(sum_, rest, other, other_rest):
    """The sum of two numbers, and its rounding error added to the errors of both."""
    total = sum_ + other
    moved = total - sum_
    return total, (rest + other_rest) + ((sum_ - (total - moved)) + (other - moved))


@triton.jit
def _exact_product(a, y):
    """``a'y`` in float64 from float32 sums with their rounding errors: half the registers of float64 terms."""
    term = a * y
    total, rest = tl.reduce((term, tl.fma(a, y, -term)), 0, _add_exactly)
    return total.to(tl.float64) + rest.to(tl.float64)


@triton.jit
def _point(start, a, t):
    """``raw - a t`` for t in float64, to the rounding of the result."""
    head = t.to(tl.float32)
    return tl.fma(-a, (t - head.to(tl.float64)).to(tl.float32), tl.fma(-a, head, start))


@triton.jit
def _sweep_short(p, a, low, high):
    """``a'clamp(p)`` and the sum of ``a^2`` over the free coordinates, in float32."""
    y = _clamp(p, low, high)
    free = tl.where(p == y, a, 0.0)
    return tl.sum(a * y, 0), tl.sum(free * free, 0)


@triton.jit
def _approach(start, a, low, high, under, over):
    """T near the root of ``a'clamp(raw - a t) = target``, by Newton's method in float32 within the bracket so far.

    Where few coordinates are free, the step uses the slope of all of them: the row falls no faster than that, so the
    step does not overshoot the root. If few are free at raw, the first step is the one without a box.
    """
    phi, slope = _sweep_short(start, a, low, high)
    steepest = tl.sum(a * a, 0)
    target = _clamp(phi, under, over)
    t = phi * 0.0
    back, ahead = t - float("inf"), t + float("inf")
    if (slope <= FEW * steepest) & (phi != target):
        back, ahead = tl.where(phi > target, t, back), tl.where(phi > target, ahead, t)
        whole = tl.sum(a * start, 0) - target
        # without the box, the row may be on the other side of its bound
        way = tl.where((whole > 0.0) == (phi > target), whole, phi - target)
        t = way / tl.where(steepest > 0.0, steepest, 1.0)
        phi, slope = _sweep_short(tl.fma(-a, t, start), a, low, high)
    passes, going = tl.full([], 0, tl.int32), tl.full([], 1, tl.int32)
    while going != 0:
        miss = phi - target
        back, ahead = tl.where(miss > 0.0, t, back), tl.where(miss > 0.0, ahead, t)
        bounded = (back > float("-inf")) & (ahead < float("inf"))
        steep = tl.where(bounded | (slope > FEW * steepest), slope, steepest)
        newton = t + miss / tl.where(steep > 0.0, steep, 1.0)
        between = (steep > 0.0) & (newton >= back) & (newton <= ahead)
        following = tl.where(between, newton, tl.where(bounded, 0.5 * back + 0.5 * ahead, t))
        near = (tl.abs(following - t) <= NEAR * tl.abs(following)) | (tl.abs(miss) <= NEAR * tl.abs(target))
        t = following
        passes += 1
        going = tl.where(near | (passes >= SHORT_PASSES), 0, 1)
        if going != 0:
            phi, slope = _sweep_short(tl.fma(-a, t, start), a, low, high)
    return t


@triton.jit
def forward_short(
    y, left, raw, A, lower, upper, low, high, vectors,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Y ``(B, n)`` of the samples that could be settled; ``left`` ``(B,)`` is 1 for the others, left to float64.

    ROWS to HIGH are 1 for numbers per sample, 0 for shared ones; LOW and HIGH are 2 for one number for all
    coordinates. ``n = VECTOR vectors``, with VECTOR = gcd(n, 4), so that VECTOR numbers are loaded at a time.
    """
    sample, n = tl.program_id(0).to(tl.int64), VECTOR * vectors
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    least = _bound(low, sample, columns, mask, n, float("-inf"), LOW)
    most = _bound(high, sample, columns, mask, n, float("inf"), HIGH)
    a = tl.load(A + sample * n * ROWS + columns, mask=mask, other=0.0)
    start = tl.load(raw + sample * n + columns, mask=mask, other=_clamp(0.0, least, most))
    under, over = tl.load(lower + sample * LOWER), tl.load(upper + sample * UPPER)
    # a clamp would hide these; an infinite or NaN entry of a or bound makes the row so too, which is never settled
    sound = tl.where(least <= most, tl.abs(start), float("inf")) < float("inf")
    outside = start != _clamp(start, least, most)
    state = tl.max(tl.where(sound, tl.where(outside, OUTSIDE, SOUND), WRONG), 0)
    valid = (state != WRONG) & (under <= over) & (under < float("inf")) & (over > float("-inf"))
    below, above = under.to(tl.float64), over.to(tl.float64)
    inside, settled = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    t = tl.full([], 0.0, tl.float64)
    if valid & (state == SOUND):
        product = _exact_product(a, start)
        size = tl.sum(tl.abs(a * start), 0)
        slack = SHORT_INSIDE * (size.to(tl.float64) + bound_size(below, above, tl.sum(tl.abs(a), 0).to(tl.float64)))
        known = (size >= SMALL * n) & (size < float("inf"))
        inside = tl.where((product <= above + slack) & (product >= below - slack) & known, 1, 0)
        settled = inside
    if valid & (settled == 0):
        t = _approach(start, a, least, most, under, over).to(tl.float64)
        tries = tl.full([], 0, tl.int32)
        while (settled == 0) & (tries < SHORT_CORRECTIONS):
            p = _point(start, a, t)
            answer = _clamp(p, least, most)
            free = tl.where(p == answer, a, 0.0)
            slope, roundings = tl.sum(free * free, 0), tl.sum(tl.abs(free * answer), 0)
            phi = _exact_product(a, answer)
            # the bound on the side of the multiplier: if y meets it, y is the nearest point, whatever the target was
            wanted = tl.where(t > 0.0, above, tl.where(t < 0.0, below, _clamp(phi, below, above)))
            miss = phi - wanted
            allowed = ROUNDING * roundings.to(tl.float64) + 4.0 * EPS * _finite(wanted)
            tries += 1
            exact = ((roundings >= SMALL * n) | (tl.abs(phi) >= SMALL * n)) & (roundings < float("inf"))
            settled = tl.where(exact & (tl.abs(miss) <= allowed), 1, 0)
            step = miss / tl.where(slope > 0.0, slope, 1.0).to(tl.float64)
            t = tl.where(settled == 1, t, t + step)
    if settled == 1:  # recomputed rather than kept, because registers limit the occupancy
        answer = tl.where(inside == 1, start, _clamp(_point(start, a, t), least, most))
        tl.store(y + sample * n + columns, answer, mask=mask)
    tl.store(left + sample, (settled == 0).to(tl.int8))
