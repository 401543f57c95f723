"""Rows and quadratics in an interior point method: ``G(y) = s > 0`` with multipliers z and ``s z = mu``.

Every barrier eliminates its slack and multiplier from the Newton system by a linear map and a vector,

    ds = DG dy + gap,      dz = drive - weigh(DG dy),

so that the method sees one positive definite system in dy. An equality has a constant weight and no slack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import CURVED
from hardnet.modes import may_look
from hardnet.products import LARGE, gram, tiled_product, times_tiled
from hardnet.solvers.conic.distance import (
    BEYOND_REACH,
    Answer,
    Guess,
    State,
    StiffSaddle,
    Task,
    near_y,
    optimality,
    pull,
    scaled_task,
    start,
    step,
)
from hardnet.solvers.conic.stack import (
    Image,
    IntervalImage,
    SecondOrderImage,
    SemiDefiniteImage,
    Stack,
    order,
    pack_symmetric,
    unpack,
)
from hardnet.solvers.solution import choose

LEAST_NUMBER = 1e-300
STIFF = 1e7
"""Weight of an equality: each step leaves about this part of its residual."""


class Pair(NamedTuple):
    """Slack s and multiplier z of one barrier, of one shape that leads with B."""

    s: Tensor
    z: Tensor


class Barrier(ABC):
    """One image in an interior point method: its pair, and where the pair stands at y."""

    @abstractmethod
    def start(self, y: Tensor) -> Pair:
        """A pair inside, whatever y is."""

    @abstractmethod
    def at(self, y: Tensor, pair: Pair) -> Local:
        """Linearize at y."""

    @abstractmethod
    def dual(self, pair: Pair) -> Tensor:
        """The multipliers as the rest of the library knows them, ``(B, r)``."""

    @abstractmethod
    def degree(self) -> Tensor | int:
        """How many products s z there are, ``(B,)`` or a number."""


class Local(ABC):
    """A barrier linearized at one point."""

    pair: Pair
    gap: Tensor
    """``G(y) - s``, zero once the slack is that of y."""

    @abstractmethod
    def hessian(self) -> Tensor:
        """What it adds to the system in dy, ``(B, n, n)``."""

    @abstractmethod
    def pull(self, v: Tensor) -> Tensor:
        """``DG'v``, ``(B, n)``."""

    @abstractmethod
    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """What dz is without dy, for ``s z = target`` ``(B,)``, corrected by a guess of both moves."""

    @abstractmethod
    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """``(ds, dz)``."""

    @abstractmethod
    def reach(self, move: Pair) -> Tensor:
        """The longest step that stays inside, ``(B,)``."""

    def product(self) -> Tensor:
        """``s . z``, ``(B,)``."""
        return (self.pair.s * self.pair.z).flatten(1).sum(-1)

    def missed(self) -> Tensor:
        """The largest entry of `gap`, ``(B,)``."""
        return self.gap.abs().flatten(1).amax(-1)


class RowsLocal(Local):
    """Rows with slacks of their own: weight ``z / s``."""

    def __init__(self, J: Tensor, value: Tensor, pair: Pair, held: Tensor, fixed: Tensor, bend: Tensor | None) -> None:
        self.J, self.pair, self.bend, self.held = J, pair, bend, held
        self.gap: Tensor = torch.where(held | fixed, value - pair.s, 0.0)
        self.weight: Tensor = torch.where(fixed, STIFF, torch.where(held, pair.z / pair.s, 0.0))

    def hessian(self) -> Tensor:
        """``J' diag(weight) J`` and the curvature of the rows."""
        total = self.J.mT @ (self.weight.unsqueeze(-1) * self.J)
        return total if self.bend is None else total + self.bend

    def pull(self, v: Tensor) -> Tensor:
        """``J'v``."""
        return times_tiled(self.J.mT, v)

    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """``(target - guess_s guess_z) / s - z - weight gap``; an equality takes the last term alone."""
        aim = target.unsqueeze(-1) if guess is None else target.unsqueeze(-1) - guess.s * guess.z
        return torch.where(self.held, aim / self.pair.s - self.pair.z, 0.0) - self.weight * self.gap

    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """An equality keeps its slack of zero."""
        change = times_tiled(self.J, dy)
        return Pair(torch.where(self.held, change + self.gap, 0.0), drive - self.weight * change)

    def reach(self, move: Pair) -> Tensor:
        """Where the first slack or multiplier vanishes."""
        shrink = torch.maximum(-move.s / self.pair.s, -move.z / self.pair.z.clamp_min(LEAST_NUMBER))
        return 1 / torch.where(self.held, shrink, 0.0).amax(-1).clamp_min(LEAST_NUMBER)


