"""A box and k rows on one CPU core, beside a loop over DAQP that is given the box as bounds, in turns.

    python -m benchmarks.box_rows --out results/bench/box_rows_cpu.json

Rows are half equalities, half inequalities, the same for all samples or drawn for each; then profiles and hierarchies
as people have them, also in a metric. Processor time, the median of the repetitions; with backward the gradient goes to
raw, in the loop by a solve on the active rows for each sample. Every answer is compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import daqp
import numpy as np
import torch

import hardnet as hn
from hardnet_lab.experiments.results import environment, write_json

OUTPUTS, ROWS = (5, 20, 50, 100, 300, 1000), (1, 2, 4, 8, 9, 12, 20, 50, 100)
REPEATS, EQUALITY = 7, 5
"""How often each is timed, and what DAQP calls an equality."""


class Case(NamedTuple):
    """``lower <= A y <= upper`` beside a box of two numbers, in a metric of weights; A ``(1, k, n)`` or ``(B, k, n)``.

    A loop takes the first `looped` samples, and its time is scaled.
    """

    name: str
    A: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    box: tuple[float, float]
    raw: np.ndarray
    weights: np.ndarray | None = None
    looped: int = 1000

    def ours(self) -> tuple[hn.sets.ConstraintSet, hn.layers.Projection]:
        """The set and its layer."""
        numbers = [torch.from_numpy(part) for part in (self.A, self.lower, self.upper)]
        A, lower, upper = (part[0] if len(self.A) == 1 else (lambda _, part=part: part) for part in numbers)
        constraint = hn.Box(*self.box) & hn.Affine(A, lower=lower, upper=upper)
        metric = None if self.weights is None else torch.from_numpy(self.weights)
        return constraint, hn.layers.Projection(constraint, metric=metric)

    def loop(self) -> Callable[[], np.ndarray]:
        """DAQP sample after sample, with H kept, bounds as bounds and equalities as such."""
        n = self.A.shape[-1]
        weights = np.ones(n) if self.weights is None else self.weights
        box = np.full(n, self.box[0]), np.full(n, min(self.box[1], 1e30))
        H, rows = np.diag(weights), []
        for A, lower, upper in zip(self.A, self.lower, self.upper, strict=True):
            sense = np.concatenate([np.zeros(n), np.where(lower == upper, EQUALITY, 0)]).astype(np.int32)
            high, low = np.append(box[1], np.minimum(upper, 1e30)), np.append(box[0], np.maximum(lower, -1e30))
            rows.append((A, high, low, sense))
        asked = [(-weights * raw, *rows[b % len(rows)]) for b, raw in enumerate(self.raw[: self.looped])]
        return lambda: np.array([daqp.solve(H, *numbers)[0] for numbers in asked])

    def derivative(self, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """The gradient projected onto the null space of the active rows over the free outputs, in the metric."""
        found = np.zeros_like(gradient)
        inverse = np.ones(y.shape[-1]) if self.weights is None else 1 / self.weights
        for b in range(len(y)):
            A, lower, upper = (part[b % len(part)] for part in (self.A, self.lower, self.upper))
            free, value = (y[b] > self.box[0] + 1e-9) & (y[b] < self.box[1] - 1e-9), A @ y[b]
            rows = A[(value > upper - 1e-9) | (value < lower + 1e-9)][:, free]
            g = gradient[b][free]
            if len(rows):
                weighted = rows * inverse[free]
                g = g - rows.T @ np.linalg.lstsq(weighted @ rows.T, weighted @ g, rcond=None)[0]
            found[b][free] = g
        return found


def mixed(n: int, k: int, shared: bool) -> Case:
    """k Gaussian rows, half of them equalities, around a point inside."""
    source, samples = np.random.default_rng(n + 7 * k), 1000 if n <= 100 else 64
    A, inside = source.normal(size=(1 if shared else samples, k, n)) / n**0.5, source.uniform(0.2, 0.8, n)
    value, equal = A @ inside, np.arange(k) < k // 2
    raw = source.normal(size=(samples, n)) + 0.5
    looped = samples if n <= 100 else 64 if n <= 300 else 8
    lower, upper = np.where(equal, value, -np.inf), np.where(equal, value, value + 0.1)
    return Case(f"{n} x {k}, {'shared' if shared else 'per sample'}", A, lower, upper, (0.0, 1.0), raw, looped=looped)


def profile(n: int = 200, samples: int = 64) -> Case:
    """Rising profiles between 0 and 1 with a given sum."""
    source, total = np.random.default_rng(n), n / 2
    A = np.concatenate([np.diff(np.eye(n), axis=0), np.ones((1, n))])[None]
    lower, upper = np.append(np.zeros(n - 1), total)[None], np.append(np.full(n - 1, 1e30), total)[None]
    raw = np.linspace(0, 1, n) + 0.2 * source.normal(size=(samples, n))
    return Case(f"rising profile of {n}", A, lower, upper, (0.0, 1.0), raw)


def hierarchy(n: int, metric: bool, samples: int = 64) -> Case:
    """Series >= 0 of which the first tenth are sums of the others, by groups of nine."""
    source, k = np.random.default_rng(n), n // 10
    A = np.concatenate([-np.eye(k), np.kron(np.eye(k), np.ones((1, 9)))], 1)[None]
    below = source.exponential(size=(samples, 9 * k)) * (source.random((samples, 9 * k)) < 0.7)
    raw = np.concatenate([below.reshape(samples, k, 9).sum(-1), below], 1) + 0.5 * source.normal(size=(samples, n))
    weights = source.uniform(0.2, 5.0, n) if metric else None
    name = f"hierarchy of {n} series >= 0{', in a metric' if metric else ''}"
    return Case(name, A, np.zeros((1, k)), np.zeros((1, k)), (0.0, np.inf), raw, weights, 64 if n < 1000 else 2)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of processor time, and the result."""
    started = time.process_time()
    found = function()
    return 1e3 * (time.process_time() - started), found


