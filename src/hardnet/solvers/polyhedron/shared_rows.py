"""The nearest point for many constant rows: the active sets of all samples in batches of dense products.

1. Equalities are eliminated, `hardnet.solvers.polyhedron.shared_factor`.
2. The active rows are guessed, `hardnet.solvers.polyhedron.shared_guess`.
3. ``K_JJ dual = (G q - bound)_J`` makes them tight. Rows with a multiplier of the wrong sign leave, violated ones join,
   and the samples that changed are solved again; for those that still change, more splitting steps make a new guess.

Where no value may be read, the samples to solve again are a fixed share of the batch, with the open ones first. The
caller checks the optimality conditions of every answer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times, times_aligned
from hardnet.solvers.polyhedron.problem import Problem
from hardnet.solvers.polyhedron.shared_blocks import solve_shared
from hardnet.solvers.polyhedron.shared_factor import Product, SharedRows, on_equalities
from hardnet.solvers.polyhedron.shared_guess import guess_of, pivoted, pivots_on_chip, sides_of, split_steps, stiffen

FIRST_STEPS = 50
"""Splitting steps of all samples."""
MORE_STEPS = 60
"""Stiff splitting steps that follow where no value may be read, so that few samples are open afterwards."""
AGAIN = ((0, 16), (150, 4), (0, 8), (450, 16), (0, 16))
"""Further rounds for the open samples, as pairs: the number of stiff splitting steps before the round (0: exchange rows
instead), and, where no value may be read, the k for which one sample in k can be solved again."""
LEAST = 64
"""At least this many samples can be solved again, however small the batch is."""
TIGHT = 8.0
"""How far a row may miss its bound and still count as tight, in slacks."""
NEGATIVE = 1e-13
"""A multiplier of the wrong sign below this fraction of the largest, or of the sample's unit, counts as zero."""


class _Reduced(NamedTuple):
    """The problem in the multipliers: ``low <= product - K dual <= high``, each ``(B, k)``."""

    product: Tensor
    low: Tensor
    high: Tensor
    slack: Tensor

    def take(self, index: Tensor) -> _Reduced:
        return _Reduced(*(part[index] for part in self))


class _Found(NamedTuple):
    """Multipliers for the given sides ``(B, k)``, the sides to try next, and whether nothing changed ``(B,)``."""

    dual: Tensor
    side: Tensor
    settled: Tensor


