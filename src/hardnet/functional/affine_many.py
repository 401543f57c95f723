"""HardNet-Aff for many rows per sample on a CPU: the library factorises, compiled code does the rest of each sample.

Square: pivoted LU of A', whose columns are the rows of A, so that no size of a row changes a pivot. Else: Cholesky of
the Gram matrix, and `affine_gram` for the samples, and these alone, whose rows come too close for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.functional import affine_gram
from hardnet.functional.affine_core import Path, enforce
from hardnet.kernels.cpu import affine_finish as cpu_finish
from hardnet.kernels.cpu.affine_finish import Finished

Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]


class Factor(NamedTuple):
    """F and the swaps as `cpu_finish` reads them, and the samples that Cholesky is not trusted with, if any."""

    F: Tensor
    swaps: Tensor | None
    doubtful: Tensor | None


def factorise(A: Tensor) -> Factor:
    """The factor of A ``(B, m, n)``."""
    if A.shape[-2] == A.shape[-1]:
        LU, pivots, _ = torch.linalg.lu_factor_ex(A.mT)
        return Factor(LU.mT, pivots.to(A.dtype), None)
    C, doubtful = affine_gram.factorise(A)
    return Factor(C.mT, None, doubtful.nonzero().squeeze(1) if doubtful.any() else None)


def forward(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Finished, Factor, tuple[Any, ...]]:
    """``y = raw + A⁺ s``; the factor, and what `affine_gram` saved of the doubtful samples."""
    factor = factorise(A)
    done = cpu_finish.forward(raw, A, factor.F, factor.swaps, lower, upper)
    if factor.doubtful is None:
        return done, factor, ()
    chosen = factor.doubtful
    lower, upper = (side if side is None or side.dim() == 1 else side[chosen] for side in (lower, upper))
    path = Path(affine_gram.forward, affine_gram.backward, affine_gram.correct)
    done.y[chosen], saved = enforce(path, raw[chosen], A[chosen], lower, upper)
    return done._replace(lost=int(done.y.isnan().any(-1).sum())), factor, saved


def backward(
    gradient: Tensor, raw: Tensor, A: Tensor, factor: Factor, done: Finished, saved: tuple[Any, ...], wants_matrix: bool
) -> Gradients:
    """The gradients of raw, A, lower and upper: see `hardnet.functional.affine_core`."""
    grads = cpu_finish.backward(gradient, raw, A, factor.F, factor.swaps, done, wants_matrix)
    if factor.doubtful is not None:
        chosen = factor.doubtful
        exact = affine_gram.backward(gradient[chosen], raw[chosen], A[chosen], saved, wants_matrix)
        for part, new in zip(grads, exact, strict=True):
            if part is not None and new is not None:
                part[chosen] = new
    return grads
