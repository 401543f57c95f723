"""Polyhedra as people in operations research have them: sparse, degenerate, with dependent and badly scaled rows.

A function of `FAMILIES` makes one polyhedron ``lower <= A y <= upper`` beside a box for a seed and a size, with a point
inside by construction and raw outputs near it and far away. Numbers are multiples of 1/8 where the model allows it, so
that dependent rows agree exactly.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack
from torch import Tensor


class Structured(NamedTuple):
    """``lower <= A y <= upper``, ``box_lower <= y <= box_upper`` in float64, absent bounds infinite; raw ``(4, n)``."""

    A: Tensor
    lower: Tensor
    upper: Tensor
    box_lower: Tensor
    box_upper: Tensor
    raw: Tensor


class Family(Protocol):
    """A polyhedron of about n outputs, two of whose rows contradict each other by `contradiction` of their terms."""

    def __call__(self, seed: int, n: int, contradiction: float = 0.0) -> Structured:
        """Draw it."""
        ...


class _Model:
    """Rows that are written one by one around a point `y` inside."""

    def __init__(self, y: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> None:
        """Start without rows."""
        self.y = np.asarray(y, dtype=float)
        self.box = tuple(np.broadcast_to(np.asarray(bound, dtype=float), self.y.shape).copy() for bound in (low, high))
        self.rows: list[np.ndarray] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def row(
        self, index: np.ndarray | list[int], values: object, *, below: float = np.inf, above: float = np.inf
    ) -> None:
        """``a y`` may be less than now by `below` and more by `above`; none of both makes an equality."""
        a = np.zeros(len(self.y))
        np.add.at(a, np.asarray(index), np.asarray(values, dtype=float))
        now = float(a @ self.y)
        self.rows.append(a)
        self.lower.append(now - below)
        self.upper.append(now + above)

    def equality(self, index: np.ndarray | list[int], values: object) -> None:
        """``a y`` stays as it is."""
        self.row(index, values, below=0.0, above=0.0)


def transport(seed: int, n: int, contradiction: float = 0.0) -> Structured:
    """Shipments of p sources to q sinks with given supplies and demands: one row depends on the rest."""
    source = np.random.default_rng(seed)
    p = max(int(np.sqrt(n / 2)), 2)
    q = max(n // p, 2)
    y = source.integers(0, 6, (p, q)) * (source.random((p, q)) < 0.4)
    model = _Model(y.ravel(), 0.0, np.where(source.random(p * q) < 0.2, y.ravel() + source.integers(0, 3), np.inf))
    index = np.arange(p * q).reshape(p, q)
    for members in (*index, *index.T):
        model.equality(members, 1)
    return _finished(model, source, contradiction)


def _graph(source: np.random.Generator, nodes: int, arcs: int) -> tuple[np.ndarray, np.ndarray]:
    """Tails and heads of a connected graph."""
    tree = np.array([source.integers(0, node) for node in range(1, nodes)])
    tails = np.append(tree, source.integers(0, nodes, max(arcs - nodes + 1, 0)))
    heads = np.append(np.arange(1, nodes), source.integers(0, nodes, max(arcs - nodes + 1, 0)))
    return tails, np.where(tails == heads, (heads + 1) % nodes, heads)


def network(seed: int, n: int, contradiction: float = 0.0) -> Structured:
    """Flow on n arcs with capacities: what enters a node leaves it or is used there."""
    source = np.random.default_rng(seed)
    nodes = max(n // 3, 3)
    tails, heads = _graph(source, nodes, n)
    y = source.integers(0, 8, len(tails)) * (source.random(len(tails)) < 0.6)
    model = _Model(y, 0.0, y + source.integers(0, 4, len(y)))
    for node in range(nodes):
        out, into = np.flatnonzero(tails == node), np.flatnonzero(heads == node)
        model.equality(np.append(out, into), np.append(np.ones(len(out)), -np.ones(len(into))))
    return _finished(model, source, contradiction)


def multicommodity(seed: int, n: int, contradiction: float = 0.0) -> Structured:
    """Flows of several commodities that share the capacity of each arc."""
    source = np.random.default_rng(seed)
    goods = 3 + seed % 3
    arcs = max(n // goods, 4)
    nodes = max(arcs // 3, 3)
    tails, heads = _graph(source, nodes, arcs)
    arcs = len(tails)
    y = source.integers(0, 5, (goods, arcs)) * (source.random((goods, arcs)) < 0.4)
    model = _Model(y.ravel(), 0.0, np.inf)
    index = np.arange(goods * arcs).reshape(goods, arcs)
    for good in range(goods):
        for node in range(nodes):
            out, into = index[good, tails == node], index[good, heads == node]
            model.equality(np.append(out, into), np.append(np.ones(len(out)), -np.ones(len(into))))
    for arc in range(arcs):
        model.row(index[:, arc], 1, above=float(source.integers(0, 3)))
    return _finished(model, source, contradiction)


def blending(seed: int, n: int, contradiction: float = 0.0) -> Structured:
    """Amounts of ingredients in products: ratios of qualities, stocks of ingredients, demands for products."""
    source = np.random.default_rng(seed)
    products = max(int(np.sqrt(n / 3)), 2)
    ingredients = max(n // products, 3)
    y = source.integers(0, 9, (products, ingredients)) / 8 * (source.random((products, ingredients)) < 0.5)
    model = _Model(y.ravel(), 0.0, np.inf)
    index = np.arange(products * ingredients).reshape(products, ingredients)
    for product in range(products):
        for _ in range(3):
            quality = source.integers(1, 100, ingredients)
            mix = float(quality @ y[product] / y[product].sum()) if y[product].any() else 50.0
            limit = np.ceil(8 * mix) / 8  # quality y <= limit sum(y), homogeneous as ratios are
            model.row(index[product], quality - limit, above=-float((quality - limit) @ y[product]))
            model.row(index[product], quality - limit + 20, below=float((quality - limit + 20) @ y[product]))
        model.row(index[product], 1, below=float(source.integers(0, 2)))
    for ingredient in range(ingredients):
        model.row(index[:, ingredient], 1, above=float(source.integers(0, 2)))
    return _finished(model, source, contradiction)


def production(seed: int, n: int, contradiction: float = 0.0) -> Structured:
    """Staircase of periods: stock, production and demand of products that share machines; bounded changes of load."""
    source = np.random.default_rng(seed)
    products = 3 + seed % 3
    periods = max(n // (2 * products), 3)
    made = source.integers(0, 10, (periods, products)).astype(float)
    stock = source.integers(0, 6, (periods, products)) * (source.random((periods, products)) < 0.6)
    y = np.concatenate([made, stock], 1)
    model = _Model(y.ravel(), 0.0, np.where(source.random(y.size) < 0.5, y.ravel() + source.integers(0, 5), np.inf))
    index = np.arange(y.size).reshape(periods, 2, products)
    hours = source.integers(1, 5, (2, products)) / 2
    for t in range(periods):
        for product in range(products):
            new, kept = index[t, :, product]
            before = [index[t - 1, 1, product]] if t else []
            model.equality([new, kept, *before], [1, -1, *[1 for _ in before]])  # the rest is the demand
        for machine in range(2):
            model.row(index[t, 0], hours[machine], above=float(source.integers(0, 3)))
        if t:
            now, change = np.append(index[t, 0], index[t - 1, 0]), np.append(np.ones(products), -np.ones(products))
            size = abs(float(made[t].sum() - made[t - 1].sum()))
            model.row(now, change, below=float(source.integers(0, 4)) + size, above=float(source.integers(0, 4)))
    return _finished(model, source, contradiction)


def dispatch(seed: int, n: int, contradiction: float = 0.0) -> Structured:
    """Power of units over hours: the load of each hour, ramps of each unit, reserves of groups of units."""
    source = np.random.default_rng(seed)
    hours = 24 if n >= 300 else 6
    units = max(n // hours, 3)
    capacity = source.integers(4, 40, units) * 10.0
    base = source.integers(2, 7, units) / 8 * capacity
    y = base + source.integers(-2, 3, (hours, units)) / 8 * capacity
    model = _Model(y.ravel(), 0.0, np.tile(capacity, hours))
    index = np.arange(y.size).reshape(hours, units)
    groups = source.integers(0, 3, units)
    for hour in range(hours):
        model.equality(index[hour], 1)
        for group in range(3):
            if (groups == group).any():
                model.row(index[hour, groups == group], 1, above=float(source.integers(0, 30)))
    for unit in range(units):
        step = np.abs(np.diff(y[:, unit]))
        ramp = max(step.max(), capacity[unit] / 8)
        for hour in range(1, hours):
            change = y[hour, unit] - y[hour - 1, unit]
            model.row(index[[hour, hour - 1], unit], [1, -1], below=ramp + change, above=ramp - change)
    return _finished(model, source, contradiction)


def grid(seed: int, n: int, contradiction: float = 0.0) -> Structured:
    """DC power flow: generation, angles and flows; flows follow the angles, each bus is balanced, lines are limited."""
    source = np.random.default_rng(seed)
    buses = max(n // 4, 3)
    tails, heads = _graph(source, buses, max(n - 2 * buses, buses))
    lines = len(tails)
    susceptance = source.integers(1, 400, lines) / 8
    angle = source.integers(-16, 17, buses) / 64
    angle[0] = 0
    flow = susceptance * (angle[tails] - angle[heads])
    power = source.integers(0, 9, buses) * (source.random(buses) < 0.5)
    room = source.integers(0, 3, lines)
    low = np.concatenate([np.zeros(buses), np.full(buses, -np.pi), -np.abs(flow) - room])
    high = np.concatenate([power + source.integers(0, 5, buses), np.full(buses, np.pi), np.abs(flow) + room])
    low[buses] = high[buses] = 0.0  # the angle of reference
    model = _Model(np.concatenate([power, angle, flow]), low, high)
    for line in range(lines):
        b = susceptance[line]
        model.equality([2 * buses + line, buses + tails[line], buses + heads[line]], [1, -b, b])
    for bus in range(buses):
        out, into = 2 * buses + np.flatnonzero(tails == bus), 2 * buses + np.flatnonzero(heads == bus)
        model.equality(np.array([bus, *out, *into]), [1, *[-1 for _ in out], *[1 for _ in into]])
    return _finished(model, source, contradiction)


def pools(seed: int, n: int, contradiction: float = 0.0) -> Structured:
    """Work of jobs on pools of resources: each job is done, pools and nested groups of pools are limited."""
    source = np.random.default_rng(seed)
    count = 6 + seed % 5
    jobs = max(n // count, 2)
    y = source.integers(0, 5, (jobs, count)) * (source.random((jobs, count)) < 0.5)
    model = _Model(y.ravel(), 0.0, np.where(source.random(y.size) < 0.3, y.ravel(), np.inf))
    index = np.arange(y.size).reshape(jobs, count)
    use = source.integers(1, 9, (jobs, count)) / 4
    for job in range(jobs):
        model.row(index[job], 1, below=0.0, above=0.0 if source.random() < 0.7 else 2.0)
    for last in range(1, count + 1):
        model.row(index[:, last - 1], use[:, last - 1], above=float(source.integers(0, 4)))
        model.row(index[:, :last].ravel(), use[:, :last].ravel(), above=float(source.integers(0, 4)))
    return _finished(model, source, contradiction)


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (transport, network, multicommodity, blending, production, dispatch, grid, pools)
}
"""Each family by its name."""


def _finished(model: _Model, source: np.random.Generator, contradiction: float) -> Structured:
    """The model with redundant, dependent, nearly dependent and badly scaled rows, and the raw outputs."""
    A, lower, upper = np.array(model.rows), np.array(model.lower), np.array(model.upper)
    m, n = A.shape
    tight = np.flatnonzero(lower == upper)
    new: list[tuple[np.ndarray, Any, Any]] = []
    for _ in range(max(m // 10, 2)):
        i, j = source.choice(m, 2)  # implied by two others, and dependent where they are equalities
        new.append((A[i] + A[j], lower[i] + lower[j], upper[i] + upper[j]))
        if len(tight) > 1:
            i, j = source.choice(tight, 2, replace=False)
            new.append((A[i] - 2 * A[j], lower[i] - 2 * lower[j], upper[i] - 2 * upper[j]))
        i = source.integers(m)  # the same row to a few parts in 10^6 to 10^13
        a = A[i] * (1 + 10 ** source.uniform(-13, -6) * source.standard_normal(n))
        now, moved = float(A[i] @ model.y), float(a @ model.y)
        new.append((a, moved - (now - lower[i]), moved + (upper[i] - now)))
    new = new[: max(2 * n - m, 0)]
    if contradiction:
        i = source.choice(tight) if len(tight) else source.integers(m)
        now = float(A[i] @ model.y)
        apart = now + contradiction * float(np.abs(A[i]).sum() * np.abs(model.y).max() + abs(now))
        new += [(A[i], now, now), (A[i], apart, apart)]
    if new:
        A = np.concatenate([A, [a for a, _, _ in new]])
        lower, upper = np.append(lower, [low for _, low, _ in new]), np.append(upper, [up for _, _, up in new])
    # a third of the rows are in other units, by powers of two, which change no digit
    units = np.where(source.random(len(A)) < 1 / 3, 2.0 ** source.integers(-13, 14, len(A)), 1.0)
    order = source.permutation(len(A))
    A, lower, upper = (A * units[:, None])[order], (lower * units)[order], (upper * units)[order]
    numbers = A, lower, upper, *model.box
    return Structured(*(torch.from_numpy(part) for part in (*numbers, _raws(numbers, model.y, source))))


def _raws(numbers: tuple[np.ndarray, ...], inside: np.ndarray, source: np.random.Generator) -> np.ndarray:
    """A vertex and a step from it that is as long; a standard normal around it, and alone; a thousand times that."""
    A, lower, upper, low, high = numbers
    n, rows, above, below = len(inside), csr_array(A), np.isfinite(upper), np.isfinite(lower)
    found = linprog(
        source.standard_normal(n),
        vstack([rows[above], -rows[below]]),
        np.append(upper[above], -lower[below]),
        bounds=np.stack([low, high], 1),
        options={"time_limit": 10.0},
    )
    vertex = inside if found.x is None else found.x
    step, normal = source.standard_normal((2, n))
    step *= np.linalg.norm(vertex) / np.linalg.norm(step)
    return np.stack([vertex + step, vertex + normal, normal, 1000 * normal])
