"""hardnet, its last revision and other tools on the same problems, interleaved in one run: milliseconds and ratios.

Every tool is called in bursts, one tool after the other, round after round, so that a disturbance of the machine
affects all of them equally; a time is the median over all rounds. The last revision runs from an archive of its
sources. With more processes than cores, long calls are interrupted and short ones are not: measure on an idle machine.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.problems import Size, size_of
from benchmarks.processes import Process, archived, start
from benchmarks.tools import LAST, OURS, TASKS, THIS, Tool
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json

BURST = 4
"""Calls in a row; the first one only warms the caches."""
FEW, GROWTH, SLOW = 128, 8, 500.0
"""Samples of a tool's first timing; growth factor of the next; milliseconds per call above which growth stops."""
JUDGED = 8192
"""Maximum number of samples whose results are compared with the reference."""
PASSES = ("forward", "both")
WRONG = {"violation": 1e-5, "distance": 1e-3, "gradient_error": 1e-2}
"""Errors above which a tool's result counts as wrong, in float64."""


def main_table(
    task: str,
    device: str = "cpu",
    out: Path | None = None,
    sizes: Sequence[Size] | None = None,
    peers: Sequence[str] | None = None,
    revision: str | None = None,
    seconds: float = 3.0,
    seed: int = 0,
    note: str | None = None,
) -> dict[str, Any]:
    """Time and check every tool of a task, print a table per size, return (and write) the numbers.

    Args:
        task: A name in `TASKS`.
        device: ``"cpu"`` (float64) or ``"cuda"`` (float32).
        out: The JSON file to write, if any.
        sizes: The sizes to run; those of the task by default.
        peers: Names of the other tools; all installed ones by default.
        revision: A revision of hardnet to compare this tree with; None for no comparison.
        seconds: Time to spend per size and pass.
        seed: Seed of the problems.
        note: A sentence about the circumstances, stored with the numbers.
    """
    on_gpu = device.startswith("cuda")
    options = {"device": device, "dtype": "float32" if on_gpu else "float64", "seed": seed}
    rows: list[dict[str, Any]] = []
    commit, sources = archived(revision) if revision else (None, None)
    result = {"environment": environment(device, seed), "task": task, "dtype": options["dtype"],
              "last_revision": commit, "rows": rows, "note": note}  # fmt: skip
    tools = _chosen(task, peers, commit is not None)
    result["missing"] = [name for name, tool in tools.items() if not tool.peer.installed]
    with ExitStack() as stack:
        processes = {name: stack.enter_context(start(name, sources)) for name in {t.process for t in tools.values()}}
        for size in sizes or (TASKS[task].cuda if on_gpu else TASKS[task].cpu):
            rows += measure(task, size, {n: t for n, t in tools.items() if t.serves(size)}, processes, options, seconds)
            print(f"\n{size}\n{size_table(rows, size)}", flush=True)
            if out is not None:  # after every size, so that an interrupted run keeps its results
                write_json(out, result, indent=1)
    print("not installed:", ", ".join(result["missing"]) or "none")
    return result


def _chosen(task: str, peers: Sequence[str] | None, with_last: bool) -> dict[str, Tool]:
    """All variants of hardnet, and the requested other tools."""
    every = {name: tool for name, tool in TASKS[task].tools.items() if with_last or tool.process != LAST}
    ours = {name: tool for name, tool in every.items() if name.startswith((OURS, LAST))}
    return every if peers is None else ours | {name: every[name] for name in peers}


def measure(
    task: str, size: Size, tools: dict[str, Tool], processes: dict[str, Process], options: dict, seconds: float
) -> list[dict[str, Any]]:
    """One row per tool: times of the whole batch, errors against the reference, ratios to ours; or its error."""
    built = {name: _build(task, name, size, tool, processes, options) for name, tool in tools.items()}
    rows: dict[str, dict[str, Any]] = {name: size._asdict() | {"tool": name} | built[name] for name in tools}
    alive = [name for name in tools if "error" not in rows[name]]
    for key in PASSES:
        having = {name: processes[tools[name].process] for name in alive if key in rows[name]["ms"]}
        for name, times in _in_turns(having, key, {n: rows[n]["ms"][key] for n in having}, seconds).items():
            rows[name] |= {f"{key}_ms": statistics.median(times) / rows[name]["share"], f"{key}_calls": len(times)}
    with tempfile.TemporaryDirectory() as folder:
        path, judged = str(Path(folder) / "reference.safetensors"), size.B if size.shared else min(size.B, JUDGED)
        case = {"task": task, "size": list(size), "device": options["device"], "seed": options["seed"]}
        processes[THIS].must(do="reference", **case, count=judged, path=path)
        for name in (name for name in alive if tools[name].enforces):
            rows[name] |= processes[tools[name].process].ask(do="judge", tool=name, path=path)
    for process in processes.values():
        process.ask(do="drop")
    return [_finished(row, rows[OURS]) for row in rows.values()]


def _build(task: str, name: str, size: Size, tool: Tool, processes: dict, options: dict) -> dict[str, Any]:
    """Build a tool on as many samples as keep a call below `SLOW`: the count grows up to the whole batch."""
    most = min(tool.peer.most or size.B, size.B)
    count = min(FEW, most)
    request = {"do": "build", "task": task, "tool": name, "size": list(size), **options}
    while True:
        found = processes[tool.process].ask(**request, count=count)
        if "error" in found or count == most or GROWTH * max(found["ms"].values()) > SLOW:
            return found | {"share": count / size.B}
        count = min(GROWTH * count, most)


def _in_turns(having: dict[str, Process], key: str, first: dict[str, float], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of the calls of each tool, in interleaved bursts; a slow tool is called only once."""
    quick = [name for name in having if first[name] <= SLOW]
    spent = BURST * sum(first[name] for name in quick)
    times: dict[str, list[float]] = {name: [] if name in quick else [first[name]] for name in having}
    for _ in range(max(3, min(50, int(1000 * seconds / max(spent, 1e-3))))):
        for name in quick:
            times[name] += having[name].ask(do="time", tool=name, key=key, calls=BURST).get("ms", [])[1:]
    return {name: found for name, found in times.items() if found}


def _finished(row: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The row with ratios to ours, and whether its result is right."""
    row.pop("ms", None)
    for key in PASSES:
        if f"{key}_ms" in row and f"{key}_ms" in ours:
            row[f"{key}_ratio"] = row[f"{key}_ms"] / ours[f"{key}_ms"]
    if "violation" in row:
        row["right"] = all(row[key] is None or row[key] <= limit for key, limit in WRONG.items())
    return row


def size_table(rows: Sequence[dict[str, Any]], size: Size) -> str:
    """The rows of one size as a table; ``~``: timed on a part of the batch and scaled."""
    keys = ["forward_ms", "forward_ratio", "both_ms", "both_ratio", "violation", "distance", "gradient_error"]
    here = [row for row in rows if size_of(row) == size]
    lines = [
        [row["tool"] + ("~" if row.get("share", 1) < 1 else ""), *(row.get(key) for key in keys), verdict(row)]
        for row in here
    ]
    return table_text(["tool", *keys, "right"], lines)


def verdict(row: dict[str, Any]) -> str:
    """Yes, no, the error that stopped it, or a dash where nothing is enforced."""
    return row["error"][:40] if "error" in row else {True: "yes", False: "no", None: "-"}[row.get("right")]
