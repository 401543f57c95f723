"""``argmin |y - raw|  subject to  lower <= A y <= upper`` for small problems in one launch, one sample per program.

The whole computation for a sample happens on chip: its unit, the test whether raw is inside, the Gram matrix, pivoting,
y, and the residual of the optimality conditions. Samples that remain open (invalid numbers, an empty set, a residual
above the tolerance, a row that touches y without a multiplier) are flagged for the general path.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
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
from hardnet.kernels.gpu.pivoting import bound_of, pivot_rows, step_of
from hardnet.kernels.limits import CLOSE as NEAR
from hardnet.kernels.limits import Tolerances, padded

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
def _project(
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
def _launcher(m: int, n: int, each: bool, tolerances: Tolerances) -> Launcher:
    """The kernel for problems of this size."""
    M, N = padded(m), padded(n)
    constants: dict[str, Any] = {"EACH": int(each), "M": M, "N": N}
    constants |= {name.upper(): value for name, value in tolerances._asdict().items()}
    return Launcher(_project, constants | {"num_warps": 2 if M == 16 else 4})


def project(
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
    _launcher(m, n, A.dim() == 3, tolerances).launch((batch, 1, 1), tensors, (m, n, limit))
    return y, dual, side, steps, residual, unsolved, met
