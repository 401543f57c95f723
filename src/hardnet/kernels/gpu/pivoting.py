"""The dual active-set method by pivoting in one launch: one program per sample, its whole tableau in registers.

The same steps and signature as the plain reference `hardnet.solvers.polyhedron.pivoting.pivot`, which explains the
mathematics. A step of the reference takes some fifty launches over the whole batch; here it is one pass over
registers, and each sample stops when it is finished.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hardnet.kernels.gpu.common import CORRECTIONS
from hardnet.kernels.limits import padded

MOST_ROWS = 128
"""Rows of the largest tableau that fits in the registers of one program."""
DEPENDENT = tl.constexpr(1e-11)


@triton.jit
def pivot_rows(T, value, lower, upper, slack, limit, M: tl.constexpr):
    """The basic variables, the sides, the steps, whether the sample is finished, and the tableau, all in registers."""
    row = tl.arange(0, M)
    free = lower != upper
    side = tl.zeros([M], dtype=tl.float64)
    own = tl.sum(side, 0)  # multiplier of the row that is joining
    joining = -1
    steps = 0
    excess = tl.maximum(value - upper, lower - value) - slack
    furthest = tl.argmax(excess, 0)
    working = tl.max(excess, 0) > 0
    stuck = False
    while working & (steps < limit):
        index = tl.where(joining >= 0, joining, furthest)
        here = row == index
        at = tl.sum(tl.where(here, value, 0.0), 0)
        top = tl.sum(tl.where(here, upper, 0.0), 0)
        bottom = tl.sum(tl.where(here, lower, 0.0), 0)
        sign = tl.where(at > top, 1.0, -1.0).to(tl.float64)
        missing = tl.where(at > top, at - top, bottom - at)
        column = tl.sum(tl.where(here[:, None], T, 0.0), 0)
        distance = tl.sum(tl.where(here, column, 0.0), 0)
        slope = column * sign
        shrinks = (side * slope > 1e-13) & free
        ratio = tl.where(shrinks, value / tl.where(shrinks, slope, 1.0), float("inf"))
        leaving = tl.argmin(ratio, 0)
        until_leaving = tl.maximum(tl.min(ratio, 0), 0.0)
        until_tight = tl.where(distance > DEPENDENT, missing / distance, float("inf"))
        joins = until_tight <= until_leaving
        length = tl.minimum(until_tight, until_leaving)
        stuck = length == float("inf")
        length = tl.where(stuck, 0.0, length)
        value = value - column * (sign * length)
        own = own + sign * length
        pivot = tl.where(joins, index, leaving)
        chosen = row == pivot
        if not joins:  # the column of a joining row is already computed
            column = tl.sum(tl.where(chosen[:, None], T, 0.0), 0)
        inverse = 1.0 / tl.where(stuck, 1.0, tl.sum(tl.where(chosen, column, 0.0), 0))
        T = T - (column * inverse)[:, None] * column[None, :]
        column = tl.where(chosen, -inverse, column * tl.abs(inverse))
        T = tl.where(chosen[:, None], column[None, :], tl.where(chosen[None, :], column[:, None], T))
        held = tl.where(side > 0, upper, lower)
        value = tl.where(chosen, tl.where(joins, own, held), value)
        side = tl.where(chosen, tl.where(joins, sign, 0.0), side)
        own = tl.where(joins, 0.0, own)
        joining = tl.where(joins, -1, index)
        steps += 1
        excess = tl.where(side != 0, -1.0, tl.maximum(value - upper, lower - value) - slack)
        furthest = tl.argmax(excess, 0)
        working = ((tl.max(excess, 0) > 0) | (joining >= 0)) & (length < float("inf")) & ~stuck
    return value, side, steps, ~(working | stuck), T


@triton.jit
def step_of(T, side, missing):
    """``K_J^-1 missing_J`` for the active rows J of a tableau, which holds ``-K_J^-1`` there; zero off J."""
    right = tl.where(side != 0, missing, 0.0)
    return tl.where(side != 0, -tl.sum(T * right[None, :], 1), 0.0)


@triton.jit
def bound_of(side, lower, upper):
    """The bound that an active row meets, and 0 for the others."""
    return tl.where(side > 0, upper, tl.where(side < 0, lower, 0.0))


@triton.jit
def _pivot_kernel(
    gram,
    product,
    lower_end,
    upper_end,
    slack_end,
    dual,
    sides,
    counts,
    through,
    m,
    limit,
    M: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, M)
    inside = row < m
    start = sample * m
    square = inside[:, None] & inside[None, :]
    T = tl.load(gram + start * m + row[:, None] * m + row[None, :], mask=square, other=0.0)
    value = tl.load(product + start + row, mask=inside, other=0.0)
    lower = tl.load(lower_end + start + row, mask=inside, other=float("-inf"))
    upper = tl.load(upper_end + start + row, mask=inside, other=float("inf"))
    slack = tl.load(slack_end + start + row, mask=inside, other=0.0)
    value, side, steps, done, T = pivot_rows(T, value, lower, upper, slack, limit, M)
    weight = tl.where(side != 0, value, 0.0)
    gram_again = tl.load(gram + start * m + row[:, None] * m + row[None, :], mask=square, other=0.0)
    begun = tl.load(product + start + row, mask=inside, other=0.0)
    for _ in tl.static_range(CORRECTIONS):
        reached = begun - tl.sum(gram_again * weight[None, :], 1)
        weight += step_of(T, side, reached - bound_of(side, lower, upper))
    tl.store(dual + start + row, weight, mask=inside)
    tl.store(sides + start + row, side, mask=inside)
    tl.store(counts + sample, steps)
    tl.store(through + sample, done)


def pivot(
    gram: Tensor, product: Tensor, lower: Tensor, upper: Tensor, slack: Tensor, limit: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multipliers, sides, steps and which samples are finished, as the reference returns them.

    Args:
        gram: ``A A'`` of unit rows, ``(B, m, m)`` in float64; not modified.
        product: ``A raw``, ``(B, m)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        slack: Violation that still counts as satisfied, ``(B, m)``.
        limit: Most steps.
    """
    batch, m = product.shape
    dual, side = product.new_empty(batch, m), product.new_empty(batch, m)  # dense, whatever the strides of product
    steps = torch.empty(batch, dtype=torch.long, device=product.device)
    through = torch.empty(batch, dtype=torch.bool, device=product.device)
    parts = [part.contiguous() for part in (gram, product, lower, upper, slack)]
    size = padded(m)
    warps = {16: 2, 32: 4, 64: 4, 128: 8}[size]
    launch = _pivot_kernel[(batch,)]
    with torch.cuda.device_of(product):  # Triton launches on the current device
        launch(*parts, dual, side, steps, through, m, limit, M=size, num_warps=warps)  # pyright: ignore[reportCallIssue]
    return dual, side, steps, through
