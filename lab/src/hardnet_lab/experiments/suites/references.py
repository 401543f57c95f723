"""Exact optima of a suite's test instances, by the solvers of the extras: ``hardnet suite NAME --references``.

The files are in ``src/hardnet/problems/suites/data`` and are part of the repository, so that evaluation needs no
solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from hardnet.errors import ConvergenceError
from hardnet_lab.experiments.results import write_json
from hardnet_lab.experiments.stamp import environment
from hardnet_lab.experiments.suites.base import Case

SOLVERS = ("numpy", "casadi", "clarabel")
"""Packages whose versions are recorded in a file, if they are installed."""


def write_references(cases: Sequence[Case], out: Path, device: torch.device, say: Callable[[str], None]) -> list[Path]:
    """Solve all test instances of the cases and write one file per case under `out`; Clarabel and IPOPT use the CPU."""
    paths = []
    for case in cases:
        path = out / f"{case.name}.json"
        content = solve_case(case, device)
        write_json(path, content)
        mean = sum(content["optimum"]) / len(content["optimum"])
        say(f"{case.name}: mean optimum {mean:.5f}, worst violation {content['worst_violation']:.1e}, {path}")
        paths.append(path)
    return paths


def solve_case(case: Case, device: torch.device) -> dict[str, Any]:
    """The optima of a case with the environment that made them; an error if an instance was not solved."""
    problem = case.build().to(device)
    x = problem.inputs(problem.test)
    best = case.solve(problem, x)
    if not best.value.isfinite().all():
        open_samples = (~best.value.isfinite()).sum().item()
        raise ConvergenceError(f"{case.name}: {open_samples} of {len(x)} test instances were not solved")
    metrics = problem.evaluate(lambda _: best.point.to(device), problem.test)
    made = environment(best.point.device)
    versions = {name: metadata.version(name) for name in SOLVERS if find_spec(name)}
    return {
        "case": case.name,
        "solver": best.solver,
        "checksum": problem.checksum,
        "worst_violation": metrics["worst_violation"].item(),
        "milliseconds": round(best.milliseconds, 3),
        "environment": made | {"versions": made["versions"] | versions},
        "optimum": best.value.tolist(),
    }
