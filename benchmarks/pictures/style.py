"""The two palettes and the common style of all pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH = 8.4
"""Width in inches at a font of 10 points, which the site and GitHub show without scaling text down."""


@dataclass(frozen=True)
class Palette:
    """Colors by meaning; each has a contrast of 4.5 or more on the page that it is for."""

    name: str
    ink: str
    soft: str
    line: str
    good: str
    fill: str
    bad: str
    other: str


LIGHT = Palette("light", "#1d2430", "#5b6470", "#d0d5dd", "#0b7a5b", "#d9efe6", "#b54708", "#3559b8")
DARK = Palette("dark", "#e8eaf0", "#aab2c0", "#4b5364", "#4fd1a5", "#1f4a41", "#ff9d5c", "#9db7ff")
Draw = Callable[[Palette], Figure]


def panels(
    palette: Palette, columns: int = 1, height: float = 3.2, ratios: list[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with one row of panels, without frames, on a transparent background."""
    ratios = ratios or [1.0] * columns
    figure, axes = plt.subplots(
        1, columns, figsize=(WIDTH, height), layout="constrained", width_ratios=ratios, squeeze=False
    )
    for panel in axes[0]:
        plain(panel, palette)
    return figure, list(axes[0])


def plain(panel: Axes, palette: Palette) -> None:
    """Show only the two axes with numbers, in muted colors."""
    panel.set_facecolor("none")
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(palette.line)
    panel.tick_params(colors=palette.soft, which="both", labelcolor=palette.soft)
    panel.xaxis.label.set_color(palette.soft)
    panel.yaxis.label.set_color(palette.soft)
    panel.title.set_color(palette.ink)


def bare(panel: Axes) -> None:
    """Show no axes, and use the same unit in both directions."""
    panel.set_axis_off()
    panel.set_aspect("equal")


def legend(panel: Axes, palette: Palette, **options: object) -> None:
    """A legend without a box."""
    box = panel.legend(frameon=False, fontsize=9, **options)
    for text in box.get_texts():
        text.set_color(palette.ink)


def save(name: str, draw: Draw, folder: Path = FOLDER) -> list[Path]:
    """Draw with both palettes; the files are reproducible, without dates or random identifiers."""
    written = []
    settings = {"svg.hashsalt": name, "font.size": 10, "axes.titlesize": 10, "axes.labelsize": 9, "xtick.labelsize": 9}
    settings |= {"ytick.labelsize": 9, "path.simplify": True}
    for palette in (LIGHT, DARK):
        path = folder / f"{name}-{palette.name}.svg"
        with mpl.rc_context(settings | {"text.color": palette.ink}):
            figure = draw(palette)
            figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
            plt.close(figure)
        written.append(path)
    return written
