"""One row and a box: the multiplier from the sorted breakpoints of a monotone, piecewise linear function.

``phi(t) = a' clamp(raw - a t, low, high)`` decreases with t, and its slope changes where a coordinate meets or leaves a
bound, at ``(raw - low) / a`` and ``(raw - high) / a``. Bisection over these 2n sorted numbers, ``log2(2n + 1)``
evaluations, finds the piece on which phi crosses its target; phi is linear there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.solvers.polyhedron.box_problem import BoxProblem


def multiplier_of_one_row(problem: BoxProblem) -> Tensor:
    """The t nearest to 0 with ``lower <= phi(t) <= upper``, ``(B, 1)``; the outermost breakpoint if there is none."""
    a = problem.A.squeeze(-2)
    at_raw = _phi(problem, a, torch.zeros_like(problem.raw[:, :1]))
    target = torch.minimum(torch.maximum(at_raw, problem.lower), problem.upper)
    points, count = _breakpoints(problem, a)
    before, after = _bracket(problem, a, target, points, count)
    return torch.where(at_raw == target, 0.0, _on_piece(problem, a, target, points, count, before, after))


def _phi(problem: BoxProblem, a: Tensor, at: Tensor) -> Tensor:
    """``a' clamp(raw - a t)``, ``(B, 1)``."""
    return (a * problem.clamp(problem.raw - a * at)).sum(-1, keepdim=True)


def _breakpoints(problem: BoxProblem, a: Tensor) -> tuple[Tensor, Tensor]:
    """The breakpoints, finite ones first and sorted, ``(B, 2n)``, and how many are finite, ``(B, 1)``."""
    safe = torch.where(a == 0, 1.0, a)
    ends = torch.cat([(problem.raw - side) / safe for side in (problem.low, problem.high)], dim=-1)
    met = (a != 0).expand(problem.raw.shape)
    good = torch.cat([met, met], dim=-1) & ends.isfinite()
    points = torch.where(good, ends, torch.inf).sort(dim=-1).values
    return points, good.sum(-1, keepdim=True)


def _at(points: Tensor, index: Tensor, count: Tensor) -> Tensor:
    """The breakpoint at that index, clamped to the valid range; 0 if there are none."""
    index = torch.minimum(index, count - 1).clamp_min(0)
    return torch.where(count > 0, points.gather(-1, index), 0.0)


def _bracket(problem: BoxProblem, a: Tensor, target: Tensor, points: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the last breakpoint where phi is at least the target (-1 if none), and the next index."""
    before, after = torch.full_like(count, -1), count
    for _ in range(points.shape[-1].bit_length()):
        middle = (before + after) // 2
        high = _phi(problem, a, _at(points, middle, count)) >= target
        split = after - before > 1
        before, after = torch.where(split & high, middle, before), torch.where(split & ~high, middle, after)
    return before, after


def _on_piece(
    problem: BoxProblem, a: Tensor, target: Tensor, points: Tensor, count: Tensor, before: Tensor, after: Tensor
) -> Tensor:
    """Where the line between two breakpoints, or beyond the outermost one, meets the target."""
    left, right = _at(points, before, count), _at(points, after, count)
    first, last = _phi(problem, a, left), _phi(problem, a, right)
    falls = first - last
    inner = left + (right - left) * ((first - target) / torch.where(falls > 0, falls, 1.0))
    below, above = problem.low.isinf(), problem.high.isinf()
    square, rises = a.square(), a > 0
    # written with & and |, since ONNX Runtime has no `where` for masks
    first_free, last_free = (rises & above) | (~rises & below), (rises & below) | (~rises & above)
    # beyond the breakpoints only the coordinates without a bound on that side are free
    start = torch.where(first_free, square, 0.0).sum(-1, keepdim=True)
    end = torch.where(last_free, square, 0.0).sum(-1, keepdim=True)
    slope = torch.where(before < 0, start, end)
    outer = left + torch.where(slope > 0, (first - target) / torch.where(slope > 0, slope, 1.0), 0.0)
    return torch.where((before < 0) | (after >= count), outer, inner)
