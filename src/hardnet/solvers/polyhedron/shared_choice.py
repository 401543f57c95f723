"""Constant rows, many of them: when their factors are shared by all samples, and how they are made.

The solver is `shared_rows`: equalities are eliminated once, the other rows have one Gram matrix, and the active sets of
all samples are found in batches. A layer keeps the factors; a plain function call makes them where that pays off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.cpu.ready import ready
from hardnet.kernels.limits import MOST_ON_CHIP, MOST_ROWS_TO_AN_OUTPUT
from hardnet.rows import Batch
from hardnet.solvers.polyhedron.shared_factor import SharedRows, prepare

LEAST_ROWS = 16
"""The number of rows below which other methods are faster."""
LEAST_SAMPLES = 16
"""The batch size on a CPU below which samples are solved one by one."""
ELIMINATED = 8
"""The number of equalities whose elimination pays off on a CPU without kernels, however many other rows there are."""


def prepare_rows(A: Tensor, equality: Tensor | None = None) -> SharedRows | None:
    """The factors of a constant A for ``project_affine(..., shared=)``, in float64; None if it has none.

    Args:
        A: ``(m, n)``.
        equality: Which rows are equalities in every sample, ``(m,)`` bool; None if not known: then no value is read.
    """
    if A.is_meta or (equality is not None and not bool(A.isfinite().all())):
        return None
    return prepare(A, None if equality is None else equality.to(A.device))


def rows_for(rows: Batch, given: SharedRows | None) -> SharedRows | None:
    """The factors that this call uses: those `given`, or its own if they pay off for the batch; else None.

    A is one matrix with at least `LEAST_ROWS` rows. If values may not be read and no factors are given, the equalities
    are not known and are treated like other rows.
    """
    A, (m, n), on_gpu = rows.A, rows.A.shape[-2:], rows.raw.is_cuda
    if on_gpu and max(m, n) <= MOST_ON_CHIP:
        return None
    if len(rows.raw) < (1 if on_gpu else LEAST_SAMPLES):
        return None
    if given is not None:
        return given if on_gpu or _pays(len(given.equal), rows) else None
    equality = _equalities(m, rows.lower, rows.upper) if rows.look else None
    count = 0 if equality is None else int(equality.sum())
    return prepare_rows(A, equality) if on_gpu or _pays(count, rows) else None


def _pays(equalities: int, rows: Batch) -> bool:
    """Whether batched products are faster on a CPU than one active set after the other.

    Kernels find active sets in half the time of batched products, unless there are many equalities, which they
    eliminate again for each sample.
    """
    m, n = rows.A.shape[-2:]
    if HAS_NUMBA and m <= MOST_ROWS_TO_AN_OUTPUT * n and (not rows.memory or ready("projection")):
        return equalities >= max(ELIMINATED, 2 * (m - equalities))
    return equalities >= ELIMINATED or 2 * m <= n


def _equalities(m: int, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """The rows with ``lower == upper`` in every sample, ``(m,)``."""
    if lower is None or upper is None:
        return torch.zeros(m, dtype=torch.bool)
    same = lower.detach() == upper.detach()
    return same.reshape(-1, m).all(0)
