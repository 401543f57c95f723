"""The recorded benchmarks as short tables: ratios to hardnet, multiples of the floor, exponents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.problems import size_of
from benchmarks.tools import KEPT, LAST, OURS
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import read_json

Content = dict[str, Any]
LAUNCH = 1e-4
"""Floors below this many milliseconds are far below the cost of a launch."""


def ratios(content: Content, shared: bool | None = None) -> str:
    """Milliseconds of hardnet, forward / with backward, and how many times longer every other tool takes.

    `shared` selects the sizes with a shared A, with an A per sample, or all (None). ``!`` marks a wrong result or
    gradient, ``~`` a tool that was timed on a part of the batch. Where A is shared, the base is hardnet with its factor
    kept.
    """
    rows = [row for row in content["rows"] if shared is None or row["shared"] == shared]
    sizes = list(dict.fromkeys(size_of(row) for row in rows))
    tools = list(dict.fromkeys(row["tool"] for row in rows))
    cells = {(row["tool"], size_of(row)): row for row in rows}
    base = {size: cells.get((KEPT, size)) or cells[OURS, size] for size in sizes}
    named = {LAST: f"hardnet at {content.get('last_revision')}"}
    lines = [
        [named.get(tool, tool), *(_ratio(cells.get((tool, size)), base[size]) for size in sizes)] for tool in tools
    ]
    return table_text(["B, rows x outputs", *map(str, sizes)], lines)


def _ratio(row: Content | None, base: Content) -> str:
    """Milliseconds for the base, ratios for the others; a dash where a pass was not timed."""
    if row is None or "forward_ms" not in row:
        return "-"
    if row["tool"] == base["tool"]:
        return f"{row['forward_ms']:.3g} / {row['both_ms']:.3g} ms"
    passes = [f"{row[key] / base[key]:.3g}" if key in row else "-" for key in ("forward_ms", "both_ms")]
    part = "~" if row.get("share", 1) < 1 or row.get("scaled") else ""
    return f"{' / '.join(passes)}{part}{' !' if row.get('right') is False else ''}"


def on_device(content: Content, dtype: str = "float32") -> str:
    """Microseconds of the device without the host, and multiples of the memory floor with their targets."""
    headers = ["what", "B, rows x outputs", "forward (us)", "x floor (target)", "forward+backward (us)",
               "x floor (target)"]  # fmt: skip
    rows = [
        [
            row["what"],
            str(size_of(row)).removesuffix(" shared"),
            *_device_cells(row, "forward"),
            *_device_cells(row, "both"),
        ]
        for row in content["rows"]
        if row["dtype"] == dtype
    ]
    return table_text(headers, rows)


def _device_cells(row: Content, key: str) -> list[object]:
    """A time and its multiple of the floor; no multiple if the batch is so small that a launch dominates."""
    if f"{key}_ms" not in row:
        return [None, None]
    multiple, target = row.get(f"{key}_multiple"), row.get(f"{key}_target")
    shown = multiple is not None and row.get(f"{key}_floor_ms", 1.0) > LAUNCH
    beside = "" if target is None else f" ({target:.3g})"
    return [1e3 * row[f"{key}_ms"], f"{multiple:.3g}{beside}" if shown else None]


def growth(content: Content) -> str:
    """The fitted exponents next to the theoretical ones."""
    rows = [[name, *sweep["exponents"].values(), sweep["expected"]] for name, sweep in content["sweeps"].items()]
    return table_text(["time grows with", "forward", "forward+backward", "mathematics"], rows)


Record = tuple[str, str, Callable[[Content], str]]
BESIDE = "forward / with backward; ours in ms, the others as multiples of it"
RECORDS: tuple[Record, ...] = (
    (
        "closed_form_cpu.json",
        f"The closed form on a CPU, float64, A per sample: {BESIDE}",
        partial(ratios, shared=False),
    ),
    ("closed_form_cpu.json", f"The same, one A for all samples: {BESIDE}", partial(ratios, shared=True)),
    ("nearest_point_cpu.json", f"The nearest point on a CPU, float64: {BESIDE}; '!': wrong", ratios),
    ("nearest_point_h200.json", f"The nearest point on a GPU, float64: {BESIDE}; '!': wrong", ratios),
)
"""The tables of the speed section: file, title and table."""
DEVICE_RECORDS: tuple[Record, ...] = (
    ("device_h200.json", "The closed form, A per sample, float32", on_device),
    ("device_h200.json", "The same in float64", partial(on_device, dtype="float64")),
    ("device_shared_h200.json", "One A for all samples, float32", on_device),
    ("nearest_h200.json", "The nearest point beside the closed form, float32, another run", on_device),
    ("scale_h200.json", "Exponents of the device's own time, float32, A per sample", growth),
    ("scale_cpu.json", "Exponents on one thread of a CPU, float64, A per sample", growth),
)
"""The tables of the kernels page."""


def speed_tables(folder: Path, records: Sequence[Record]) -> str:
    """Every recorded benchmark whose file exists, each with its environment."""
    parts = []
    for name, title, write in records:
        if (folder / name).exists():
            content = read_json(folder / name)
            note = f" {content['note']}" if content.get("note") else ""
            parts.append(f"**{title}**\n\n{write(content)}\n\n{_made(content)}; data: `results/bench/{name}`.{note}\n")
    return "\n".join(parts)


def _made(content: Content) -> str:
    """Device, versions, date and revision of a table."""
    stamp = content["environment"]
    threads = f", {stamp['threads']} threads" if stamp["threads"] else ""
    revision = f", revision {stamp['revision']}" if stamp["revision"] else ""
    return f"{stamp['device']}{threads}, torch {stamp['versions']['torch']}, {stamp['date'][:10]}{revision}"
