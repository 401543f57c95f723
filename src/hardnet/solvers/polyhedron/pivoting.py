"""Dual active set by principal pivoting: one rank-one update of the Gram matrix per change of the active set.

With unit rows and ``y = raw - A'dual`` the products are ``A y = A raw - G dual``, ``G = A A'``. The method of Goldfarb
and Idnani starts from the empty active set J, takes the most violated row j, and raises its multiplier until the
row is tight (j joins J) or until the multiplier of an active row reaches zero (that row leaves J). All it needs
is column j of the tableau

    T = [ -K^-1      K^-1 G_JN            ]        K = G_JJ
        [ G_NJ K^-1   G_NN - G_NJ K^-1 G_JN ]

and a row joins or leaves J by one symmetric pivot of T. The dual objective increases with every step, so the method
terminates. Rows that depend on J show up as a zero pivot; if such a row is violated and no active row can leave, the
set is empty. Every operation is elementwise or a gather, so a sample's answer has the same bits in any batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.kernels.limits import UNRELATED, VANISHING
from hardnet.products import align, times_aligned
from hardnet.rows import step_limit
from hardnet.solvers.polyhedron.problem import Problem

KERNEL_ROWS = 128
"""The most rows that the kernel holds in registers."""
CACHE_ENTRIES = {"cpu": 1 << 18, "cuda": 1 << 27}
"""The most entries of the tableaus in one chunk."""
ROUND = 8
"""The number of steps between two checks of which samples are still working."""
INFINITY = float("inf")


class Pivoted(NamedTuple):
    """Where pivoting ended, sample by sample, for unit rows.

    Attributes:
        dual: Multipliers, ``(B, m)``.
        side: +1 active at the upper bound, -1 at the lower, 0 inactive: ``(B, m)``.
        steps: Steps taken, ``(B,)``.
        finished: False where the sample stopped at an empty set or at the limit of steps, ``(B,)``.
    """

    dual: Tensor
    side: Tensor
    steps: Tensor
    finished: Tensor


class _State(NamedTuple):
    """The basic variables ``value`` (the multiplier of an active row, the product of an inactive one), and the rest."""

    sample: Tensor
    tableau: Tensor
    value: Tensor
    side: Tensor
    own: Tensor  # multiplier of the row that is joining
    joining: Tensor  # its index, or -1
    stuck: Tensor
    steps: Tensor
    lower: Tensor
    upper: Tensor
    slack: Tensor


def by_pivoting(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batched pivoting, in chunks whose tableaus fit the cache (CPU) or the memory (GPU)."""
    batch, m = problem.lower.shape
    size = max(1, CACHE_ENTRIES.get(problem.raw.device.type, 1 << 27) // (m * m))
    parts = [_pivot_chunk(problem.take(slice(first, first + size))) for first in range(0, batch, size)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))  # pyright: ignore[reportReturnType]


