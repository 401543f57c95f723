"""The derivative of the projection onto a box and few rows on a GPU: all gradients of one sample in one program.

`hardnet.nearest.derivative` has the formulas and the same in plain torch.
"""

# Functions under triton.jit are written in Triton's language: their arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from hardnet.kernels.gpu.nearest_box import inverse_scale
from hardnet.kernels.gpu.nearest_box_rows import gram_of, load_rows, sweep, times, transposed, unit_scales
from hardnet.kernels.gpu.pivoting import step_of

UNRELATED = tl.constexpr(1e-14)
"""The squared distance of a unit row from the span of those before it below which its gradient is left to them."""
CORRECTIONS = tl.constexpr(3)
"""Corrections of the multipliers by what they leave of the gradient along the rows."""
SOLVED, FEASIBLE = tl.constexpr(0), tl.constexpr(4)


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
    for _ in tl.static_range(CORRECTIONS):
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
