"""The projection onto a box and several rows on a GPU: a globalized Newton method on chip, one sample per program.

``y(dual) = clamp(raw - A'dual, low, high)``, so k multipliers determine y. They maximize a concave, piecewise quadratic
function with the gradient ``A y(dual)`` less the bounds that the multipliers select. A step maximizes the piece at
hand, with the right signs of the multipliers, by pivoting on the Gram matrix of the free coordinates
(`hardnet.kernels.gpu.pivoting`), and searches along the way there; where the function grows forever, the way proves
that the set is empty. Newton steps on the active rows then move the point in small steps, so that rows hold to rounding
of y, however far away raw was. `hardnet.solvers.polyhedron.box_rows` explains those steps, the checks and the verdict.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import bound_size
from hardnet.kernels.gpu.nearest_box import (
    EPS,
    INFEASIBLE,
    INSIDE,
    INVALID,
    NOT_CONVERGED,
    SOLVED,
    SOLVED_TO,
    STRICT,
    inverse_scale,
    load_row,
)
from hardnet.kernels.gpu.pivoting import DEPENDENT, pivot_rows, step_of

FEASIBLE = tl.constexpr(4)
"""The status of a point in the set that is not proved to be the nearest."""
STEPS, ATTEMPTS, POLISHES, PASSES = tl.constexpr(200), tl.constexpr(4), tl.constexpr(8), tl.constexpr(60)
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
        going = tl.where(good | narrow | (endless == 1) | (passes >= PASSES), 0, 1)
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
def forward(
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
