"""Retraction: a point of ``lower <= g(y) <= upper, A_lower <= A y <= A_upper`` by Gauss-Newton steps.

Each step is the nearest point of the linearised set (`nonlinear_step`), shortened until the violation falls; affine
rows are rows of every step, and never give way. Where the linearisation has no point the step is elastic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear_rows import Derivatives, Rows
from hardnet.solvers.nonlinear_search import backtrack
from hardnet.solvers.nonlinear_step import solve_step
from hardnet.solvers.small import product

ELASTIC = 1e-4
"""Least elasticity of a row of length one: of a violation v a step leaves about ``ELASTIC^2 v / sigma^2``.

A gradient that would send a sample farther than 1e4 times its own size counts as smaller than it is."""
SOFTEST = 1e1
SHORT = 0.125
"""Length of a step below which the next one is more elastic."""
HALVINGS = 40
"""Trials of a step: near a vanishing gradient it may be too long by many orders."""
FINE = 1e-14
"""Part of a row's scale to which a violation is driven while steps still bring it down."""
STATIONARY = 1e-9
"""Share of the violation that a step must promise to remove; below it the point is stationary."""
NEARLY_STATIONARY = 1e-6
"""The same share where the iteration ended without an answer."""
NUDGE = 1e-2
"""Length of a nudge relative to the sample's size, at a stationary point that violates its rows."""


class Retracted(NamedTuple):
    """Where the iteration ended, per sample: the point ``(B, n)`` and what is known of it, ``(B,)`` each.

    ``ratio`` is by how much the last full step reduced the violation: near a regular point it tends to zero.
    """

    y: Tensor
    error: Tensor
    stationary: Tensor
    ratio: Tensor
    steps: Tensor


def row_size(y: Tensor, raw: Tensor) -> Tensor:
    """``max |y|``, at least ``min(1, max |raw|)``: the size of a sample's outputs, ``(b, 1)``."""
    return torch.maximum(y.abs().amax(-1, keepdim=True), raw.abs().amax(-1, keepdim=True).clamp_max(1.0))


def row_norms(jacobian: Tensor) -> Tensor:
    """``|J_i|``, ``(b, m)``; 1 for a zero row."""
    norm = torch.linalg.vector_norm(jacobian, dim=-1)
    return torch.where(norm > 0, norm, 1.0)


def elastic_rows(rows: Rows, jacobian: Tensor, soft: Tensor | None = None) -> Tensor:
    """How far each row gives way: ``soft`` or the least elasticity for the rows of g, 0 for affine rows, ``(b, m)``."""
    soft = ELASTIC * row_norms(jacobian) if soft is None else soft
    if not rows.A.shape[-2]:
        return soft
    return torch.cat([soft[:, : rows.curved], torch.zeros_like(soft[:, rows.curved :])], dim=-1)


