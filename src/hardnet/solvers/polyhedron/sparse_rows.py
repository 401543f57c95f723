"""The nearest point for sparse constant rows, one sample after the other; rows of one output are bounds, never rows.

Few rows are solved as dense ones. For the others an interior point method, Clarabel where it is installed, guesses what
is held; rows with a multiplier of the wrong sign leave and violated rows join until the conditions hold, by sparse
factors over the free outputs. What that leaves open is solved as dense rows, if there is memory for them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import MissingExtraError
from hardnet.kernels.backends import find
from hardnet.rows import Batch
from hardnet.solvers.polyhedron.orthogonal import FAR
from hardnet.solvers.polyhedron.problem import GENERAL
from hardnet.solvers.solution import Status
from hardnet.tolerances import ROUNDINGS

# ``(K + diag(d)) w = r`` with ``K = A A'`` of sparse unit rows, by scipy: banded if the rows couple only neighbors.
#
# Rows that couple neighbors (rate limits over a horizon, conservation along a line) have a narrow band after
# reordering; the cost of a Cholesky factor of the band is then linear in the number of rows. Any other pattern uses a
# sparse LU factor.


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


# A guess of the active sparse rows by an interior point method in their multipliers.
#
# With ``y = raw - A'dual``, ``dual = above - below``, slacks s to the bounds and the products ``v = A raw - K dual``,
# Mehrotra's steps towards ``above s_above = below s_below = mu`` all solve
#
#     (K + 1/w) d = g/w,     w = above / s_above + below / s_below
#
# one symmetric system per sample and step, with two right-hand sides; an equality has no slack and ``1/w = 0``.


STEPS = 60
"""The most steps; twenty are usual."""
ENOUGH = 1e-11
"""The mean product of multiplier and slack, in the sample's unit, at which the active rows can be identified."""
CLOSE = 1e-8
"""How far the products may then disagree with their bounds and slacks."""
HUGE = 1e9
"""The size of multipliers, in the sample's unit, that only an empty set reaches."""
RIDGE = 1e-11
"""Added to the unit diagonal of K to allow dependent rows."""


class _State(NamedTuple):
    """Multipliers and slacks of the two sides, ``(2, m)`` each, upper side first; zero and infinite if absent."""

    dual: Any
    slack: Any


