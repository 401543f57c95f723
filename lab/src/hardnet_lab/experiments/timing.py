"""Timing: medians of interleaved calls, measured between events on a GPU, and replays of a captured graph.

All timings of the package use this file. It needs only torch, so that a benchmark can load it beside any revision.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Work = Callable[[], object]
WARM_UP = 3
"""Calls before a graph is captured."""
REPLAYS = 10
"""Replays of a graph between two clock readings, so that the cost of the first launch is spread over them."""


class Timing(NamedTuple):
    """Median milliseconds of a work, the number of calls, and the result of the last call."""

    milliseconds: float
    rounds: int
    result: Any


def time_each(
    works: Mapping[str, Work],
    device: str,
    seconds: float = 1.0,
    rounds: int = 50,
    slow: float = math.inf,
    processor: bool = False,
) -> dict[str, Timing]:
    """Time the works in alternation, so that a disturbance affects all of them equally.

    Args:
        works: The functions to time, by name.
        device: ``"cpu"`` or ``"cuda"``; on a GPU events are recorded around each call.
        seconds: Total time to spend, after two warm-up calls of each.
        rounds: Largest number of timed calls of each; at least 5 are made.
        slow: A work whose first call takes longer than this many milliseconds is not called again.
        processor: Whether to measure processor time on a CPU, which other programs disturb less.
    """
    measure = measure_cuda if device.startswith("cuda") else measure_processor if processor else measure_cpu
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
    """Median milliseconds of each work, as measured by `time_each`."""
    return {name: timing.milliseconds for name, timing in time_each(works, device, seconds, rounds).items()}


def _once(works: Mapping[str, Work], measure: Callable[[Work], tuple[float, Any]]) -> dict[str, tuple[float, Any]]:
    """One call of each work."""
    return {name: measure(work) for name, work in works.items()}


def measure_cpu(work: Work) -> tuple[float, Any]:
    """Milliseconds of one call on the CPU, and its result."""
    start = time.perf_counter()
    result = work()
    return 1000 * (time.perf_counter() - start), result


def measure_processor(work: Work) -> tuple[float, Any]:
    """Milliseconds of processor time of one call, and its result."""
    start = time.process_time()
    result = work()
    return 1000 * (time.process_time() - start), result


def measure_cuda(work: Work) -> tuple[float, Any]:
    """Milliseconds of one call between two events on the GPU, and its result."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = work()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop), result


def capture(work: Work) -> torch.cuda.CUDAGraph:
    """The work as a CUDA graph, captured after a few calls on a side stream that compile and allocate."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def replay_time(work: Callable[..., object], sets: Sequence[Sequence[Tensor]], rounds: int = 20) -> float:
    """Median milliseconds of one call, from replays of a graph that calls the work on all sets of inputs."""

    def run_all() -> None:
        for inputs in sets:
            work(*inputs)

    graph = capture(run_all)

    def replay() -> None:
        for _ in range(REPLAYS):
            graph.replay()

    replay()
    return statistics.median(measure_cuda(replay)[0] for _ in range(rounds)) / (REPLAYS * len(sets))


def copy_bandwidth(device: str, megabytes: int = 256) -> float:
    """Bytes per millisecond of a plain copy, reads plus writes: the bound for memory-bound work."""
    source = torch.empty(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    elapsed = time_all({"copy": lambda: target.copy_(source)}, device)["copy"]
    return 2 * source.numel() * 4 / elapsed