class IntervalBarrier(Barrier):
    """``upper - A y > 0`` and ``A y - lower > 0`` where finite; rows with ``lower == upper`` are equalities."""

    def __init__(self, image: IntervalImage) -> None:
        lower, upper = torch.broadcast_tensors(image.lower, image.upper)
        self.image, equal = image, lower == upper
        self.held: Tensor = torch.cat([upper.isfinite() & ~equal, lower.isfinite() & ~equal], -1)
        self.fixed: Tensor = torch.cat([equal, torch.zeros_like(equal)], -1)
        bounds = [torch.where(bound.isfinite(), bound, 0.0) for bound in (upper, -lower)]
        self.bound: Tensor = torch.cat(bounds, -1)

    def _value(self, y: Tensor) -> Tensor:
        product = self.image.value(y)
        return self.bound - torch.cat([product, -product], -1)

    def start(self, y: Tensor) -> Pair:
        """At least one unit inside."""
        value = self._value(y)
        held, fixed = self.held.expand_as(value), self.fixed.expand_as(value)
        s = torch.where(held, value.clamp_min(1.0), 1.0)
        return Pair(torch.where(fixed, 0.0, s), torch.where(held, 1 / s, 0.0))

    def at(self, y: Tensor, pair: Pair) -> Local:
        """Constant rows."""
        J = torch.cat([-self.image.A, self.image.A], -2)
        return RowsLocal(J, self._value(y), pair, self.held, self.fixed, None)

    def dual(self, pair: Pair) -> Tensor:
        """Positive at the upper bound, negative at the lower."""
        up, down = pair.z.chunk(2, -1)
        return up - down

    def degree(self) -> Tensor:
        """One for each finite side."""
        return self.held.sum(-1)


