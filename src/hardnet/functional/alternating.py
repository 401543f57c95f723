"""The nearest point of several sets of which each has a projection and nothing else: Dykstra's alternating projections.

From ``y = raw`` and ``p_i = 0`` a cycle goes through the sets: ``z_i = P_i(y + p_i)``, ``p_i <- y + p_i - z_i``,
``y <- z_i``. Then ``raw - y = sum_i p_i`` with p_i normal to set i at z_i, so that y is the nearest point where all z_i
are the same: a sample is solved where none is farther from y than the tolerance, which bounds ``|y - P_i(y)|``.

The cycle is a map ``p <- T(p, raw)``; its fixed point has the derivative ``(I - T_p)^-1 T_raw``, whose transpose is
applied by the same iteration on cotangents, with the product of each projection's own derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hardnet.errors import NOT_FINITE, ConvergenceError, UnsupportedSetError, in_samples, sample_indices, sentence
from hardnet.functional.derivatives import keep_value, last_derivative
from hardnet.functional.samples import reject
from hardnet.modes import may_look, outside_compiler, refuse_transforms
from hardnet.nearest.policy import Policy, answered, refuse_unsolved
from hardnet.solvers.solution import Solution, Status
from hardnet.tolerances import ALTERNATING, ROUNDINGS

Projections = Sequence[Callable[[Tensor], Tensor]]
"""For each set its projection ``(B, n) -> (B, n)``, NaN where it has no answer; the last one's points are returned."""
CYCLES = 20000
"""The most cycles."""
STALL, GAIN = 400, 0.9
"""A sample ends where this many cycles have not brought its points nearer to each other by this factor."""
LOOK = 8
"""Cycles between looks at whether all samples have ended."""
LEFT = 1e-6
"""What may be missing of a gradient, relative to it."""


@outside_compiler
def project_alternating(raw: Tensor, projections: Projections, policy: Policy, known: Tensor | None = None) -> Tensor:
    """``argmin |y - raw|`` over the sets, differentiable in raw and whatever the projections are differentiable in.

    Args:
        raw: ``(*batch, n)``; the cycles run in float64.
        projections: One for each set.
        policy: What to do with samples that are not solved, and with bad numbers. Nothing proves that a set is empty.
        known: NaN for samples that have no answer for another reason, which was dealt with.
    """
    refuse_transforms("alternating projections")
    policy = policy.resolved(may_look(raw))
    if policy.on_invalid == "raise" and may_look(raw):
        reject(~raw.isfinite().all(-1), NOT_FINITE, "raw")
    if known is not None:
        raw = torch.where(known.detach().isnan().any(-1, keepdim=True), torch.nan, raw)
    found, pulls = _find(raw, projections)
    y = _differentiable(raw.double(), found, pulls, projections) if torch.is_grad_enabled() else found.y
    if policy.on_unsolved == "raise":
        refuse_unsolved(found)
    y = answered(found._replace(y=y), policy)
    return y.to(raw.dtype)


@outside_compiler
@torch.no_grad()
def solve_alternating(raw: Tensor, projections: Projections) -> Solution:
    """The same with its `Solution`: the multipliers are p_i ``(n,)``, one set after the other, which add up to raw - y.

    The residual is the largest ``|z_i - y|``, relative to y.
    """
    refuse_transforms("alternating projections")
    found, pulls = _find(raw, projections)
    dual = torch.cat(list(pulls), dim=-1)
    return found._replace(y=answered(found).to(raw.dtype), dual=dual.to(raw.dtype))


