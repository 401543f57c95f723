"""The factor of A in plain torch, with two operations: ``solve(s) = A⁺ s`` and ``solve_transposed(g) = A⁺' g``.

There are three ways to compute it. `PseudoInverse` stores ``P = A⁺'`` itself, one for all samples if they share A. Few
rows are factored by Gram-Schmidt in elementwise operations, which need no linear algebra library, read no value and can
be exported anywhere; many rows by QR. `Gram` stores a Cholesky factor of ``A A'``, which is half the work of QR; it is
used for many rows per sample where values may be read, because samples whose rows are too close to dependent must be
found and solved by QR.

Rows are divided by their largest entry first, so that no square overflows or underflows. The factor is NaN if rows are
dependent up to the rounding of their dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hardnet.errors import RankError, ShapeError, sentence
from hardnet.functional.samples import raise_invalid
from hardnet.kernels.limits import MOST_NUMBERS, MOST_ROWS
from hardnet.modes import may_look
from hardnet.products import times
from hardnet.shapes import require_float

MOST_EXPORTED_ROWS = 64
"""The most rows for Gram-Schmidt in an exported graph, whose formats have no factorization."""
SAFE_DISTANCE = 1e-5
"""Below this squared distance of a unit row from the rows before it, Cholesky is not trusted with the sample."""


class Factor(Protocol):
    """The operations that the closed form needs of A."""

    def kept(self) -> tuple[Tensor, ...]:
        """The tensors from which `restore` rebuilds this factor."""
        ...

    def solve(self, right: Tensor) -> Tensor:
        """``A⁺ s`` for s ``(B, m)``: ``(B, n)``."""
        ...

    def solve_transposed(self, gradient: Tensor) -> Tensor:
        """``A⁺' g`` for g ``(B, n)``: ``(B, m)``."""
        ...


class PseudoInverse(NamedTuple):
    """``P = A⁺'``, ``(m, n)`` or ``(B, m, n)``."""

    P: Tensor

    def kept(self) -> tuple[Tensor, ...]:
        """P alone."""
        return (self.P,)

    def solve(self, right: Tensor) -> Tensor:
        """``P' s``."""
        return times(self.P.mT, right)

    def solve_transposed(self, gradient: Tensor) -> Tensor:
        """``P g``."""
        return times(self.P, gradient)


class Gram(NamedTuple):
    """``A A' = C C'`` of rows divided by `size`, and ``P`` for the samples whose rows are too close to dependent."""

    A: Tensor
    size: Tensor
    C: Tensor
    doubtful: Tensor
    P: Tensor

    def kept(self) -> tuple[Tensor, ...]:
        """All but A."""
        return self[1:]

    def solve(self, right: Tensor) -> Tensor:
        """``A' (A A')⁻¹ s``."""
        step = times(self.A.mT, self._multipliers(right))
        return self._put(step, times(self.P.mT, right[self.doubtful]))

    def solve_transposed(self, gradient: Tensor) -> Tensor:
        """``(A A')⁻¹ A g``."""
        return self._put(self._multipliers(times(self.A, gradient)), times(self.P, gradient[self.doubtful]))

    def _multipliers(self, right: Tensor) -> Tensor:
        solved = torch.cholesky_solve((right / self.size).unsqueeze(-1), self.C).squeeze(-1)
        return solved / self.size

    def _put(self, target: Tensor, exact: Tensor) -> Tensor:
        return target.index_put((self.doubtful,), exact) if len(self.P) else target


def make_factor(A: Tensor, dtype: torch.dtype, *, look: bool, exported: bool = False) -> PseudoInverse | Gram:
    """The factor of A ``(m, n)`` or ``(B, m, n)`` in float64.

    Args:
        A: The rows.
        dtype: The dtype in which A was given.
        look: Whether values may be read to decide what is computed.
        exported: Whether the graph is exported, to formats without a factorization.
    """
    m, n = A.shape[-2:]
    if (m <= MOST_ROWS and m * n <= MOST_NUMBERS) or (exported and m <= MOST_EXPORTED_ROWS):
        return PseudoInverse(by_gram_schmidt(A, dtype))
    if A.dim() == 3 and look:
        return by_cholesky(A, dtype)
    return PseudoInverse(by_qr(A, dtype))


def restore(A: Tensor, kept: Sequence[Tensor]) -> Factor:
    """Rebuild the factor of A from the tensors that `Factor.kept` returned."""
    return PseudoInverse(*kept) if len(kept) == 1 else Gram(A, *kept)


def rank_tolerance(A: Tensor, dtype: torch.dtype) -> float:
    """The distance of a unit row from the span of the rows before it below which the rows count as dependent.

    It is what rounding the numbers to `dtype` may cause.
    """
    return 4 * A.shape[-1] * torch.finfo(dtype).eps


