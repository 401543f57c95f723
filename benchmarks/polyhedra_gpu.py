"""The nearest point of polyhedra on a GPU: a box and k rows, and many rows per sample by cuPIQP's own recipe.

    python -m benchmarks.polyhedra_gpu --out results/bench/polyhedra_h200.json

Captured: replays of a graph over several sets of inputs, together larger than the cache. Eager: with the host. Every
answer of the first set is checked: it is no farther outside than a certificate allows, or it is counted as open.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from hardnet.functional.nearest import project_rows
from hardnet.structure import BoxedRows
from hardnet_lab.experiments import timing
from hardnet_lab.experiments.results import environment, write_json

BOXES = ((1, 100, False), (1, 500, False), (4, 100, False), (4, 100, True), (8, 100, False), (20, 100, False))
"""Rows and outputs of a box and rows, 4096 samples, float32, and whether every sample has rows of its own."""
RECIPE = ((1024, 5), (1024, 10), (2048, 20), (512, 40), (2048, 40))
"""Samples and outputs of random polytopes with five times as many rows, float64."""
DENSE = ((2048, 100, 100), (256, 400, 200), (64, 1000, 500))
"""Samples, rows and outputs of other random rows."""
SAMPLES, MOST_BYTES, MOST_SETS = 4096, 2e8, 8
Project = Callable[..., Tensor]


def box_problem(k: int, n: int, own: bool, seed: int) -> list[Tensor]:
    """raw, A, lower, upper, low and high: half of the rows are equalities, through a point inside the box."""
    source = torch.Generator(device="cuda").manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, device="cuda", generator=source)
    A = draw(SAMPLES, k, n) if own else draw(k, n)
    value = (A * 0.3 * draw(n).clamp(-1, 1)).sum(-1)
    room = draw(k).abs() * (torch.arange(k, device="cuda") % 2)
    one = torch.ones(n, device="cuda")
    return [2 * draw(SAMPLES, n), A, value - room, value + room, -one, one]


def recipe(batch: int, n: int, seed: int, rows: int = 0) -> list[Tensor]:
    """raw, A and upper: half of the queries inside, half of them three to six away."""
    source = torch.Generator(device="cuda").manual_seed(seed)
    draw = lambda kind, *shape: kind(*shape, device="cuda", dtype=torch.float64, generator=source)
    A = draw(torch.randn, batch, rows or 5 * n, n)
    upper = A.norm(dim=-1) + 0.05 + 0.45 * draw(torch.rand, batch, A.shape[1])
    way = draw(torch.randn, batch, n)
    radius = torch.where(torch.arange(batch, device="cuda") % 2 == 0, 0.95, 0.0) * draw(torch.rand, batch)
    radius = torch.where(radius == 0, 3 + 3 * draw(torch.rand, batch), radius)
    return [radius.unsqueeze(-1) * way / way.norm(dim=-1, keepdim=True), A, upper]


def checked(project: Project, numbers: list[Tensor]) -> dict[str, float]:
    """How many samples are open, and the largest violation of the others in roundings of what a certificate allows."""
    y = project(*numbers)
    wide = [part.double() for part in numbers]
    one = wide[0].new_ones(1)
    _, A, *bounds = wide if len(wide) > 1 else (*wide, torch.ones_like(wide[0][:1]), one, one, 0 * one, one)
    lower, upper = (None, bounds[0]) if len(bounds) == 1 else bounds[:2]
    solved = ~y.isnan().any(-1)
    at, size = (A @ y.double().unsqueeze(-1)).squeeze(-1), A.abs().sum(-1) * y.double().abs().amax(-1, keepdim=True)
    outside = (at - upper).clamp_min(0) if lower is None else torch.maximum(at - upper, lower - at).clamp_min(0)
    miss = (outside / (size + upper.abs())).amax(-1)[solved] / torch.finfo(y.dtype).eps
    assert len(bounds) != 4 or ((y.double() >= bounds[2]) & (y.double() <= bounds[3])).all(-1)[solved].all()
    assert (miss <= 16).all()
    return {"open": int((~solved).sum()), "roundings": float(miss.max()) if len(miss) else 0.0}


def launches(work: Callable[[], object]) -> int:
    """How many kernels, copies and fills a call launches."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    return sum(event.count for event in seen.key_averages() if event.device_type == on_device)


