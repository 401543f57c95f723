"""How far the kernels are from their memory floor on a GPU, from replays of a captured graph without the host.

The floor of a pass is the bytes it must move (every input read once, every output written once) divided by the
bandwidth of a plain copy in the same run. Several sets of inputs, together larger than any cache, are replayed as one
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from benchmarks.problems import Case, Size, floors, large_problem
from benchmarks.tools import KEPT, PRODUCTS
from hardnet_lab.experiments import timing
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json

Enforce = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
TARGETS: dict[tuple[int, int, int], tuple[float, float] | None] = {
    (10**6, 2, 2): (2.0, 3.0),
    (10**6, 6, 3): None,
    (10**6, 4, 4): None,
    (10**5, 10, 5): (2.5, 4.0),
    (10**5, 16, 8): (3.0, 5.0),
    (32768, 32, 16): None,
    (8192, 50, 25): (8.0, 12.0),
    (8192, 100, 50): (8.0, 12.0),
    (4096, 256, 64): None,
    (100, 2, 2): None,
}
"""(B, n, m) of the closed form: target multiples of the floor, forward and forward+backward, in float32."""
SHARED = ((100, 2, 2), (10**6, 2, 2), (10**6, 6, 3), (10**5, 10, 5), (10**5, 16, 8), (8192, 50, 25), (8192, 100, 50),
          (2**18, 100, 50))  # fmt: skip
NEAREST = {(10**6, 2, 2): (2.0, 3.0), (10**6, 3, 3): None, (10**6, 4, 4): None}
"""(B, n, m) of the nearest point."""
BOXED, BOXED_TARGET = (4096, 500), 4.0
"""(B, n) of a box and one equality, forward, and its target."""
ROTATED_BYTES, MOST_SETS, SMALL_BYTES = 2e8, 20, 1e6
"""Sets of inputs to alternate between, together larger than a cache; a single one where only latency counts."""
COLUMNS = ["what", "dtype", "B", "n", "m", "shared", "forward_ms", "forward_multiple", "both_ms", "both_multiple"]


def replayed(enforce: Enforce, size: Size, dtype: torch.dtype, seed: int = 0) -> dict[str, float]:
    """Milliseconds of forward, and of forward and backward with all four gradients, without the host."""
    moved, _ = floors(size, 1.0, dtype.itemsize)
    count = 1 if moved < SMALL_BYTES else max(2, min(MOST_SETS, int(ROTATED_BYTES / moved) + 1))
    cases = [large_problem(size, "cuda", dtype, seed + index) for index in range(count)]
    sets = [[case.raw, cases[0].A if size.shared else case.A, case.lower, case.upper] for case in cases]
    return {
        "forward_ms": timing.replay_time(torch.no_grad()(enforce), sets),
        "both_ms": timing.replay_time(lambda *numbers: gradients(enforce, numbers), sets),
    }


def gradients(enforce: Enforce, numbers: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of ``sum(y * raw)`` with respect to raw, A, lower and upper; the gradient of y is raw itself."""
    leaves = [number.detach().requires_grad_() for number in numbers]
    return torch.autograd.grad(enforce(*leaves), leaves, numbers[0], allow_unused=True)


def measure(what: str, enforce: Enforce, size: Size, dtype: torch.dtype, bandwidth: float, target: Any) -> dict:
    """Times at one size, and their multiples of the floor."""
    row = {"what": what, "dtype": str(dtype).removeprefix("torch."), **size._asdict(), **replayed(enforce, size, dtype)}
    for key, floor, most in zip(("forward", "both"), floors(size, bandwidth, dtype.itemsize), target or (None, None),
                                strict=True):  # fmt: skip
        row |= {f"{key}_floor_ms": floor, f"{key}_multiple": row[f"{key}_ms"] / floor, f"{key}_target": most}
    return row


