"""What every benchmark shares: fair timing, the stamp of the environment, tables for people and JSON for machines."""

from __future__ import annotations

import datetime
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

Work = Callable[[], object]
REPLAYS = 10
"""Replays of a graph between two looks at the clock, so that the first launch of a row does not count."""


def environment(device: str, seed: int) -> dict[str, Any]:
    """The command, versions, device, threads, date and seed that a figure belongs to."""
    on_gpu = device.startswith("cuda")
    name = "hardnet" if sys.argv[0].endswith(("hardnet", ".py")) else sys.argv[0]
    stamp = {
        "command": " ".join([name, *sys.argv[1:]]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if on_gpu else processor(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
    }
    return stamp | {"triton": version("triton")} if on_gpu and find_spec("triton") else stamp


def processor() -> str:
    """The name of the CPU, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


class Timing(NamedTuple):
    """Median milliseconds of a piece of work, over how many calls, and what the last call returned."""

    milliseconds: float
    rounds: int
    result: Any


def time_each(
    works: Mapping[str, Work], device: str, seconds: float = 1.0, rounds: int = 50, slow: float = math.inf
) -> dict[str, Timing]:
    """Time each piece of work, in turns, so that a disturbance meets all of them alike.

    Args:
        works: What to time, by name.
        device: ``"cpu"`` or ``"cuda"``; on a GPU events are recorded around each call.
        seconds: Time to spend in all, after two calls of each for warming up.
        rounds: The most calls of each.
        slow: Milliseconds of a first call that is the only one of its work.
    """
    measure = _measure_cuda if device.startswith("cuda") else _measure_cpu
    timings = {name: Timing(elapsed, 1, result) for name, (elapsed, result) in _once(works, measure).items()}
    quick = {name: work for name, work in works.items() if timings[name].milliseconds <= slow}
    spent = sum(elapsed for elapsed, _ in _once(quick, measure).values())
    rounds = max(5, min(rounds, int(1000 * seconds / max(spent, 1e-3))))
    samples = [_once(quick, measure) for _ in range(rounds)]
    for name in quick:
        median = statistics.median(sample[name][0] for sample in samples)
        timings[name] = Timing(median, rounds, samples[-1][name][1])
    return timings


def time_all(works: Mapping[str, Work], device: str, seconds: float = 1.0, rounds: int = 50) -> dict[str, float]:
    """Median milliseconds of each piece of work, as `time_each` takes them."""
    return {name: timing.milliseconds for name, timing in time_each(works, device, seconds, rounds).items()}


def _once(works: Mapping[str, Work], measure: Callable[[Work], tuple[float, Any]]) -> dict[str, tuple[float, Any]]:
    """One call of each piece of work."""
    return {name: measure(work) for name, work in works.items()}


def _measure_cpu(work: Work) -> tuple[float, Any]:
    """Milliseconds of one call on the CPU, and what it returned."""
    start = time.perf_counter()
    result = work()
    return 1000 * (time.perf_counter() - start), result


def _measure_cuda(work: Work) -> tuple[float, Any]:
    """Milliseconds of one call between two events on the GPU, and what it returned."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = work()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop), result


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

    def replay() -> None:
        for _ in range(REPLAYS):
            graph.replay()

    replay()
    return statistics.median(_measure_cuda(replay)[0] for _ in range(rounds)) / (REPLAYS * len(sets))


def copy_bandwidth(device: str, megabytes: int = 256) -> float:
    """Bytes per millisecond that a plain copy moves, reads and writes counted: the floor of memory-bound work."""
    source = torch.empty(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    elapsed = time_all({"copy": lambda: target.copy_(source)}, device)["copy"]
    return 2 * source.numel() * 4 / elapsed


def table_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with aligned columns; floats to three significant digits."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headers), *cells]) for i in range(len(headers))]
    lines = [list(headers), ["-" * width for width in widths], *cells]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


def _cell(value: object) -> str:
    """One cell: floats to three digits, None as a dash."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a result beside what people read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
