"""Draw relaxed.png: limits of an actuator and two barriers that they contradict, with two answers to it.

python docs/pictures/relaxed.py
"""

from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor

import hardnet as hn

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

LEVEL, SLOPE, HEIGHT = 1.7, -0.25, 0.2
BARRIERS = torch.tensor([[1.0, 0.0], [-SLOPE, 1.0]], dtype=torch.float64)
LEVELS = torch.tensor([LEVEL, HEIGHT], dtype=torch.float64)
RAW = torch.tensor([[-0.6, 0.7], [-0.3, -0.9], [1.2, -1.6], [1.9, 0.1], [0.3, 1.7]], dtype=torch.float64)
INK, LIMIT, BARRIER, SOFT = "#1d2430", "#1a7f5a", "#b54708", "#98a2b3"


def answers() -> list[tuple[str, Tensor]]:
    """The outputs of both, each with a title."""
    limits = hn.Box(-torch.ones(2, dtype=torch.float64), 1.0)
    barriers = hn.Affine(BARRIERS, lower=LEVELS)
    nearest = hn.layers.Projection(limits & barriers, on_infeasible="nearest")(RAW)
    relaxed = hn.layers.Projection(limits & hn.Relaxed(barriers))(RAW)
    return [("on_infeasible='nearest': every row yields", nearest), ("Box & Relaxed(barriers): limits hold", relaxed)]


def draw(axes: Axes, title: str, outputs: Tensor) -> None:
    """One panel: the limits, the barriers, and an arrow from each raw output to its answer."""
    axes.add_patch(plt.Rectangle((-1, -1), 2, 2, facecolor="#e6f4ec", edgecolor=LIMIT, linewidth=1.5))
    axes.axvspan(-9, LEVEL, color=BARRIER, alpha=0.06, linewidth=0)
    axes.axvline(LEVEL, color=BARRIER, linewidth=1.5)
    across = [-9.0, 9.0]
    line = [HEIGHT + SLOPE * u for u in across]
    axes.plot(across, line, color=BARRIER, linewidth=1.5)
    axes.fill_between(across, line, -9, color=BARRIER, alpha=0.06, linewidth=0)
    axes.text(LEVEL + 0.06, 2.05, "barrier 1", color=BARRIER, fontsize=9)
    axes.text(-2.1, HEIGHT + SLOPE * -2.1 + 0.08, "barrier 2", color=BARRIER, fontsize=9)
    for start, end in zip(RAW.tolist(), outputs.tolist(), strict=True):
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": SOFT, "shrinkA": 3, "shrinkB": 3})
    axes.plot(*RAW.T, "o", color="white", markeredgecolor=SOFT, markersize=6)
    axes.plot(*outputs.T, "o", color=INK, markersize=6)
    axes.text(-0.95, -0.92, "limits", color=LIMIT, fontsize=9)
    axes.set(xlim=(-2.2, 2.6), ylim=(-2.1, 2.3), aspect="equal", xlabel="$u_1$", ylabel="$u_2$")
    axes.set_title(title, fontsize=10, color=INK)


def main() -> None:
    """Write the picture beside this file."""
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 4.4), layout="constrained")
    for axes, answer in zip(panels, answers(), strict=True):
        draw(axes, *answer)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
