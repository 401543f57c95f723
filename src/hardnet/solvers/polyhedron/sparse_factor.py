"""``(K + diag(d)) w = r`` with ``K = A A'`` of sparse unit rows, by scipy: banded if the rows couple only neighbors.

Rows that couple neighbors (rate limits over a horizon, conservation along a line) have a narrow band after reordering;
the cost of a Cholesky factor of the band is then linear in the number of rows. Any other pattern uses a sparse LU
factor.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

from torch import Tensor

from hardnet.errors import MissingExtraError

WIDEST = 5e8
"""The number of operations of a band factor, ``m width^2``, above which a sparse LU factor is used."""


class SparseRows(NamedTuple):
    """Constant sparse rows, prepared once: scipy matrices and numpy arrays.

    Attributes:
        A: Rows of length one, ``(m, n)`` in compressed rows.
        length: ``|a_i|`` of the original rows; 1 for a zero row, ``(m,)``.
        gram: K, ``(m, m)``.
        order: The order of the rows in which K has a narrow band, ``(m,)``.
        band: The lower diagonals of K in that order, ``(width + 1, m)``; None if there are too many.
    """

    A: Any
    length: Any
    gram: Any
    order: Any
    band: Any


def prepare_sparse(crow: Tensor, col: Tensor, values: Tensor, n: int) -> SparseRows:
    """Scale the rows to length one and find the order of their band; needs the extra ``sparse``."""
    if find_spec("scipy") is None:
        raise MissingExtraError("scipy", "sparse")
    import numpy as np
    import scipy.sparse
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    parts = [part.detach().cpu().numpy() for part in (values.double(), col, crow)]
    A: Any = scipy.sparse.csr_matrix(tuple(parts), shape=(len(crow) - 1, n))  # pyright: ignore[reportArgumentType, reportCallIssue]
    A, largest = _divided(A, abs(A).max(1).toarray().ravel() if A.nnz else np.ones(A.shape[0]))
    A, length = _divided(A, np.sqrt(np.asarray(A.multiply(A).sum(1)).ravel()))
    length = length * largest
    gram = (A @ A.T).tocsr()
    for matrix in (A, gram):
        matrix.sum_duplicates()  # sort entries now: scipy would sort them at some later time, and sums would change
    order = reverse_cuthill_mckee(gram, symmetric_mode=True)
    return SparseRows(A, length, gram, order, _band(gram[order][:, order].tocoo()))


def _divided(A: Any, by: Any) -> tuple[Any, Any]:
    """The rows of A divided by the numbers `by` ``(m,)``, and these numbers, with 1 for a zero row."""
    import numpy as np

    by = np.where(by > 0, by, 1.0)
    A = A.copy()
    A.data = A.data / np.repeat(by, np.diff(A.indptr))
    return A, by


def _band(K: Any) -> Any:
    """The lower diagonals of K ``(width + 1, m)``, or None if there are too many."""
    import numpy as np

    below = K.row - K.col
    width, m = int(abs(below).max(initial=0)), K.shape[0]
    if m * float(width) ** 2 > WIDEST:
        return None
    band = np.zeros((width + 1, m))
    lower = below >= 0
    band[below[lower], K.col[lower]] = K.data[lower]
    return band


class Factor:
    """A factor of ``K_JJ + diag(d)``, with rows of the identity off J.

    Args:
        rows: The sparse rows.
        diagonal: d, ``(m,)``, positive or small compared with K.
        active: J as a mask, ``(m,)``; None for all rows.
    """

    def __init__(self, rows: SparseRows, diagonal: Any, active: Any = None) -> None:
        self.order = None
        if rows.band is None:
            self._sparse(rows, diagonal, active)
        else:
            self._banded(rows, diagonal, active)

    def _banded(self, rows: SparseRows, diagonal: Any, active: Any) -> None:
        from scipy.linalg import cholesky_banded

        band, self.order = rows.band.copy(), rows.order
        if active is not None:
            kept = active[rows.order]
            for place in range(len(band)):
                band[place, : len(kept) - place] *= kept[place:] & kept[: len(kept) - place]
            band[0] += ~kept
        band[0] += diagonal[rows.order]
        self.factor = cholesky_banded(band, lower=True, check_finite=False)

    def _sparse(self, rows: SparseRows, diagonal: Any, active: Any) -> None:
        import scipy.sparse
        from scipy.sparse.linalg import splu

        K = rows.gram
        if active is not None:
            keep = scipy.sparse.diags(active.astype(float))
            K = keep @ K @ keep + scipy.sparse.diags((~active).astype(float))
        self.factor = splu((K + scipy.sparse.diags(diagonal)).tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0)

    def solve(self, right: Any) -> Any:
        """``(K_JJ + diag(d))^-1 right``: ``(m,)``."""
        if self.order is None:
            return self.factor.solve(right)
        import numpy as np
        from scipy.linalg import cho_solve_banded

        found = np.empty_like(right)
        found[self.order] = cho_solve_banded((self.factor, True), right[self.order], check_finite=False)
        return found
