"""``hardnet bench affine``: the closed form against the library's routines, side by side in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardnet.benchmarks import common
from hardnet.benchmarks.affine_alternatives import ALTERNATIVES
from hardnet.benchmarks.affine_conditioning import conditioning, conditioning_table
from hardnet.functional import affine_plain, enforce_affine, factorize

Size = tuple[int, int, int]
Enforce = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
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


def problem(size: Size, shared: bool, dtype: torch.dtype, device: str, seed: int) -> list[Tensor]:
    """A random feasible problem: A ~ N(0, 1), bounds around a centre y0, raw = y0 + 3 N(0, 1)."""
    samples, n, m = size
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A, centre = draw(m, n) if shared else draw(samples, m, n), draw(samples, n)
    product = (A @ centre.unsqueeze(-1)).squeeze(-1)
    numbers = centre + 3 * draw(samples, n), A, product - draw(samples, m).abs(), product + draw(samples, m).abs()
    return [number.to(device=device, dtype=dtype) for number in numbers]


def contenders(A: Tensor, peers: Sequence[str]) -> dict[str, Enforce]:
    """Ours and the alternatives; for a shared A also ours with its factor, and the floor of two products."""
    chosen: dict[str, Enforce] = {"hardnet": enforce_affine} | {name: ALTERNATIVES[name] for name in peers}
    if A.dim() == 2:
        factor = factorize(A)
        chosen["hardnet, factor kept"] = lambda raw, A, lower, upper: enforce_affine(
            raw, A.detach(), lower, upper, factor=factor
        )
        chosen["two products"] = lambda raw, A, lower, upper: raw + (raw @ A.mT) @ factor
    return chosen


def measure(size: Size, shared: bool, dtype: torch.dtype, device: str, peers: Sequence[str], seed: int) -> list[dict]:
    """Forward and forward+backward milliseconds, violation and gradient error of every contender at one size."""
    numbers = problem(size, shared, dtype, device, seed)
    weight = torch.randn(numbers[0].shape, generator=torch.Generator().manual_seed(seed + 1)).to(numbers[0])
    works = {
        name: enforce for name, enforce in contenders(numbers[1], peers).items() if _runs(enforce, numbers, weight)
    }
    forward = common.time_all({name: _forward(enforce, numbers) for name, enforce in works.items()}, device)
    both = common.time_all({name: _both(enforce, numbers, weight) for name, enforce in works.items()}, device)
    exact = _gradients(affine_plain.enforce, [number.double() for number in numbers], weight.double())
    return [
        {
            "B": size[0], "n": size[1], "m": size[2], "shared_A": shared, "who": name,
            "forward_ms": forward[name], "both_ms": both[name],
            "forward_ratio": forward[name] / forward["hardnet"], "both_ratio": both[name] / both["hardnet"],
            "violation": _violation(enforce, numbers),
            "gradient_error": _gradient_error(enforce, numbers, weight, exact),
        }
        for name, enforce in works.items()
    ]  # fmt: skip


def run(
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    sizes: Sequence[Size] | None = None,
    peers: Sequence[str] = tuple(ALTERNATIVES),
    seed: int = 0,
) -> dict[str, Any]:
    """Measure every size with A per sample and shared, and the conditioning table; everything as data."""
    on_gpu = device.startswith("cuda")
    chosen = sizes or (GPU_SIZES if on_gpu else CPU_SIZES)
    rows = []
    for shared in (False, True):
        for size in chosen:
            rows += measure(size, shared, dtype, device, peers, seed)
    if on_gpu:
        _add_floor(rows, device, dtype)
    result = {"environment": common.environment(device, seed), "dtype": str(dtype), "rows": rows}
    return result | {"conditioning": conditioning(device, seed)}


def main_table(
    device: str = "cpu",
    out: Path | None = None,
    sizes: Sequence[Size] | None = None,
    dtype: torch.dtype | None = None,
    peers: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Run, print the tables, write JSON to `out` if given, and return the data."""
    dtype = dtype or (torch.float32 if device.startswith("cuda") else torch.float64)
    result = run(device, dtype, sizes, tuple(ALTERNATIVES) if peers is None else peers)
    columns = ["B", "n", "m", "shared_A", "who", "forward_ms", "both_ms", "forward_ratio", "both_ratio", "violation",
               "gradient_error"] + ["floor_ms", "multiple_of_floor"] * device.startswith("cuda")  # fmt: skip
    print(common.table_text(columns, [[row.get(column) for column in columns] for row in result["rows"]]))
    print()
    print(conditioning_table(result["conditioning"]))
    if out is not None:
        common.write_json(out, result)
    return result


def _forward(enforce: Enforce, numbers: list[Tensor]) -> common.Work:
    """One forward pass, without a graph."""

    def work() -> Tensor:
        with torch.no_grad():
            return enforce(*numbers)

    return work


def _both(enforce: Enforce, numbers: list[Tensor], weight: Tensor) -> common.Work:
    """Forward and the gradients of raw, A, lower and upper."""
    return lambda: _gradients(enforce, numbers, weight)


def _gradients(enforce: Enforce, numbers: list[Tensor], weight: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of ``sum(weight * y)`` with respect to raw, A, lower and upper."""
    leaves = [number.detach().requires_grad_() for number in numbers]
    return torch.autograd.grad(enforce(*leaves), leaves, weight, allow_unused=True)


def _violation(enforce: Enforce, numbers: list[Tensor]) -> float:
    """The largest violation of y, judged in float64."""
    _, A, lower, upper = (number.double() for number in numbers)
    with torch.no_grad():
        product = (A @ enforce(*numbers).double().unsqueeze(-1)).squeeze(-1)
    return torch.maximum(product - upper, lower - product).clamp_min(0).max().item()


def _gradient_error(enforce: Enforce, numbers: list[Tensor], weight: Tensor, exact: tuple[Tensor | None, ...]) -> float:
    """The largest error of a gradient, relative to the largest entry of the float64 reference."""
    pairs = zip(_gradients(enforce, numbers, weight), exact, strict=True)
    errors = [
        ((got.double() - true).abs().max() / true.abs().max()).item()
        for got, true in pairs
        if got is not None and true is not None
    ]
    return max(errors)


def _runs(enforce: Enforce, numbers: list[Tensor], weight: Tensor) -> bool:
    """Whether a contender gets through this problem at all."""
    try:
        _gradients(enforce, numbers, weight)
    except (torch.linalg.LinAlgError, torch.OutOfMemoryError):
        return False
    return True


def _add_floor(rows: list[dict], device: str, dtype: torch.dtype) -> None:
    """The time to read raw, A and the bounds once and write y, at the measured copy bandwidth."""
    bandwidth = common.copy_bandwidth(device)
    for row in rows:
        samples, n, m = row["B"], row["n"], row["m"]
        count = samples * (2 * n + 2 * m) + (1 if row["shared_A"] else samples) * m * n
        row["floor_ms"] = count * dtype.itemsize / bandwidth
        row["multiple_of_floor"] = row["forward_ms"] / row["floor_ms"]
