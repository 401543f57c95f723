"""The closed form by torch's linear algebra routines and autograd: the baselines for `enforce_affine`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Solve = Callable[[Tensor, Tensor], Tensor]


def closed_form(solve: Solve) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """``raw + solve(A, relu(lower - A raw) - relu(A raw - upper))`` with ``solve(A, s) = A⁺ s``, by autograd."""

    def enforce(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        product = raw @ A.mT if A.dim() == 2 else (A @ raw.unsqueeze(-1)).squeeze(-1)
        violation = (lower - product).relu() - (product - upper).relu()
        if A.dim() == 2:
            return raw + solve(A, violation.mT).mT
        return raw + solve(A, violation.unsqueeze(-1)).squeeze(-1)

    return enforce


def with_lstsq(A: Tensor, s: Tensor) -> Tensor:
    """``lstsq(A, s)``, the routine in the paper's code: pivoted QR on a CPU, and QR on a GPU."""
    return torch.linalg.lstsq(A, s, driver="gels" if A.is_cuda else "gelsy").solution


def with_gram_lstsq(A: Tensor, s: Tensor) -> Tensor:
    """``A' lstsq(A A', s)``, which a GPU computes in batches if A has fewer rows than columns."""
    return A.mT @ torch.linalg.lstsq(A @ A.mT, s).solution


def with_unchecked_cholesky(A: Tensor, s: Tensor) -> Tensor:
    """``A' (A A')⁻¹ s`` by Cholesky without a check for success, and so without waiting for the device."""
    return A.mT @ torch.cholesky_solve(s, torch.linalg.cholesky_ex(A @ A.mT).L)


def with_pinv(A: Tensor, s: Tensor) -> Tensor:
    """``pinv(A) s``."""
    return torch.linalg.pinv(A) @ s


def with_cholesky(A: Tensor, s: Tensor) -> Tensor:
    """``A' (A A')⁻¹ s`` by Cholesky."""
    return A.mT @ torch.cholesky_solve(s, torch.linalg.cholesky(A @ A.mT))


def with_solve(A: Tensor, s: Tensor) -> Tensor:
    """``A' (A A')⁻¹ s`` by LU."""
    return A.mT @ torch.linalg.solve(A @ A.mT, s)


def with_qr(A: Tensor, s: Tensor) -> Tensor:
    """``Q R⁻' s`` with ``A' = Q R``."""
    Q, R = torch.linalg.qr(A.mT)
    return Q @ torch.linalg.solve_triangular(R.mT, s, upper=False)


ALTERNATIVES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "lstsq": closed_form(with_lstsq),
    "pinv": closed_form(with_pinv),
    "cholesky": closed_form(with_cholesky),
    "qr": closed_form(with_qr),
    "solve": closed_form(with_solve),
}
ON_GPU = {
    "lstsq of A A'": closed_form(with_gram_lstsq),
    "cholesky, unchecked": closed_form(with_unchecked_cholesky),
}
"""Further alternatives, which make a difference only on a GPU."""