@torch.no_grad()
def _find(raw: Tensor, projections: Projections) -> tuple[Solution, Tensor]:
    """The solution in float64, and the pulls p ``(k, *batch, n)``."""
    start = raw.detach().double()
    y, pulls = start, torch.zeros(len(projections), *start.shape, dtype=start.dtype, device=start.device)
    done, solved = ~start.isfinite().all(-1), torch.zeros_like(start[..., 0], dtype=torch.bool)
    residual = torch.full_like(start[..., 0], torch.inf)
    count = torch.zeros_like(done, dtype=torch.long)
    best, since = residual, count
    rounding = ROUNDINGS * torch.finfo(start.dtype).eps * start.abs().amax(-1)
    for cycle in range(CYCLES):
        points, moved = _cycle(y, pulls, projections)
        gap = torch.stack([torch.linalg.vector_norm(z - points[-1], dim=-1) for z in points]).amax(0)
        size = points[-1].abs().amax(-1)
        keep = done.unsqueeze(-1)
        y, pulls = torch.where(keep, y, points[-1]), torch.where(keep, pulls, moved)
        met = gap <= torch.maximum(ALTERNATING * size, rounding)
        residual = torch.where(done, residual, gap / torch.where(size > 0, size, 1.0))
        count = count + ~done
        nearer = gap < GAIN * best
        best, since = torch.where(nearer, gap, best), torch.where(nearer, cycle, since)
        solved = solved | (met & ~done)
        done = done | met | ~gap.isfinite() | (cycle - since >= STALL)
        if cycle % LOOK == 0 and bool(done.all()):
            break
    status = torch.where(solved, int(Status.SOLVED), int(Status.NOT_CONVERGED))
    status = torch.where(start.isfinite().all(-1), status, int(Status.INVALID)).to(torch.int8)
    return Solution(y, y, status, count, residual), pulls


def _cycle(y: Tensor, pulls: Tensor, projections: Projections) -> tuple[list[Tensor], Tensor]:
    """One cycle from y: the points z_i, and the pulls after it."""
    points, moved = [], []
    for project, pull in zip(projections, pulls, strict=True):
        before = y + pull
        y = project(before)
        if before.requires_grad and not y.requires_grad:
            expected, remedy = "operations that torch can differentiate", "or call the layer under torch.no_grad()"
            raise UnsupportedSetError(sentence("project", expected, "an answer without a graph", remedy))
        points.append(y)
        moved.append(before - y)
    return points, torch.stack(moved)


def _differentiable(raw: Tensor, found: Solution, pulls: Tensor, projections: Projections) -> Tensor:
    """The y that was found with the derivative of the fixed point; zero for samples that are not solved."""
    solved = (found.status == int(Status.SOLVED)).unsqueeze(-1)
    clean = torch.where(solved, raw, 0.0)
    still = torch.where(solved, pulls, 0.0)
    _, moved = _cycle(clean - still.sum(0), still, projections)
    if not moved.requires_grad:
        return found.y
    leaf = still.clone().requires_grad_()
    _, again = _cycle(clean.detach() - leaf.sum(0), leaf, projections)

    def through(grad: Tensor | None) -> Tensor | None:
        """``(I - T_p)^-T g``."""
        if grad is None:
            return None
        first = _solve_adjoint(torch.where(solved, grad.detach(), 0.0), leaf, again)
        return last_derivative("alternating projections", [first], [grad, moved])[0]

    moved.register_hook(through)
    return keep_value(torch.where(solved, clean - moved.sum(0), 0.0), found.y)


def _solve_adjoint(grad: Tensor, leaf: Tensor, again: Tensor) -> Tensor:
    """``sum_k (T_p')^k g``, ``(k, *batch, n)``; samples for which it does not settle are an error."""
    total, term = grad, grad
    size = left = grad.abs().amax((0, -1))
    for cycle in range(CYCLES):
        (term,) = torch.autograd.grad(again, leaf, term, retain_graph=True)
        total = total + term
        left = term.abs().amax((0, -1))
        if cycle % LOOK == 0 and bool((left <= ALTERNATING * 1e-3 * size).all()):
            return total
    bad = ~(left <= LEFT * size)
    if bool(bad.any()):
        where = in_samples(sample_indices(bad)) if bad.dim() else ""
        text = sentence("backward", "a derivative of the fixed point", f"none that settles{where}", "detach y there")
        raise ConvergenceError(text, sample_indices(bad) if bad.dim() else [])
    return total
