"""A guess of the active sparse rows by an interior point method in their multipliers.

With ``y = raw - A'dual``, ``dual = above - below``, slacks s to the bounds and the products ``v = A raw - K dual``,
Mehrotra's steps towards ``above s_above = below s_below = mu`` all solve

    (K + 1/w) d = g/w,     w = above / s_above + below / s_below

one symmetric system per sample and step, with two right-hand sides; an equality has no slack and ``1/w = 0``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hardnet.solvers.polyhedron.sparse_factor import Factor, SparseRows

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
