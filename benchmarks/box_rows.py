"""A box and k rows on one CPU core, beside a loop over DAQP that is given the box as bounds, in turns.

    python -m benchmarks.box_rows --out results/bench/box_rows_cpu.json

Rows are half equalities, half inequalities; 64 samples share them. Processor time, the median of the repetitions; with
backward the gradient goes to raw, in the loop by a solve on the active rows for each sample. Every answer is compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import daqp
import numpy as np
import torch

import hardnet as hn
from hardnet_lab.experiments.results import environment, write_json

OUTPUTS, ROWS = (5, 20, 50, 100, 300, 1000), (1, 2, 4, 8, 9, 12, 20, 50, 100)
SAMPLES, REPEATS, EQUALITY = 64, 7, 5
"""How many samples, how often each is timed, and what DAQP calls an equality."""


class Loop:
    """DAQP sample after sample, with H kept, bounds as bounds and equalities as such."""

    def __init__(self, A: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
        n = A.shape[1]
        self.A, self.H = np.ascontiguousarray(A), np.eye(n)
        self.lower = np.concatenate([np.zeros(n), np.maximum(lower, -1e30)])
        self.upper = np.concatenate([np.ones(n), upper])
        self.sense = np.concatenate([np.zeros(n), np.where(lower == upper, EQUALITY, 0)]).astype(np.int32)

    def forward(self, raw: np.ndarray) -> np.ndarray:
        """y ``(B, n)``."""
        return np.array([daqp.solve(self.H, -r, self.A, self.upper, self.lower, self.sense)[0] for r in raw])

    def backward(self, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """The gradient projected onto the null space of the active rows over the free outputs."""
        found = np.zeros_like(gradient)
        for sample in range(len(y)):
            free = (y[sample] > 1e-9) & (y[sample] < 1 - 1e-9)
            value, n = self.A @ y[sample], len(self.H)
            rows = self.A[(value > self.upper[n:] - 1e-9) | (value < self.lower[n:] + 1e-9)][:, free]
            g = gradient[sample][free]
            found[sample][free] = g - rows.T @ np.linalg.solve(rows @ rows.T, rows @ g) if len(rows) else g
        return found


def problem(n: int, k: int) -> tuple[hn.sets.ConstraintSet, Loop, torch.Tensor]:
    """The set, the loop, and raws around it."""
    source = np.random.default_rng(n + 7 * k)
    A, inside = source.normal(size=(k, n)) / n**0.5, source.uniform(0.2, 0.8, n)
    equal, value = np.arange(k) < k // 2, A @ inside
    lower, upper = np.where(equal, value, -np.inf), np.where(equal, value, value + 0.1)
    rows = hn.Affine(torch.from_numpy(A), lower=torch.from_numpy(lower), upper=torch.from_numpy(upper))
    return hn.Box(0.0, 1.0) & rows, Loop(A, lower, upper), torch.from_numpy(source.normal(size=(SAMPLES, n)) + 0.5)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of processor time, and the result."""
    started = time.process_time()
    found = function()
    return 1e3 * (time.process_time() - started), found


def measure(n: int, k: int) -> dict[str, Any]:
    """One cell: medians, ratios, and how far the two answers are apart."""
    constraint, loop, raw = problem(n, k)
    layer = hn.layers.Projection(constraint)
    layer(raw.requires_grad_()).sum().backward()  # compiles
    times: dict[str, list[float]] = {name: [] for name in ("forward", "both", "loop", "loop + derivative")}
    apart, y = 0.0, raw.detach()
    for _ in range(REPEATS if n * k < 20000 else 3):
        ours, y = timed(lambda: layer(raw.detach()))
        both, _ = timed(lambda: layer(raw).square().sum().backward())
        theirs, z = timed(lambda: loop.forward(raw.detach().numpy()))
        back, _ = timed(lambda z=z: loop.backward(z, 2 * z))
        for name, value in zip(times, (ours, both, theirs, theirs + back), strict=True):
            times[name].append(value)
        apart = float(np.abs(y.numpy() - z).max())
    found = {name: median(values) for name, values in times.items()}
    ratios = {"ratio": found["forward"] / found["loop"], "ratio both": found["both"] / found["loop + derivative"]}
    return {"outputs": n, "rows": k, **found, **ratios, "apart": apart, "certified": hn.check(constraint, y).ok}


def cells() -> Iterator[tuple[int, int]]:
    """The sizes: no more than n / 2 equalities."""
    return ((n, k) for n in OUTPUTS for k in ROWS if k <= n)


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    torch.set_num_threads(1)
    given, rows = parser.parse_args(), []
    for n, k in cells():
        rows.append(measure(n, k))
        row = rows[-1]
        own = f"{row['forward']:8.2f} ms, {row['ratio']:.2f} of the loop"
        both = f"with backward {row['both']:8.2f} ms, {row['ratio both']:.2f}"
        print(f"{n:5} x {k:3}: {own}; {both}; apart {row['apart']:.0e}", flush=True)
    means = {name: geometric_mean(row[name] for row in rows) for name in ("ratio", "ratio both")}
    print(
        "geometric means:", means, "largest:", max(row["ratio"] for row in rows), max(row["ratio both"] for row in rows)
    )
    if given.out:
        write_json(given.out, {**environment("cpu"), "daqp": version("daqp"), "rows": rows, **means})


if __name__ == "__main__":
    main()
