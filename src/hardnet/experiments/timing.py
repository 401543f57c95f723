"""The one way to time things: medians of calls in turns, between events on a GPU; replays of a captured graph.

Needs torch alone, so that a benchmark can load this file beside any revision of the package.

Called by `hardnet.experiments.doctor`, `hardnet.experiments.measured` and `hardnet.experiments.row`.
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
"""Replays of a graph between two looks at the clock, so that the first launch of a row does not count."""


class Timing(NamedTuple):
    """Median milliseconds of a piece of work, over how many calls, and what the last call returned."""

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
    """Time each piece of work, in turns, so that a disturbance meets all of them alike.

    Args:
        works: What to time, by name.
        device: ``"cpu"`` or ``"cuda"``; on a GPU events are recorded around each call.
        seconds: Time to spend in all, after two calls of each for warming up.
        rounds: The most calls of each.
        slow: Milliseconds of a first call that is the only one of its work.
        processor: Whether a CPU's clock is the processor time of the process, which other work disturbs less.
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
    """Median milliseconds of each piece of work, as `time_each` takes them."""
    return {name: timing.milliseconds for name, timing in time_each(works, device, seconds, rounds).items()}


def _once(works: Mapping[str, Work], measure: Callable[[Work], tuple[float, Any]]) -> dict[str, tuple[float, Any]]:
    """One call of each piece of work."""
    return {name: measure(work) for name, work in works.items()}


def measure_cpu(work: Work) -> tuple[float, Any]:
    """Milliseconds of one call on the CPU, and what it returned."""
    start = time.perf_counter()
    result = work()
    return 1000 * (time.perf_counter() - start), result


def measure_processor(work: Work) -> tuple[float, Any]:
    """Milliseconds of processor time of one call, and what it returned."""
    start = time.process_time()
    result = work()
    return 1000 * (time.process_time() - start), result


def measure_cuda(work: Work) -> tuple[float, Any]:
    """Milliseconds of one call between two events on the GPU, and what it returned."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = work()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop), result


def capture(work: Work) -> torch.cuda.CUDAGraph:
    """The work as a CUDA graph, after a few calls on a stream of its own, which compile and allocate."""
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
    """Median milliseconds of one call, from replays of a graph that runs through all sets of inputs."""

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
    """Bytes per millisecond that a plain copy moves, reads and writes counted: the floor of memory-bound work."""
    source = torch.empty(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    elapsed = time_all({"copy": lambda: target.copy_(source)}, device)["copy"]
    return 2 * source.numel() * 4 / elapsed
