"""Gauges: ``gauge(v) = inf {t > 0 : y0 + v / t in C}`` about a point y0 strictly inside C.

Each piece of C (linear rows, a convex quadratic, a second-order cone, a matrix inequality) is prepared once about y0
and then evaluated in closed form; the gauge of an intersection is the largest of its pieces. A gauge is positively
homogeneous, so directions need not be normalized and v = 0 is not a special case. All formulas are for displacements
``y = y0 + N v`` in the coordinates of a basis N of the affine hull.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import times
from hardnet.solvers.conic.blocks import Block, Quadratics, SecondOrder, SemiDefinite


class LinearGauge(NamedTuple):
    """``max_i D_i v`` with ``D_i = a_i N / (b_i - a_i y0)`` for rows ``A y <= b``."""

    D: Tensor

    def __call__(self, v: Tensor) -> Tensor:
        """The gauge of v ``(*batch, k)``: ``(*batch)``."""
        return times(self.D, v).amax(dim=-1)


class RootGauge(NamedTuple):
    """The larger root of ``g^2 - 2 (slope v) g - (|K v|^2 - (c v)^2) = 0``: quadratics and second-order cones.

    ``g = t + r`` with ``t = slope v`` and ``r = |R v|``, ``R'R = slope slope' + K'K - cc'``; where t is negative the
    same root is ``(|K v|^2 - (c v)^2) / (r - t)``, which avoids cancellation.
    """

    slope: Tensor
    root: Tensor
    K: Tensor
    c: Tensor

    def __call__(self, v: Tensor) -> Tensor:
        """The gauge of v ``(*batch, k)``: ``(*batch)``; negative where the ray never leaves the set."""
        t = v @ self.slope
        r = torch.linalg.vector_norm(times(self.root, v), dim=-1)  # its gradient at a double root is zero, not NaN
        gap = torch.where(t < 0, r - t, 1)
        product = times(self.K, v).square().sum(dim=-1) - (v @ self.c).square()
        return torch.where(t < 0, product / gap, t + r)


ALONE = 1e-10
"""Gap to the top eigenvalue, relative to the largest absolute one, up to which an eigenvalue counts as repeated."""


class SpectralGauge(NamedTuple):
    """``lambda_max(sum_k v_k S_k)`` with ``S_k = -L' F_k L`` and ``L L' = (F0 + sum_k y0_k F_k)^-1``."""

    S: Tensor

    def __call__(self, v: Tensor) -> Tensor:
        """The gauge of v ``(*batch, k)``: ``(*batch)``.

        For the matrix M and a top eigenvector q: ``q'Mq + sum_i (q_i'dM q)^2 / (lambda - lambda_i)``, where dM has the
        value 0 and the derivative of M. The gradient is ``q' S_k q``, which is also finite at repeated eigenvalues,
        whose terms are left out; the second derivative is correct where the top eigenvalue is simple.
        """
        matrix = torch.einsum("...k,kij->...ij", v, self.S)
        sound = torch.where(matrix.isfinite(), matrix, 0).detach()  # LAPACK fails for the whole batch if one has NaN
        values, Q = torch.linalg.eigh(sound)
        across = torch.einsum("...ji,...jk,...k->...i", Q, matrix - matrix.detach(), Q[..., -1])
        gap = values[..., -1:] - values
        apart = gap > ALONE * values.abs().amax(dim=-1, keepdim=True)
        bend = torch.where(apart, across.square() / torch.where(apart, gap, 1.0), 0.0).sum(dim=-1)
        return torch.einsum("...i,...ij,...j->...", Q[..., -1], matrix, Q[..., -1]) + bend


Gauge = LinearGauge | RootGauge | SpectralGauge


def gauges_about(y0: Tensor, N: Tensor, A: Tensor, b: Tensor, curved: Sequence[Block]) -> list[Gauge]:
    """Prepare the linear rows ``A y <= b`` and every curved block about y0."""
    gauges: list[Gauge] = [linear_gauge(A, b, y0, N)] if len(A) else []
    for block in curved:
        if isinstance(block, Quadratics):
            gauges.append(quadratic_gauge(*block, y0, N))
        elif isinstance(block, SecondOrder):
            gauges.append(cone_gauge(*block, y0, N))
        elif isinstance(block, SemiDefinite):
            gauges.append(spectral_gauge(*block, y0, N))
    return gauges


def linear_gauge(A: Tensor, b: Tensor, y0: Tensor, N: Tensor) -> LinearGauge:
    """Prepare ``A y <= b`` about y0."""
    return LinearGauge((A @ N) / (b - A @ y0).unsqueeze(-1))


def quadratic_gauge(P: Tensor, q: Tensor, r: Tensor, y0: Tensor, N: Tensor) -> RootGauge:
    """Prepare ``1/2 y'Py + q'y + r <= 0`` about y0, where it is ``value < 0`` with gradient ``P y0 + q``."""
    value, gradient = 0.5 * y0 @ P @ y0 + q @ y0 + r, P @ y0 + q
    slope = N.mT @ gradient / (-2 * value)
    K = _square_root(N.mT @ P @ N / (-2 * value))
    return RootGauge(slope, torch.cat([slope.unsqueeze(0), K]), K, torch.zeros_like(slope))


def cone_gauge(A: Tensor, b: Tensor, c: Tensor, d: Tensor, y0: Tensor, N: Tensor) -> RootGauge:
    """Prepare ``|A y + b| <= c'y + d`` about y0: the roots of the squared inequality along the ray."""
    inner, height = A @ y0 + b, c @ y0 + d
    depth = height.square() - inner.square().sum()
    slope = (A @ N).mT @ inner - height * (c @ N)
    curved = torch.outer(slope, slope) / depth.square()
    curved = curved + ((A @ N).mT @ (A @ N) - torch.outer(c @ N, c @ N)) / depth
    return RootGauge(slope / depth, _square_root(curved), A @ N / depth.sqrt(), c @ N / depth.sqrt())


def spectral_gauge(F0: Tensor, F: Tensor, y0: Tensor, N: Tensor) -> SpectralGauge:
    """Prepare ``F0 + sum_k y_k F_k`` positive semidefinite about y0, where it is positive definite."""
    at_center = F0 + torch.einsum("k,kij->ij", y0, F)
    inverse = torch.linalg.inv(torch.linalg.cholesky(at_center))
    reduced = torch.einsum("ka,kij->aij", N, F)
    return SpectralGauge(-(inverse @ reduced @ inverse.mT))


def largest_gauge(gauges: Sequence[Gauge], v: Tensor) -> Tensor:
    """The gauge of the intersection, ``(*batch)``: zero where no piece bounds the ray."""
    total = v.new_zeros(v.shape[:-1])
    for gauge in gauges:
        total = torch.maximum(total, gauge(v))
    return total


def _square_root(symmetric: Tensor) -> Tensor:
    """R with ``R'R`` the positive part of a symmetric matrix."""
    values, vectors = torch.linalg.eigh((symmetric + symmetric.mT) / 2)
    return values.clamp_min(0).sqrt().unsqueeze(-1) * vectors.mT