def boxed(bandwidth: float) -> dict[str, Any]:
    """A box and one equality in float32, forward; the floor is reading raw and writing y."""
    batch, n = BOXED
    ones, total = torch.ones(1, n, device="cuda"), torch.full((1,), n / 4, device="cuda")
    zero, one = torch.zeros((), device="cuda"), torch.ones((), device="cuda")  # as the buffers of a Box keep them
    project = lambda raw: hn.functional.project_box_rows(raw, ones, total, total, zero, one)
    sets = [[torch.randn(batch, n, device="cuda")] for _ in range(MOST_SETS)]
    taken, floor = timing.replay_time(project, sets), 2 * batch * n * 4 / bandwidth
    return {"what": "a box and one equality", "dtype": "float32", "B": batch, "n": n, "m": 1,
            "equalities": 1, "shared": True,
            "forward_ms": taken, "forward_floor_ms": floor, "forward_multiple": taken / floor,
            "forward_target": BOXED_TARGET}  # fmt: skip


def eager(what: str, enforce: Enforce, size: Size) -> dict[str, Any]:
    """Times of eager calls, which include the host."""
    numbers = large_problem(size, "cuda", torch.float32)[:4]
    works = {"forward_ms": lambda: enforce(*numbers), "both_ms": lambda: gradients(enforce, numbers)}
    return {"what": f"{what}, eager", "dtype": "float32", **size._asdict(), **timing.time_all(works, "cuda")}


def shared_enforcements(case: Case) -> dict[str, Enforce]:
    """The closed form with the factor of a shared A kept, and only the two products."""
    factor = hn.functional.factorize(case.A)
    return {
        KEPT: lambda raw, A, lower, upper: hn.functional.enforce_affine(raw, A.detach(), lower, upper, factor=factor),
        PRODUCTS: lambda raw, A, lower, upper: raw + (raw @ A.mT) @ factor,
    }


def main_table(
    device: str = "cuda", out: Path | None = None, revision: str | None = None, nearest_only: bool = False
) -> dict[str, Any]:
    """Run, print the table, write JSON to `out` if given, and return the data.

    Args:
        device: A GPU.
        out: The file to write after every row, so that an interrupted run keeps its results.
        revision: The revision, for machines without a git checkout.
        nearest_only: Whether to time only the nearest point, and the closed form at the same sizes.
    """
    bandwidth = timing.copy_bandwidth(device, megabytes=1024)
    stamp = environment(device, 0)
    rows: list[dict[str, Any]] = []
    result = {"environment": stamp | ({"revision": revision} if revision else {}), "copy_bytes_per_ms": bandwidth,
              "rows": rows}  # fmt: skip
    for row in _rows(bandwidth, device, nearest_only):
        rows.append(row)
        print(table_text(COLUMNS, [[row.get(column) for column in COLUMNS]]).splitlines()[-1], flush=True)
        if out is not None:
            write_json(out, result, indent=1)
    return result


def _rows(bandwidth: float, device: str, nearest_only: bool) -> Iterator[dict[str, Any]]:
    """The rows of the table, one at a time."""
    closed, nearest = hn.functional.enforce_affine, hn.functional.project_affine
    for shape in NEAREST if nearest_only else TARGETS:
        yield measure("closed form", closed, Size(*shape), torch.float32, bandwidth, TARGETS.get(shape))
    for shape, target in NEAREST.items():
        yield measure("nearest point", nearest, Size(*shape), torch.float32, bandwidth, target)
    yield boxed(bandwidth)
    for name, enforce in (("closed form", closed), ("nearest point", nearest)):
        yield eager(name, enforce, Size(1000, 2, 2))
    if nearest_only:
        return
    for shape in SHARED:
        size = Size(*shape, shared=True)
        for name, enforce in shared_enforcements(large_problem(size._replace(B=1), device, torch.float32)).items():
            yield measure(name, enforce, size, torch.float32, bandwidth, None)
    for shape in TARGETS:
        yield measure("closed form", closed, Size(*shape), torch.float64, bandwidth, None)
