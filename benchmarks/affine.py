"""``python -m benchmarks affine``: the closed form against the library's routines, side by side in one run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.affine_alternatives import ALTERNATIVES, ON_GPU
from benchmarks.affine_conditioning import conditioning, conditioning_table
from benchmarks.affine_problems import Enforce, Size, floors, gradients, problem, replayed
from hardnet.experiments import timing
from hardnet.experiments.markdown import table_text
from hardnet.experiments.results import write_json
from hardnet.experiments.stamp import environment
from hardnet.functional import enforce_affine, factorize
from hardnet.functional.closed_form import by_formula
from hardnet.kernels.cpu import launch as cpu
from hardnet.kernels.gpu.affine import MOST_SHARED_ROWS

CPU_SIZES: tuple[Size, ...] = (
    (1000, 1, 1),
    (1000, 2, 2),
    (1000, 10, 5),
    (256, 50, 50),
    (200, 100, 100),
    (1024, 100, 50),
)
GPU_SIZES: tuple[Size, ...] = (
    (10**6, 2, 2),
    (10**6, 6, 3),
    (10**5, 10, 5),
    (10**5, 16, 8),
    (8192, 50, 25),
    (8192, 100, 50),
    (100, 2, 2),
)
"""(B, n, m) of the table, on a CPU and on a GPU."""
SHARED_GPU_SIZES: tuple[Size, ...] = (*reversed(GPU_SIZES), (2**18, 100, 50))
"""The same where all samples share A: one more, whose batch fills the device."""
SLOW = 200.0
"""Milliseconds of a call that is not repeated, nor made where they are foreseen: a part of the batch is scaled up."""
FEW, GROWTH = 128, 8
"""Samples that every contender is timed on, and how many times more are tried next."""
JUDGED = 8192
"""Samples whose gradients are compared with the reference, by QR in float64, where A is per sample."""
DEVICE_COLUMNS = ["forward_device_ms", "both_device_ms", "forward_floor_ms", "both_floor_ms", "forward_multiple",
                  "both_multiple"]  # fmt: skip
ON_DEVICE = ("hardnet", "hardnet, factor kept", "two products")
"""Contenders that can be captured in a graph and so be timed without the host; library solvers look at values."""


def contenders(A: Tensor, peers: Sequence[str]) -> dict[str, Enforce]:
    """Ours and the alternatives; for a shared A also ours with its factor, and the floor of two products."""
    chosen: dict[str, Enforce] = {"hardnet": enforce_affine} | {name: (ALTERNATIVES | ON_GPU)[name] for name in peers}
    if A.dim() == 2:
        factor = factorize(A)
        chosen["hardnet, factor kept"] = lambda raw, A, lower, upper: enforce_affine(
            raw, A.detach(), lower, upper, factor=factor
        )
        chosen["two products"] = lambda raw, A, lower, upper: raw + (raw @ A.mT) @ factor
    if A.is_cpu and cpu.HAS_NUMBA:
        chosen["hardnet, torch alone"] = without_numba
    return chosen


def without_numba(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Ours on a CPU as it is where numba is not installed."""
    cpu.HAS_NUMBA = False
    try:
        return enforce_affine(raw, A, lower, upper)
    finally:
        cpu.HAS_NUMBA = True


def measure(size: Size, shared: bool, dtype: torch.dtype, device: str, peers: Sequence[str], seed: int) -> list[dict]:
    """Forward and forward+backward milliseconds, violation and gradient error of every contender at one size."""
    numbers = problem(size, shared, dtype, device, seed)
    weight = torch.randn(numbers[0].shape, generator=torch.Generator().manual_seed(seed + 1)).to(numbers[0])
    case = [*numbers, weight]
    exact = gradients(by_formula, *_split(_part(case, len(weight) if shared else JUDGED, torch.float64)))
    chosen = contenders(numbers[1], peers)
    counts = {name: _samples_in_time(enforce, case, device) for name, enforce in chosen.items()}
    times = _times({name: chosen[name] for name in chosen if counts[name] == size[0]}, case, device)
    for name in chosen:
        if counts[name] < size[0]:
            times |= _times({name: chosen[name]}, _part(case, counts[name]), device)
    named = {"B": size[0], "n": size[1], "m": size[2], "shared_A": shared}
    ours = [taken.milliseconds * size[0] / counts["hardnet"] for taken in times["hardnet"]]
    return [named | {"who": name} | _row(times[name], ours, counts[name] / size[0], numbers, exact) for name in chosen]


