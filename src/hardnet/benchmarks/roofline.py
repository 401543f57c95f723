"""How far the fused closed form is from the floor of its memory traffic, on a GPU.

The floor of a pass is the bytes it must move (every input read once, every output written once) over the bandwidth that
a plain copy reaches on the same device. Several sets of inputs, together larger than any cache, are replayed as one
captured graph, so that neither the cache nor the host is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardnet.benchmarks import common
from hardnet.benchmarks.affine import Size, problem
from hardnet.errors import MissingExtraError
from hardnet.kernels import affine

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
ROTATED_BYTES = 4e8
COLUMNS = [
    "B",
    "n",
    "m",
    "forward_ms",
    "forward_floor_ms",
    "forward_multiple",
    "both_ms",
    "both_floor_ms",
    "both_multiple",
]


def replay_time(work: Callable[..., object], sets: Sequence[Sequence[Tensor]], rounds: int = 20) -> float:
    """Median milliseconds of one call, from replays of a graph that runs through all sets of inputs."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for inputs in sets:
            work(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for inputs in sets:
            work(*inputs)
    graph.replay()
    return statistics.median(_event_time(graph.replay) for _ in range(rounds)) / len(sets)


def _event_time(work: Callable[[], object]) -> float:
    """Milliseconds between two events on the device."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop)


def floors(size: Size, bandwidth: float, itemsize: int = 4) -> tuple[float, float]:
    """Milliseconds to move the numbers of the forward, and of forward and backward with all four gradients."""
    samples, n, m = size
    forward = m * n + 2 * n + 2 * m
    backward = 2 * m * n + 3 * n + 4 * m
    unit = samples * itemsize / bandwidth
    return forward * unit, (forward + backward) * unit


def operations(size: Size) -> float:
    """Floating-point operations of the forward: ``A f``, ``A A'`` (half), its factor, two solves and ``A' q``."""
    samples, n, m = size
    return samples * (4.0 * m * n + m * (m + 1) * n + m**3 / 3 + 2 * m * m)


def measure(size: Size, bandwidth: float, seed: int) -> dict[str, Any]:
    """Times and multiples of the floor at one size, float32, A per sample."""
    forward_floor, both_floor = floors(size, bandwidth)
    count = max(2, min(6, int(ROTATED_BYTES / (forward_floor * bandwidth)) + 1))
    sets = [_inputs(size, seed + index) for index in range(count)]
    forward = replay_time(lambda raw, A, low, high, grad: affine.forward(raw, A, low, high), sets)
    backward = replay_time(lambda raw, A, low, high, grad: affine.backward(grad, raw, A, (low, high), True), sets)
    both = forward + backward
    return {
        "B": size[0], "n": size[1], "m": size[2], "target": TARGETS.get(size),
        "forward_ms": forward, "forward_floor_ms": forward_floor, "forward_multiple": forward / forward_floor,
        "both_ms": both, "both_floor_ms": both_floor, "both_multiple": both / both_floor,
        "operations": operations(size),
    }  # fmt: skip


def _inputs(size: Size, seed: int) -> list[Tensor]:
    """A problem of the table and a gradient of y; drawn on the device when it is large."""
    samples, n, m = size
    source = torch.Generator("cuda").manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, device="cuda")
    few = problem((min(samples, 1000), n, m), False, torch.float32, "cuda", seed)
    times = -(-samples // len(few[0]))
    raw, A, lower, upper = (part.repeat(times, *[1] * (part.dim() - 1))[:samples].contiguous() for part in few)
    return [raw + 0.1 * draw(samples, n), A, lower, upper, draw(samples, n)]


def main_table(
    device: str = "cuda", out: Path | None = None, peers: object = None, sizes: Sequence[Size] | None = None
) -> dict[str, Any]:
    """Run, print the table, write JSON and a picture beside it to `out` if given, and return the data."""
    bandwidth = common.copy_bandwidth(device, megabytes=1024)
    rows = [measure(size, bandwidth, seed=0) for size in sizes or TARGETS]
    print(common.table_text(COLUMNS, [[row[column] for column in COLUMNS] for row in rows]))
    result = {
        "environment": common.environment(device, 0), "dtype": "torch.float32",
        "copy_bytes_per_ms": bandwidth, "rows": rows,
    }  # fmt: skip
    if out is not None:
        common.write_json(out, result)
        draw(result, out.with_suffix(".png"))
    return result


def draw(result: dict[str, Any], path: Path) -> None:
    """The roofline: operations per second over operations per byte, under the roof of the measured bandwidth."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "experiments") from None
    bandwidth = result["copy_bytes_per_ms"] * 1e3
    figure = Figure(figsize=(7, 4.5))
    axes = figure.add_subplot()
    intensities = [
        row["operations"] / (row["forward_floor_ms"] * result["copy_bytes_per_ms"]) for row in result["rows"]
    ]
    reach = [min(intensities) / 2, max(intensities) * 2]
    axes.plot(reach, [bandwidth * x / 1e9 for x in reach], color="black", label="measured copy bandwidth")
    for row, intensity in zip(result["rows"], intensities, strict=True):
        rate = row["operations"] / row["forward_ms"] * 1e3 / 1e9
        axes.plot(intensity, rate, "o", color="C0")
        label = f"{row['m']}x{row['n']}: {row['forward_multiple']:.1f}x"
        axes.annotate(label, (intensity, rate), textcoords="offset points", xytext=(6, -10), fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte that must move", ylabel="Gflop/s, forward")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")
