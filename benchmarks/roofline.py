"""How far the fused closed form is from the floor of its memory traffic, on a GPU.

The floor of a pass is the bytes it must move (every input read once, every output written once) over the bandwidth that
a plain copy reaches on the same device. Several sets of inputs, together larger than any cache, are replayed as one
captured graph, so that neither the cache nor the host is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.affine_problems import Size, floors, replayed
from hardnet.errors import MissingExtraError
from hardnet.experiments import timing
from hardnet.experiments.markdown import table_text
from hardnet.experiments.results import write_json
from hardnet.experiments.stamp import environment
from hardnet.functional import enforce_affine

TARGETS: dict[Size, tuple[float, float] | None] = {
    (10**6, 2, 2): (2.0, 3.0),
    (10**6, 6, 3): None,
    (10**5, 10, 5): (2.5, 4.0),
    (10**5, 16, 8): (3.0, 5.0),
    (32768, 32, 16): None,
    (8192, 50, 25): (8.0, 12.0),
    (8192, 100, 50): (8.0, 12.0),
    (4096, 256, 64): None,
}
"""(B, n, m): most multiples of the floor, forward and forward+backward."""
DTYPES = (torch.float32, torch.float64)
COLUMNS = [
    "dtype",
    "B",
    "n",
    "m",
    "forward_ms",
    "forward_floor_ms",
    "forward_multiple",
    "forward_target",
    "both_ms",
    "both_floor_ms",
    "both_multiple",
    "both_target",
]


def operations(size: Size) -> float:
    """Floating-point operations of the forward: ``A f``, ``A A'`` (half), its factor, two solves and ``A' q``."""
    samples, n, m = size
    return samples * (4.0 * m * n + m * (m + 1) * n + m**3 / 3 + 2 * m * m)


def measure(size: Size, dtype: torch.dtype, bandwidth: float, seed: int) -> dict[str, Any]:
    """Times of the kernels and their multiples of the floor at one size, A per sample."""
    forward_floor, both_floor = floors(size, bandwidth, dtype.itemsize)
    times = replayed(enforce_affine, size, False, dtype, "cuda", seed)
    target = TARGETS.get(size) if dtype == torch.float32 else None
    return {
        "dtype": str(dtype).removeprefix("torch."), "B": size[0], "n": size[1], "m": size[2],
        "forward_ms": times["forward"], "forward_floor_ms": forward_floor,
        "forward_multiple": times["forward"] / forward_floor, "forward_target": target and target[0],
        "both_ms": times["both"], "both_floor_ms": both_floor,
        "both_multiple": times["both"] / both_floor, "both_target": target and target[1],
        "operations": operations(size),
    }  # fmt: skip


def main_table(
    device: str = "cuda", out: Path | None = None, peers: object = None, sizes: Sequence[Size] | None = None
) -> dict[str, Any]:
    """Run, print the table, write JSON and a picture beside it to `out` if given, and return the data."""
    bandwidth = timing.copy_bandwidth(device, megabytes=1024)
    rows: list[dict[str, Any]] = []
    result = {"environment": environment(device, 0), "copy_bytes_per_ms": bandwidth, "rows": rows}
    for dtype, size in itertools.product(DTYPES, sizes or TARGETS):
        rows.append(measure(size, dtype, bandwidth, seed=0))
        if out is not None:  # after every size: a run that is cut short keeps what it has
            write_json(out, result, indent=1)
    print(table_text(COLUMNS, [[row[column] for column in COLUMNS] for row in rows]))
    if out is not None:
        draw(result, out.with_suffix(".png"))
    return result


def draw(result: dict[str, Any], path: Path) -> None:
    """The roofline in float32: operations per second over operations per byte, under the measured bandwidth."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "experiments") from None
    bandwidth = result["copy_bytes_per_ms"] * 1e3
    figure = Figure(figsize=(7, 4.5))
    axes = figure.add_subplot()
    rows = [row for row in result["rows"] if row["dtype"] == "float32"]
    intensities = [row["operations"] / (row["forward_floor_ms"] * result["copy_bytes_per_ms"]) for row in rows]
    reach = [min(intensities) / 2, max(intensities) * 2]
    axes.plot(reach, [bandwidth * x / 1e9 for x in reach], color="black", label="measured copy bandwidth")
    for place, (row, intensity) in enumerate(zip(rows, intensities, strict=True)):
        rate = row["operations"] / row["forward_ms"] * 1e3 / 1e9
        axes.plot(intensity, rate, "o", color="C0")
        label = f"{row['m']}x{row['n']}: {row['forward_multiple']:.1f}x"
        beside = {"xytext": (0, 7 if place % 2 else -14), "textcoords": "offset points", "ha": "center"}
        axes.annotate(label, (intensity, rate), fontsize=8, **beside)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte that must move", ylabel="Gflop/s, forward")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")