def _pivot_chunk(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    norm, (m, _) = problem.norm, problem.size
    gram = (problem.A @ problem.A.mT) / (norm.unsqueeze(-1) * norm.unsqueeze(-2))
    gram = gram.expand(len(problem.raw), -1, -1)[:, :m, :m].clone(memory_format=torch.contiguous_format)
    scaled = ((part / norm)[:, :m] for part in (problem.product, problem.lower, problem.upper, problem.slack))
    found = pivot(gram, *scaled, limit=step_limit(problem.A))
    dual = align(found.dual) / norm
    return problem.raw - times_aligned(problem.A.mT, dual), dual, found.steps, found.finished


def pivot(gram: Tensor, product: Tensor, lower: Tensor, upper: Tensor, slack: Tensor, limit: int) -> Pivoted:
    """The multipliers of ``lower <= product - gram dual <= upper``: by the kernel on a GPU, else by the reference."""
    if gram.device.type == "cuda" and gram.shape[-1] <= KERNEL_ROWS and gpu.HAS_TRITON:
        from hardnet.kernels.gpu.polyhedron import pivot as kernel

        return Pivoted(*kernel(gram, product, lower, upper, slack, limit))
    return pivot_reference(gram, product, lower, upper, slack, limit)


def pivot_reference(gram: Tensor, product: Tensor, lower: Tensor, upper: Tensor, slack: Tensor, limit: int) -> Pivoted:
    """Project in the space of products: find the multipliers of ``lower <= product - gram dual <= upper``.

    Args:
        gram: ``A A'`` of unit rows, ``(B, m, m)``; it is overwritten.
        product: ``A raw``, ``(B, m)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        slack: Violation that still counts as satisfied, ``(B, m)``.
        limit: The most steps.
    """
    result = Pivoted(
        torch.zeros_like(product),
        torch.zeros_like(product),
        torch.zeros_like(product[:, 0], dtype=torch.long),
        torch.zeros_like(product[:, 0], dtype=torch.bool),
    )
    state = _start(gram, product, lower, upper, slack)
    for _ in range(0, limit + ROUND, ROUND):
        working = _working(state)
        _record(result, state, ~(working | state.stuck))
        count = int(working.sum())
        if count == 0:
            break
        if 2 * count <= len(working):
            state = _State(*(part[working] for part in state))
        for _ in range(ROUND):
            state = _step(state)
    return result


def _start(gram: Tensor, product: Tensor, lower: Tensor, upper: Tensor, slack: Tensor) -> _State:
    scalar = torch.zeros_like(product[:, 0])
    index = torch.arange(len(scalar), device=scalar.device)
    nothing = torch.zeros_like(product)
    stuck, steps = torch.zeros_like(index, dtype=torch.bool), torch.zeros_like(index)
    own, joining = scalar, torch.full_like(index, -1)
    return _State(index, gram, product.clone(), nothing, own, joining, stuck, steps, lower, upper, slack)


def _excess(state: _State) -> Tensor:
    """How far each inactive row is violated beyond its slack; -1 for active rows."""
    excess = torch.maximum(state.value - state.upper, state.lower - state.value) - state.slack
    return excess.masked_fill(state.side != 0, -1.0)


def _working(state: _State) -> Tensor:
    return ((_excess(state).amax(-1) > 0) | (state.joining >= 0)) & ~state.stuck


def _record(result: Pivoted, state: _State, finished: Tensor) -> None:
    """Write the current state of every sample; those still working are overwritten later."""
    dual = torch.where(state.side != 0, state.value, 0.0)
    result.dual[state.sample] = dual
    result.side[state.sample] = state.side
    result.steps[state.sample] = state.steps
    result.finished[state.sample] = finished


def _step(state: _State) -> _State:
    """Raise one multiplier until its row is tight or another row must leave, and pivot on that row."""
    worst, furthest = _excess(state).max(-1)
    row = torch.where(state.joining >= 0, state.joining, furthest)
    value, upper, lower = (_at(part, row) for part in (state.value, state.upper, state.lower))
    sign = torch.where(value > upper, 1.0, -1.0).to(value)
    missing = torch.where(value > upper, value - upper, lower - value)
    column = _row_of(state.tableau, row)
    leaving, until_leaving = _ratio_test(state, column * sign.unsqueeze(-1))
    distance = _at(column, row)
    until_tight = torch.where(distance > UNRELATED, missing / distance, INFINITY)
    length, joins = torch.minimum(until_tight, until_leaving), until_tight <= until_leaving
    working = ((worst > 0) | (state.joining >= 0)) & ~state.stuck
    stuck = state.stuck | (working & (length == INFINITY))
    working = working & ~stuck
    length = torch.where(working, length, 0.0)
    moved = state.value - column * (sign * length).unsqueeze(-1)
    own = state.own + sign * length
    pivoted = torch.where(joins, row, leaving)
    _sweep(state.tableau, pivoted, working)
    moved, side = _exchange(state, moved, pivoted, joins, working, torch.where(joins, sign, 0.0), own)
    own = torch.where(joins, 0.0, own)
    joining = torch.where(working & ~joins, row, -1)
    changed = {"value": moved, "side": side, "own": own, "joining": joining, "stuck": stuck}
    return state._replace(**changed, steps=state.steps + working)


def _ratio_test(state: _State, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The active inequality whose multiplier reaches zero first, and the step that takes it there."""
    shrinks = (state.side * slope > VANISHING) & (state.lower != state.upper)
    length, leaving = torch.where(shrinks, state.value / slope, INFINITY).min(-1)
    return leaving, length.clamp_min(0.0)


def _sweep(tableau: Tensor, index: Tensor, working: Tensor) -> None:
    """Pivot T on ``T_qq``: ``T - t t'/T_qq`` with ``t = T_q``, row and column q divided by ``|T_qq|``, ``-1/T_qq``."""
    column = _row_of(tableau, index)
    pivot_value = _at(column, index)
    scaled = column * torch.where(working, 1 / pivot_value, 0.0).unsqueeze(-1)
    tableau.addcmul_(scaled.unsqueeze(-1), column.unsqueeze(-2), value=-1)
    column = column * torch.where(working, 1 / pivot_value.abs(), 1.0).unsqueeze(-1)
    column.scatter_(-1, index.unsqueeze(-1), torch.where(working, -1 / pivot_value, pivot_value).unsqueeze(-1))
    samples = torch.arange(len(index), device=index.device)
    tableau[samples, index] = column
    tableau[samples, :, index] = column


def _exchange(
    state: _State, moved: Tensor, index: Tensor, joins: Tensor, working: Tensor, sign: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Exchange row ``index``: the value of a joining row becomes its multiplier, of a leaving row its former bound."""
    was = _at(state.side, index)
    bound = torch.where(was > 0, _at(state.upper, index), _at(state.lower, index))
    held = torch.where(working, torch.where(joins, own, bound), _at(moved, index))
    column = index.unsqueeze(-1)
    side = torch.where(working, sign, was)
    return moved.scatter(-1, column, held.unsqueeze(-1)), state.side.scatter(-1, column, side.unsqueeze(-1))


def _at(matrix: Tensor, index: Tensor) -> Tensor:
    """Entry ``index[b]`` of row b."""
    return matrix.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _row_of(tableau: Tensor, index: Tensor) -> Tensor:
    """Row ``index[b]`` (the column, by symmetry) of matrix b."""
    return tableau[torch.arange(len(index), device=index.device), index]
