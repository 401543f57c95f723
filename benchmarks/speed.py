"""The recorded benchmarks as short tables for people: ratios to the alternatives, multiples of the floor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.affine_conditioning import conditioning_table
from benchmarks.roofline import TARGETS
from hardnet.experiments.markdown import table_text
from hardnet.experiments.results import read_json

Content = dict[str, Any]
FLOOR = "two products"
"""What a shared A costs at least: both matrix products, without looking at a bound."""
KEPT = "hardnet, factor kept"
PASSES = ("forward", "both")
LAUNCH = 1e-4
"""Milliseconds of a floor that no launch comes near."""


def roofline(content: Content, dtype: str = "float32") -> str:
    """Microseconds and multiples of the memory floor (most allowed), forward and with all four gradients."""
    headers = ["B, m x n", "forward (us)", "x floor (target)", "forward+backward (us)", "x floor (target)"]
    rows = [
        [
            f"{row['B']}, {row['m']}x{row['n']}",
            1e3 * row["forward_ms"],
            _beside(row["forward_multiple"], row["forward_target"]),
            1e3 * row["both_ms"],
            _beside(row["both_multiple"], row["both_target"]),
        ]
        for row in content["rows"]
        if row["dtype"] == dtype
    ]
    return table_text(headers, rows)


def _beside(multiple: float | None, target: float | None) -> str:
    """A multiple and the most it should be."""
    return ("-" if multiple is None else f"{multiple:.3g}") + ("" if target is None else f" ({target:.3g})")


def roofline_double(content: Content) -> str:
    """The same in float64."""
    return roofline(content, "float64")


def replayed(content: Content) -> str:
    """The table of `roofline` from the replays that stand beside the eager times of ours, A per sample."""
    rows = []
    for row in content["rows"]:
        if row["who"] == "hardnet" and not row["shared_A"] and "forward_device_ms" in row:
            targets = TARGETS.get((row["B"], row["n"], row["m"])) or (None, None)
            alone = {f"{key}_ms": row[f"{key}_device_ms"] for key in PASSES}
            alone |= {f"{key}_multiple": _multiple(row, key) for key in PASSES}
            rows.append(row | alone | {"dtype": "float32", "forward_target": targets[0], "both_target": targets[1]})
    return roofline({"rows": rows})


def _multiple(row: Content, key: str) -> float | None:
    """The multiple of the memory floor, unless the batch is so small that it measures a launch."""
    return row[f"{key}_multiple"] if row[f"{key}_floor_ms"] > LAUNCH else None


def shared(content: Content) -> str:
    """One A for all samples, its factor kept, on the device alone: beside the memory floor and the two products."""
    headers = ["B, m x n"]
    for name in ("forward", "forward+backward"):
        headers += [f"{name} (us)", "x floor", "x two products"]
    rows = {(row["B"], row["m"], row["n"], row["who"]): row for row in content["rows"] if row["shared_A"]}
    kept = [row for row in rows.values() if row["who"] == KEPT and "forward_device_ms" in row]
    return table_text(headers, [_shared_row(row, rows[row["B"], row["m"], row["n"], FLOOR]) for row in kept])


def _shared_row(row: Content, products: Content) -> list[object]:
    """One size."""
    cells: list[object] = [f"{row['B']}, {row['m']}x{row['n']}"]
    for key in PASSES:
        alone = row[f"{key}_device_ms"]
        cells += [1e3 * alone, _multiple(row, key), alone / products[f"{key}_device_ms"]]
    return cells


def contenders(content: Content) -> str:
    """Every contender at every size: ``~`` where a part of the batch was timed and scaled, or why there is no time.

    Beside the time of an eager call stands that of the device alone, where it was taken; the multiple is the latter's.
    """
    headers = ["B, m x n", "A", "who"]
    for name in ("forward", "forward+backward"):
        headers += [f"{name} (ms)", "alone (ms)", "x floor"]
    return table_text([*headers, "violation", "gradient error"], [_contender(row) for row in content["rows"]])


def _contender(row: Content) -> list[object]:
    """One contender at one size; the two products enforce nothing, and a part of a batch has another gradient of A."""
    cells: list[object] = [f"{row['B']}, {row['m']}x{row['n']}", "shared" if row["shared_A"] else "per sample"]
    if "error" in row:
        return [*cells, row["who"], row["error"].split(":")[0].strip("_"), *[None] * 7]
    cells.append(row["who"] + ("~" if row["timed_share"] < 1 else ""))
    for key in PASSES:
        cells += [row[f"{key}_ms"], row.get(f"{key}_device_ms"), row[f"{key}_multiple"]]
    comparable = row["timed_share"] == 1 or not row["shared_A"]
    errors = [row["violation"], row["gradient_error"] if comparable else None]
    return cells + ([None, None] if row["who"] == FLOOR else errors)


def conditioning(content: Content) -> str:
    """The largest violation of each routine, relative to the scale of its row, over condition numbers."""
    return conditioning_table(content["conditioning"])


def growth(content: Content) -> str:
    """The fitted exponents beside those of the mathematics."""
    rows = [[name, *sweep["exponents"].values(), sweep["expected"]] for name, sweep in content["sweeps"].items()]
    return table_text(["time grows with", "forward", "forward+backward", "mathematics"], rows)


def affine(content: Content) -> str:
    """Our milliseconds at each size, and how many times longer the best alternative takes (below 1x it is faster).

    Where A is shared, ours keeps its factor, and the two matrix products alone are the floor.
    """
    headers = ["B, n, m", "A", "forward (ms)", "best alternative", "forward+backward (ms)", "best alternative"]
    headers += ["of the two products", "without numba (ms)"]
    sizes = dict.fromkeys((row["B"], row["n"], row["m"], row["shared_A"]) for row in content["rows"])
    return table_text(headers, [_affine_row(content, size) for size in sizes])


def _affine_row(content: Content, size: tuple[int, int, int, bool]) -> list[object]:
    """One size."""
    here = [row for row in content["rows"] if (row["B"], row["n"], row["m"], row["shared_A"]) == size]
    own = next(row for row in here if row["who"] == ("hardnet, factor kept" if size[3] else "hardnet"))
    others = [row for row in here if not row["who"].startswith("hardnet") and row["who"] != FLOOR]
    floor = next((row for row in here if row["who"] == FLOOR), None)
    cells: list[object] = [", ".join(map(str, size[:3])), "shared" if size[3] else "per sample"]
    for key in ("forward_ms", "both_ms"):
        best = min(others, key=lambda row: row[key])
        cells += [own[key], f"{best[key] / own[key]:.2g}x ({best['who']})"]
    plain = next((row for row in here if row["who"] == "hardnet, torch alone"), None)
    cells.append(f"{own['forward_ms'] / floor['forward_ms']:.2g}x" if floor else "-")
    return [*cells, f"{plain['forward_ms']:.3g}, {plain['both_ms']:.3g}" if plain else "-"]


def projection(content: Content) -> str:
    """Our milliseconds at each size, and how many times longer each peer takes; ``!`` where its answer is wrong."""
    sizes = list(dict.fromkeys(row["size"] for row in content["rows"]))
    tools = list(dict.fromkeys(row["tool"] for row in content["rows"]))
    cells = {(row["tool"], row["size"]): row for row in content["rows"]}
    own = {size: cells[tools[0], size] for size in sizes}
    rows = [[tool, *(_projection_cell(cells.get((tool, size)), own[size]) for size in sizes)] for tool in tools]
    return table_text(["forward+backward", *sizes], rows)


def _projection_cell(row: Content | None, own: Content) -> str:
    """Milliseconds for ours, a ratio for a peer (of its forward pass alone where it has no gradients)."""
    if row is None or "error" in row or "forward" not in row:
        return "-"
    if row["tool"] == own["tool"]:
        return f"{own['forward+backward']:.3g} ms"
    key, note = ("forward+backward", "") if "forward+backward" in row else ("forward", " fwd")
    return f"{row[key] / own[key]:.3g}x{note}{'' if row['right'] else ' !'}"


Record = tuple[str, str, Callable[[Content], str]]
RECORDS: tuple[Record, ...] = (
    ("affine_h200.json", "The closed form on a GPU, float32, A per sample", replayed),
    ("affine_cpu.json", "The closed form on a CPU, float64", affine),
    ("projection_cpu.json", "The exact projection on a CPU, float64; '!': wrong answer or gradient", projection),
    ("projection_h200.json", "The exact projection on a GPU, float64; '!': wrong answer or gradient", projection),
)
"""What the README shows: file, title and table."""
DEVICE_RECORDS: tuple[Record, ...] = (
    ("affine_h200.json", "The kernels alone, float32, A per sample", replayed),
    ("affine_h200.json", "The device alone, float32, one A for all samples, its factor kept", shared),
    ("roofline_h200.json", "The same from the run of the roofline", roofline),
    ("roofline_h200.json", "The same in float64", roofline_double),
    ("affine_h200.json", "Every contender, eager calls, float32", contenders),
    ("affine_h200.json", "Largest violation relative to the scale of its row, 500 samples", conditioning),
    ("scale_h200.json", "Exponents of the device's own time, float32", growth),
)
"""What the page of the kernels shows."""


def speed_tables(folder: Path, records: tuple[Record, ...]) -> str:
    """Every recorded benchmark that is there, each with what made it."""
    parts = []
    for name, title, write in records:
        if (folder / name).exists():
            content = read_json(folder / name)
            stamp = content["environment"]
            made = f"{stamp['device']}, {stamp['threads']} threads, torch {stamp['versions']['torch']}"
            made += f", {stamp['date'][:10]}"
            parts.append(f"**{title}**\n\n{write(content)}\n\n{made}; data: `results/bench/{name}`.\n")
    return "\n".join(parts)
