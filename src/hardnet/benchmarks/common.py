"""What every benchmark shares: fair timing, the stamp of the environment, tables for people and JSON for machines."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], object]


def environment(device: str, seed: int) -> dict[str, Any]:
    """The command, versions, device, threads, date and seed that a figure belongs to."""
    return {
        "command": " ".join(["hardnet" if sys.argv[0].endswith(("hardnet", ".py")) else sys.argv[0], *sys.argv[1:]]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else processor(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
    }


def processor() -> str:
    """The name of the CPU, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def time_all(works: Mapping[str, Work], device: str, seconds: float = 1.0, rounds: int = 50) -> dict[str, float]:
    """Median milliseconds of each piece of work, taken in turns so that a disturbance meets all of them alike.

    Args:
        works: What to time, by name.
        device: ``"cpu"`` or ``"cuda"``; on a GPU events are recorded around each call.
        seconds: Time to spend in all, after two calls of each for warming up.
        rounds: The most calls of each.
    """
    measure = _measure_cuda if device.startswith("cuda") else _measure_cpu
    for work in works.values():
        work()
    spent = sum(measure(work) for work in works.values())
    rounds = max(5, min(rounds, int(1000 * seconds / max(spent, 1e-3))))
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            samples[name].append(measure(work))
    return {name: statistics.median(times) for name, times in samples.items()}


def _measure_cpu(work: Work) -> float:
    """Milliseconds of one call on the CPU."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def _measure_cuda(work: Work) -> float:
    """Milliseconds of one call between two events on the GPU."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop)


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
