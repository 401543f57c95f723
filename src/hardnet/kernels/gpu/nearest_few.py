"""The nearest point of few rows on a GPU: one sample per thread, all numbers in registers."""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import bound_size, store_from
from hardnet.kernels.gpu.layouts import combine, dots, largest, load_bounds, load_numbers, store_numbers

# The multipliers of the nearest point for few rows in registers, by recursion over the rows, one sample per thread.
#
# The recursion of `hardnet.nearest.few_rows.multipliers`, where it is explained, unrolled for one to four rows.
# Tuples hold one vector over samples for each entry; coordinate j of row i is number ``i d + j``.


EPS = 2.0**-52
DEPENDENT = tl.constexpr((64 * EPS) ** 2)
DOUBT = tl.constexpr(8 * EPS)


@triton.jit
def _product(rows, i: tl.constexpr, j: tl.constexpr, d: tl.constexpr):
    """``r_i . r_j``."""
    total = rows[i * d] * rows[j * d]
    for c in tl.static_range(1, d):
        total = tl.fma(rows[i * d + c], rows[j * d + c], total)
    return total


@triton.jit
def _inverse(number):
    """``1 / number`` to a rounding or two, if it is in the range of float32; faster than a float64 division."""
    guess = (1.0 / number.to(tl.float32)).to(tl.float64)
    for _ in tl.static_range(2):
        guess = tl.fma(guess, tl.fma(-number, guess, 1.0), guess)
    return guess


@triton.jit
def _measure(rows, square, i: tl.constexpr, d: tl.constexpr, pinned: tl.constexpr):
    """``1 / |r_i|^2`` of the reduced row i, and whether the row is constant, with nothing left but rounding."""
    own = _product(rows, i, i, d)
    if pinned >= d:
        constant = own == own
    else:
        constant = own <= DEPENDENT * square[i]
    return _inverse(tl.where(constant, 1.0, own)), constant


@triton.jit
def _solve1(rows, square, value, low, high, noise, slack, d: tl.constexpr, pinned: tl.constexpr):
    """The multiplier of one row: a clamp."""
    inverse, constant = _measure(rows, square, 0, d, pinned)
    over = value[0] - tl.minimum(tl.maximum(value[0], low[0]), high[0])
    lost = constant & (tl.abs(over) > slack)
    sign = tl.where(over > 0.0, 1.0, -1.0)
    return (tl.where(constant, tl.where(lost, sign, 0.0), over * inverse),), lost


@triton.jit
def _pin(rows, value, low, high, noise, free, inverse, constant, last: tl.constexpr, d: tl.constexpr):
    """Evaluate the last row at the solution without it, pin it at its target, and remove its direction from the others.

    Returns its excess (zero if that is rounding), its step, its share in the others, the reduced rows and their values.
    """
    reached = value[last]
    terms = tl.abs(reached)
    share = ()
    for i in tl.static_range(last):
        cross = _product(rows, i, last, d)
        move = cross * free[i]
        reached -= move
        terms += tl.abs(move)
        share = share + (cross,)
    target = tl.minimum(tl.maximum(reached, low[last]), high[last])
    over = reached - target
    sure = (tl.abs(over) > DOUBT * (terms + tl.abs(target)) + noise) | constant
    step = (value[last] - target) * inverse
    shares = ()
    reduced = ()
    shifted = ()
    for i in tl.static_range(last):
        shifted = shifted + (tl.fma(-share[i], step, value[i]),)
        part = share[i] * inverse
        shares = shares + (part,)
        for c in tl.static_range(d):
            reduced = reduced + (tl.fma(-part, rows[last * d + c], rows[i * d + c]),)
    return tl.where(sure, over, 0.0), step, shares, reduced, shifted


