"""The costs that `hardnet.explain` reports, generated from the result files into the package by ``benchmarks.pages``.

``results/bench/methods_cpu.json`` and ``results/bench/nearest_h200.json`` -> ``src/hardnet/layers/costs.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PACKAGED = Path("src/hardnet/layers/costs.json")
# n, m, and the start of the set's name in the recorded file
CPU_SETS = ((2, 2, "barrier rows"), (10, 5, "polyhedral cone"), (20, 10, "polyhedron, n = 20"))
GPU_SIZES = (2, 3, 4)


def packaged_costs(bench: Path) -> str:
    """The recorded costs by type of device, as the JSON that the package contains."""
    methods = json.loads((bench / "methods_cpu.json").read_text())
    nearest = json.loads((bench / "nearest_h200.json").read_text())
    found = {
        "cpu": {
            "where": "one busy CPU core, float64",
            "samples": methods["samples"],
            "costs": [_cpu_cost(methods["rows"], *known) for known in CPU_SETS],
        },
        "cuda": {
            "where": "an H200, float32",
            "samples": 10**6,
            "costs": [_gpu_cost(nearest["rows"], size) for size in GPU_SIZES],
        },
    }
    return json.dumps(found, indent=1) + "\n"


def _cpu_cost(rows: list[dict[str, Any]], n: int, m: int, name: str) -> dict[str, float]:
    def cost(method: str) -> float:
        (row,) = (row for row in rows if row["set"].startswith(name) and row["method"] == method)
        return _short(row["forward_ms"] + row["backward_ms"])

    return {"n": n, "m": m, "closed": cost("aff"), "nearest": cost("projection")}


def _gpu_cost(rows: list[dict[str, Any]], size: int) -> dict[str, float]:
    def cost(what: str) -> float:
        asked = (what, size, size, 10**6)
        (row,) = (row for row in rows if (row["what"], row["n"], row["m"], row["B"]) == asked)
        return _short(row["both_ms"])

    return {"n": size, "m": size, "closed": cost("closed form"), "nearest": cost("nearest point")}


def _short(milliseconds: float) -> float:
    return float(f"{milliseconds:.3g}")
