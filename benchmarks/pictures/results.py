"""Pictures of the measurements, drawn from the committed files under ``results/``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.pictures.style import Draw, Palette, legend, panels
from benchmarks.problems import operations, size_of
from benchmarks.tools import LAST, OURS, PLAIN
from hardnet_lab.experiments.paper import published
from hardnet_lab.experiments.results import read_json

RESULTS = Path(__file__).parents[2] / "results"
SMALLEST = 1e-17
"""Where a violation of exactly 0 is drawn on a logarithmic axis."""


@cache
def read(path: str) -> dict[str, Any]:
    """A file under ``results/``."""
    return read_json(RESULTS / path)


COMPARED = {
    "pwc": ("Piecewise constraints", "test error (MSE)", "mse"),
    "opt": ("Nonconvex programs", "objective", "objective"),
    "cbf": ("Safe control", "cost", "cost"),
}


def paper(palette: Palette) -> Figure:
    """The published value, and each seed of closed form, exact projection and best recipe; lower is better."""
    figure, axes = panels(palette, 3, 2.9)
    for panel, (problem, (title, label, metric)) in zip(axes, COMPARED.items(), strict=True):
        center, spread = published(problem)["aff"][metric]
        panel.errorbar([0], [center], yerr=[spread], fmt="s", color=palette.soft, capsize=3)
        ticks = [f"{center:g}\npaper"]
        for path, name, color in (
            (f"paper/{problem}/aff.json", "closed form", palette.bad),
            (f"paper/{problem}/projection.json", "projection", palette.good),
            (f"paper/best/{problem}/projection.json", "best recipe", palette.other),
        ):
            if (RESULTS / path).exists():
                values = read(path)["metrics"][metric]
                panel.plot([len(ticks)] * len(values), values, "o", color=color, alpha=0.75, markersize=5)
                middle = mean(values)
                shown = f"{middle:.4f}" if abs(middle) < 1 else f"{middle:.5g}"
                ticks.append(f"{shown}\n" + name.replace(" ", "\n"))
        best(panel, problem, palette)
        panel.set_xticks(range(len(ticks)), ticks, fontsize=8)
        panel.set(xlim=(-0.5, len(ticks) - 0.5), title=title, ylabel=label)
        panel.margins(y=0.15)
    return figure


def best(panel: Axes, problem: str, palette: Palette) -> None:
    """Draw the best known value, if there is one."""
    if (RESULTS / f"limits/limits-{problem}.json").exists():
        value = read(f"limits/limits-{problem}.json")["limit"]["value"]
        panel.axhline(value, color=palette.other, linewidth=1, linestyle=":")
        place = {"xytext": (2, 4), "textcoords": "offset points", "color": palette.other, "fontsize": 8}
        panel.annotate(f"best known {value:.5g}", (-0.5, value), **place)


def peers(palette: Palette) -> Figure:
    """Largest violation and time of every peer, one dot for each size of problem."""
    found = [row for row in read("bench/nearest_point_cpu.json")["rows"] if "violation" in row]
    own = {size_of(row): row for row in found if row["tool"] == OURS}
    tools = [tool for tool in dict.fromkeys(row["tool"] for row in found) if tool not in ("DAQP loop", LAST, PLAIN)]
    figure, (left, right) = panels(palette, 2, 4.2, [1.25, 1])
    for row in found:
        if row["tool"] not in tools:
            continue
        place, color = -tools.index(row["tool"]), palette.good if row["tool"] == OURS else palette.bad
        left.plot([max(row["violation"], SMALLEST)], [place], "o", color=color, alpha=0.8, markersize=5)
        key = "both_ms" if "both_ms" in row else "forward_ms"
        face = color if key == "both_ms" else "none"
        ratio = row[key] / own[size_of(row)][key]
        right.plot([ratio], [place], "o", color=color, markerfacecolor=face, alpha=0.8, markersize=5)
    left.set_yticks([-i for i in range(len(tools))], tools, color=palette.ink)
    right.set_yticks([-i for i in range(len(tools))], [""] * len(tools))
    left.axvspan(1e-18, 1e-12, color=palette.fill, alpha=0.5, linewidth=0)
    left.text(2e-17, -len(tools) + 0.1, "rounding", color=palette.good, fontsize=9)
    for panel in (left, right):
        panel.set_ylim(-len(tools) - 0.1, 0.6)
    left.set(xscale="log", xlim=(4e-18, 3), title="largest violation")
    right.axvline(1, color=palette.good, linewidth=1)
    right.set(xscale="log", title="time, hardnet = 1 (hollow: forward alone)")
    return figure


def speed(palette: Palette) -> Figure:
    """Multiples of the memory floor on a GPU, the closed form and the nearest point."""
    rows = [row for row in read("bench/nearest_h200.json")["rows"] if "both_multiple" in row]
    shapes = list(dict.fromkeys(size_of(row) for row in rows))
    figure, axes = panels(palette, 2, 2.9)
    for panel, key, title in zip(
        axes, ("forward_multiple", "both_multiple"), ("forward", "forward and backward"), strict=True
    ):
        for shift, what, color in ((-0.2, "closed form", palette.bad), (0.2, "nearest point", palette.good)):
            found = {size_of(row): row[key] for row in rows if row["what"] == what}
            places = [shapes.index(shape) + shift for shape in found]
            drawn = panel.bar(places, list(found.values()), 0.36, color=color, label=what)
            panel.bar_label(drawn, fmt="%.1f", fontsize=8, color=palette.ink, padding=2)
        panel.axhline(1, color=palette.other, linewidth=1.2, linestyle=":", label="floor: every number moved once")
        panel.set_xticks(range(len(shapes)), [f"{size.m} x {size.n}" for size in shapes], fontsize=8)
        panel.set(title=title, ylabel="multiple of the floor" if panel is axes[0] else "", xlabel="rows x outputs")
    legend(axes[1], palette, loc="upper left")
    axes[1].set_ylim(0, 9.5)
    return figure


def training(palette: Palette) -> Figure:
    """The cost of the control task over training; only the method differs."""
    figure, (panel,) = panels(palette, 1, 2.9)
    for method, label, color in (("aff", "closed form", palette.bad), ("projection", "nearest point", palette.good)):
        history = read(f"paper/cbf/{method}.json")["history"]
        lines = list(zip(*history["objective"], strict=True))
        for i, line in enumerate(lines):
            panel.plot(history["epoch"], line, color=color, linewidth=1, label=label if i == 0 else None)
    panel.set(ylim=(460, 700), xlabel="epoch", ylabel="cost on validation states")
    legend(panel, palette)
    return figure


def programs(palette: Palette) -> Figure:
    """The objective over training of every method that satisfies the equalities, and the optimum."""
    figure, (panel,) = panels(palette, 1, 2.9)
    limit = read("limits/limits-opt.json")["limit"]["value"]
    labels = {
        "aff": ("HardNet-Aff", palette.bad),
        "dc3": ("DC3 as published", palette.soft),
        "projection": ("nearest point", palette.good),
    }
    for method, (label, color) in labels.items():
        if not (RESULTS / f"paper/opt/{method}.json").exists():
            continue
        history = read(f"paper/opt/{method}.json")["history"]
        for i, line in enumerate(zip(*history["objective"], strict=True)):
            panel.plot(history["epoch"], line, color=color, linewidth=0.8, label=label if i == 0 else None)
    panel.axhline(limit, color=palette.other, linestyle=":", label="optimum by IPOPT")
    panel.set(xlabel="epoch", ylabel="objective", ylim=(limit - 0.4, limit + 4))
    legend(panel, palette)
    return figure


def roofline(palette: Palette) -> Figure:
    """Operations per second over operations per byte that must be moved, with the line of a plain copy."""
    content = read("bench/device_h200.json")
    figure, (panel,) = panels(palette, 1, 3.4)
    bandwidth = content["copy_bytes_per_ms"]
    panel.plot([0.4, 36], [0.4 * bandwidth / 1e6, 36 * bandwidth / 1e6], color=palette.other, label="measured copy")
    panel.plot([], [], "o", color=palette.good, label="rows x outputs: time as a multiple of the floor")
    for row in content["rows"]:
        if row["dtype"] != "float32" or row["what"] != "closed form":
            continue
        moved = row["forward_floor_ms"] * bandwidth
        place = operations(size_of(row)) / moved, operations(size_of(row)) / row["forward_ms"] / 1e6
        panel.plot(*place, "o", color=palette.good)
        label = f"{row['m']} x {row['n']}: {row['forward_multiple']:.1f}"
        shift = {"xytext": (0, -14), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        panel.annotate(label, place, **shift)
    panel.set(xscale="log", yscale="log", xlabel="operations for each byte that must move", ylabel="Gflop/s, forward")
    panel.margins(y=0.12)
    legend(panel, palette, loc="upper left")
    return figure


def growth(palette: Palette) -> Figure:
    """The time of the device without the host over batch, outputs and rows, with the fitted exponents."""
    sweeps = read("bench/scale_h200.json")["sweeps"]
    names = {"B": "samples", "n": "outputs", "m": "rows"}
    figure, axes = panels(palette, len(sweeps), 2.9)
    for panel, (name, sweep) in zip(axes, sweeps.items(), strict=True):
        for key, color in (("forward", palette.good), ("both", palette.bad)):
            times = [1e3 * row[f"{key}_device_ms"] for row in sweep["rows"]]
            label = f"{'forward' if key == 'forward' else '+ backward'}: {sweep['exponents'][key]:.2f}"
            panel.plot([row[name] for row in sweep["rows"]], times, "o-", color=color, markersize=4, label=label)
        panel.set(xscale="log", yscale="log", xlabel=names[name], title=f"mathematics: exponent {sweep['expected']:g}")
        legend(panel, palette, loc="upper left")
        panel.margins(y=0.25)
    axes[0].set_ylabel("microseconds")
    return figure


PICTURES: dict[str, Draw] = {
    "roofline": roofline,
    "growth": growth,
    "paper": paper,
    "peers": peers,
    "speed": speed,
    "training": training,
    "programs": programs,
}