def both(project: Project, learned: int, *numbers: Tensor) -> Any:
    """The gradients of the first `learned` numbers, for raw as the gradient of y."""
    leaves = [part.detach().requires_grad_() for part in numbers[:learned]]
    return torch.autograd.grad(project(*leaves, *numbers[learned:]), leaves, numbers[0], allow_unused=True)


def compiled(what: str, project: Project, make: Callable[[int], list[Tensor]], learned: int) -> dict[str, Any]:
    """The seconds of the first call each way, nearly all of them spent by the compiler."""
    numbers, times = make(0), {}
    for name, work in (("forward", torch.no_grad()(project)), ("both", partial(both, project, learned))):
        start = time.perf_counter()
        work(*numbers)
        torch.cuda.synchronize()
        times[f"{name}_first_s"] = time.perf_counter() - start
    return {"what": what, **times}


def measure(what: str, project: Project, make: Callable[[int], list[Tensor]], learned: int) -> dict[str, Any]:
    """One row of the table; the gradients are those of all numbers, or of the first `learned`."""
    first = make(0)
    count = max(2, min(MOST_SETS, int(MOST_BYTES / sum(part.nbytes for part in first)) + 1))
    sets = [first, *(make(seed) for seed in range(1, count))]

    quiet = torch.no_grad()(project)
    row: dict[str, Any] = {"what": what, **checked(quiet, first)}
    row["forward_launches"] = launches(lambda: quiet(*first))
    pull = partial(both, project, learned)
    row["both_launches"] = launches(lambda: pull(*first))
    slow = row["forward_launches"] > 2000  # one graph of all sets would take minutes to capture
    for name, work in (("forward", quiet), ("both", pull)):
        row[f"{name}_ms"] = timing.replay_time(work, sets[: 1 if slow else None], 1 if slow else 10)
        row[f"{name}_eager_ms"] = timing.time_all({name: lambda work=work: work(*first)}, "cuda", 0.3, 20)[name]
    return row


def rows(only: str, warm: bool) -> Iterator[dict[str, Any]]:
    """All rows of the table whose name contains a text; their kernels are only compiled if `warm`."""
    box: Project = lambda raw, A, lower, upper, low, high: project_rows(raw, BoxedRows(A, lower, upper, low, high))
    above: Project = lambda raw, A, upper: hn.functional.project_affine(raw, A, None, upper)
    cases = []
    for k, n, own in BOXES:
        name = f"box & {k} rows, {SAMPLES} x {n}, {'own' if own else 'shared'} A, float32"
        cases.append((name, box, lambda seed, k=k, n=n, own=own: box_problem(k, n, own, seed), 1))
    for batch, n in RECIPE:
        name = f"recipe, {batch} x ({5 * n}x{n}), float64"
        cases.append((name, above, lambda seed, batch=batch, n=n: recipe(batch, n, seed), 3))
    for batch, m, n in DENSE:
        name = f"rows, {batch} x ({m}x{n}), float64"
        cases.append((name, above, lambda seed, b=batch, m=m, n=n: recipe(b, n, seed, m), 3))
    total = torch.ones((), device="cuda")
    simplex: Project = lambda raw: hn.functional.project_simplex(raw, total)
    raw = lambda seed: box_problem(1, 500, False, seed)[:1]
    cases.append((f"simplex, {SAMPLES} x 500, float32", simplex, raw, 1))
    for name, project, make, learned in cases:
        if only in name:
            yield compiled(name, project, make, learned) if warm else measure(name, project, make, learned)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print a line for every row, and write JSON to `--out` if given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.polyhedra_gpu", description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--warm", action="store_true", help="only compile, to be run for several rows at a time")
    asked = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    for row in rows(asked.only, asked.warm):
        found.append(row)
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
        if asked.out is not None:
            write_json(asked.out, {"environment": environment("cuda", 0), "rows": found}, indent=1)


if __name__ == "__main__":
    main()