class ValueBarrier(Barrier):
    """``-G(y) > 0`` for the values of convex functions, each one row."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def start(self, y: Tensor) -> Pair:
        """At least one unit inside."""
        s = (-self.image.value(y)).clamp_min(1.0)
        return Pair(s, 1 / s)

    def at(self, y: Tensor, pair: Pair) -> Local:
        """The gradients, and the curvature that the multipliers give."""
        every = torch.ones_like(pair.s, dtype=torch.bool)
        value, J, bend = -self.image.value(y), -self.image.jacobian(y), self.image.curvature(pair.z)
        return RowsLocal(J, value, pair, every, ~every, bend)

    def dual(self, pair: Pair) -> Tensor:
        """Z itself."""
        return pair.z

    def degree(self) -> int:
        """One for each row."""
        return self.image.rows


# Second-order cones in an interior point method, with Nesterov and Todd's scaling, g cones of one size at a time.
#
# The scaling W is the symmetric map with ``W z = W^-1 s = lam``; it stretches along one axis of the cone, so that it is
# kept as a number `stretch` and a point `axis` of unit determinant.


def _mirrored(v: Tensor) -> Tensor:
    """``J v``: the flat part with the other sign."""
    return torch.cat([-v[..., :-1], v[..., -1:]], -1)


def _determinant(v: Tensor) -> Tensor:
    """``t^2 - |u|^2`` without cancellation."""
    size, t = torch.linalg.vector_norm(v[..., :-1], dim=-1, keepdim=True), v[..., -1:]
    return (t - size) * (t + size)


def _jordan(a: Tensor, b: Tensor) -> Tensor:
    """The product of the cone: ``(a_t b_u + b_t a_u, a . b)``."""
    flat = a[..., -1:] * b[..., :-1] + b[..., -1:] * a[..., :-1]
    return torch.cat([flat, (a * b).sum(-1, keepdim=True)], -1)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """The x with ``a o x = b``."""
    flat, t = a[..., :-1], a[..., -1:]
    height = (t * b[..., -1:] - (flat * b[..., :-1]).sum(-1, keepdim=True)) / _determinant(a).clamp_min(LEAST_NUMBER)
    return torch.cat([(b[..., :-1] - height * flat) / t, height], -1)


class ConeBarrier(Barrier):
    """``K_i y + k_i = s_i`` in second-order cones; pairs are ``(B, g, r)``."""

    def __init__(self, image: SecondOrderImage) -> None:
        self.image = image
        self.gram: Tensor | None = None
        if image.K.shape[0] == 1 and image.K.numel() >= LARGE:
            flat, height = image.K[..., :-1, :], image.K[..., -1:, :]
            self.gram = flat.mT @ flat - height.mT @ height

    def start(self, y: Tensor) -> Pair:
        """The value lifted into the cone, and the axis."""
        s = self.image.each(self.image.value(y))
        size = torch.linalg.vector_norm(s[..., :-1], dim=-1, keepdim=True)
        s = torch.cat([s[..., :-1], torch.maximum(s[..., -1:], size + 1)], -1)
        return Pair(s, torch.cat([torch.zeros_like(s[..., :-1]), torch.ones_like(size)], -1))

    def at(self, y: Tensor, pair: Pair) -> Local:
        """With the scaling of this pair."""
        return ConeLocal(self, y, pair)

    def dual(self, pair: Pair) -> Tensor:
        """In the polar cone."""
        return -pair.z.flatten(-2)

    def degree(self) -> int:
        """One for each cone."""
        return self.image.K.shape[-3]


class ConeLocal(Local):
    """The scaling at one pair."""

    def __init__(self, barrier: ConeBarrier, y: Tensor, pair: Pair) -> None:
        image = barrier.image
        self.image, self.gram, self.pair = image, barrier.gram, pair
        self.gap: Tensor = image.each(image.value(y)) - pair.s
        self.inner: Tensor = _determinant(pair.s).clamp_min(LEAST_NUMBER)
        outer = _determinant(pair.z).clamp_min(LEAST_NUMBER)
        one, other = pair.s / self.inner.sqrt(), pair.z / outer.sqrt()
        angle = ((1 + (one * other).sum(-1, keepdim=True)) / 2).sqrt()
        self.axis: Tensor = (one + _mirrored(other)) / (2 * angle)
        self.stretch: Tensor = (self.inner / outer).sqrt().sqrt()
        self.lam: Tensor = self.scale(pair.z)

    def scale(self, v: Tensor) -> Tensor:
        """``W v``."""
        flat, t = self.axis[..., :-1], self.axis[..., -1:]
        along = (flat * v[..., :-1]).sum(-1, keepdim=True)
        moved = v[..., :-1] + flat * (along / (1 + t) + v[..., -1:])
        return self.stretch * torch.cat([moved, along + t * v[..., -1:]], -1)

    def unscale(self, v: Tensor) -> Tensor:
        """``W^-1 v``, the same with the mirrored axis."""
        return _mirrored(self.scale(_mirrored(v))) / self.stretch.square()

    def _weigh(self, v: Tensor) -> Tensor:
        """``W^-2 v``."""
        return self.unscale(self.unscale(v))

    def hessian(self) -> Tensor:
        """``sum K'W^-2 K`` with ``W^-2 = (2 a a' - J) / stretch^2`` for the mirrored axis a."""
        K, share = self.image.K, self.stretch.square().reciprocal()
        if self.gram is None:
            axis = (_mirrored(self.axis).unsqueeze(-2) @ K).squeeze(-2)
            signed = _mirrored(torch.ones_like(self.axis)) * share
            bent = -K.flatten(-3, -2).mT @ (signed.flatten(-2).unsqueeze(-1) * K.flatten(-3, -2))
        else:
            axis = tiled_product(_mirrored(self.axis), K)
            bent = tiled_product(share.squeeze(-1), self.gram.flatten(-2)).unflatten(-1, self.gram.shape[-2:])
        return bent + 2 * axis.mT @ (share * axis)

    def pull(self, v: Tensor) -> Tensor:
        """``K'v``."""
        return times_tiled(self.image.K.flatten(-3, -2).mT, v.flatten(-2))

    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """``target s^-1 - z - W^-2 gap``, less the product of the guessed moves in the scaled cone."""
        aim = target[:, None, None] * _mirrored(self.pair.s) / self.inner - self.pair.z - self._weigh(self.gap)
        if guess is None:
            return aim
        return aim - self.unscale(_divide(self.lam, _jordan(self.unscale(guess.s), self.scale(guess.z))))

    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """Along K dy."""
        change = self.image.each(times_tiled(self.image.K.flatten(-3, -2), dy))
        return Pair(change + self.gap, drive - self._weigh(change))

    def reach(self, move: Pair) -> Tensor:
        """The first root of the determinant along each move."""
        return torch.minimum(_first_root(self.pair.s, move.s), _first_root(self.pair.z, move.z))


def _first_root(v: Tensor, move: Tensor) -> Tensor:
    """The smallest positive root of ``a t^2 + 2 b t + c``, the determinant along the move, over all cones ``(B,)``."""
    c, mirrored = _determinant(v), _mirrored(move)
    b, a = (v * mirrored).sum(-1, keepdim=True), (move * mirrored).sum(-1, keepdim=True)
    root = c / ((b * b - a * c).clamp_min(0).sqrt() - b).clamp_min(LEAST_NUMBER)
    return root.flatten(1).amin(-1)


