"""A box and one row of float32 numbers on a GPU: near the multiplier in float32, its last digits in pairs of them.

``y = clamp(raw - a t, low, high)`` with t as the sum of two float32 numbers is right to the rounding of y. Newton's
method in float32 comes near the root at half the registers and a third of the instructions of float64. Then the row is
added up without rounding at the very y that would be stored, and t is corrected until the row misses its bound by no
more than the free coordinates round. What does not come to that (far raws, terms too small for float32, an empty set,
bad numbers) is left to the program in float64.

Called by `hardnet.kernels.gpu.nearest`.
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
"""The most passes in float32, and those in float64 after them."""
NEAR = tl.constexpr(2.0**-17)
"""Part of t, or of the bound, below which a step is left to the corrections."""
FEW = tl.constexpr(1.0 / 16.0)
"""Part of the steepest slope below which Newton's step may go far beyond the root."""
INSIDE, ROUNDING, EPS = tl.constexpr(4.0 * 2.0**-23), tl.constexpr(2.0**-23), tl.constexpr(2.0**-52)
SMALL = tl.constexpr(2.0**-100)
"""Mean size of a row's terms from which none of their digits is lost below the smallest float32 number."""
SOUND, OUTSIDE, INVALID = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _bound(pointer, sample, columns, mask, n, absent, EACH: tl.constexpr):
    """The bounds of all coordinates, `absent` beyond them; one number for all of them takes a single register."""
    each = pointer + sample * n * EACH + columns
    return tl.load(pointer) if EACH == 2 else tl.load(each, mask=mask, other=absent)


@triton.jit
def _clamp(value, low, high):
    """``low <= y <= high``."""
    return tl.minimum(tl.maximum(value, low), high)


@triton.jit
def _finite(value):
    """``|value|``, zero for an infinite one."""
    return tl.where(tl.abs(value) < float("inf"), tl.abs(value), 0.0)


@triton.jit
def _add_exactly(sum_, rest, other, other_rest):
    """The sum of two numbers, and what its rounding loses beside what was lost before."""
    total = sum_ + other
    moved = total - sum_
    return total, (rest + other_rest) + ((sum_ - (total - moved)) + (other - moved))


@triton.jit
def _exact_product(a, y):
    """``a'y`` in float64, from float32 numbers whose roundings are kept: half the registers of terms in float64."""
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
    """``a'clamp(p)`` and the sum of ``a^2`` over what is free, in float32."""
    y = _clamp(p, low, high)
    free = tl.where(p == y, a, 0.0)
    return tl.sum(a * y, 0), tl.sum(free * free, 0)


@triton.jit
def _approach(start, a, low, high, under, over):
    """T near the root of ``a'clamp(raw - a t) = target``, by Newton's method in float32 within the ends seen so far.

    Where few coordinates are free the step is that of all: the row falls no faster, so it does not go beyond the root.
    If that is so at raw, the first step is the one that an unbounded raw would take.
    """
    phi, slope = _sweep(start, a, low, high)
    steepest = tl.sum(a * a, 0)
    target = _clamp(phi, under, over)
    t = phi * 0.0
    back, ahead = t - float("inf"), t + float("inf")
    if (slope <= FEW * steepest) & (phi != target):
        back, ahead = tl.where(phi > target, t, back), tl.where(phi > target, ahead, t)
        whole = tl.sum(a * start, 0) - target
        # unbounded, the row may be on the other side of its bound
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
    """Y ``(B, n)`` of the samples that could be settled; the others are left to float64, ``left`` ``(B,)`` is 1.

    ROWS to HIGH are 1 for numbers of each sample, 0 for those of all, LOW and HIGH 2 for one number for all
    coordinates. ``n = VECTOR vectors``, where as many numbers are moved at a time: 4 if that divides n, else 1.
    """
    sample, n = tl.program_id(0).to(tl.int64), VECTOR * vectors
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    least = _bound(low, sample, columns, mask, n, float("-inf"), LOW)
    most = _bound(high, sample, columns, mask, n, float("inf"), HIGH)
    a = tl.load(A + sample * n * ROWS + columns, mask=mask, other=0.0)
    start = tl.load(raw + sample * n + columns, mask=mask, other=_clamp(0.0, least, most))
    under, over = tl.load(lower + sample * LOWER), tl.load(upper + sample * UPPER)
    # what a clamp would hide; an infinite or undefined a or bound makes the row so, and that is never settled
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
            # the bound on the side of the multiplier: with it y is the nearest point, whatever was aimed at before
            wanted = tl.where(t > 0.0, above, tl.where(t < 0.0, below, _clamp(phi, below, above)))
            miss = phi - wanted
            allowed = ROUNDING * roundings.to(tl.float64) + 4.0 * EPS * _finite(wanted)
            tries += 1
            exact = ((roundings >= SMALL * n) | (tl.abs(phi) >= SMALL * n)) & (roundings < float("inf"))
            settled = tl.where(exact & (tl.abs(miss) <= allowed), 1, 0)
            step = miss / tl.where(slope > 0.0, slope, 1.0).to(tl.float64)
            t = tl.where(settled == 1, t, t + step)
    if settled == 1:  # computed again rather than kept: registers are what bounds the samples at work
        answer = tl.where(inside == 1, start, _clamp(_point(start, a, t), least, most))
        tl.store(y + sample * n + columns, answer, mask=mask)
    tl.store(left + sample, (settled == 0).to(tl.int8))
