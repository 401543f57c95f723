"""Constant rows, many of them: when their factors are shared by all samples, and how they are made.

The solver is `shared_rows`: equalities are eliminated once, the other rows have one Gram matrix, and
the active sets of all samples are found in batches. A layer keeps the factors; a bare call makes them where that pays.

Called by `hardnet.functional.polyhedron`, `hardnet.layers.auto` and `hardnet.layers.projection`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.limits import MOST_ON_CHIP, MOST_ROWS_TO_AN_OUTPUT
from hardnet.rows import Batch
from hardnet.solvers.polyhedron.shared_factor import SharedRows, prepare

LEAST_ROWS = 16
"""Rows below which other ways are faster."""
LEAST_SAMPLES = 16
"""Samples of a batch on a CPU below which they are solved one by one."""
ELIMINATED = 8
"""Equalities whose elimination pays on a CPU however many other rows there are, without compiled code."""


def prepare_rows(A: Tensor, equality: Tensor | None = None) -> SharedRows | None:
    """The factors of a constant A for ``project_affine(..., shared=)``, in float64; None where it has none.

    Args:
        A: ``(m, n)``.
        equality: Which rows are equalities in every sample, ``(m,)`` bool; None: not known, and nothing is looked at.
    """
    if A.is_meta or (equality is not None and not bool(A.isfinite().all())):
        return None
    return prepare(A, None if equality is None else equality.to(A.device))


def rows_for(rows: Batch, given: SharedRows | None) -> SharedRows | None:
    """The factors that this call takes: those `given`, or its own for a batch that pays for them.

    A is one matrix with at least `LEAST_ROWS` rows. Without a look the equalities of a bare call are not known: they
    are rows among others.
    """
    A, (m, n), on_gpu = rows.A, rows.A.shape[-2:], rows.raw.is_cuda
    if on_gpu and max(m, n) <= MOST_ON_CHIP:
        return None
    if len(rows.raw) < (1 if on_gpu else LEAST_SAMPLES):
        return None
    if given is not None:
        return given if on_gpu or _pays(len(given.equal), m, n) else None
    equality = _equalities(m, rows.lower, rows.upper) if rows.look else None
    count = 0 if equality is None else int(equality.sum())
    return prepare_rows(A, equality) if on_gpu or _pays(count, m, n) else None


def _pays(equalities: int, m: int, n: int) -> bool:
    """Whether batches of products beat one active set after the other on a CPU.

    Compiled code finds active sets in half the time of batches; only many equalities, which it eliminates for each
    sample anew, cost more than that.
    """
    if HAS_NUMBA and m <= MOST_ROWS_TO_AN_OUTPUT * n:
        return equalities >= max(ELIMINATED, 2 * (m - equalities))
    return equalities >= ELIMINATED or 2 * m <= n


def _equalities(m: int, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """The rows with ``lower == upper`` in every sample, ``(m,)``."""
    if lower is None or upper is None:
        return torch.zeros(m, dtype=torch.bool)
    same = lower.detach() == upper.detach()
    return same.reshape(-1, m).all(0)
