"""The nearest point for sparse constant rows: an interior point guess, then the active rows are made exactly tight.

The conditions are those of `hardnet.solvers.polyhedron.shared_rows`, with sparse factors of ``K_JJ`` and one sample
after the other: rows with a multiplier of the wrong sign leave and violated rows join until nothing changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.polyhedron.orthogonal import FAR
from hardnet.solvers.polyhedron.problem import CERTAIN
from hardnet.solvers.polyhedron.sparse_factor import Factor, SparseRows
from hardnet.solvers.polyhedron.sparse_interior import RIDGE, guess
from hardnet.solvers.solution import Status

EXCHANGES = 8
"""The most exchanges of rows after the guess."""
SOLVES = 12
"""The most solves, one solution and its corrections: for nearly dependent rows each reduces the effect of the ridge."""
SOLVED = 1e-9
"""The residual up to which a sample counts as solved, in its own unit."""
SLACK = 1e-12
"""How far a row may miss its bound and still hold, in the sample's unit."""
TOUCHES = 3
"""The most corrections of the last digits."""
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


def _one(rows: SparseRows, raw: Any, lower: Any, upper: Any) -> tuple[Any, Any, Any, Status, float, int]:
    """One sample: y, dual, side, status, residual and exchanges."""
    import numpy as np

    nothing = np.zeros_like(lower)
    if not _valid(raw, lower, upper):
        return raw + np.nan, nothing + np.nan, nothing, Status.INVALID, np.nan, 0
    low, high = lower / rows.length, upper / rows.length
    asked = np.maximum(low, -high)
    size = max(abs(raw).max(initial=0.0), np.where(np.isfinite(asked), asked, 0.0).max(initial=0.0)) or 1.0
    unit = np.exp2(np.ceil(np.log2(size)).clip(-1000, 1000))  # exact to divide by
    point, low, high = raw / unit, low / unit, high / unit
    product = rows.A @ point
    excess = np.maximum(product - high, low - product)
    if not _beyond(rows, point, excess).any():
        return raw, nothing, nothing, Status.SOLVED, 0.0, 0
    dual, count = (nothing, 1) if (excess <= SLACK).all() else _multipliers(rows, product, low, high)
    y, dual, holds = _touch_up(rows, point - rows.A.T @ dual, dual, low, high)
    value = rows.A @ y
    lost = np.finfo(float).eps * (abs(rows.A.T) @ abs(dual)).max(initial=0.0)  # of raw - A'dual, where these are large
    residual = max(abs(value - np.clip(value + dual, low, high)).max(), lost) / max(1.0, abs(y).max())
    side = np.where(abs(dual) > STRICT * max(1.0, abs(dual).max()), np.sign(dual), 0.0)
    if holds and residual <= SOLVED:
        return _clamped(rows, unit * y, lower, upper), unit * dual / rows.length, side, Status.SOLVED, residual, count
    ray = _contradiction(rows, dual, low, high) if residual > SOLVED else nothing
    if ray.any():
        return unit * y, ray / rows.length, side, Status.INFEASIBLE, residual, count
    return unit * y, unit * dual / rows.length, side, Status.NOT_CONVERGED, residual, count


def _beyond(rows: SparseRows, y: Any, excess: Any) -> Any:
    """Rows violated beyond `CERTAIN` of their terms, which the certificate would not accept: ``(m,)`` bool."""
    return (excess > 0) & (excess > CERTAIN * (abs(rows.A) @ abs(y)))


def _touch_up(rows: SparseRows, y: Any, dual: Any, low: Any, high: Any) -> tuple[Any, Any, bool]:
    """Correct the last digits: move y by ``A_J'w`` so that the rows J at their bounds meet them.

    Also returns whether all rows hold.
    """
    import numpy as np

    for attempt in range(TOUCHES + 1):
        value = rows.A @ y
        excess = np.maximum(value - high, low - value)
        if not np.isfinite(y).all() or not _beyond(rows, y, excess).any():
            return y, dual, bool(np.isfinite(y).all())
        if attempt < TOUCHES:
            touching = excess >= -SLACK
            target = np.where(touching, np.clip(value, low, high) - value, 0.0)
            w = _tight(rows, touching, target, np.zeros_like(dual))
            y, dual = y + rows.A.T @ w, dual - w
    return y, dual, False


def _valid(raw: Any, lower: Any, upper: Any) -> bool:
    import numpy as np

    ordered = (lower <= upper) & (lower < np.inf) & (upper > -np.inf)
    return bool(np.isfinite(raw).all() and ordered.all())


def _multipliers(rows: SparseRows, product: Any, low: Any, high: Any) -> tuple[Any, int]:
    """Multipliers that make the guessed rows tight, with rows exchanged until optimal, and the number of exchanges.

    If the exchanges do not end, these are the multipliers of the guess.
    """
    import numpy as np

    tight = low == high
    if tight.all():
        return _tight(rows, tight, product - low, np.zeros_like(product)), 1
    side, first = guess(rows, product, low, high)
    dual = first
    for count in range(1, EXCHANGES + 1):
        active = side != 0
        bound = np.where(side > 0, high, np.where(active, low, 0.0))
        dual = _tight(rows, active, np.where(active, product - bound, 0.0), np.where(active, dual, 0.0))
        value = product - rows.gram @ dual
        stays = active & ((side * dual >= -SLACK) | tight)
        joins = (value > high + SLACK) * 1.0 - (value < low - SLACK) * 1.0
        following = np.where(stays, side, np.where(active, 0.0, joins))
        if (following == side).all():
            return dual, count
        side = following
    return first, EXCHANGES


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


def _clamped(rows: SparseRows, y: Any, lower: Any, upper: Any) -> Any:
    """Y clamped to the bounds of rows that are one output, or its negative, so that these hold exactly."""
    import numpy as np

    alone = (np.diff(rows.A.indptr) == 1) & (rows.length == 1.0)
    place = rows.A.indices[rows.A.indptr[:-1][alone]]
    turned = rows.A.data[rows.A.indptr[:-1][alone]] < 0
    least, most = np.full_like(y, -np.inf), np.full_like(y, np.inf)
    np.maximum.at(least, place, np.where(turned, -upper[alone], lower[alone]))
    np.minimum.at(most, place, np.where(turned, -lower[alone], upper[alone]))
    return np.minimum(np.maximum(y, least), most)


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
