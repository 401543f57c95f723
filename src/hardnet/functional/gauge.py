"""Gauges: ``gauge(v) = inf {t > 0 : y0 + v / t in C}`` about a point y0 strictly inside C.

Each piece of C (linear rows, a convex quadratic, a second-order cone, a matrix inequality) is prepared once about y0
and then evaluated in closed form; the gauge of an intersection is the largest of its pieces. A gauge is positively
homogeneous, so directions need not be normalized and v = 0 is not a special case. All formulas are for displacements
``y = y0 + N v`` in the coordinates of a basis N of the affine hull. Every number may have batch dimensions in front.
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
    """The larger root of ``g^2 - 2 (slope v) g - (v'M v - (c v)^2) = 0``: quadratics and second-order cones.

    ``g = t + r`` with ``t = slope v`` and ``r^2 = t^2 + v'M v - (c v)^2``; where t is negative the same root is
    ``(v'M v - (c v)^2) / (r - t)``, which avoids cancellation.
    """

    slope: Tensor
    M: Tensor
    c: Tensor

    def __call__(self, v: Tensor) -> Tensor:
        """The gauge of v ``(*batch, k)``: ``(*batch)``; negative where the ray never leaves the set."""
        t = (v * self.slope).sum(dim=-1)
        product = (v * times(self.M, v)).sum(dim=-1).clamp_min(0) - (v * self.c).sum(dim=-1).square()
        square = t.square() + product
        apart = ~(square <= 0)  # the gradient at a double root is zero, not NaN; a NaN stays one
        r = torch.where(apart, torch.where(apart, square, 1.0).sqrt(), 0.0)
        gap = torch.where(t < 0, r - t, 1)
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
        matrix = torch.einsum("...k,...kij->...ij", v, self.S)
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
    gauges: list[Gauge] = [linear_gauge(A, b, y0, N)] if A.shape[-2] else []
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
    return LinearGauge((A @ N) / (b - times(A, y0)).unsqueeze(-1))


def quadratic_gauge(P: Tensor, q: Tensor, r: Tensor, y0: Tensor, N: Tensor) -> RootGauge:
    """Prepare ``1/2 y'Py + q'y + r <= 0`` about y0, where it is ``value < 0`` with gradient ``P y0 + q``."""
    P = (P + P.mT) / 2
    Py = times(P, y0)
    depth = -2 * ((0.5 * Py + q) * y0).sum(-1) - 2 * r
    slope = times(N.mT, Py + q) / depth.unsqueeze(-1)
    return RootGauge(slope, N.mT @ P @ N / depth[..., None, None], torch.zeros_like(slope))


def cone_gauge(A: Tensor, b: Tensor, c: Tensor, d: Tensor, y0: Tensor, N: Tensor) -> RootGauge:
    """Prepare ``|A y + b| <= c'y + d`` about y0: the roots of the squared inequality along the ray."""
    inner, height = times(A, y0) + b, (c * y0).sum(-1) + d
    depth = (height.square() - inner.square().sum(-1)).unsqueeze(-1)
    AN, cN = A @ N, times(N.mT, c)
    slope = times(AN.mT, inner) - height.unsqueeze(-1) * cN
    return RootGauge(slope / depth, AN.mT @ AN / depth.unsqueeze(-1), cN / depth.sqrt())


def spectral_gauge(F0: Tensor, F: Tensor, y0: Tensor, N: Tensor) -> SpectralGauge:
    """Prepare ``F0 + sum_k y_k F_k`` positive semidefinite about y0, where it is positive definite."""
    F0, F = (F0 + F0.mT) / 2, (F + F.mT) / 2
    at_center = F0 + torch.einsum("...k,...kij->...ij", y0, F)
    inverse = torch.linalg.inv(torch.linalg.cholesky(at_center)).unsqueeze(-3)
    return SpectralGauge(-(inverse @ torch.einsum("...ka,...kij->...aij", N, F) @ inverse.mT))


def largest_gauge(gauges: Sequence[Gauge], v: Tensor) -> Tensor:
    """The gauge of the intersection, ``(*batch)``: zero where no piece bounds the ray."""
    total = v.new_zeros(v.shape[:-1])
    for gauge in gauges:
        total = torch.maximum(total, gauge(v))
    return total