def measure(case: Case) -> dict[str, Any]:
    """One case: medians, ratios, and how far the two answers are apart."""
    (constraint, layer), loop = case.ours(), case.loop()
    raw = torch.from_numpy(case.raw).requires_grad_()
    x, scale = raw.detach(), len(case.raw) / min(case.looped, len(case.raw))
    layer(raw, x).sum().backward()  # compiles
    times: dict[str, list[float]] = {name: [] for name in ("forward", "both", "loop", "loop + derivative")}
    apart, y = 0.0, raw.detach()
    for _ in range(REPEATS):
        ours, y = timed(lambda: layer(raw.detach(), x))
        both, _ = timed(lambda: layer(raw, x).square().sum().backward())
        theirs, z = timed(loop)
        back, _ = timed(lambda z=z: case.derivative(z, 2 * z))
        for name, value in zip(times, (ours, both, scale * theirs, scale * (theirs + back)), strict=True):
            times[name].append(value)
        apart = float(np.abs(y.numpy()[: len(z)] - z).max())
    found = {name: median(values) for name, values in times.items()}
    ratios = {"ratio": found["forward"] / found["loop"], "ratio both": found["both"] / found["loop + derivative"]}
    k, n = case.A.shape[1:]
    about = {"case": case.name, "samples": len(raw), "outputs": n, "rows": k}
    return {**about, **found, **ratios, "apart": apart, "certified": hn.check(constraint, y, x).ok}


def cases() -> Iterator[Case]:
    """The grid, shared and per sample (up to 5 million numbers of A), and what people bring."""
    for n in OUTPUTS:
        for k in (k for k in ROWS if k <= n):
            yield mixed(n, k, True)
            if n * k * (1000 if n <= 100 else 64) <= 5e6:
                yield mixed(n, k, False)
    yield profile()
    yield from (hierarchy(300, metric) for metric in (False, True))
    yield hierarchy(2000, False)


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    torch.set_num_threads(1)
    given, rows, means = parser.parse_args(), [], {}
    for case in cases():
        rows.append(measure(case))
        row = rows[-1]
        own = f"{row['forward']:8.2f} ms, {row['ratio']:.2f} of the loop"
        both = f"with backward {row['both']:8.2f} ms, {row['ratio both']:.2f}"
        print(f"{row['case']:36}: {own}; {both}; apart {row['apart']:.0e}", flush=True)
        grid = [row for row in rows if " x " in row["case"]]
        means = {name: geometric_mean(row[name] for row in grid) for name in ("ratio", "ratio both")}
        if given.out:  # after each, so that a run that is stopped has written what it measured
            stamp = environment("cpu")
            stamp["versions"]["daqp"] = version("daqp")
            write_json(given.out, {"environment": stamp, "rows": rows, "geometric means of the grid": means})
    print("geometric means of the grid:", means)


if __name__ == "__main__":
    main()
