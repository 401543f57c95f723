"""The multipliers of a small quadratic program by guessing its active rows, for all samples of a batch at once.

    low <= target - gram dual <= high,    dual_i > 0 only at the upper bound, < 0 only at the lower

A guess makes its rows tight; rows whose multiplier has the wrong sign are released and violated rows are added, until
the guess no longer changes. On a CPU, compiled code uses a dual active-set method instead (`kernels.cpu.active_set`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import INDEPENDENT, NOISE, PATIENCE, ROUNDS
from hardnet.solvers.algebra.small import product, solve_definite


class Bounds(NamedTuple):
    """Bounds of rows of length one, the violation that counts as zero, and which are equalities: ``(b, m)`` each."""

    low: Tensor
    high: Tensor
    slack: Tensor
    equality: Tensor


def settle_rows(
    gram: Tensor, target: Tensor, low: Tensor, high: Tensor, tight: bool, look: bool, guess: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Complementary multipliers with ``low <= target - gram dual <= high``, and which samples are solved."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    unit = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    gram = gram * (unit.unsqueeze(-1) * unit.unsqueeze(-2))
    if tight:
        dual, sound = _solve(gram, (target - high) * unit)
        return dual * unit, sound
    target, low, high = target * unit, low * unit, high * unit
    slack = NOISE * torch.maximum(target.abs(), torch.minimum(low.abs(), high.abs()))
    equality = low == high
    first = None if guess is None else guess.sign()
    side = _outside(target, low, high, slack, equality) if first is None else torch.where(equality, 1.0, first)
    dual, settled = _guess(gram, target, Bounds(low, high, slack, equality), side, look)
    return dual * unit, settled


def _guess(gram: Tensor, target: Tensor, bounds: Bounds, side: Tensor, look: bool) -> tuple[Tensor, Tensor]:
    """Guess the active rows: multipliers, and which samples are solved; with `look`, these leave the batch.

    A sample whose number of wrong rows has not decreased for `PATIENCE` rounds changes only its last wrong row in each
    round until it does: block principal pivoting, which terminates for every positive definite matrix.
    """
    dual, settled = torch.zeros_like(target), torch.zeros_like(target[:, 0], dtype=torch.bool)
    index = torch.arange(target.shape[0], device=target.device)
    least, patience = torch.full_like(index, side.shape[-1] + 1), torch.full_like(index, PATIENCE)
    place = torch.arange(1, side.shape[-1] + 1, device=target.device)
    for _ in range(ROUNDS):
        found, following, sound = _try(gram, target, bounds, side)
        wrong = following != side
        count = wrong.sum(-1)
        same = (count == 0) & sound
        patience = torch.where(count < least, PATIENCE, patience - 1)
        last = place * wrong == (place * wrong).amax(-1, keepdim=True)
        side = torch.where(wrong & ((patience >= 0).unsqueeze(-1) | last), following, side)
        least = torch.minimum(least, count)
        if not look:
            dual, settled = torch.where(settled.unsqueeze(-1), dual, found), settled | same
            continue
        dual[index], settled[index] = torch.where(same.unsqueeze(-1), found, 0.0), same
        rest = (~same & sound).nonzero().squeeze(-1)
        if len(rest) == 0:
            break
        parts = (gram, target, index, side, least, patience, *bounds)
        gram, target, index, side, least, patience, *ends = (part[rest] for part in parts)
        bounds = Bounds(*ends)
    return dual, settled


def _try(gram: Tensor, target: Tensor, bounds: Bounds, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The multipliers of a guess, the next guess, and which samples have independent rows."""
    found, sound = _tight(gram, side, target - torch.where(side > 0, bounds.high, bounds.low))
    free = _outside(target - product(gram, found), *bounds)
    held = torch.where((found * side > 0) | bounds.equality, side, 0.0)  # a multiplier of the wrong sign is released
    return found, torch.where(side == 0, free, held), sound


def _outside(value: Tensor, low: Tensor, high: Tensor, slack: Tensor, equality: Tensor) -> Tensor:
    """+1 above the upper bound, -1 below the lower, 0 between; an equality is always active."""
    side = (value > high + slack).to(value) - (value < low - slack).to(value)
    return torch.where(equality, 1.0, side)


def _tight(gram: Tensor, side: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers that make the rows with a `side` tight, and which samples have independent rows."""
    active = (side != 0).to(gram)
    matrix = gram * (active.unsqueeze(-1) * active.unsqueeze(-2)) + torch.diag_embed(1 - active)
    return _solve(matrix, torch.where(side != 0, excess, 0.0))


def _solve(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """``matrix^-1 right``, ``(b, m)``, 0 where a pivot is too small; and which samples have large enough pivots."""
    dual, pivot = solve_definite(matrix, right.unsqueeze(-1))
    dual = dual.squeeze(-1)
    sound = (pivot > INDEPENDENT) & dual.isfinite().all(-1)
    return torch.where(sound.unsqueeze(-1), dual, 0.0), sound