@triton.jit
def _choose(excess, step, share, free, hopeless, held, contradicts, constant, slack, last: tl.constexpr):
    """The multipliers without the last row, or with it where it leaves its bounds; and which sets are empty."""
    mine = tl.where(contradicts, 0.0, step)
    for i in tl.static_range(last):
        mine = tl.fma(-share[i], held[i], mine)
    mine = tl.where(excess > 0.0, tl.maximum(mine, 0.0), tl.minimum(mine, 0.0))
    lost = (hopeless == 0) & constant & (tl.abs(excess) > slack)
    leaves = (hopeless == 0) & (constant == 0) & (excess != 0.0)
    dual = ()
    for i in tl.static_range(last):
        dual = dual + (tl.where(leaves, held[i], tl.where(lost, 0.0, free[i])),)
    sign = tl.where(excess > 0.0, 1.0, -1.0)
    dual = dual + (tl.where(leaves, mine, tl.where(lost, sign, 0.0)),)
    return dual, hopeless | lost | (leaves & contradicts)


@triton.jit
def _solve2(rows, square, value, low, high, noise, slack, d: tl.constexpr, pinned: tl.constexpr):
    """Two rows."""
    free, hopeless = _solve1(rows, square, value, low, high, noise, slack, d, pinned)
    inverse, constant = _measure(rows, square, 1, d, pinned)
    excess, step, share, left, at = _pin(rows, value, low, high, noise, free, inverse, constant, 1, d)
    held, contradicts = _solve1(left, square, at, low, high, noise, slack, d, pinned + 1)
    return _choose(excess, step, share, free, hopeless, held, contradicts, constant, slack, 1)


@triton.jit
def _solve3(rows, square, value, low, high, noise, slack, d: tl.constexpr, pinned: tl.constexpr):
    """Three rows."""
    free, hopeless = _solve2(rows, square, value, low, high, noise, slack, d, pinned)
    inverse, constant = _measure(rows, square, 2, d, pinned)
    excess, step, share, left, at = _pin(rows, value, low, high, noise, free, inverse, constant, 2, d)
    held, contradicts = _solve2(left, square, at, low, high, noise, slack, d, pinned + 1)
    return _choose(excess, step, share, free, hopeless, held, contradicts, constant, slack, 2)


@triton.jit
def _solve4(rows, square, value, low, high, noise, slack, d: tl.constexpr, pinned: tl.constexpr):
    """Four rows."""
    free, hopeless = _solve3(rows, square, value, low, high, noise, slack, d, pinned)
    inverse, constant = _measure(rows, square, 3, d, pinned)
    excess, step, share, left, at = _pin(rows, value, low, high, noise, free, inverse, constant, 3, d)
    held, contradicts = _solve3(left, square, at, low, high, noise, slack, d, pinned + 1)
    return _choose(excess, step, share, free, hopeless, held, contradicts, constant, slack, 3)


@triton.jit
def solve(rows, value, low, high, noise, slack, m: tl.constexpr, d: tl.constexpr):
    """The multipliers of m rows in d coordinates, and which sets are empty."""
    square = ()
    for i in tl.static_range(m):
        square = square + (_product(rows, i, i, d),)
    if m == 1:
        dual, empty = _solve1(rows, square, value, low, high, noise, slack, d, 0)
    elif m == 2:
        dual, empty = _solve2(rows, square, value, low, high, noise, slack, d, 0)
    elif m == 3:
        dual, empty = _solve3(rows, square, value, low, high, noise, slack, d, 0)
    else:
        dual, empty = _solve4(rows, square, value, low, high, noise, slack, d, 0)
    return dual, empty


@triton.jit
def orthogonalize(rows, m: tl.constexpr, n: tl.constexpr):
    """``A = L R`` by Gram-Schmidt: R, L below its diagonal (packed), and 1 / diag(R R'), zero for dependent rows."""
    R = ()
    L = ()
    inverse = ()
    for i in tl.static_range(m):
        square = _product(rows, i, i, n)
        row = ()
        for c in tl.static_range(n):
            row = row + (rows[i * n + c],)
        for k in tl.static_range(i):
            share = row[0] * R[k * n]
            for c in tl.static_range(1, n):
                share = tl.fma(row[c], R[k * n + c], share)
            share = share * inverse[k]
            L = L + (share,)
            left = ()
            for c in tl.static_range(n):
                left = left + (tl.fma(-share, R[k * n + c], row[c]),)
            row = left
        own = _product(row, 0, 0, n)
        clear = own > DEPENDENT * square
        inverse = inverse + (tl.where(clear, _inverse(tl.where(clear, own, 1.0)), 0.0),)
        R = R + row
    return R, L, inverse


