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

from hardnet.kernels.backends import find
from hardnet.rows import Batch
from hardnet.solvers.polyhedron.orthogonal import FAR
from hardnet.solvers.polyhedron.problem import CERTAIN
from hardnet.solvers.polyhedron.sparse_factor import Factor, SparseRows
from hardnet.solvers.polyhedron.sparse_interior import RIDGE, guess
from hardnet.solvers.solution import Status
from hardnet.tolerances import ROUNDINGS

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
    if inside and not _missed(parts, raw, CERTAIN / EPS).any():
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
    own = near > ROUNDINGS * EPS * weight * most
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
