"""A box and one row of float32 numbers on a GPU: the multiplier in float32, its last digits and the verdict in float64.

``y = clamp(raw - a t, low, high)`` with t as the sum of two float32 numbers is right to the rounding of y. Newton's
method in float32 comes near the root at half the registers and a third of the instructions of float64; then the row is
added up in float64 at the very y that would be stored, and t is corrected until the row misses its bound by no more
than the free coordinates round. What does not come to that (far raws, an empty set, bad numbers) is left to the
program in float64.

Called by `hardnet.kernels.gpu.nearest`.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

PASSES, CORRECTIONS = tl.constexpr(16), tl.constexpr(4)
"""The most passes in float32, and those in float64 after them."""
NEAR = tl.constexpr(2.0**-17)
"""Part of t, or of the row's terms, below which a step is left to float64."""
FEW = tl.constexpr(1.0 / 16.0)
"""Part of the steepest slope below which Newton's step may go far beyond the root."""
INSIDE, ROUNDING, EPS = tl.constexpr(4.0 * 2.0**-23), tl.constexpr(2.0**-23), tl.constexpr(2.0**-52)
SOUND, OUTSIDE, INVALID = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _load(pointer, sample, columns, mask, n, EACH: tl.constexpr):
    """One row, of the sample or of all; zero beyond it."""
    return tl.load(pointer + sample * n * EACH + columns, mask=mask, other=0.0)


@triton.jit
def _clamp(value, low, high):
    """``low <= y <= high``."""
    return tl.minimum(tl.maximum(value, low), high)


@triton.jit
def _finite(value):
    """``|value|``, zero for an infinite one."""
    return tl.where(tl.abs(value) < float("inf"), tl.abs(value), 0.0)


@triton.jit
def _terms(a, y):
    """The terms of ``a'y``, exactly."""
    return a.to(tl.float64) * y.to(tl.float64)


@triton.jit
def _approach(start, a, low, high, under, over):
    """T near the root of ``a'clamp(raw - a t) = target``, by Newton's method in float32 within the ends seen so far.

    Where few coordinates are free the step is that of all: the row falls no faster, so it does not go beyond the root.
    """
    y = _clamp(start, low, high)
    phi, size = tl.sum(a * y, 0), tl.sum(tl.abs(a * y), 0)
    free = tl.where(start == y, a, 0.0)
    slope, steepest = tl.sum(free * free, 0), tl.sum(a * a, 0)
    target = _clamp(phi, under, over)
    t = phi * 0.0
    back, ahead = t - float("inf"), t + float("inf")
    passes, going = tl.full([], 0, tl.int32), tl.full([], 1, tl.int32)
    while going != 0:
        miss = phi - target
        back, ahead = tl.where(miss > 0.0, t, back), tl.where(miss > 0.0, ahead, t)
        bounded = (back > float("-inf")) & (ahead < float("inf"))
        steep = tl.where(bounded | (slope > FEW * steepest), slope, steepest)
        newton = t + miss / tl.where(steep > 0.0, steep, 1.0)
        between = (steep > 0.0) & (newton > back) & (newton < ahead)
        following = tl.where(between, newton, tl.where(bounded, 0.5 * back + 0.5 * ahead, t))
        near = (tl.abs(following - t) <= NEAR * tl.abs(following)) | (tl.abs(miss) <= NEAR * size)
        t = following
        passes += 1
        going = tl.where(near | (passes >= PASSES), 0, 1)
        if going != 0:
            p = tl.fma(-a, t, start)
            y = _clamp(p, low, high)
            phi = tl.sum(a * y, 0)
            free = tl.where(p == y, a, 0.0)
            slope = tl.sum(free * free, 0)
    return t


@triton.jit
def forward(
    y, left, raw, A, lower, upper, low, high, n,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """Y ``(B, n)`` of the samples that could be settled; the others are left to float64, ``left`` ``(B,)`` is 1."""
    sample = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    start, a = _load(raw, sample, columns, mask, n, 1), _load(A, sample, columns, mask, n, ROWS)
    least, most = _load(low, sample, columns, mask, n, LOW), _load(high, sample, columns, mask, n, HIGH)
    under, over = tl.load(lower + sample * LOWER), tl.load(upper + sample * UPPER)
    sound = (tl.abs(start) < float("inf")) & (tl.abs(a) < float("inf"))
    sound = sound & (least <= most) & (least < float("inf")) & (most > float("-inf"))
    outside = (start < least) | (start > most)
    state = tl.max(tl.where(sound, tl.where(outside, OUTSIDE, SOUND), INVALID), 0)
    valid = (state != INVALID) & (under <= over) & (under < float("inf")) & (over > float("-inf"))
    below, above = under.to(tl.float64), over.to(tl.float64)
    settled = tl.full([], 0, tl.int32)
    if valid & (state == SOUND):
        terms = _terms(a, start)
        product = tl.sum(terms, 0)
        slack = INSIDE * (tl.sum(tl.abs(terms), 0) + tl.maximum(_finite(below), _finite(above)))
        if (product <= above + slack) & (product >= below - slack):
            tl.store(y + sample * n + columns, start, mask=mask)
            settled = tl.full([], 1, tl.int32)
    if valid & (settled == 0):
        t = _approach(start, a, least, most, under, over).to(tl.float64)
        tries = tl.full([], 0, tl.int32)
        while (settled == 0) & (tries < CORRECTIONS):
            head = t.to(tl.float32)
            p = tl.fma(-a, (t - head.to(tl.float64)).to(tl.float32), tl.fma(-a, head, start))
            answer = _clamp(p, least, most)
            terms = _terms(a, answer)
            free = tl.where(p == answer, a, 0.0)
            phi, size = tl.sum(terms, 0), tl.sum(tl.abs(terms).to(tl.float32), 0)
            slope, roundings = tl.sum(free * free, 0), tl.sum(tl.abs(free * answer), 0)
            # the bound on the side of the multiplier: with it y is the nearest point, whatever was aimed at before
            wanted = tl.where(t > 0.0, above, tl.where(t < 0.0, below, _clamp(phi, below, above)))
            miss = phi - wanted
            allowed = ROUNDING * roundings.to(tl.float64) + 4.0 * EPS * size.to(tl.float64)
            tries += 1
            if tl.abs(miss) <= allowed:
                tl.store(y + sample * n + columns, answer, mask=mask)
                settled = tl.full([], 1, tl.int32)
            else:
                t = t + miss / tl.where(slope > 0.0, slope, 1.0).to(tl.float64)
    tl.store(left + sample, (settled == 0).to(tl.int8))