@triton.jit
def coordinates(rows, m: tl.constexpr, n: tl.constexpr):
    """Rows in min(m, n) coordinates that keep angles and lengths: themselves, or L of ``rows = L Q``."""
    if n <= m:
        out = rows
    else:
        R, L, inverse = orthogonalize(rows, m, n)
        length = ()
        for k in tl.static_range(m):
            length = length + (tl.where(inverse[k] > 0.0, tl.sqrt(_product(R, k, k, n)), 0.0),)
        out = ()
        for i in tl.static_range(m):
            for k in tl.static_range(m):
                if k < i:
                    out = out + (L[i * (i - 1) // 2 + k] * length[k],)
                elif k == i:
                    out = out + (length[i],)
                else:
                    out = out + (length[0] * 0.0,)
    return out


# The nearest point for few rows on a GPU, one launch per direction: one sample per thread, all numbers in registers.
#
# The steps are those of `hardnet.nearest.few_rows`: scale, choose the active rows, correct, check. Sums are
# formed in float64 whatever the dtype.


EMPTY, TOUCHES = tl.constexpr(64 * 2.0**-52), tl.constexpr(8 * 2.0**-52)
ROUNDINGS, STATIONARY = tl.constexpr(16.0), tl.constexpr(1e-8)
SOLVED, INFEASIBLE, NOT_CONVERGED, INVALID = tl.constexpr(0.0), tl.constexpr(1.0), tl.constexpr(2.0), tl.constexpr(3.0)
EXPONENT, TWICE_ONE = tl.constexpr(0x7FF << 52), tl.constexpr(2046 << 52)
"""The exponent bits of a float64, and twice the exponent of 1: the exponents of ``2^k`` and ``2^-k`` add up to it."""


@triton.jit
def _finite_entries(values, count: tl.constexpr):
    """Whether all numbers of a sample are finite."""
    good = tl.abs(values[0]) < float("inf")
    for i in tl.static_range(1, count):
        good = good & (tl.abs(values[i]) < float("inf"))
    return good


@triton.jit
def _in_double(values, count: tl.constexpr):
    """The same numbers in float64."""
    wide = ()
    for i in tl.static_range(count):
        wide = wide + (values[i].to(tl.float64),)
    return wide


@triton.jit
def _where(good, values, count: tl.constexpr):
    """The numbers of good samples, zero for the others."""
    kept = ()
    for i in tl.static_range(count):
        kept = kept + (tl.where(good, values[i], 0.0),)
    return kept


@triton.jit
def _scale(entries, low, high, m: tl.constexpr, n: tl.constexpr):
    """Rows and bounds scaled by powers of two, in float64; the rows' ``|a|_1``, the scales, and which are valid.

    Entries come in the dtype of memory, where finding the largest and testing for finite numbers is cheaper. The
    results for an invalid sample are meaningless.
    """
    valid = _finite_entries(entries, m * n)
    rows = ()
    sums = ()
    lower = ()
    upper = ()
    shrink = ()
    for i in tl.static_range(m):
        size = tl.abs(entries[i * n])
        for j in tl.static_range(1, n):
            size = tl.maximum(size, tl.abs(entries[i * n + j]))
        exponent = size.to(tl.float64).to(tl.int64, bitcast=True) & EXPONENT
        exponent = tl.where(exponent != 0, exponent, TWICE_ONE // 2)
        divisor = (-(exponent - TWICE_ONE)).to(tl.float64, bitcast=True)
        total = divisor * 0.0
        for j in tl.static_range(n):
            entry = entries[i * n + j].to(tl.float64) * divisor
            total += tl.abs(entry)
            rows = rows + (entry,)
        below, above = low[i] * divisor, high[i] * divisor
        valid = valid & (below <= above) & (below < float("inf")) & (above > float("-inf"))
        sums = sums + (total,)
        lower = lower + (below,)
        upper = upper + (above,)
        shrink = shrink + (divisor,)
    return rows, sums, lower, upper, shrink, valid


@triton.jit
def _ratio(part, whole, NARROW: tl.constexpr):
    """``part / whole``, part itself if whole is zero; in float32 for float32 inputs, as float64 division is slow."""
    safe = tl.where(whole > 0.0, whole, 1.0)
    if NARROW:
        ratio = (part.to(tl.float32) / safe.to(tl.float32)).to(tl.float64)
    else:
        ratio = part / safe
    return ratio


@triton.jit
def _active_rows(rows, active, m: tl.constexpr, n: tl.constexpr):
    """The rows, zero where they are not active."""
    chosen = ()
    for i in tl.static_range(m):
        for j in tl.static_range(n):
            chosen = chosen + (tl.where(active[i], rows[i * n + j], 0.0),)
    return chosen


@triton.jit
def _correction(rows, active, goal, x, m: tl.constexpr, n: tl.constexpr):
    """``A_J^+ (A_J x - t)``, and whether any active row misses its target."""
    chosen = _active_rows(rows, active, m, n)
    R, L, inverse = orthogonalize(chosen, m, n)
    products = dots(chosen, x, m, n)
    off = products[0] != products[0]
    left = ()
    for i in tl.static_range(m):
        rest = tl.where(active[i], products[i] - goal[i], 0.0)
        off = off | (rest != 0.0)
        for k in tl.static_range(i):
            rest = tl.fma(-L[i * (i - 1) // 2 + k], left[k], rest)
        left = left + (rest,)
    steps = ()
    for i in tl.static_range(m):
        steps = steps + (left[i] * inverse[i],)
    return combine(R, steps, m, n), off


@triton.jit
def _stored(x, f, moves, DTYPE: tl.constexpr, n: tl.constexpr):
    """The point as it will be stored, so that this is what is checked; raw itself for a sample that does not move."""
    point = ()
    for j in tl.static_range(n):
        point = point + (tl.where(moves, x[j], f[j]).to(DTYPE).to(tl.float64),)
    return point


@triton.jit
def _judge(
    rows, sums, low, high, active, goal, point, far, drift, rounding,
    m: tl.constexpr, n: tl.constexpr, ANSWER_ONLY: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Whether active rows are at their bounds, the others within theirs, and the step was small; the KKT residual.

    The last result is the size of the terms of each row, to which its rounding is relative.
    """
    length = largest(point, n)
    least = rounding * tl.minimum(far, 1.0)  # if all bounds of a row are 0, it holds to the rounding of raw, or of 1
    reached = dots(rows, point, m, n)
    worst = far * 0.0
    totals = ()
    solved = (drift <= STATIONARY * (far + length)) & (far + length < float("inf"))
    for i in tl.static_range(m):
        bounds = bound_size(low[i], high[i], sums[i])
        terms = sums[i] * (length + tl.where(bounds > 0.0, 0.0, least)) + bounds
        wanted = tl.where(active[i], goal[i], tl.minimum(tl.maximum(reached[i], low[i]), high[i]))
        missed = tl.abs(reached[i] - wanted)
        solved = solved & (missed <= ROUNDINGS * rounding * terms) & (terms < float("inf"))
        totals = totals + (terms,)
        if not ANSWER_ONLY:
            worst = tl.maximum(worst, _ratio(missed, terms, NARROW))
    if not ANSWER_ONLY:
        worst = tl.maximum(worst, _ratio(drift, far + length, NARROW))
    return solved, worst, totals


@triton.jit
def forward(
    y, dual, status, residual, raw, A, lower, upper, batch, rounding,
    m: tl.constexpr, n: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MN: tl.constexpr, BLOCK: tl.constexpr,
    LOWER: tl.constexpr, UPPER: tl.constexpr, EACH: tl.constexpr, ANSWER_ONLY: tl.constexpr,
):  # fmt: skip
    """Y ``(B, n)``, NaN where it is not solved; unless `ANSWER_ONLY`, dual ``(B, m)``, status and residual ``(B,)``.

    `rounding` is the rounding of the dtype.
    """
    DTYPE: tl.constexpr = y.dtype.element_ty
    NARROW: tl.constexpr = y.dtype.element_ty == tl.float32
    samples = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = samples < batch
    entries = load_numbers(A, samples, mask, m * n * EACH, m * n, MN, BLOCK, DTYPE)
    given = load_numbers(raw, samples, mask, n, n, N, BLOCK, DTYPE)
    f = _in_double(given, n)
    low, high = load_bounds(lower, upper, samples, mask, LOWER, UPPER, m, M, BLOCK, tl.float64, True)
    rows, sums, low, high, shrink, valid = _scale(entries, low, high, m, n)
    valid = valid & _finite_entries(given, n)
    far = largest(given, n).to(tl.float64)
    size = sums[0]
    bounds = bound_size(low[0], high[0], sums[0])
    for i in tl.static_range(1, m):
        size = tl.maximum(size, sums[i])
        bounds = tl.maximum(bounds, bound_size(low[i], high[i], sums[i]))
    slack = EMPTY * (size * far) + ROUNDINGS * rounding * bounds
    width: tl.constexpr = min(m, n)
    weights, empty = solve(
        coordinates(rows, m, n), dots(rows, f, m, n), low, high, DOUBT * (size * far), slack, m, width
    )
    good = valid & (empty == 0)
    moves = good & (good == 0)
    active = ()
    goal = ()
    kept = weights if ANSWER_ONLY else _where(good, weights, m)  # for an empty set the residual is evaluated at raw
    for i in tl.static_range(m):
        moves = moves | (kept[i] != 0.0)
        active = active + (((weights[i] != 0.0) | (low[i] == high[i])) & good,)
        goal = goal + (tl.where(weights[i] > 0.0, high[i], low[i]),)
    # x = raw - A_J' dual, then y = x - A_J^+ (A_J x - t)
    image = combine(rows, kept, m, n)
    x = ()
    for j in tl.static_range(n):
        x = x + (f[j] - image[j],)
    drift = far * 0.0
    point = _stored(x, f, moves, DTYPE, n)
    solved, worst, terms = _judge(
        rows, sums, low, high, active, goal, point, far, drift, rounding, m, n, ANSWER_ONLY, NARROW
    )
    again = mask & good
    if NARROW:  # x is accurate to float32 unless rows are nearly dependent or raw is far away
        again = again & (solved == 0)
    store_numbers(y, point, good & solved, samples, mask, n, BLOCK)
    if not ANSWER_ONLY:
        known = tl.where(empty, INFEASIBLE, tl.where(solved, SOLVED, NOT_CONVERGED))
        multipliers = ()
        for i in tl.static_range(m):
            holds = (tl.abs(weights[i]) * sums[i] * sums[i] > TOUCHES * terms[i]) | empty
            multipliers = multipliers + (tl.where(valid & holds, weights[i] * shrink[i], 0.0),)
        store_numbers(dual, multipliers, mask, samples, mask, m, BLOCK)
        tl.store(status + samples, tl.where(valid, known, INVALID).to(tl.int8), mask=mask)
        store_from(residual + samples, tl.where(valid, worst, 0.0), mask)
    if tl.max(again.to(tl.int32), 0) == 1:
        step, off = _correction(rows, active, goal, x, m, n)
        drift = largest(step, n)
        corrected = ()
        for j in tl.static_range(n):
            corrected = corrected + (x[j] - step[j],)
        point = _stored(corrected, f, moves | off, DTYPE, n)
        solved, worst, _terms = _judge(
            rows, sums, low, high, active, goal, point, far, drift, rounding, m, n, ANSWER_ONLY, NARROW
        )
        store_numbers(y, point, solved, samples, again, n, BLOCK)
        if not ANSWER_ONLY:
            known = tl.where(again & solved, SOLVED, known)
            tl.store(status + samples, known.to(tl.int8), mask=again)
            store_from(residual + samples, worst, again)


@triton.jit
def backward(
    grad_raw, grad_A, grad_lower, grad_upper, grad_y, y, dual, status, raw, A, lower, upper, batch, tangent,
    m: tl.constexpr, n: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MN: tl.constexpr, BLOCK: tl.constexpr,
    LOWER: tl.constexpr, UPPER: tl.constexpr, EACH: tl.constexpr, MATRIX: tl.constexpr,
):  # fmt: skip
    """The gradients of `forward`; zero for samples without an answer. `tangent` is 1 or 0."""
    samples = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = samples < batch
    entries = load_numbers(A, samples, mask, m * n * EACH, m * n, MN, BLOCK, y.dtype.element_ty)
    f = load_numbers(raw, samples, mask, n, n, N, BLOCK, tl.float64)
    low, high = load_bounds(lower, upper, samples, mask, LOWER, UPPER, m, M, BLOCK, tl.float64, True)
    scaled, _sums, low, high, divisors, _valid = _scale(entries, low, high, m, n)
    multipliers = load_numbers(dual, samples, mask, m, m, M, BLOCK, tl.float64)
    answered = tl.load(status + samples, mask=mask, other=3).to(tl.float64) == SOLVED
    rows, shrink = _where(answered, scaled, m * n), _where(answered, divisors, m)
    g = _where(answered, load_numbers(grad_y, samples, mask, n, n, N, BLOCK, tl.float64), n)
    at = _where(answered, load_numbers(y, samples, mask, n, n, N, BLOCK, tl.float64), n)
    active = ()
    for i in tl.static_range(m):
        active = active + (((multipliers[i] != 0.0) | (low[i] == high[i])) & answered,)
    R, L, inverse = orthogonalize(_active_rows(rows, active, m, n), m, n)
    inside = dots(R, g, m, n)
    parts = ()
    for i in tl.static_range(m):
        parts = parts + (inside[i] * inverse[i],)
    across = combine(R, parts, m, n)
    w = ()
    for back in tl.static_range(m):  # L^-T, from the last row
        entry = parts[m - 1 - back]
        for row in tl.static_range(m - back, m):
            entry = tl.fma(-L[row * (row - 1) // 2 + m - 1 - back], w[row + back - m], entry)
        w = (entry,) + w
    value = dots(rows, f, m, n)
    below = ()
    above = ()
    through = ()
    for i in tl.static_range(m):
        weight = w[i] * shrink[i]
        equal = low[i] == high[i]
        up = multipliers[i] > 0.0
        above = above + (tl.where(equal, 0.5 * weight, tl.where(up, weight, 0.0)),)
        below = below + (tl.where(equal, 0.5 * weight, tl.where(up, 0.0, weight)),)
        outside = (up & (value[i] > high[i]) & (w[i] > 0.0)) | (
            (multipliers[i] < 0.0) & (value[i] < low[i]) & (w[i] < 0.0)
        )
        through = through + (tl.where(outside & (equal == 0) & answered & (tangent == 1), w[i], 0.0),)
    back_inside = combine(rows, through, m, n)
    kept = ()
    u = ()
    for j in tl.static_range(n):
        u = u + (g[j] - across[j],)
        kept = kept + (u[j] + back_inside[j],)
    store_numbers(grad_raw, kept, mask, samples, mask, n, BLOCK)
    store_numbers(grad_lower, below, mask, samples, mask, m, BLOCK)
    store_numbers(grad_upper, above, mask, samples, mask, m, BLOCK)
    if MATRIX:
        slopes = ()
        for i in tl.static_range(m):
            for j in tl.static_range(n):
                factor = tl.where(answered, multipliers[i], 0.0)
                slopes = slopes + (-factor * u[j] - w[i] * shrink[i] * at[j],)
        store_numbers(grad_A, slopes, mask, samples, mask, m * n, BLOCK)