def by_gram_schmidt(A: Tensor, dtype: torch.dtype) -> Tensor:
    """``A⁺' = L⁻' D⁻¹ R`` with ``A = L R``, R orthogonal by Gram-Schmidt (two passes per row), and ``D = R R'``.

    Unrolled over the rows. There is no square root, so that exact numbers stay exact.
    """
    size = _row_sizes(A)
    rows = (A / size).movedim(0, -1) if A.dim() == 3 else (A / size).unsqueeze(-1)  # (m, n, B): long inner loops
    R: list[Tensor] = []
    below: list[Tensor] = []
    squares: list[Tensor] = []
    for row in rows.unbind():
        along, left = _remove(row, R, squares)
        below.append(along)
        squares.append(left.square().sum(0))
        R.append(left)
    length = rows.detach().square().sum(1)
    clear = (torch.stack(squares).detach() - rank_tolerance(A, dtype) ** 2 * length).amin(0)
    D = torch.stack(squares) + nan_where_negative(clear)
    solved = [R[-1] / D[-1]]
    for k in range(len(R) - 2, -1, -1):  # L' P = D⁻¹ R from the last row up
        taken = torch.stack([below[j][k] for j in range(k + 1, len(R))]).unsqueeze(1)
        solved.insert(0, R[k] / D[k] - (taken * torch.stack(solved)).sum(0))
    P = torch.stack(solved)
    return (P.movedim(-1, 0) if A.dim() == 3 else P.squeeze(-1)) / size


def _remove(row: Tensor, R: list[Tensor], squares: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The coefficients ``(k, B)`` of a row ``(n, B)`` along the k vectors so far, and the remainder of the row."""
    if not R:
        return row[:0], row
    basis, D = torch.stack(R), torch.stack(squares)
    first = (basis * row).sum(1) / D
    left = row - (basis * first.unsqueeze(1)).sum(0)
    second = (basis * left).sum(1) / D
    return first + second, left - (basis * second.unsqueeze(1)).sum(0)


def by_qr(A: Tensor, dtype: torch.dtype) -> Tensor:
    """``A⁺' = R⁻¹ Q'`` with ``A' = Q R``."""
    size = _row_sizes(A)
    Q, R = torch.linalg.qr((A / size).mT)
    length = torch.linalg.vector_norm((A / size).detach(), dim=-1)
    clear = R.detach().diagonal(dim1=-2, dim2=-1).abs() - rank_tolerance(A, dtype) * length
    P = torch.linalg.solve_triangular(R, Q.mT, upper=True)
    return (P + nan_where_negative(clear.amin(-1, keepdim=True)).unsqueeze(-1)) / size


def by_cholesky(A: Tensor, dtype: torch.dtype) -> Gram:
    """``A A' = C C'`` of unit-sized rows ``(B, m, n)``; QR only for samples whose rows are too close to dependent."""
    size = _row_sizes(A)
    unit = A / size
    gram = torch.bmm(unit, unit.mT)
    C, failed = torch.linalg.cholesky_ex(gram)
    distance = (C.diagonal(dim1=-2, dim2=-1).square() / gram.diagonal(dim1=-2, dim2=-1)).amin(-1)
    doubtful = (~((distance > SAFE_DISTANCE) & (failed == 0))).nonzero().squeeze(-1)
    P = by_qr(A[doubtful], dtype) if len(doubtful) else A[:0]
    return Gram(A, size.squeeze(-1), C, doubtful, P)


def nan_where_negative(number: Tensor) -> Tensor:
    """Zero where the number is >= 0, NaN elsewhere: added to an answer, it makes bad samples NaN without a branch.

    Detached from the graph, since the derivative of the square root at zero would be NaN for every sample.
    """
    return number.detach().clamp_max(0).sqrt()


def _row_sizes(A: Tensor) -> Tensor:
    """The largest absolute entry of every row, ``(..., m, 1)``, a constant for autograd; NaN for a row of zeros."""
    size = A.detach().abs().amax(-1, keepdim=True)
    return torch.where(size > 0, size, torch.nan)


def factorize(A: Tensor) -> Tensor:
    """``A⁺'``, the transposed pseudo-inverse of a constant A, for ``enforce_affine(..., factor=factorize(A))``.

    Computed by QR in float64 and rounded once to the dtype of A.

    Args:
        A: ``(m, n)`` or ``(*batch, m, n)`` with linearly independent rows.

    Returns:
        The factor, in the shape and dtype and on the device of A.
    """
    require_float("A", A)
    if A.dim() < 2:
        raise ShapeError(sentence("A", "shape (m, n) or (*batch, m, n)", tuple(A.shape)))
    check_rows(A)
    factor = by_qr(to_double(A.detach()), A.dtype)
    if may_look(A) and bool(factor.isnan().any()):
        flat = A.detach().flatten(0, -3) if A.dim() > 2 else A.detach()
        raise_invalid(A.new_zeros(1), flat, None, None, A.shape[:-2])
    return factor.to(A.dtype).contiguous()


def check_rows(A: Tensor) -> None:
    """Refuse more rows than outputs."""
    m, n = A.shape[-2:]
    if m > n:
        remedy = "merge or drop redundant rows, or use the exact projection (method='projection')"
        raise RankError(sentence("A", f"at most n = {n} linearly independent rows", f"m = {m} rows", remedy))


def to_double(tensor: Any) -> Any:
    """The tensor in float64 if its device supports that; None stays None."""
    return tensor if tensor is None or tensor.device.type == "mps" else tensor.double()