def _part(case: list[Tensor], count: int, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The first samples of raw, A, lower, upper and the gradient of y; a shared A stays."""
    return [part.to(dtype or part.dtype) if part.dim() == 2 and place == 1 else part[:count].to(dtype or part.dtype)
            for place, part in enumerate(case)]  # fmt: skip


def _split(case: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The four numbers, and the gradient of y."""
    return case[:4], case[4]


def _samples_in_time(enforce: Enforce, case: list[Tensor], device: str) -> int:
    """How many samples a contender is timed on: all, unless eight times as many as so far would take it `SLOW`.

    Compiles and opens handles on the way, so that the first call of a slow contender may count.
    """
    count = min(FEW, len(case[0]))
    while True:
        work = _tried(partial(gradients, enforce, *_split(_part(case, count))))
        timing.time_each({"warm": work}, device, rounds=1, slow=0.0)
        elapsed = timing.time_each({"once": work}, device, rounds=1, slow=0.0)["once"].milliseconds
        if count == len(case[0]) or GROWTH * elapsed > SLOW:
            return count
        count = min(GROWTH * count, len(case[0]))


def _times(
    chosen: dict[str, Enforce], case: list[Tensor], device: str
) -> dict[str, tuple[timing.Timing, timing.Timing]]:
    """Forward, and forward+backward, of some contenders in turns."""
    forward, both = (timing.time_each(works, device, slow=SLOW) for works in _works(chosen, *_split(case)))
    return {name: (forward[name], both[name]) for name in chosen}


def _works(chosen: dict[str, Enforce], numbers: list[Tensor], weight: Tensor) -> tuple[dict, dict]:
    """A forward pass without a graph, and a forward pass with the gradients of raw, A, lower and upper."""

    def forward(enforce: Enforce) -> Tensor:
        with torch.no_grad():
            return enforce(*numbers)

    return (
        {name: _tried(partial(forward, enforce)) for name, enforce in chosen.items()},
        {name: _tried(partial(gradients, enforce, numbers, weight)) for name, enforce in chosen.items()},
    )


def _tried(work: timing.Work) -> timing.Work:
    """The work, or what stopped it: a routine that does not get through is a result."""

    def attempt() -> object:
        try:
            return work()
        except RuntimeError as error:  # of the library's solvers, or of memory
            return error

    return attempt


def _row(
    times: tuple[timing.Timing, timing.Timing],
    ours: list[float],
    share: float,
    numbers: list[Tensor],
    exact: tuple[Tensor | None, ...],
) -> dict[str, Any]:
    """Times of the whole batch, how they were taken, what ratio to ours they are, and errors; or why there are none."""
    for taken in times:
        if isinstance(taken.result, Exception):
            return {"error": f"{type(taken.result).__name__}: {taken.result}"[:200]}
    forward, both = (taken.milliseconds / share for taken in times)
    return {
        "forward_ms": forward, "both_ms": both, "rounds": min(taken.rounds for taken in times),
        "timed_share": share,
        "forward_ratio": forward / ours[0], "both_ratio": both / ours[1],
        "violation": _violation(times[0].result, numbers),
        "gradient_error": _gradient_error(times[1].result, exact, whole=share == 1 or numbers[1].dim() == 3),
    }  # fmt: skip


def run(
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    sizes: Sequence[Size] | None = None,
    peers: Sequence[str] | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, Any]:
    """Measure the conditioning, and every size with A per sample and shared; everything as data, also in `out`."""
    on_gpu = device.startswith("cuda")
    peers = [*ALTERNATIVES, *(ON_GPU if on_gpu else ())] if peers is None else peers
    rows: list[dict] = []
    result = {"environment": environment(device, seed), "dtype": str(dtype), "rows": rows}
    if on_gpu:
        result["copy_bytes_per_ms"] = timing.copy_bandwidth(device, megabytes=1024)
    result["conditioning"] = conditioning(device, seed)
    for shared in (False, True):
        for size in sizes or ((SHARED_GPU_SIZES if shared else GPU_SIZES) if on_gpu else CPU_SIZES):
            found = measure(size, shared, dtype, device, peers, seed)
            if on_gpu:
                _add_floor(found, result["copy_bytes_per_ms"], device, dtype)
            rows += found
            if out is not None:  # after every size: a run that is cut short keeps what it has
                write_json(out, result, indent=1)
    return result


def main_table(
    device: str = "cpu",
    out: Path | None = None,
    sizes: Sequence[Size] | None = None,
    dtype: torch.dtype | None = None,
    peers: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Run, print the tables, write JSON to `out` if given, and return the data."""
    dtype = dtype or (torch.float32 if device.startswith("cuda") else torch.float64)
    result = run(device, dtype, sizes, peers, out=out)
    columns = ["B", "n", "m", "shared_A", "who", "forward_ms", "both_ms", "rounds", "timed_share", "forward_ratio",
               "both_ratio", "violation", "gradient_error"]  # fmt: skip
    columns += DEVICE_COLUMNS * device.startswith("cuda") + ["error"]
    print(table_text(columns, [[row.get(column) for column in columns] for row in result["rows"]]))
    print()
    print(conditioning_table(result["conditioning"]))
    return result


def _violation(y: Tensor, numbers: list[Tensor]) -> float:
    """The largest violation of y, judged in float64."""
    _, A, lower, upper = (part.double() for part in _part(numbers, len(y)))
    product = (A @ y.double().unsqueeze(-1)).squeeze(-1)
    return torch.maximum(product - upper, lower - product).clamp_min(0).max().item()


def _gradient_error(got: tuple[Tensor | None, ...], exact: tuple[Tensor | None, ...], whole: bool) -> float:
    """The largest error of a gradient, relative to the largest entry of the float64 reference.

    Without that of a shared A unless the `whole` batch went into it.
    """
    errors = [
        ((mine[: len(true)].double() - true[: len(mine)]).abs().max() / true.abs().max()).item()
        for place, (mine, true) in enumerate(zip(got, exact, strict=True))
        if mine is not None and true is not None and (whole or place != 1)
    ]
    return max(errors)


def _add_floor(rows: list[dict], bandwidth: float, device: str, dtype: torch.dtype) -> None:
    """What each row must cost at the bandwidth of a copy, and our own times without the host (one replay where small).

    A multiple of the floor is that of the device alone where it was taken, else that of the eager call.
    """
    for row in rows:
        size, shared = (row["B"], row["n"], row["m"]), row["shared_A"]
        if "error" in row:
            continue
        row["forward_floor_ms"], row["both_floor_ms"] = floors(size, bandwidth, dtype.itemsize, shared)
        needs_qr = shared and row["who"] == "hardnet" and row["m"] > MOST_SHARED_ROWS and dtype == torch.float64
        if row["who"] in ON_DEVICE and not needs_qr:  # QR cannot be captured
            numbers = problem((1, *size[1:]), shared, dtype, device, 0)
            alone = replayed(contenders(numbers[1], ())[row["who"]], size, shared, dtype, device, 0)
            row |= {"forward_device_ms": alone["forward"], "both_device_ms": alone["both"]}
        for key in ("forward", "both"):
            row[f"{key}_multiple"] = row.get(f"{key}_device_ms", row[f"{key}_ms"]) / row[f"{key}_floor_ms"]
