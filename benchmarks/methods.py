"""Every method on every standard set, recorded: ``python -m benchmarks methods --out results/bench/methods_cpu.json``.

The measurement is that of ``hardnet methods --measure``; `table` is its overview as shown in how-to-choose.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from hardnet_lab.experiments import measured
from hardnet_lab.experiments.results import environment, read_json, write_json

BASELINES = ("soft", "none")
"""Methods that enforce nothing and therefore have no column."""


def main_table(device: str = "cpu", out: Path | None = None) -> dict[str, Any]:
    """Measure on one thread, print the overview, return (and write) the numbers."""
    torch.set_num_threads(1)
    note = f"One thread; load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores."
    result = {"environment": environment(device, 0), "note": note, "samples": measured.SAMPLES}
    result["rows"] = measured.measure(device)
    print(measured.overview(result["rows"]))
    if out is not None:
        write_json(out, result, indent=1)
    return result


def table(path: Path) -> str:
    """The recorded overview in Markdown with its environment, without methods that accept none of the sets."""
    record = read_json(path)
    taken = {row["method"] for row in record["rows"] if row["refused"] is None} - set(BASELINES)
    stamp = record["environment"]
    made = f"{stamp['device']}, torch {stamp['versions']['torch']}, {stamp['date']}. {record['note']}"
    rows = [row for row in record["rows"] if row["method"] in taken]
    return f"{measured.overview(rows)}\n\n{made} Data: `results/bench/{path.name}`.\n"
