"""The multipliers of the nearest point for few rows in registers, by recursion over the rows, one sample per thread.

The recursion of `hardnet.solvers.polyhedron.few_rows.solve`, where it is explained, unrolled for one to four rows.
Tuples hold one vector over samples for each entry; coordinate j of row i is number ``i d + j``.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types, tuples grow by +.
# ruff: noqa: ANN001, ANN201, ANN202, RUF005
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

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
