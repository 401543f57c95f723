"""Constant rows, prepared once for every sample: equalities eliminated, one Gram matrix of the other rows.

With unit equality rows C, the projector ``P = I - C^+ C`` onto their null space, and the other rows scaled to length
one in it, ``|P g_i| = 1``, the nearest point is

    y = q - P G'dual,     q = raw - C^+ (C raw - b),     lower <= G q - K dual <= upper,     K = G P G'

so that only the multipliers of the other rows are unknown, and all samples share K. Numbers are float64, in the row
units of `hardnet.solvers.polyhedron.problem`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.products import align, exponent, shift_rows, times

SOFT, STIFF = 4.0, 40.0
"""Weights rho of unit rows in a splitting step: for few active rows, and for nearly as many as outputs."""
RELAXATION = 1.6
"""Over-relaxation of a splitting step."""
MOST_DEPENDENT = 1e5
"""The largest norm of ``C^+`` for which unit equality rows are eliminated: beyond it the general solver takes over."""
WITHIN = 1e-7
"""A row is determined by the equalities if less than this fraction of its length is in their null space."""
CORRECTIONS = 3
"""Steps that bring a point onto the equalities: each gains as many digits as the condition of C permits."""


Product = Callable[[Tensor, Tensor], Tensor]
"""``A v`` for each sample v ``(B, n)``."""


class SharedRows(NamedTuple):
    """The factors of constant rows A ``(m, n)``: p of them equalities, k others.

    Attributes:
        equal: Indices of the equalities, ``(p,)``.
        free: Indices of the other rows, ``(k,)``.
        C: Equality rows of length one, ``(p, n)``.
        inverse: ``(C^+)'``, ``(p, n)``.
        length: ``|a_i|`` of the equalities, ``(p,)``.
        G: The other rows, of length one in the null space of C; zero if the equalities determine the row, ``(k, n)``.
        scale: ``a_i = scale_i g_i``; 1 if the equalities determine the row, ``(k,)``.
        gram: K, ``(k, k)``.
        soft: ``RELAXATION / 2 I - RELAXATION (I + SOFT K)^-1``, the matrix of a splitting step, ``(k, k)``.
        stiff: The same with `STIFF`.
    """

    equal: Tensor
    free: Tensor
    C: Tensor
    inverse: Tensor
    length: Tensor
    G: Tensor
    scale: Tensor
    gram: Tensor
    soft: Tensor
    stiff: Tensor

    def aligned(self) -> SharedRows:
        """The same with rows and outputs padded as in `Problem` on a CPU."""
        wide = {name: align(getattr(self, name), 2) for name in ("C", "inverse", "G", "gram", "soft", "stiff")}
        return self._replace(**wide, length=align(self.length, absent=1.0), scale=align(self.scale, absent=1.0))


def prepare(A: Tensor, equality: Tensor | None = None) -> SharedRows | None:
    """Factorize constant rows A ``(m, n)``; None if the equalities are too dependent to be eliminated.

    Args:
        A: ``(m, n)``, finite.
        equality: Which rows are equalities in every sample, ``(m,)``; None for none, and then no value of A is read.
    """
    A = A.detach().double()
    A = shift_rows(A, exponent(A.abs().amax(-1)))
    free = torch.arange(len(A), device=A.device)
    equal, free = (free[:0], free) if equality is None else (free[equality], free[~equality])
    C, length = unit_rows(A[equal])
    if len(C) > A.shape[-1]:
        return None
    inverse, basis = _eliminate(C)
    if len(C) and not bool(torch.linalg.vector_norm(inverse) <= MOST_DEPENDENT):
        return None
    G, scale, reduced = _across(A[free], basis)
    gram = reduced @ reduced.mT
    return SharedRows(equal, free, C, inverse, length, G, scale, gram, _step(gram, SOFT), _step(gram, STIFF))


def unit_rows(A: Tensor) -> tuple[Tensor, Tensor]:
    """The rows divided by their lengths, and the lengths; 1 for a zero row."""
    length = torch.linalg.vector_norm(A, dim=-1)
    length = torch.where(length > 0, length, 1.0)
    return A / length.unsqueeze(-1), length


def on_equalities(rows: SharedRows, point: Tensor, b: Tensor | float) -> tuple[Tensor, Tensor]:
    """``y = point - C'dual`` with ``C y = b``, and dual ``(B, p)``: for aligned rows and all points ``(B, n)``."""
    dual = point.new_zeros(len(point), len(rows.C))
    if len(rows.equal) == 0:
        return point, dual
    y = point
    for _ in range(CORRECTIONS):
        way = times(rows.inverse.mT, times(rows.C, y) - b)
        dual = dual + times(rows.inverse, way)
        y = point - times(rows.C.mT, dual)
    return y, dual


def _eliminate(C: Tensor) -> tuple[Tensor, Tensor | None]:
    """``(C^+)'`` ``(p, n)`` and an orthonormal basis ``(n, n - p)`` of the null space; None if that is everything."""
    count = len(C)
    if count == 0:
        return C, None
    Q, R = torch.linalg.qr(C.mT, mode="complete")
    inverse = torch.linalg.solve_triangular(R[:count], Q[:, :count].mT, upper=True)
    return inverse, Q[:, count:]


def _across(A: Tensor, basis: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """G, scale, and the rows of G in the basis: of length one, or zero if the equalities determine the row."""
    reduced = A if basis is None else A @ basis
    length = torch.linalg.vector_norm(reduced, dim=-1)
    own = length > WITHIN * torch.linalg.vector_norm(A, dim=-1)
    scale = torch.where(own, length, 1.0)
    rows = torch.where(own.unsqueeze(-1), A, 0.0) / scale.unsqueeze(-1)
    return rows, scale, torch.where(own.unsqueeze(-1), reduced, 0.0) / scale.unsqueeze(-1)


def _step(gram: Tensor, rho: float) -> Tensor:
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor, _ = torch.linalg.cholesky_ex(eye + rho * gram)
    return RELAXATION / 2 * eye - RELAXATION * torch.cholesky_inverse(factor)
