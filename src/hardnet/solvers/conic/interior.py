"""``min 1/2 |y - raw|^2  s.t.  G(y) in K`` by a primal-dual interior point method: a fixed program, no look at a value.

Predictor and corrector (Mehrotra) share one Cholesky factor of n x n a step. A sample that has arrived, or whose step
fails, keeps its best point. Where a look is free the loop ends with the last sample.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.modes import may_look
from hardnet.solvers.conic.barrier_cones import ConeBarrier
from hardnet.solvers.conic.barrier_matrices import MatrixBarrier
from hardnet.solvers.conic.barriers import Barrier, IntervalBarrier, Local, Pair, ValueBarrier
from hardnet.solvers.conic.cones import SecondOrderImage
from hardnet.solvers.conic.images import Image, IntervalImage
from hardnet.solvers.conic.iterate import Task
from hardnet.solvers.conic.semidefinite import SemiDefiniteImage

ARRIVED = 1e-12
"""Mean product of slacks and multipliers, in units of size one, from which Newton on the active set goes on."""
SLOPE, MISS = 1e-4, 1e-2
"""What a residual of the slope and of the slacks counts beside it: Newton makes these exact from further away."""
SHORT = 0.99
"""Part of the way to the boundary that a step takes."""


class Interior(NamedTuple):
    """Point ``(B, n)``, multipliers ``(B, r)``, how far from optimal ``(B,)``, and the steps spent ``(B,)``."""

    y: Tensor
    dual: Tensor
    residual: Tensor
    iterations: Tensor


def barrier(image: Image) -> Barrier:
    """The barrier of an image."""
    if isinstance(image, IntervalImage):
        return IntervalBarrier(image)
    if isinstance(image, SecondOrderImage):
        return ConeBarrier(image)
    return MatrixBarrier(image) if isinstance(image, SemiDefiniteImage) else ValueBarrier(image)


def follow_path(task: Task, steps: int) -> Interior:
    """At most `steps` steps from ``y = raw``."""
    barriers = [barrier(image) for image in task.stack.images]
    y, pairs = task.raw, [one.start(task.raw) for one in barriers]
    degree = torch.zeros_like(y[:, 0])
    for one in barriers:
        degree = degree + one.degree()
    count = torch.zeros_like(y[:, 0], dtype=torch.int64)
    best = Interior(y, _duals(barriers, pairs), torch.full_like(y[:, 0], torch.inf), count)
    for _ in range(steps + 1):
        here = [one.at(y, pair) for one, pair in zip(barriers, pairs, strict=True)]
        slope = task.slope(y) - _total([one.pull(pair.z) for one, pair in zip(here, pairs, strict=True)])
        mean = _total([one.product() for one in here]) / degree.clamp_min(1)
        parts = [SLOPE * slope.abs().amax(-1), mean, *(MISS * one.missed() for one in here)]
        worst = torch.stack(parts).amax(0)
        best = _keep(best, y, _duals(barriers, pairs), worst, count)
        running = (best.residual > ARRIVED) & worst.isfinite()
        if may_look(y) and not bool(running.any()):
            break
        dy, moves, length = _step(task, here, slope, mean)
        length = torch.where(running & length.isfinite(), length, 0.0)
        y, count = _along(y, dy, length), count + running
        pairs = [Pair(*map(_along, pair, move, (length, length))) for pair, move in zip(pairs, moves, strict=True)]
    return best


def _duals(barriers: list[Barrier], pairs: list[Pair]) -> Tensor:
    """The multipliers of all images, ``(B, r)``."""
    return torch.cat([one.dual(pair) for one, pair in zip(barriers, pairs, strict=True)], -1)


def _keep(best: Interior, y: Tensor, dual: Tensor, residual: Tensor, count: Tensor) -> Interior:
    """The better of two points, sample by sample."""
    better = residual < best.residual
    choose = better.unsqueeze(-1)
    return Interior(
        torch.where(choose, y, best.y),
        torch.where(choose, dual, best.dual),
        torch.where(better, residual, best.residual),
        torch.where(better, count, best.iterations),
    )


def _step(task: Task, here: list[Local], slope: Tensor, mean: Tensor) -> tuple[Tensor, list[Pair], Tensor]:
    """The direction ``(dy, moves)`` and how far to go: predict with target zero, then aim and correct."""
    weight = torch.diag_embed(task.weight.expand_as(task.raw))
    L, _ = torch.linalg.cholesky_ex(weight + _total([one.hessian() for one in here]))
    inverse = torch.linalg.solve_triangular(
        L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L), upper=False
    )
    _, moves = _direction(here, inverse, slope, torch.zeros_like(mean), None)
    target = (1 - _reach(here, moves).clamp_max(1)) ** 3 * mean
    dy, moves = _direction(here, inverse, slope, target, moves)
    return dy, moves, (SHORT * _reach(here, moves)).clamp_max(1)


def _direction(
    here: list[Local], inverse: Tensor, slope: Tensor, target: Tensor, guess: list[Pair] | None
) -> tuple[Tensor, list[Pair]]:
    """One Newton direction from the inverse factor of its system."""
    guesses = [None] * len(here) if guess is None else guess
    drives = [one.drive(target, own) for one, own in zip(here, guesses, strict=True)]
    right = _total([one.pull(drive) for one, drive in zip(here, drives, strict=True)]) - slope
    dy = (inverse.mT @ (inverse @ right.unsqueeze(-1))).squeeze(-1)
    return dy, [one.move(dy, drive) for one, drive in zip(here, drives, strict=True)]


def _reach(here: list[Local], moves: list[Pair]) -> Tensor:
    """The longest step that stays inside of every cone, ``(B,)``."""
    return torch.stack([one.reach(move) for one, move in zip(here, moves, strict=True)]).amin(0)


def _along(v: Tensor, move: Tensor, length: Tensor) -> Tensor:
    """``v + length move``, and v itself where the length is zero, whatever the move is."""
    length = length.reshape(-1, *[1] * (v.dim() - 1))
    return torch.where(length > 0, v + length * move, v)


def _total(parts: list[Tensor]) -> Tensor:
    """The sum of all."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