def answer(problem: Problem, rows: SharedRows, look: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Y ``(B, n)``, dual ``(B, m)`` and which samples settled ``(B,)``; values are read only if `look`.

    Pass the whole batch: the bits of a product over all samples depend on how many samples there are.
    """
    rows = rows.aligned()
    b = _of_rows(problem.lower, rows.equal, len(rows.C), 0.0) / rows.length
    start, _ = on_equalities(rows, problem.raw, b)
    reduced = _reduce(problem, rows, start)
    found = _multipliers(rows, reduced, look)
    y, held = on_equalities(rows, problem.raw - times(rows.G.mT, found.dual), b)
    dual = torch.zeros_like(problem.lower)
    dual[:, rows.free] = (found.dual / rows.scale)[:, : len(rows.free)]
    dual[:, rows.equal] = (held / rows.length)[:, : len(rows.equal)]
    return y, dual, found.settled


def shared_vjp(grad: Tensor, rows: SharedRows, active: Tensor, look: bool) -> tuple[Tensor, Tensor, Tensor]:
    """``g = u + A_J'w`` with ``A_J u = 0``, as in `active.split`, and the error of ``A_J u``, ``(B,)``.

    Args:
        grad: g, ``(B, n)``, aligned.
        rows: The constant rows.
        active: J as a mask over the rows, ``(B, m)``; all equalities count as active.
        look: As in `answer`.
    """
    rows = rows.aligned()
    own = _of_rows(active.to(grad), rows.free, len(rows.G), 0.0) > 0
    start, _ = on_equalities(rows, grad, 0.0)
    w = solve_shared(rows.gram, own, times(rows.G, start), look, solves=2)
    u, held = on_equalities(rows, grad - times(rows.G.mT, w), 0.0)
    missed = torch.where(own, times(rows.G, u), 0.0)
    missed = torch.nn.functional.pad(missed, (0, 1)).abs().amax(-1)  # there may be equalities alone
    whole = torch.zeros_like(active, dtype=grad.dtype)
    whole[:, rows.free] = (w / rows.scale)[:, : len(rows.free)]
    whole[:, rows.equal] = (held / rows.length)[:, : len(rows.equal)]
    return u, whole, missed


def _of_rows(values: Tensor, index: Tensor, count: int, absent: float) -> Tensor:
    """Columns `index` of values ``(B, m)``, padded to `count`."""
    missing = count - len(index)
    return torch.nn.functional.pad(values[:, index], (0, missing), value=absent) if missing else values[:, index]


def _reduce(problem: Problem, rows: SharedRows, start: Tensor) -> _Reduced:
    """Bounds and slacks of the inequality rows, in units of G; no bounds if the equalities determine a row."""
    count = len(rows.G)
    own = rows.gram.diagonal() > 0
    low = _of_rows(problem.lower, rows.free, count, -torch.inf) / rows.scale
    high = _of_rows(problem.upper, rows.free, count, torch.inf) / rows.scale
    slack = _of_rows(problem.slack_at(start), rows.free, count, 0.0) / rows.scale
    low, high = torch.where(own, low, -torch.inf), torch.where(own, high, torch.inf)
    return _Reduced(times(rows.G, start), low, high, slack)


def _multipliers(rows: SharedRows, reduced: _Reduced, look: bool) -> _Found:
    """The multipliers of every sample, first guessed, then made exact."""
    if len(rows.gram) == 0:  # only equalities
        return _Found(
            reduced.product, reduced.product, torch.ones(len(reduced.product), device=reduced.product.device) > 0
        )
    if pivots_on_chip(rows):
        dual, side, _, finished = pivoted(rows, *reduced)
        return _Found(dual, side, finished)
    low, high = reduced.low - reduced.product, reduced.high - reduced.product
    state = split_steps(rows.soft, low, high, torch.zeros_like(low), FIRST_STEPS)
    state = stiffen(state, low, high)
    state = state if look else split_steps(rows.stiff, low, high, state, MORE_STEPS)
    found = _solve(rows, reduced, *guess_of(state, low, high), look, times)
    for steps, share in AGAIN:
        chosen = _open(found.settled, share, look)
        if len(chosen) == 0 or (steps and look and not state.is_cuda):  # a CPU has a better method for the rest
            break
        guess = found.side[chosen], found.dual[chosen]
        if steps:
            ends = low[chosen], high[chosen]
            part = split_steps(rows.stiff, *ends, state[chosen], steps)
            state, guess = state.index_copy(0, chosen, part), guess_of(part, *ends)
        found = _keep(found, chosen, _solve(rows, reduced.take(chosen), *guess, look, times_aligned))
    return found


def _open(settled: Tensor, share: int, look: bool) -> Tensor:
    """The samples to solve again: the open ones; where no value may be read, one in `share`, open ones first."""
    if look:
        return (~settled).nonzero().squeeze(-1)
    count = min(len(settled), max(LEAST, len(settled) // share))
    return settled.to(torch.uint8).argsort(stable=True)[:count]


def _keep(found: _Found, chosen: Tensor, again: _Found) -> _Found:
    """Write the new results into their places, except for samples that had settled."""
    done = found.settled[chosen]
    parts = []
    for old, new in zip(found, again, strict=True):
        mask = done.view(-1, *(1,) * (old.dim() - 1))
        parts.append(old.index_copy(0, chosen, torch.where(mask, old[chosen], new)))
    return _Found(*parts)


def _solve(rows: SharedRows, reduced: _Reduced, side: Tensor, start: Tensor, look: bool, product_of: Product) -> _Found:
    """Make the rows of `side` tight by multipliers near `start`, and find the sides to try next."""
    product, low, high, slack = reduced
    tight = low == high
    side = torch.where(tight, 1.0, side)
    active = side != 0
    bound = torch.where(side > 0, high, low)
    dual = solve_shared(rows.gram, active, torch.where(active, product - bound, 0.0), look, start)
    value = product - product_of(rows.gram, dual)
    room = TIGHT * slack
    least = NEGATIVE * dual.abs().amax(-1, keepdim=True).clamp_min(1.0)
    stays = active & ((side * dual >= -least) | tight)
    joins = sides_of(value, low - room, high + room)
    missed = active & ~((value - bound).abs() <= room)  # dependent rows that contradict each other, or NaN
    settled = (~(active ^ stays) & ~(~active & (joins != 0)) & ~missed).all(-1)
    return _Found(dual, torch.where(stays, side, torch.where(active, 0.0, joins)), settled)
