"""How the cost of the closed form grows with B, n and m: times over several decades, and fitted exponents.

For sizes at which launching no longer matters, the time should grow like B, like n, and like m^2 (the Gram matrix);
faster growth is a defect. On a GPU the exponents are those of the device without the host, from replays of a captured
graph: eager calls wait for the host unless a batch is large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.device import gradients, replayed
from benchmarks.problems import Size, large_problem
from hardnet.functional import enforce_affine
from hardnet_lab.experiments import timing
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json

EXPECTED = {"B": 1.0, "n": 1.0, "m": 2.0}
"""The theoretical exponents: time ~ B n m^2."""
OVERHEAD = 4.0
SWEEPS: dict[str, dict[str, tuple[Size, ...]]] = {
    "cpu": {
        "B": tuple(Size(10**k, 10, 5) for k in range(1, 6)),
        "n": tuple(Size(1000, n, 8) for n in (8, 16, 32, 64, 128, 256)),
        "m": tuple(Size(1000, 64, m) for m in (1, 2, 4, 8, 16, 32, 64)),
    },
    "cuda": {
        "B": tuple(Size(10**k, 10, 5) for k in range(1, 7)),
        "n": tuple(Size(32768, n, 8) for n in (8, 16, 32, 64, 128, 256)),
        "m": tuple(Size(32768, 64, m) for m in (1, 2, 4, 8, 16, 32, 64)),
    },
}
"""(B, n, m): one of the three grows at a time."""


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Slope of log time over log size by least squares, over the upper half of the sizes.

    Points below `OVERHEAD` times the shortest time mainly measure the overhead of a call and are left out as long as
    two points remain.
    """
    half = min(len(sizes) // 2, len(sizes) - 2)
    half += sum(time < OVERHEAD * min(times) for time in times[half:-2])
    points = [(math.log(size), math.log(time)) for size, time in zip(sizes, times, strict=True)][half:]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def measure(size: Size, device: str, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """Milliseconds of forward, and of forward and backward, at one size; on a GPU also without the host."""
    numbers = large_problem(size, device, dtype, seed)[:4]

    def forward() -> object:
        with torch.no_grad():
            return enforce_affine(*numbers)

    works = {"forward": forward, "both": lambda: gradients(enforce_affine, numbers)}
    times = timing.time_all(works, device, seconds=0.5, rounds=20)
    row = {"B": size[0], "n": size[1], "m": size[2], "forward_ms": times["forward"], "both_ms": times["both"]}
    if device.startswith("cuda"):
        alone = replayed(enforce_affine, size, dtype, seed)
        row |= {"forward_device_ms": alone["forward_ms"], "both_device_ms": alone["both_ms"]}
    return row


def main_table(device: str = "cpu", out: Path | None = None, seed: int = 0) -> dict[str, Any]:
    """Sweep, fit, print, write JSON to `out` if given, and return the data."""
    dtype = torch.float32 if device.startswith("cuda") else torch.float64
    sweeps: dict[str, dict[str, Any]] = {}
    result = {"environment": environment(device, seed), "dtype": str(dtype), "sweeps": sweeps}
    for name, sizes in SWEEPS["cuda" if device.startswith("cuda") else "cpu"].items():
        rows = [measure(size, device, dtype, seed) for size in sizes]
        grown = [row[name] for row in rows]
        fits = {key: exponent(grown, [_alone(row, key) for row in rows]) for key in ("forward", "both")}
        sweeps[name] = {"rows": rows, "exponents": fits, "expected": EXPECTED[name]}
        if out is not None:  # after every sweep, so that an interrupted run keeps its results
            write_json(out, result, indent=1)
    lines = [[name, *sweep["exponents"].values(), sweep["expected"]] for name, sweep in sweeps.items()]
    print(table_text(["grows", "forward exponent", "forward+backward exponent", "mathematics"], lines))
    return result


def _alone(row: dict[str, Any], key: str) -> float:
    """The time without the host if it was measured, otherwise the time of the call."""
    return row.get(f"{key}_device_ms", row[f"{key}_ms"])