# Semidefinite cones in an interior point method by factors alone, no eigenvalue: g matrices of one order at a time.
#
# ``S = F(y)`` and Z are linearized as ``Z S + dZ S + Z dS = mu I``, made symmetric (Helmberg, Kojima and Monteiro).


SQUARINGS = 6
"""The bound of the largest eigenvalue takes the power 2^6: for k = 4 it is at most 2 % too large, for k = 30 6 %."""


def _symmetric(X: Tensor) -> Tensor:
    return (X + X.mT) / 2


def _trace(X: Tensor) -> Tensor:
    return X.diagonal(dim1=-2, dim2=-1).sum(-1)


class MatrixBarrier(Barrier):
    """``F0_i + sum_j y_j F_ij = S_i`` positive definite; pairs are ``(B, g, k, k)``."""

    def __init__(self, image: SemiDefiniteImage) -> None:
        self.image = image
        self.k: int = order(image.K.shape[-2])
        self.F: Tensor = unpack(image.K.mT, self.k)
        self.eye: Tensor = torch.eye(self.k, dtype=self.F.dtype, device=self.F.device)

    def matrices(self, z: Tensor) -> Tensor:
        """Packed rows ``(B, g r)`` as matrices."""
        return unpack(self.image.each(z), self.k)

    def start(self, y: Tensor) -> Pair:
        """The value with its diagonal raised until it dominates (Gershgorin), and the identity."""
        S = self.matrices(self.image.value(y))
        diagonal = S.diagonal(dim1=-2, dim2=-1)
        short = (S.abs().sum(-1) - diagonal.abs() - diagonal).amax(-1)
        return Pair(S + (1 + short).clamp_min(0)[..., None, None] * self.eye, self.eye.expand_as(S))

    def at(self, y: Tensor, pair: Pair) -> Local:
        """With the factors of this pair."""
        return MatrixLocal(self, y, pair)

    def dual(self, pair: Pair) -> Tensor:
        """In the polar cone, packed."""
        return -pack_symmetric(pair.z).flatten(-2)

    def degree(self) -> int:
        """The order of each matrix."""
        return self.F.shape[-4] * self.k


class MatrixLocal(Local):
    """The factors at one pair."""

    def __init__(self, barrier: MatrixBarrier, y: Tensor, pair: Pair) -> None:
        self.barrier, self.pair = barrier, pair
        self.gap: Tensor = barrier.matrices(barrier.image.value(y)) - pair.s
        factors, _ = torch.linalg.cholesky_ex(torch.stack(pair))
        self.factors: Tensor = torch.linalg.solve_triangular(factors, barrier.eye.expand_as(factors), upper=False)
        self.root: Tensor = factors[1]
        self.inverse: Tensor = self.factors[0].mT @ self.factors[0]

    def hessian(self) -> Tensor:
        """``tr(F_i Z F_j S^-1)``, as products of ``L^-1 F_i R``."""
        each = self.factors[0].unsqueeze(-3) @ self.barrier.F @ self.root.unsqueeze(-3)
        rows = each.flatten(-2).transpose(1, 2).flatten(2)
        return gram(rows.mT)

    def pull(self, v: Tensor) -> Tensor:
        """``tr(F_j V)``."""
        return times_tiled(self.barrier.image.K.flatten(-3, -2).mT, pack_symmetric(v).flatten(-2))

    def _weigh(self, X: Tensor) -> Tensor:
        return _symmetric(self.pair.z @ X @ self.inverse)

    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """``target S^-1 - Z - Z gap S^-1``, less the product of the guessed moves."""
        aim = target[:, None, None, None] * self.inverse - self.pair.z - self._weigh(self.gap)
        return aim if guess is None else aim - _symmetric(guess.z @ guess.s @ self.inverse)

    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """Along ``sum_j dy_j F_j``."""
        change = self.barrier.matrices(times_tiled(self.barrier.image.K.flatten(-3, -2), dy))
        return Pair(change + self.gap, drive - self._weigh(change))

    def reach(self, move: Pair) -> Tensor:
        """One over a bound of the largest eigenvalue of ``-L^-1 dS L^-T`` and its like for Z: never too long."""
        bounds = self._largest(-self.factors @ torch.stack(move) @ self.factors.mT)
        return 1 / bounds.amax(0).flatten(1).amax(-1).clamp_min(LEAST_NUMBER)

    def _largest(self, X: Tensor) -> Tensor:
        """At least the largest eigenvalue of symmetric X: ``c + tr((X - c I)^p)^(1/p)`` with c below all of them."""
        k, sizes = X.shape[-1], []
        mean = _trace(X) / k
        spread = ((X * X).sum((-2, -1)) / k - mean * mean).clamp_min(0).sqrt()
        least = mean - (k - 1) ** 0.5 * spread
        X = X - least[..., None, None] * self.barrier.eye
        for _ in range(SQUARINGS):
            sizes.append(_trace(X).clamp_min(LEAST_NUMBER))
            X = X / sizes[-1][..., None, None]
            X = X @ X
        root = _trace(X).clamp_min(LEAST_NUMBER)
        for size in reversed(sizes):
            root = size * root.sqrt()
        return least + root


