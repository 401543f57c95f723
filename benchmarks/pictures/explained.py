"""Pictures that explain the library: the moving set, two ways into it, relaxed rows, and the place of the layer."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Polygon
from torch import Tensor

import hardnet as hn
from benchmarks.pictures.style import Draw, Palette, bare, legend, panels

INPUTS = torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.float64)
RAW = torch.tensor([[1.45, 0.5], [0.2, 1.75], [-0.9, 1.25], [-0.3, -0.2], [0.85, -0.75]], dtype=torch.float64)


def rows(x: Tensor) -> Tensor:
    """Three rows whose normals rotate with x, ``(*batch, 3, 2)``."""
    angle = torch.cat([0.1 + 0.5 * x, 1.0 + 0.5 * x, 2.4 + 0.3 * x], dim=-1)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def bounds(x: Tensor) -> Tensor:
    """The upper bounds ``(*batch, 3)``."""
    return torch.cat([0.7 + 0.2 * x, 0.75 - 0.2 * x, 0.65 + 0.0 * x], dim=-1)


MOVING = hn.Affine(rows, upper=bounds)
PAIR = hn.Affine(lambda x: rows(x)[..., :2, :], upper=lambda x: bounds(x)[..., :2])


def region(panel: Axes, x: Tensor, palette: Palette, constraint: hn.Affine = MOVING) -> None:
    """Fill C(x): the part of a large square that satisfies all rows."""
    numbers = constraint.numbers(x, torch.zeros(2, dtype=torch.float64))
    corners = [(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]
    for (a, b), limit in zip(numbers.A.tolist(), numbers.upper.tolist(), strict=True):
        corners = clipped(corners, a, b, limit)
    panel.add_patch(Polygon(corners, facecolor=palette.fill, edgecolor=palette.good, linewidth=1.2, zorder=1))


def clipped(corners: list[tuple[float, float]], a: float, b: float, limit: float) -> list[tuple[float, float]]:
    """The part of a convex polygon where ``a u + b v <= limit``."""
    kept = []
    for (u, v), (s, t) in zip(corners, corners[1:] + corners[:1], strict=True):
        here, there = limit - a * u - b * v, limit - a * s - b * t
        if here >= 0:
            kept.append((u, v))
        if here * there < 0:
            share = here / (here - there)
            kept.append((u + share * (s - u), v + share * (t - v)))
    return kept


def moved(panel: Axes, raw: Tensor, y: Tensor, color: str, label: str, style: str = "-") -> None:
    """Arrows from raw outputs to enforced ones."""
    for start, end in zip(raw.tolist(), y.tolist(), strict=True):
        if math.dist(start, end) > 1e-9:
            arrow = {"arrowstyle": "-|>", "color": color, "shrinkA": 4, "shrinkB": 3, "linestyle": style}
            panel.annotate("", end, start, arrowprops=arrow, zorder=2)
    panel.plot(*y.T, "o", color=color, markersize=5.5, label=label, zorder=3)


def idea(palette: Palette) -> Figure:
    """The set moves with x, the raw outputs do not; those outside are moved to the nearest point inside."""
    figure, axes = panels(palette, 3, 3.25)
    for panel, x in zip(axes, INPUTS, strict=True):
        here = x.expand(len(RAW), 1)
        bare(panel)
        region(panel, x, palette, PAIR)
        moved(panel, RAW, hn.layers.Projection(PAIR)(RAW, here), palette.good, "nearest allowed point")
        face = {"markerfacecolor": "none", "markeredgecolor": palette.ink}
        panel.plot(*RAW.T, "o", markersize=8, label="raw output of the network", zorder=4, **face)
        panel.set(xlim=(-1.6, 1.9), ylim=(-1.35, 2.0))
        panel.text(-1.2, -1.15, "C(x)", color=palette.good, fontsize=12, style="italic")
        panel.set_title(f"x = {x.item():g}", color=palette.ink)
    handles, labels = axes[0].get_legend_handles_labels()
    box = figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=2)
    box.get_frame().set_visible(False)
    return figure


def conditioning(palette: Palette) -> Figure:
    """How far each method moves an output as two rows become parallel."""
    figure, (panel,) = panels(palette, 1, 3.0)
    angles = torch.logspace(-3, math.log10(math.pi / 2), 60, dtype=torch.float64)
    second = torch.stack([angles.cos(), angles.sin()], -1)
    A = torch.stack([torch.tensor([1.0, 0.0], dtype=torch.float64).expand(60, 2), second], -2)
    source = torch.Generator().manual_seed(0)
    raw = 1 + torch.randn(400, 1, 2, dtype=torch.float64, generator=source)
    for name, call, color in (
        ("closed form (aff)", hn.functional.enforce_affine, palette.bad),
        ("nearest point (projection)", hn.functional.project_affine, palette.good),
    ):
        y = call(raw.expand(400, 60, 2), A, upper=torch.tensor([0.0, 3.0], dtype=torch.float64))
        panel.plot(angles.rad2deg(), (y - raw).norm(dim=-1).amax(0), color=color, linewidth=2, label=name)
    panel.set(
        xscale="log", yscale="log", xlabel="angle between the two rows (degrees)", ylabel="farthest move of 400 outputs"
    )
    legend(panel, palette, loc="upper right")
    return figure


LEVEL, SLOPE, HEIGHT = 1.7, -0.25, 0.2
BARRIERS = torch.tensor([[1.0, 0.0], [-SLOPE, 1.0]], dtype=torch.float64)
STARTS = torch.tensor([[-0.6, 0.7], [-0.3, -0.9], [1.2, -1.6], [1.9, 0.1], [0.3, 1.7]], dtype=torch.float64)


def relaxed(palette: Palette) -> Figure:
    """Limits of an actuator and two barriers that contradict them, with two ways to resolve this."""
    limits = hn.Box(-torch.ones(2, dtype=torch.float64), 1.0)
    barriers = hn.Affine(BARRIERS, lower=torch.tensor([LEVEL, HEIGHT], dtype=torch.float64))
    answers = {
        "on_infeasible='nearest': every row yields": hn.layers.Projection(limits & barriers, on_infeasible="nearest"),
        "Box & Relaxed(barriers): limits hold": hn.layers.Projection(limits & hn.Relaxed(barriers)),
    }
    figure, axes = panels(palette, 2, 3.9)
    for panel, (title, layer) in zip(axes, answers.items(), strict=True):
        bare(panel)
        square = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
        panel.add_patch(Polygon(square, facecolor=palette.fill, edgecolor=palette.good, linewidth=1.5))
        panel.plot([LEVEL, LEVEL], [-2.1, 2.3], color=palette.bad)
        panel.plot([-2.2, 2.6], [HEIGHT + SLOPE * u for u in (-2.2, 2.6)], color=palette.bad)
        panel.text(LEVEL + 0.08, 2.0, "barrier 1: right of it", color=palette.bad, fontsize=8.5)
        panel.text(-2.2, 0.95, "barrier 2:\nabove it", color=palette.bad, fontsize=8.5)
        panel.text(-0.94, -0.92, "limits", color=palette.good, fontsize=9)
        moved(panel, STARTS, layer(STARTS), palette.ink, "")
        panel.plot(*STARTS.T, "o", markerfacecolor="none", markeredgecolor=palette.soft, markersize=8)
        panel.set(xlim=(-2.3, 3.4), ylim=(-2.1, 2.3))
        panel.set_title(title)
    return figure


def boxes(palette: Palette, steps: list[tuple[str, str]], height: float = 1.15) -> Figure:
    """Steps from left to right, each a word in a box with a caption below; the last but one is the layer."""
    figure, (panel,) = panels(palette, 1, height)
    panel.set_axis_off()
    for i, (word, below) in enumerate(steps):
        layer = i == len(steps) - 2
        edge, face = (palette.good, palette.fill) if layer else (palette.line, "none")
        style = "round,pad=0.02,rounding_size=0.06"
        panel.add_patch(FancyBboxPatch((i * 1.3, 0.35), 1.0, 0.4, boxstyle=style, edgecolor=edge, facecolor=face))
        panel.text(i * 1.3 + 0.5, 0.55, word, ha="center", va="center", fontsize=10)
        panel.text(i * 1.3 + 0.5, 0.14, below, ha="center", va="center", fontsize=8.5, color=palette.soft)
        if i + 1 < len(steps):
            arrow = {"arrowstyle": "-|>", "color": palette.soft}
            panel.annotate("", (i * 1.3 + 1.27, 0.55), (i * 1.3 + 1.04, 0.55), arrowprops=arrow)
    panel.set(xlim=(-0.05, len(steps) * 1.3 - 0.25), ylim=(0, 0.85))
    return figure


def order(palette: Palette) -> Figure:
    """The order in which the guarantee holds."""
    steps = [
        ("x", "natural units"),
        ("scale x", "inside the net"),
        ("network", "any module"),
        ("scale, noise", "on raw"),
    ]
    return boxes(palette, [*steps, ("layer", "C(x)"), ("y", "use as it is")])


def shipped(palette: Palette) -> Figure:
    """One graph for every target."""
    steps = [("model", "net and layer"), ("torch.export", "one fixed graph"), ("ONNX, .pt2", "files")]
    return boxes(palette, [*steps, ("y in C(x)", "enforced inside"), ("your program", "Python, C++, web")])


def house(palette: Palette) -> Figure:
    """The concepts of the library: problem, set, layer and model."""
    steps = [("problem", "data, loss"), ("set", "what is allowed"), ("layer", "how"), ("model", "net and layer")]
    return boxes(palette, steps)


PICTURES: dict[str, Draw] = {
    "idea": idea,
    "conditioning": conditioning,
    "relaxed": relaxed,
    "order": order,
    "shipped": shipped,
    "house": house,
}
