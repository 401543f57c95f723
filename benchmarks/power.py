"""Power flow: from a perturbed dispatch to a feasible one, by retraction and by the nearest point, compared with IPOPT.

Raw outputs are the dispatch at the grid's own loads plus normal noise; loads are the first of the test set. Times are
processor time (one thread) on a CPU, wall time on a GPU; IPOPT solves one sample after the other.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, read_json, write_json
from hardnet_lab.problems.suites.acopf import PowerBalance, read_grid

SEED = 0
SIZES = {"case9": 64, "case57": 8, "case118": 2}
"""Samples of each grid."""
NOISE = (0.01, 0.05)
HELD = 1e-8
"""Largest violation of a feasible dispatch, in units of base power."""


def clock(device: str) -> float:
    """Processor time in seconds; on a GPU wall time, after synchronizing."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def measure(problem: PowerBalance, raw: Tensor, x: Tensor, mode: str, device: str) -> dict[str, float]:
    """Shares of feasible samples and of status ok, worst violation, mean distance, and milliseconds per sample."""
    layer = hn.layers.NonlinearLayer(problem.constraint, mode=mode, on_infeasible="nearest", on_unsolved="best")
    began = clock(device)
    found = layer.solve(raw, x)
    elapsed = clock(device) - began
    worst = torch.cat(problem.residuals(found.y, x), -1).amax(-1)
    return {
        "feasible": (worst <= HELD).double().mean().item(),
        "ok": (found.status == 0).double().mean().item(),
        "worst": worst.max().item(),
        "distance": (found.y - raw).norm(dim=-1).mean().item(),
        "ms": 1e3 * elapsed / len(raw),
    }


def exact(problem: PowerBalance, raw: Tensor, x: Tensor) -> dict[str, float]:
    """Share of solved samples, mean distance and milliseconds for IPOPT; needs CasADi."""
    from hardnet_lab.experiments.suites.references import solve_with

    found = solve_with(problem.grid, read_grid(problem.grid.case), torch.cat([x, raw], 1), near=True)
    solved = found.value.isfinite()
    distance = (found.point - raw).norm(dim=-1)[solved].mean().item()
    return {"ok": solved.double().mean().item(), "distance": distance, "ms": found.milliseconds}


def grid_table(results: dict[str, Any]) -> str:
    """One line for each grid, noise and method."""
    shown = ("feasible", "ok", "worst", "distance", "ms")
    lines = [
        [name, how, *(f"{one[key]:.3g}" if key in one else "" for key in shown)]
        for name, row in results.items()
        for how, one in row.items()
    ]
    return table_text(
        ["grid", "way", "feasible", "status ok", "worst violation", "mean distance", "ms a sample"], lines
    )


def page(record: Path) -> str:
    """The table of a result file with its environment."""
    content = read_json(record)
    made = content["environment"]
    note = f"`results/bench/{record.name}`: {made['device']}, {content['clock']} time, revision {made['revision']}, "
    return f"{grid_table(content['grids'])}\n\n{note}{made['date']}; samples {content['samples']}.\n"


def main_table(device: str, out: Path | None, sizes: dict[str, int] | None = None) -> dict[str, Any]:
    """Measure every grid and noise, and print and write the results."""
    results: dict[str, Any] = {}
    for case, count in (sizes or SIZES).items():
        problem = PowerBalance(case, 800).to(device)
        random = torch.Generator().manual_seed(SEED)
        x = problem.inputs(problem.test[:count])
        for noise in NOISE:
            move = noise * torch.randn(count, problem.output_dim, generator=random, dtype=torch.float64)
            raw = problem.grid.nominal + move.to(device)
            row = {mode: measure(problem, raw, x, mode, device) for mode in ("retract", "nearest")}
            if device == "cpu":
                row["ipopt"] = exact(problem, raw, x)
            results[f"{case}, noise {noise}"] = row
            print(case, noise, row, flush=True)
    print(grid_table(results))
    content = {"environment": environment(device, SEED), "clock": "wall" if device == "cuda" else "process"}
    content |= {"samples": sizes or SIZES, "grids": results}
    if out is not None:
        write_json(out, content, indent=1)
    return content
