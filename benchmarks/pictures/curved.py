"""Picture of raw outputs, their retraction and their nearest point on two curved sets."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import hardnet as hn
from benchmarks.nonlinear import rows, torus
from benchmarks.pictures.explained import moved
from benchmarks.pictures.style import Draw, Palette, bare, panels

ON_PLANE = [[4.0, 1.0], [1.0, 0.2], [2.0, 2.0], [-2.2, 0.3], [-1.5, -1.8], [0.6, -0.35]]
ON_SECTION = [[3.1, 0.0, 0.6], [2.1, 0.0, -0.1], [1.2, 0.0, 0.9], [2.6, 0.0, -1.0]]


def ellipse(y: Tensor, x: object) -> Tensor:
    """``(y1 / 3)^2 + y2^2 = 1``."""
    return (y[..., :1] / 3).square() + y[..., 1:].square() - 1


def nonlinear(palette: Palette) -> Figure:
    """An ellipse and a section through a torus."""
    figure, axes = panels(palette, 2, 3.0, [1.5, 1.0])
    angle = torch.linspace(0, 6.2832, 200, dtype=torch.float64)
    plane = torch.tensor(ON_PLANE, dtype=torch.float64)
    axes[0].plot(3 * angle.cos(), angle.sin(), color=palette.soft)
    _draw(axes[0], rows(ellipse, 2), plane, [0, 1], palette)
    axes[0].set_title("ellipse", color=palette.ink)
    section = torch.tensor(ON_SECTION, dtype=torch.float64)
    axes[1].plot(2 + 0.5 * angle.cos(), 0.5 * angle.sin(), color=palette.soft)
    _draw(axes[1], rows(torus, 3), section, [0, 2], palette)
    axes[1].set_title("section through a torus", color=palette.ink)
    handles, labels = axes[0].get_legend_handles_labels()
    box = figure.legend(handles, labels, loc="outside lower center", ncols=3)
    box.get_frame().set_visible(False)
    return figure


def _draw(panel: Axes, constraint: hn.Nonlinear, raw: Tensor, shown: list[int], palette: Palette) -> None:
    """Raw outputs and the results of the two modes."""
    bare(panel)
    for mode, color, style in (("retract", palette.bad, "--"), ("nearest", palette.good, "-")):
        y = hn.layers.NonlinearLayer(constraint, mode=mode)(raw)
        label = {"retract": "retraction", "nearest": "nearest point"}[mode]
        moved(panel, raw[:, shown], y[:, shown], color, label, style)
    face = {"markerfacecolor": "none", "markeredgecolor": palette.ink}
    panel.plot(*raw[:, shown].T, "o", markersize=8, label="raw output", zorder=4, **face)


PICTURES: dict[str, Draw] = {"nonlinear": nonlinear}
