"""Semidefinite cones in an interior point method by factors alone, no eigenvalue: g matrices of one order at a time.

``S = F(y)`` and Z are linearized as ``Z S + dZ S + Z dS = mu I``, made symmetric (Helmberg, Kojima and Monteiro).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import gram, times_tiled
from hardnet.solvers.conic.barriers import TINY, Barrier, Local, Pair
from hardnet.solvers.conic.semidefinite import SemiDefiniteImage, order, pack_symmetric, unpack

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
        return 1 / bounds.amax(0).flatten(1).amax(-1).clamp_min(TINY)

    def _largest(self, X: Tensor) -> Tensor:
        """At least the largest eigenvalue of symmetric X: ``c + tr((X - c I)^p)^(1/p)`` with c below all of them."""
        k, sizes = X.shape[-1], []
        mean = _trace(X) / k
        spread = ((X * X).sum((-2, -1)) / k - mean * mean).clamp_min(0).sqrt()
        least = mean - (k - 1) ** 0.5 * spread
        X = X - least[..., None, None] * self.barrier.eye
        for _ in range(SQUARINGS):
            sizes.append(_trace(X).clamp_min(TINY))
            X = X / sizes[-1][..., None, None]
            X = X @ X
        root = _trace(X).clamp_min(TINY)
        for size in reversed(sizes):
            root = size * root.sqrt()
        return least + root
