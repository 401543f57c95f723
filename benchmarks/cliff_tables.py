"""The tables of `box_rows` and `cliffs` for the pages, from their result files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import read_json

BOX, CLIFFS = "box_rows_cpu.json", "cliffs_cpu.json"


def page(folder: Path) -> str:
    """Every table whose file is there, each with its environment."""
    parts = [box_tables(read_json(folder / BOX))] if (folder / BOX).exists() else []
    return "\n".join(parts + ([cliff_tables(read_json(folder / CLIFFS))] if (folder / CLIFFS).exists() else []))


def box_tables(content: dict[str, Any]) -> str:
    """A box and k rows: ratios to the loop over DAQP, forward and with backward."""
    grid = [row for row in content["rows"] if " x " in row["case"]]
    ks = sorted({row["rows"] for row in grid})
    lines = []
    for n in sorted({row["outputs"] for row in grid}):
        for kind in ("shared", "per sample"):
            cells = {row["rows"]: row for row in grid if row["outputs"] == n and row["case"].endswith(kind)}
            if cells:
                lines.append([f"{n}, {kind}", *(_pair(cells[k]) if k in cells else "-" for k in ks)])
    means = [content["geometric means of the grid"][name] for name in ("ratio", "ratio both")]
    worst = [max(row[name] for row in grid) for name in ("ratio", "ratio both")]
    others = [[r["case"], r["samples"], r["forward"], r["both"], _pair(r)] for r in content["rows"] if r not in grid]
    return (
        "**A box and k rows on a CPU: our time over that of a loop over DAQP with the box as bounds, forward / "
        f"with backward**\n\n{table_text(['outputs, rows', *map(str, ks)], lines)}\n\n"
        f"Geometric means {means[0]:.2g} / {means[1]:.2g}, largest {worst[0]:.2f} / {worst[1]:.2f}. "
        f"{made(content, BOX)}\n\n**Profiles and hierarchies beside the same loop**\n\n"
        f"{table_text(['set', 'samples', 'forward, ms', 'with backward, ms', 'ratios to the loop'], others)}\n"
    )


def _pair(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f} / {row['ratio both']:.2f}"


def cliff_tables(content: dict[str, Any]) -> str:
    """Degenerate rows, sparse rows, single states."""
    families = [
        [r["family"], r["problems"], r["ms a sample, mean"], r["ratio, mean"], r["ratio, worst"], f"{r['solved']:.1%}"]
        for r in content["degenerate"]
    ]
    heads = ["family", "problems", "ms a sample", "ratio, mean", "worst", "SOLVED"]
    tools = [[r["tool"], r["samples"], r["ms"], r["apart"]] for r in content["sparse"]]
    states = [[r["state"], r["ms"]] for r in content["states"]]
    return (
        "**Degenerate rows of operations research: the time of a sample over that of the fastest of DAQP, Clarabel and "
        f"PIQP that is right**\n\n{table_text(heads, families)}\n\n"
        f"{made(content, CLIFFS)}\n\n**Sparse rows: 60 units over 24 hours, 1440 outputs, 1404 rows**\n\n"
        f"{table_text(['tool', 'samples', 'ms', 'largest difference from hardnet'], tools)}\n\n"
        f"**One state of a controller: a box and 3 rows**\n\n{table_text(['state', 'ms'], states)}\n"
    )


def made(content: dict[str, Any], name: str) -> str:
    """Where and when a file was made."""
    stamp = content["environment"]
    versions = ", ".join(f"{k} {v}" for k, v in stamp["versions"].items() if v and k not in ("python", "hardnet"))
    return (
        f"{stamp['device']}, {stamp['threads']} thread, {versions}, {stamp['date']}, revision {stamp['revision']}; "
        f"data: `results/bench/{name}`. {content.get('note', '')}".strip()
    )
