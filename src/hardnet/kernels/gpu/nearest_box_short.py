"""A box and one row of float32 numbers on a GPU: approach the multiplier in float32, refine it in pairs of float32.

``y = clamp(raw - a t, low, high)`` with t as the sum of two float32 numbers is accurate to the rounding of y. Newton's
method in float32 comes near the root with half the registers and a third of the instructions of float64. Then the row
is summed without rounding at exactly the y that would be stored, and t is corrected until the row misses its bound by
no more than the rounding of the free coordinates. Samples that do not get there (far raws, terms too small for float32,
empty sets, invalid numbers) are left to the float64 kernel.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.common import bound_size

PASSES, CORRECTIONS = tl.constexpr(16), tl.constexpr(4)
"""The most passes in float32, and the most corrections in float64 after them."""
NEAR = tl.constexpr(2.0**-17)
"""Fraction of t for a step, or of the bound for a miss, below which the rest is left to the corrections."""
FEW = tl.constexpr(1.0 / 16.0)
"""Fraction of the steepest slope below which Newton's step may overshoot the root by far."""
INSIDE, ROUNDING, EPS = tl.constexpr(4.0 * 2.0**-23), tl.constexpr(2.0**-23), tl.constexpr(2.0**-52)
SMALL = tl.constexpr(2.0**-100)
"""Mean size of a row's terms above which they lose no digits to float32 underflow."""
SOUND, OUTSIDE, INVALID = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _bound(pointer, sample, columns, mask, n, absent, EACH: tl.constexpr):
    """The bounds of all coordinates, `absent` beyond n; one number for all coordinates takes a single register."""
    each = pointer + sample * n * EACH + columns
    return tl.load(pointer) if EACH == 2 else tl.load(each, mask=mask, other=absent)


@triton.jit
def _clamp(value, low, high):
    """``min(max(value, low), high)``."""
    return tl.minimum(tl.maximum(value, low), high)


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
def _sweep(p, a, low, high):
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
    phi, slope = _sweep(start, a, low, high)
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
        phi, slope = _sweep(tl.fma(-a, t, start), a, low, high)
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
        going = tl.where(near | (passes >= PASSES), 0, 1)
        if going != 0:
            phi, slope = _sweep(tl.fma(-a, t, start), a, low, high)
    return t


@triton.jit
def forward(
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
    state = tl.max(tl.where(sound, tl.where(outside, OUTSIDE, SOUND), INVALID), 0)
    valid = (state != INVALID) & (under <= over) & (under < float("inf")) & (over > float("-inf"))
    below, above = under.to(tl.float64), over.to(tl.float64)
    inside, settled = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    t = tl.full([], 0.0, tl.float64)
    if valid & (state == SOUND):
        product = _exact_product(a, start)
        size = tl.sum(tl.abs(a * start), 0)
        slack = INSIDE * (size.to(tl.float64) + bound_size(below, above, tl.sum(tl.abs(a), 0).to(tl.float64)))
        known = (size >= SMALL * n) & (size < float("inf"))
        inside = tl.where((product <= above + slack) & (product >= below - slack) & known, 1, 0)
        settled = inside
    if valid & (settled == 0):
        t = _approach(start, a, least, most, under, over).to(tl.float64)
        tries = tl.full([], 0, tl.int32)
        while (settled == 0) & (tries < CORRECTIONS):
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