def guess(rows: SparseRows, product: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """The sides of one sample's active rows and its multipliers, from ``A raw`` and the bounds: ``(m,)`` each.

    If rows contradict each other, the multipliers grow along the contradiction until they are `HUGE`.
    """
    import numpy as np

    ends, sign = np.stack([high, -low]), np.array([[1.0], [-1.0]])
    tight = low == high
    there = np.isfinite(ends) & ~tight
    state = _State(there * 1.0, np.where(there, np.maximum(ends - sign * product, 1.0), np.inf))
    held = np.zeros_like(product)  # multipliers of the equalities
    count = max(1, int(there.sum()))
    for _ in range(STEPS):
        dual = state.dual[0] - state.dual[1] + held
        value = product - rows.gram @ dual
        missing = np.where(there, ends - sign * value - np.where(there, state.slack, 0.0), 0.0)
        off = np.where(tight, value - low, 0.0)
        mu = float((state.dual * np.where(there, state.slack, 0.0)).sum()) / count
        left = max(abs(missing).max(), abs(off).max())
        if (mu <= ENOUGH and left <= CLOSE) or mu <= ENOUGH**2 or abs(dual).max() > HUGE:  # beyond that all is rounding
            break
        try:
            state, held = _step(rows, state, held, missing, off, mu, there, tight)
        except np.linalg.LinAlgError:
            break
    dual = state.dual[0] - state.dual[1] + held
    side = (state.dual[0] > state.slack[0]) * 1.0 - (state.dual[1] > state.slack[1]) * 1.0
    return np.where(tight, 1.0, side), dual


def _step(
    rows: SparseRows, state: _State, held: Any, missing: Any, off: Any, mu: float, there: Any, tight: Any
) -> tuple[_State, Any]:
    """One predictor and one corrector with the same factor, taken as far as multipliers and slacks stay positive."""
    import numpy as np

    ratio = (state.dual / state.slack).sum(0)
    inverse = np.where(tight, RIDGE, 1 / np.maximum(ratio, 1e-14))
    factor = Factor(rows, inverse)
    nothing = np.zeros_like(missing)
    far, _, dual, slack = _direction(rows, factor, inverse, state, missing, off, there, tight, nothing)
    reached = (state.dual + far * dual) * np.where(there, state.slack + far * slack, 0.0)
    share = (float(reached.sum()) / max(1, int(there.sum())) / max(mu, 1e-300)) ** 3
    center = np.where(there, min(1.0, share) * mu - dual * slack, 0.0)
    far, change, dual, slack = _direction(rows, factor, inverse, state, missing, off, there, tight, center)
    length = min(1.0, 0.995 * far)
    dual, slack = state.dual + length * dual, np.where(there, state.slack + length * slack, np.inf)
    return _State(dual, slack), held + length * np.where(tight, change, 0.0)


def _direction(
    rows: SparseRows,
    factor: Factor,
    inverse: Any,
    state: _State,
    missing: Any,
    off: Any,
    there: Any,
    tight: Any,
    center: Any,
) -> tuple[float, Any, Any, Any]:
    """How far a step can go, and the changes of the rows' multipliers, of both sides' multipliers and of slacks."""
    import numpy as np

    aim = np.where(there, center - state.dual * np.where(there, state.slack, 0.0), 0.0)
    rest = np.where(there, (aim - state.dual * missing) / state.slack, 0.0)
    change = factor.solve(np.where(tight, off, (rest[0] - rest[1]) * inverse))
    moved = -(rows.gram @ change)
    slack = np.where(there, missing - np.stack([moved, -moved]), 0.0)
    dual = np.where(there, (aim - state.dual * slack) / state.slack, 0.0)
    return min(_room(state.dual, dual), _room(state.slack, slack)), change, dual, slack


def _room(value: Any, change: Any) -> float:
    """How far a positive value can go along a change before it is zero, at most one step."""
    import numpy as np

    shrinks = change < 0
    return min(1.0, float(np.min(-value[shrinks] / change[shrinks], initial=1.0)))


EXCHANGES = 20
"""The most exchanges of rows after the guess."""
FEW_NUMBERS, MOST_NUMBERS = 1 << 16, 1 << 23
"""The most entries for which dense rows come first, and last."""
VERIFIED, EPS = 11.0, 2.0**-52
"""How many roundings a row may be missed by, of the 16 that a certificate allows."""
SOLVES = 12
"""The most solves, one solution and its corrections: for nearly dependent rows each reduces the effect of the ridge."""
GUESSED = 1e-10
"""The accuracy of an interior point that guesses: what is held shows where multipliers exceed slacks."""
SLACK = 1e-12
"""The fraction of the largest multiplier below which one has no sign."""
LEAK = 1e-12
"""How large ``A'ray`` of a contradiction may be, relative to its weights: no more than rounding."""
NOTHING = 1e-13
"""The fraction of the largest weight of a contradiction below which a row takes no part in it."""
STRICT = 1e-11
"""The multiplier above which a row is strictly active, in the sample's unit."""


class SparseAnswer(NamedTuple):
    """y ``(B, n)``, dual, side ``(B, m)``, and for each sample `Status`, scale-free residual and exchanges of rows."""

    y: Tensor
    dual: Tensor
    side: Tensor
    status: Tensor
    residual: Tensor
    iterations: Tensor


def project_sparse(rows: SparseRows, raw: Tensor, lower: Tensor, upper: Tensor) -> SparseAnswer:
    """``argmin |y - raw|  s.t.  lower <= A y <= upper`` for raw ``(B, n)`` and bounds ``(B, m)``, float64 on a CPU."""
    import numpy as np

    numbers = [part.detach().numpy() for part in (raw, lower, upper)]
    found = [_one(rows, *(part[sample] for part in numbers)) for sample in range(len(raw))]
    if not found:
        empty = torch.zeros_like(lower)
        status = torch.zeros(0, dtype=torch.int8)
        return SparseAnswer(raw, empty, empty, status, torch.zeros(0, dtype=torch.float64), status.long())
    y, dual, side = (torch.from_numpy(np.stack(part)) for part in list(zip(*found, strict=True))[:3])
    status = torch.tensor([int(one[3]) for one in found], dtype=torch.int8)
    residual = torch.tensor([one[4] for one in found], dtype=torch.float64)
    return SparseAnswer(y, dual, side, status, residual, torch.tensor([one[5] for one in found]))


def split_sparse(rows: SparseRows, grad: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """``g = u + A_J'w`` with ``A_J u = 0``: u ``(B, n)``, and w ``(B, m)`` for the original rows."""
    import numpy as np

    us, ws = [], []
    for g, own in zip(grad.detach().numpy(), active.numpy(), strict=True):
        w = _tight(rows, own, rows.A @ g, np.zeros(len(own)))
        us.append(g - rows.A.T @ w)
        ws.append(w / rows.length)
    return torch.from_numpy(np.stack(us)), torch.from_numpy(np.stack(ws))


class _Parts(NamedTuple):
    """One sample in its unit: rows of several outputs ``G (k, n)``, and rows of one output as the bounds of a box.

    Attributes:
        G: In compressed rows, of length one.
        lower: ``(k,)``.
        upper: ``(k,)``.
        low: ``(n,)``.
        high: ``(n,)``.
        general: Which rows G are, ``(k,)``.
        owner: For each output the row that its lower and upper bound come from, and the sign there, ``(2, 2, n)``.
    """

    G: Any
    lower: Any
    upper: Any
    low: Any
    high: Any
    general: Any
    owner: Any


def _parts(rows: SparseRows, lower: Any, upper: Any) -> _Parts:
    """Take the rows of one output out of the others; the tightest counts where an output has several."""
    import numpy as np

    A, n = rows.A, rows.A.shape[1]
    counts = np.diff(A.indptr)
    alone, general = np.flatnonzero(counts == 1), np.flatnonzero(counts != 1)
    place, sign = A.indices[A.indptr[:-1][alone]], A.data[A.indptr[:-1][alone]]
    # the entry is 1 in size but for a rounding: a bound of one output is exact in the numbers that were given
    least, most = np.where(sign > 0, lower[alone], -upper[alone]), np.where(sign > 0, upper[alone], -lower[alone])
    low, high, owner = np.full(n, -np.inf), np.full(n, np.inf), np.zeros((2, 2, n))
    for bound, given, side in ((low, least, 0), (high, -most, 1)):
        order = np.argsort(given, kind="stable")  # the tightest is written last
        bound[place[order]] = given[order] if side == 0 else -given[order]
        owner[side, 0, place[order]], owner[side, 1, place[order]] = alone[order], np.sign(sign[order])
    return _Parts(A[general], lower[general], upper[general], low, high, general, owner)


class _Point(NamedTuple):
    """y ``(n,)``, the multipliers of G ``(k,)`` and of the box ``(n,)``, and the status."""

    y: Any
    dual: Any
    push: Any
    status: Status


def _one(rows: SparseRows, raw: Any, lower: Any, upper: Any) -> tuple[Any, Any, Any, Status, float, int]:
    """One sample: y, dual, side, status, residual and exchanges."""
    import numpy as np

    nothing = np.zeros_like(lower)
    if not _valid(raw, lower, upper):
        return raw + np.nan, nothing + np.nan, nothing, Status.INVALID, np.nan, 0
    parts = _parts(rows, lower / rows.length, upper / rows.length)
    crossed = np.flatnonzero(parts.low > parts.high)
    apart = (parts.low - parts.high)[crossed]
    if (apart > ROUNDINGS * EPS * (abs(parts.low) + abs(parts.high))[crossed]).any():
        worst = crossed[apart.argmax()]
        ray = nothing.copy()
        for side, sign in ((0, -1.0), (1, 1.0)):
            ray[int(parts.owner[side, 0, worst])] += sign * parts.owner[side, 1, worst]
        return raw, ray / rows.length, nothing, Status.INFEASIBLE, np.inf, 0
    parts = parts._replace(low=np.minimum(parts.low, parts.high))
    inside = ((raw >= parts.low) & (raw <= parts.high)).all()
    if inside and not _missed(parts, raw, GENERAL.certain / EPS).any():
        return raw, nothing, nothing, Status.SOLVED, 0.0, 0
    found = None
    for solve in _solvers(parts):
        found = solve(rows, parts, raw)
        if found.status in (Status.SOLVED, Status.INFEASIBLE):
            break
    assert found is not None
    y, dual, push, status = found
    whole = nothing.copy()
    whole[parts.general] = dual
    for side, sign in ((0, -1.0), (1, 1.0)):
        held = np.flatnonzero(sign * push > 0)
        np.add.at(whole, parts.owner[side, 0, held].astype(int), push[held] * parts.owner[side, 1, held])
    pulled = rows.A.T @ whole
    size = max(abs(raw).max(), abs(y).max(initial=0.0), (abs(rows.A.T) @ abs(whole)).max(initial=0.0)) or 1.0
    residual = float(abs(raw - y - pulled).max() / size) if status == Status.SOLVED else np.inf
    ranked = np.where(lower < upper, abs(whole), 0.0)  # those of equalities may be large, and tell nothing
    side = np.where(abs(whole) > STRICT * max(abs(raw).max(), ranked.max(initial=0.0)), np.sign(whole), 0.0)
    return y, whole / rows.length, side, status, residual, 1


def _solvers(parts: _Parts) -> list[Any]:
    """What may solve a sample, in the order of their cost: dense rows where they are few, guesses, dense rows."""
    size = parts.G.shape[0] * parts.G.shape[1]
    first = [_dense] if size <= FEW_NUMBERS else []
    last = [_dense] if FEW_NUMBERS < size <= MOST_NUMBERS else []
    return [*first, *([_by_clarabel] if find_spec("clarabel") else []), _by_interior, *last]


def _size(parts: _Parts, y: Any) -> Any:
    """What rounding of each row is relative to, by the rule of `hardnet.tolerances`: ``(k,)``."""
    import numpy as np

    weight, reads = np.asarray(abs(parts.G).sum(1)).ravel(), abs(parts.G)
    reads.data = abs(y)[reads.indices]
    read = reads.max(1).toarray().ravel() if reads.nnz else np.zeros(len(weight))
    near = np.minimum(abs(parts.lower), abs(parts.upper))
    most = abs(y).max(initial=0.0)
    own = near > ROUNDINGS * EPS * weight * min(most, EPS**-0.25)
    return np.where(own, weight * read + near, weight * (most + EPS))


def _missed(parts: _Parts, y: Any, roundings: float) -> Any:
    """Which rows are missed by more than so many roundings, ``(k,)``; all where y is no number."""
    import numpy as np

    value = parts.G @ y
    excess = np.maximum(value - parts.upper, parts.lower - value)
    return ~(excess <= roundings * EPS * _size(parts, y))


def _dense(rows: SparseRows, parts: _Parts, raw: Any) -> _Point:
    """By the solver of a box and dense rows."""
    import numpy as np

    # imported here: that solver settles its own last samples as rows, too
    from hardnet.solvers.polyhedron.projection import project_affine

    if not parts.G.shape[0]:
        y = np.clip(raw, parts.low, parts.high)
        return _Point(y, np.zeros(0), raw - y, Status.SOLVED)
    flat = [
        np.asarray(part)[None] for part in (raw, parts.G.toarray(), parts.lower, parts.upper, parts.low, parts.high)
    ]
    numbers = [torch.from_numpy(np.ascontiguousarray(part)) for part in flat]
    k, n = parts.G.shape
    kernel = find("box_rows", Batch(numbers[0], numbers[1], None, None, memory=True))
    if kernel is not None:
        y, _, dual, _, status, _ = kernel.forward(tuple(numbers), EPS)
        push = raw - y[0].numpy() - parts.G.T @ dual[0].numpy()
        at = (y[0].numpy() <= parts.low) | (y[0].numpy() >= parts.high)
        empty = int(status[0]) == int(Status.INFEASIBLE)
        push = -(parts.G.T @ dual[0].numpy()) if empty else np.where(at, push, 0.0)
        if int(status[0]) in (Status.SOLVED, Status.INFEASIBLE):
            return _Point(y[0].numpy(), dual[0].numpy(), push, Status(int(status[0])))
    ends = (torch.cat([numbers[2], numbers[4]], -1), torch.cat([numbers[3], numbers[5]], -1))
    found = project_affine(numbers[0], torch.cat([numbers[1], torch.eye(n, dtype=torch.float64)[None]], -2), *ends)
    y = np.clip(found.y[0].numpy(), parts.low, parts.high)
    status = Status(int(found.status[0]))
    status = Status.NOT_CONVERGED if status == Status.SOLVED and _missed(parts, y, VERIFIED).any() else status
    return _Point(y, found.dual[0, :k].numpy(), found.dual[0, k:].numpy(), status)


def _by_clarabel(rows: SparseRows, parts: _Parts, raw: Any) -> _Point:
    """By the working set of Clarabel's interior point, made exact."""
    import numpy as np
    from scipy.sparse import csc_matrix, eye, vstack

    clarabel: Any = import_module("clarabel")
    n = len(raw)
    tight = parts.lower == parts.upper
    above, below = np.isfinite(parts.upper) & ~tight, np.isfinite(parts.lower) & ~tight
    over, under = np.isfinite(parts.high), np.isfinite(parts.low)
    one: Any = eye(n, format="csr")
    stacked = csc_matrix(vstack([parts.G[tight], parts.G[above], -parts.G[below], one[over], -one[under]]))
    bounds = (parts.lower[tight], parts.upper[above], -parts.lower[below], parts.high[over], -parts.low[under])
    unit = max(abs(raw).max(), *(abs(part).max(initial=0.0) for part in bounds)) or 1.0
    right = np.concatenate(bounds) / unit
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = GUESSED
    cones = [clarabel.ZeroConeT(int(tight.sum())), clarabel.NonnegativeConeT(len(right) - int(tight.sum()))]
    found = clarabel.DefaultSolver(csc_matrix(eye(n)), -raw / unit, stacked, right, cones, settings).solve()
    active, sizes = np.asarray(found.z) > np.asarray(found.s), [int(part.sum()) for part in (tight, above, below, over)]
    _, up, down, high, low = np.split(active, np.cumsum(sizes))
    side, held = np.zeros(len(parts.lower)), np.zeros(n)
    side[tight], side[above], held[over] = 1.0, up * 1.0, high * 1.0
    side[below] -= down * (side[below] == 0)
    held[under] -= low * (held[under] == 0)
    held[parts.low == parts.high] = 1.0
    dual = np.zeros_like(side)
    z = np.split(np.asarray(found.z) * unit, np.cumsum(sizes))
    dual[tight], dual[above] = z[0], z[1]
    dual[below] -= z[2]
    return _finish(parts, raw, side, held, dual)


def _by_interior(rows: SparseRows, parts: _Parts, raw: Any) -> _Point:
    """By the working set of an interior point method in the multipliers of all rows, made exact."""
    import numpy as np

    lower, upper = np.empty(len(rows.length)), np.empty(len(rows.length))
    lower[:], upper[:] = -np.inf, np.inf
    lower[parts.general], upper[parts.general] = parts.lower, parts.upper
    for side, sign, bound, ends in ((0, 1.0, parts.low, (lower, upper)), (1, 1.0, parts.high, (upper, lower))):
        there = np.isfinite(bound)
        row, turned = parts.owner[side, 0, there].astype(int), parts.owner[side, 1, there] < 0
        value = sign * bound[there]
        ends[0][row[~turned]], ends[1][row[turned]] = value[~turned], -value[turned]
    unit = max(abs(raw).max(), *(abs(part[np.isfinite(part)]).max(initial=0.0) for part in (lower, upper))) or 1.0
    sides, dual = guess(rows, rows.A @ raw / unit, lower / unit, upper / unit)
    held = np.zeros(len(raw))
    for side, sign in ((0, -1.0), (1, 1.0)):
        row = parts.owner[side, 0].astype(int)
        there = np.isfinite((parts.low, parts.high)[side]) & (sides[row] * parts.owner[side, 1] == sign)
        held[there] = sign
    held[parts.low == parts.high] = 1.0
    side = np.where(parts.lower == parts.upper, 1.0, sides[parts.general])
    found = _finish(parts, raw, side, held, unit * dual[parts.general])
    ray = np.zeros_like(dual) if found.status == Status.SOLVED else _contradiction(rows, dual, lower, upper)
    if not ray.any():
        return found
    rest = ray.copy()
    rest[parts.general] = 0.0
    return _Point(found.y, ray[parts.general], rows.A.T @ rest, Status.INFEASIBLE)


def _finish(parts: _Parts, raw: Any, side: Any, held: Any, dual: Any) -> _Point:
    """The nearest point from a guess of what is held and its multipliers, with exchanges until its conditions hold.

    With F the free outputs and W the rows at a bound, ``A_WF A_WF' dual = A_WF raw_F + A_WX y_X - bound``, as near the
    guess as may be: where rows depend on each other its multipliers have the right signs, others would not.
    """
    import numpy as np

    tight, y, push = parts.lower == parts.upper, raw, np.zeros_like(raw)
    for _ in range(EXCHANGES):
        free = held == 0
        dual = np.where(side != 0, dual, 0.0)
        y = np.where(held > 0, parts.high, np.where(held < 0, parts.low, raw - parts.G.T @ dual))
        work = np.flatnonzero(side)
        bound = np.where(side > 0, parts.upper, parts.lower)[work]
        rows = parts.G[work]
        inner = rows.copy()
        inner.data = inner.data * free[inner.indices]
        solve = _solver_of(inner)
        if solve is None:
            break
        before = np.inf
        for _ in range(SOLVES):
            missing = rows @ y - bound
            left = abs(missing).max(initial=0.0)
            if not left < before / 2:
                break
            step, before = solve(missing), left
            y, dual[work] = y - inner.T @ step, dual[work] + step
        if not np.isfinite(y).all():
            break
        push = np.where(free, 0.0, raw - y - parts.G.T @ dual)
        noise = SLACK * max(abs(push).max(initial=0.0), abs(dual).max(initial=0.0))
        wrong, turned = ~tight & (side * dual < -noise), (held * push < -noise) & (parts.low < parts.high)
        value, missed = parts.G @ y, _missed(parts, y, VERIFIED) & (side == 0)
        most = 4 * EPS * abs(y).max()
        over, under = free & (y > parts.high + most), free & (y < parts.low - most)
        if not (wrong.any() or turned.any() or missed.any() or over.any() or under.any()):
            y = np.clip(y, parts.low, parts.high)
            failed = _missed(parts, y, VERIFIED).any()
            return _Point(y, dual, push, Status.NOT_CONVERGED if failed else Status.SOLVED)
        side = np.where(wrong, 0.0, np.where(missed, np.where(value > parts.upper, 1.0, -1.0), side))
        held = np.where(turned, 0.0, np.where(over, 1.0, np.where(under, -1.0, held)))
    return _Point(y, dual, push, Status.NOT_CONVERGED)


def _solver_of(rows: Any) -> Any:
    """``v -> (rows rows' + RIDGE I)^-1 v``, or None if there is no factor."""
    import scipy.sparse
    from scipy.sparse.linalg import splu

    if not rows.shape[0]:
        return lambda v: v
    gram = (rows @ rows.T + RIDGE * scipy.sparse.eye(rows.shape[0])).tocsc()
    try:
        return splu(gram, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0).solve
    except RuntimeError:  # an exactly singular factor
        return None


def _valid(raw: Any, lower: Any, upper: Any) -> bool:
    import numpy as np

    ordered = (lower <= upper) & (lower < np.inf) & (upper > -np.inf)
    return bool(np.isfinite(raw).all() and ordered.all())


def _tight(rows: SparseRows, active: Any, target: Any, start: Any) -> Any:
    """``w`` with ``K_JJ w = target_J``, zero off J, near `start` where it is not unique: ``(m,)``."""
    import numpy as np

    found = start
    try:
        factor = Factor(rows, np.where(active, RIDGE, 0.0), active)
    except np.linalg.LinAlgError:
        return found + np.nan
    before = np.inf
    for _ in range(SOLVES):
        missing = np.where(active, target - rows.gram @ found, 0.0)
        left = abs(missing).max(initial=0.0)
        if not left < before / 2:  # with contradicting bounds the error stays the same each time, while w grows
            break
        found, before = found + np.where(active, factor.solve(missing), 0.0), left
    return found


def _contradiction(rows: SparseRows, dual: Any, low: Any, high: Any) -> Any:
    """Farkas: a ray ``(m,)`` with ``A'ray = 0``, ``sum(high ray+) - sum(low ray-) < 0``; zeros if none is found.

    The multipliers grow along it. Their component in the range of ``K_JJ`` is removed, so that ``A'ray`` is rounding if
    the rows are dependent. Nearly dependent rows do not contradict each other: they meet somewhere, however far away.
    """
    import numpy as np

    ray = dual / max(abs(dual).max(), 1e-300)
    ray = np.where(abs(ray) > 1e-9, ray, 0.0)
    ray = ray - _tight(rows, ray != 0, rows.gram @ ray, np.zeros_like(ray))
    ray = np.where(abs(ray) > NOTHING * abs(ray).max(), ray, 0.0)
    bound = np.where(ray > 0, high, low)
    value = float((ray[ray != 0] * bound[ray != 0]).sum())
    leak, rounding = abs(rows.A.T @ ray).sum(), LEAK * abs(ray).sum()
    proved = leak <= rounding and value < -FAR * rounding
    return ray if proved else np.zeros_like(ray)
