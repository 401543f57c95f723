"""Many constant rows on a GPU: the nearest point compared with the closed form and the general solver, in float64.

    python -m benchmarks.shared_gpu --out results/bench/shared_h200.json --revision "$(git rev-parse HEAD)"

``min |y - raw|  s.t.  A y <= b, C y = x`` with raw half a standard deviation around a good point. "One look": eager,
with ``on_infeasible="raise"``, which reads values once. "Captured": replays of a CUDA graph, which reads no values.
Times are medians in milliseconds; predictions were made before the first run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from hardnet.rows import in_double, take_rows
from hardnet.solvers.polyhedron import shared_rows
from hardnet.solvers.polyhedron.projection import solve
from hardnet_lab.experiments import timing
from hardnet_lab.experiments.results import environment, write_json

SIZES = [(2048, 1000, 500, 500), (1024, 100, 50, 50)]
"""Samples, outputs, equalities, inequalities."""
PREDICTED = {
    1000: {"one look": 25.0, "captured": 40.0, "backward, one look": 8.0, "backward, captured": 14.0},
    100: {"one look": 1.5, "captured": 0.7, "backward, one look": 1.2, "backward, captured": 0.5},
}
DEVICE = "cuda"


def problem(batch: int, n: int, equalities: int, inequalities: int) -> tuple[Any, Tensor, Tensor]:
    """The constraint, raw ``(batch, n)`` and x ``(batch, equalities)``."""
    source = torch.Generator(device=DEVICE).manual_seed(17)
    draw = lambda kind, *shape: kind(*shape, device=DEVICE, dtype=torch.float64, generator=source)
    Q, p = draw(torch.rand, n), draw(torch.rand, n)
    C, A = draw(torch.randn, equalities, n), draw(torch.randn, inequalities, n)
    x = 2 * draw(torch.rand, batch, equalities) - 1
    inverse = torch.linalg.pinv(C)
    raw = x @ inverse.mT - 0.5 * p / (Q + 0.1) + 0.5 * draw(torch.randn, batch, n)
    constraint = hn.Affine(A, upper=(A @ inverse).abs().sum(-1)) & hn.Equality(C, lambda x: x)
    return constraint, raw, x


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """A function that replays the call as a CUDA graph."""
    return timing.capture(call).replay


def timed(call: Callable[[], Any], repeats: int = 7) -> float:
    """Median time of a call between two events, in milliseconds."""
    return timing.time_all({"call": call}, DEVICE, rounds=repeats)["call"]


def backward_of(forward: Callable[[Tensor], Tensor], raw: Tensor) -> Callable[[], Any]:
    """A function for the gradient of raw through a forward pass that is run once beforehand."""
    leaf = raw.clone().requires_grad_()
    weight = torch.randn_like(raw)
    y = forward(leaf)
    return lambda: torch.autograd.grad(y, leaf, weight, retain_graph=True)


def measure(size: tuple[int, int, int, int]) -> dict[str, float]:
    """All variants for one size, in milliseconds, with the residuals and the numbers of unsolved samples."""
    constraint, raw, x = problem(*size)
    looking: Any = hn.HardNet(torch.nn.Identity(), constraint, method="projection", on_infeasible="raise").layer
    free: Any = hn.HardNet(torch.nn.Identity(), constraint, method="projection").layer
    row = {"one look": timed(lambda: looking(raw, x)), "captured": timed(captured(lambda: free(raw, x)))}
    row["eager, no look"] = timed(lambda: free(raw, x))
    row["backward, one look"] = timed(backward_of(lambda leaf: looking(leaf, x), raw))
    both = lambda: torch.autograd.grad(free(leaf, x), leaf, weight)
    leaf, weight = raw.clone().requires_grad_(), torch.randn_like(raw)
    row["both ways, captured"] = timed(captured(both))
    row["backward, captured"] = row["both ways, captured"] - row["captured"]
    row["closed form"] = timed(lambda: hn.functional.enforce_affine(raw, *constraint.affine(x, raw)), 3)
    rows = in_double(take_rows(raw, *constraint.affine(x, raw)))
    for name, look in (("one look", True), ("captured", False)):
        found = solve(rows._replace(look=look), shared=free.shared)
        row[f"residual, {name}"] = found.residual.max().item()
        row[f"open, {name}"] = float((found.status != 0).sum())
    row["active rows, most"] = float((found.side != 0).sum(-1).max() - size[2])
    y = free(raw, x)
    row["violation"] = constraint.violation(y, x).max().item()
    few = rows.take(torch.arange(8, device=raw.device))
    few = few._replace(A=few.A.expand(8, *few.A.shape[-2:]), look=True)
    start = time.perf_counter()
    general = solve(few).y
    row["general solver, 8 samples"] = (time.perf_counter() - start) * 1e3
    row["difference to it"] = (general - y[:8]).abs().max().item()
    return row


def phases(size: tuple[int, int, int, int]) -> dict[str, float]:
    """Times of the parts in milliseconds, most of them captured, to show where the time goes."""
    constraint, raw, x = problem(*size)
    equality = torch.arange(sum(size[2:]), device=DEVICE) >= size[3]
    A = constraint.affine(x, raw).A
    row = {"prepare": timed(lambda: shared_rows.prepare(A, equality), 2)}
    rows = shared_rows.prepare(A, equality)
    assert rows is not None
    batch, k = len(raw), len(rows.gram)
    zero = raw.new_zeros(batch, k)
    spread = torch.rand(batch, k, device=DEVICE)
    row["50 splitting steps"] = timed(
        captured(lambda: shared_rows.split_steps(rows.soft, zero - 1, zero + 1, zero, 50))
    )
    row["onto the equalities"] = timed(captured(lambda: shared_rows.on_equalities(rows, raw, x)))
    for part in (0.2, 0.5):
        active = spread < part
        row[f"solve, all rows, {part:.0%}"] = timed(
            captured(lambda a=active: shared_rows.solve_shared(rows.gram, a, zero + 1, look=False)), 3
        )
        row[f"solve, active rows, {part:.0%}"] = timed(
            lambda a=active: shared_rows.solve_shared(rows.gram, a, zero + 1, look=True), 3
        )
    active = spread < 0.2
    for width in (32, 64, 128, 256):
        shared_rows.BLOCK["cuda"] = width
        row[f"factors, all rows, blocks of {width}"] = timed(
            captured(lambda: [shared_rows.factorize(rows.gram, None, part) for part in active.split(512)]), 3
        )
    shared_rows.BLOCK["cuda"] = 64
    factor = shared_rows.factorize(rows.gram, None, active[:512])
    row["one solution with factors, 512 samples"] = timed(captured(lambda: factor.solve(zero[:512] + 1)), 3)
    whole = torch.where(active[:512, :, None] & active[:512, None], rows.gram, torch.eye(k, device=DEVICE).double())
    row["torch's factors, 512 samples"] = timed(lambda: torch.linalg.cholesky_ex(whole), 3)
    return row


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--revision", help="where git cannot tell it")
    options = parser.parse_args()
    rows = []
    for size in SIZES:
        for kind, found in (("time", measure(size)), ("phase", phases(size))):
            rows.append({"kind": kind, "size": size, "predicted": PREDICTED[size[1]], "measured": found})
            for name, value in found.items():
                guess = PREDICTED[size[1]].get(name)
                print(f"{size} {kind} {name}: {value:.4g}" + (f" (predicted {guess:g})" if guess else ""), flush=True)
    stamp = environment(DEVICE, 17) | ({"revision": options.revision} if options.revision else {})
    if options.out:
        write_json(options.out, {"environment": stamp, "rows": rows}, indent=1)


if __name__ == "__main__":
    main()