def relative_error(rows: Rows, at: Derivatives, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """The largest violation relative to its row's scale, ``(b,)``, and these scales ``(b, m)``."""
    scale = rows.scale(at.jacobian, row_size(y, raw))
    floor = torch.finfo(y.dtype).eps * at.value.abs() + torch.finfo(y.dtype).tiny  # for rows without a gradient
    scale = torch.maximum(scale, floor)
    return (rows.violation(at.value) / scale).amax(-1), scale


def retract(
    rows: Rows, y: Tensor, raw: Tensor, *, tolerance: float, fine: float = FINE, iterations: int = 60, unit: bool = True
) -> Retracted:
    """Iterate from y ``(B, n)``, which satisfies the affine rows; each sample stops by itself.

    A sample stops when its violation is below `fine`, when it is below `tolerance` and falls no more, or when it is
    stationary after two nudges.

    Args:
        rows: The rows.
        y: Where to start.
        raw: ``(B, n)``, which rounding is relative to.
        tolerance: Relative violation that counts as none.
        fine: Relative violation that ends the iteration at once.
        iterations: The most steps.
        unit: Whether violations are measured in units of the rows' gradients; else in the rows' own units, so that
            what cannot be satisfied ends at the least sum of squared violations.
    """
    batch, whole = len(y), rows
    result = Retracted(
        y.clone(),
        y.new_full((batch,), torch.inf),
        torch.zeros(batch, dtype=torch.bool, device=y.device),
        y.new_zeros(batch),
        torch.zeros(batch, dtype=torch.long, device=y.device),
    )
    index = torch.arange(batch, device=y.device)
    elastic, nudges = y.new_full((batch,), ELASTIC), torch.zeros_like(result.steps)
    least = result.error.clone()
    before, full = result.error.clone(), torch.zeros_like(result.stationary)
    for _ in range(iterations + 1):
        at = rows.evaluate(y)
        error, _ = relative_error(rows, at, y, raw)
        ratio = torch.where(full & (before > 0), error / before, result.ratio[index])
        slow = (error <= tolerance) & (error > 0.5 * before)
        going = ~((error <= fine) | slow | ~error.isfinite() | (nudges > 2) | (elastic > SOFTEST))
        size = error if unit else torch.linalg.vector_norm(rows.violation(at.value), dim=-1)
        better = ~(size > least[index])
        chosen = index[better]
        least[chosen] = size[better]
        result.y[chosen], result.error[chosen], result.ratio[chosen] = y[better], error[better], ratio[better]
        keep = going.nonzero().squeeze(-1)
        if len(keep) == 0:
            break
        if len(keep) < len(index):
            index, y, raw, error = index[keep], y[keep], raw[keep], error[keep]
            elastic, nudges, rows, at = elastic[keep], nudges[keep], rows.take(keep), at.take(keep)
        result.steps[index] += 1
        y, length, stationary = _advance(rows, at, y, raw, elastic, unit)
        result.stationary[index] = stationary
        nudges = nudges + stationary
        short = (length <= SHORT) & ~stationary
        elastic = torch.where(short, elastic * 10, torch.where(length == 1, (elastic / 10).clamp_min(ELASTIC), elastic))
        elastic = torch.where(length > 0, elastic.clamp_max(SOFTEST), elastic)
        before, full = error, length == 1
    return result if unit else _settle_stationary(whole, result, tolerance)


def _settle_stationary(rows: Rows, result: Retracted, tolerance: float) -> Retracted:
    """Violated samples also count as stationary where only a tiny share of the violation could be removed."""
    todo = (~(result.error <= tolerance)).nonzero().squeeze(-1)
    if len(todo):
        some = rows.take(todo)
        at = some.evaluate(result.y[todo])
        norm = row_norms(at.jacobian).amax(-1, keepdim=True).expand_as(at.value)
        result.stationary[todo] |= _damped_share(some, at, norm) <= NEARLY_STATIONARY
    return result


def _advance(
    rows: Rows, at: Derivatives, y: Tensor, raw: Tensor, elastic: Tensor, unit: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One step: the new points, its length (0 where refused), and which samples were stationary and are nudged."""
    norm = row_norms(at.jacobian)
    norm = norm if unit else norm.amax(-1, keepdim=True).expand_as(norm)
    least = rows.violation(at.value) / row_size(y, raw).clamp_min(torch.finfo(y.dtype).tiny)
    soft = elastic_rows(
        rows, at.jacobian, torch.maximum(norm, least if unit else least.amax(-1, keepdim=True)) * elastic.unsqueeze(-1)
    )
    step = solve_step(at.jacobian, rows.lower - at.value, rows.upper - at.value, soft)[0]
    weight = 1 / norm if unit else torch.ones_like(norm)
    current = _merit(rows, at.value, weight)
    promised = _merit(rows, at.value + product(at.jacobian, step), weight)
    stationary = ~(current - promised > STATIONARY * current)
    if not unit:
        stationary = stationary | (_damped_share(rows, at, norm) <= STATIONARY)
    slope = torch.where(stationary, -torch.inf, promised - current)  # -inf: nothing is accepted

    def merit(point: Tensor, samples: Tensor) -> Tensor:
        some = rows if len(samples) == len(y) else rows.take(samples)
        return _merit(some, some.value(point), weight[samples])

    found = backtrack(merit, y, step, current, slope, noise=torch.zeros_like(current), halvings=HALVINGS)
    nudged = y + NUDGE * row_size(y, raw).clamp_min(NUDGE) * fixed_direction(y)
    return torch.where(stationary.unsqueeze(-1), nudged, found.y), found.length, stationary


def _damped_share(rows: Rows, at: Derivatives, norm: Tensor) -> Tensor:
    """The share of the violation that a step of a gradient's length promises to remove: 0 at a stationary point."""
    step = solve_step(at.jacobian, rows.lower - at.value, rows.upper - at.value, elastic_rows(rows, at.jacobian, norm))[
        0
    ]
    weight = torch.ones_like(norm)
    current = _merit(rows, at.value, weight)
    promised = _merit(rows, at.value + product(at.jacobian, step), weight)
    return torch.where(current > 0, 1 - promised / current, 1.0)


def _merit(rows: Rows, value: Tensor, weight: Tensor) -> Tensor:
    """``|v|`` with each row in units of its length."""
    return torch.linalg.vector_norm(rows.violation(value) * weight, dim=-1)


def fixed_direction(y: Tensor, number: int = 0) -> Tensor:
    """A fixed direction without symmetries, the same for every sample: ``(n,)``, one for each number."""
    place = torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
    return ((1.7 + 0.9 * number) * place + 0.3 + number).sin()