# ``min 1/2 |y - raw|^2  s.t.  G(y) in K`` by a primal-dual interior point method: a fixed program, no look at a value.
#
# Predictor and corrector (Mehrotra) share one Cholesky factor of n x n a step. A sample that has arrived, or whose step
# fails, keeps its best point. Where a look is free the loop ends with the last sample.


ARRIVED = 1e-12
"""Mean product of slacks and multipliers, in units of size one, from which Newton on the active set goes on."""
SLOPE, MISS = 1e-4, 1e-2
"""What a residual of the slope and of the slacks counts beside it: Newton makes these exact from further away."""
SHORT_OF_BOUNDARY = 0.99
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
    return dy, moves, (SHORT_OF_BOUNDARY * _reach(here, moves)).clamp_max(1)


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


# The projection onto blocks as a fixed program: so many interior point steps, then Newton on the active set.
#
# No value is looked at, so that CUDA graphs take it; what it did not solve says so in its status. Where a look is free,
# both loops end early and `conic` sends the rest to a solver that needs no interior.


BARRIER_STEPS = 20
"""Interior point steps; problems of the benchmarks take 9 to 16."""
POLISHING_STEPS = 5
"""Newton steps on the active set; most samples need two."""


FREE = 3
"""From this step on one must halve the residual for another to follow."""


def follow_and_polish(raw: Tensor, stack: Stack, unit: Tensor, steps: int = BARRIER_STEPS) -> Answer:
    """The projection of raw ``(B, n)`` after at most `steps` interior point steps, in lengths of `unit` ``(B, 1)``."""
    origin = Guess(raw, raw.new_zeros(raw.shape[0], sum(stack.sizes)), unit)
    task, factor = scaled_task(raw, stack, origin, torch.ones_like(unit))
    found = follow_path(task, steps)
    lost = beyond_reach(task, found.y, found.dual)
    guess, weight = near_y(raw, stack, found.y * unit, found.dual / factor)
    task, factor = scaled_task(raw, stack, guess, weight)
    state, more = _polish(task, start(task, guess.y / guess.unit, guess.dual * factor))
    iterations = found.iterations + more
    y, dual = state.y * guess.unit, state.dual / factor
    return Answer(y, dual, guess.unit, state.residual, iterations, lost & (state.residual > 1e-9))


def _polish(task: Task, state: State) -> tuple[State, Tensor]:
    """The best of some Newton steps, and which ``(B,)``; a step may raise the residual to change the active set."""
    best, kept, noise = state, torch.zeros_like(state.residual, dtype=torch.int64), torch.zeros_like(state.penalty)
    running = best.residual > CURVED.target
    for number in range(1, POLISHING_STEPS + 1):
        y, dual = step(task, state, noise, StiffSaddle)
        state = State(y, dual, state.penalty, optimality(task, y, dual))
        better = running & (state.residual < best.residual)
        halved = (state.residual < 0.5 * best.residual) | (number < FREE)
        best = State(*(choose(better, new, old) for new, old in zip(state, best, strict=True)))
        kept, running = torch.where(better, number, kept), running & halved & (best.residual > CURVED.target)
        if may_look(kept) and not bool(running.any()):
            break
    return best, kept


def beyond_reach(task: Task, y: Tensor, dual: Tensor) -> Tensor:
    """Samples whose multipliers prove that the set has no point near y, ``(B,)``.

    ``dual . G`` is convex and not positive at a point z of the set, so ``|z - y| >= dual . G(y) / |DG'dual|``, where
    intervals count from the bound that the sign of the multiplier picks.
    """
    stack = task.stack
    height = torch.stack(
        [image.height(y, own) for image, own in zip(stack.images, stack.split(dual), strict=True)]
    ).sum(0)
    slope = torch.linalg.vector_norm(pull(stack, y, dual), dim=-1)
    size = 1 + y.abs().amax(-1)
    return (height > BEYOND_REACH * size * slope) & (height > 1e-7 * size * dual.abs().amax(-1))
