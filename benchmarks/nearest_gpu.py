"""The nearest point and the closed form on a GPU, side by side, as multiples of the memory floor.

    python benchmarks/nearest_gpu.py --out results/bench/nearest_h200.json --revision "$(git rev-parse HEAD)"

Times are medians of replays of a captured graph (the device alone) and of eager calls (with the host). The floor moves
every input and output once at the given bandwidth in TB/s. PYTHONPATH=OLD/src runs another revision of the package.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hardnet as hn

SHAPES = [(1_000_000, 2, 2), (1_000_000, 3, 3), (1_000_000, 4, 4), (100_000, 5, 10), (100_000, 8, 16)]
MANY = [(8192, 25, 50), (8192, 50, 100)]


def problem(batch: int, m: int, n: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """raw, A, lower, upper: rows around a random point, raw some way outside."""
    source = torch.Generator(device="cuda").manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=dtype, generator=source)
    A, centre = normal(batch, m, n), normal(batch, n)
    middle, width = (A @ centre.unsqueeze(-1)).squeeze(-1), normal(batch, m).abs()
    return [centre + 3 * normal(batch, n), A, middle - width, middle + width]


def replayed(call: Callable[[], Any], repeats: int = 30) -> float:
    """Median time of a captured call, in microseconds."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(repeats):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e3)
    return sorted(times)[repeats // 2]


def eager(call: Callable[[], Any], repeats: int = 100) -> float:
    """Mean time of an eager call, in microseconds."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e6


def both_ways(function: Callable[..., Tensor], numbers: list[Tensor]) -> Callable[[], Any]:
    """Forward and the gradients of all four arguments."""
    leaves = [number.clone().requires_grad_() for number in numbers]
    cotangent = torch.randn_like(numbers[0])
    return lambda: torch.autograd.grad(function(*leaves), leaves, cotangent)


def measure(name: str, function: Callable[..., Tensor], shape: tuple[int, int, int], floor: float) -> dict[str, Any]:
    """One row of the table."""
    batch, m, n = shape
    numbers = problem(*shape)
    words = batch * (m * n + 2 * n + 2 * m)
    least, least_both = words * 4 / floor / 1e6, (words + batch * (2 * m * n + 4 * n + 4 * m)) * 4 / floor / 1e6
    forward, both = replayed(lambda: function(*numbers)), replayed(both_ways(function, numbers))
    row = {"what": name, "shape": shape, "forward_us": forward, "forward_floor": forward / least}
    return row | {"both_us": both, "both_floor": both / least_both}


def box_and_one_row(floor: float, batch: int = 4096, n: int = 500) -> dict[str, Any]:
    """A box and one equality in float32."""
    raw = torch.randn(batch, n, device="cuda")
    total = torch.full((1,), n / 4, device="cuda")
    project = lambda: hn.functional.project_box_rows(raw, torch.ones(1, n, device="cuda"), total, total, 0.0, 1.0)
    taken = replayed(project, 10)
    return {"what": "box and one equality", "shape": (batch, n), "forward_us": taken,
            "forward_floor": taken / (2 * batch * n * 4 / floor / 1e6)}  # fmt: skip


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--floor", type=float, default=4.2)
    parser.add_argument("--revision", default="unknown")
    options = parser.parse_args()
    rows = [measure("closed form", hn.functional.enforce_affine, shape, options.floor) for shape in SHAPES + MANY]
    rows += [measure("nearest point", hn.functional.project_affine, shape, options.floor) for shape in SHAPES[:3]]
    if hasattr(hn.functional, "project_box_rows"):
        rows.append(box_and_one_row(options.floor))
    numbers = problem(1000, 2, 2)
    for name, function in (
        ("closed form", hn.functional.enforce_affine),
        ("nearest point", hn.functional.project_affine),
    ):
        times = {"forward_us": eager(partial(function, *numbers)), "both_us": eager(both_ways(function, numbers))}
        rows.append({"what": f"{name}, eager", "shape": (1000, 2, 2), **times})
    stamp = {"command": " ".join(sys.argv), "revision": options.revision, "torch": torch.__version__, "seed": 0}
    stamp |= {"device": torch.cuda.get_device_name(), "python": platform.python_version()}
    record = {
        "stamp": stamp | {"date": datetime.now(UTC).isoformat(timespec="seconds")},
        "floor_TBps": options.floor,
        "rows": rows,
    }
    for row in rows:
        print(" ".join(f"{key}={value:.4g}" if isinstance(value, float) else str(value) for key, value in row.items()))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
