"""The paper's figures, drawn from result files: learned functions, trajectories, gradient paths, learning curves."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import MissingExtraError
from hardnet.files import write_atomically
from hardnet.layers.hardnet_aff import HardNetAff
from hardnet.model import HardNet
from hardnet_lab.experiments.results import Result
from hardnet_lab.problems import Piecewise, Policy, Problem, Programs, Unicycle, gradient_path
from hardnet_lab.problems.barrier import OBSTACLES
from hardnet_lab.problems.gradient_path import CEILING, TARGETS
from hardnet_lab.problems.suites import SuiteProblem
from hardnet_lab.problems.unicycle import Rollout
from hardnet_lab.train import stacked_net

COLORS = {
    "nn": "#7f8fa6",
    "soft": "#e0a100",
    "dc3": "#c0504d",
    "dc3-tuned": "#e08e79",
    "aff": "#1a7f5a",
    "projection": "#2f6db5",
    "projection-best": "#d4377d",
    "cbf-qp": "#7d4fa3",
    "optimal": "#111111",
}
DASHES = {"soft": (4, 1.5), "dc3-tuned": (2, 1), "projection": (3, 2)}
"""Lines that often coincide with another method's line are dashed, so that both are visible."""
OTHERS = ("#008b8b", "#a0522d", "#6a5acd", "#d02090", "#556b2f", "#b8860b")
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "hardnet",
}
Draw = Callable[[Any], None]
"""Draws on an empty matplotlib figure."""


def color(method: str) -> str:
    """The same color for a method in every figure."""
    return COLORS.get(method) or OTHERS[sum(method.encode()) % len(OTHERS)]


def _line(method: str) -> dict[str, Any]:
    """Color, width and dashes of a method's curve."""
    dashes = {"dashes": DASHES[method], "zorder": 3.5} if method in DASHES else {}
    return {"color": color(method), "lw": 1.5} | dashes


def render(draw: Draw, size: tuple[float, float], form: str) -> bytes:
    """Draw on a new figure and return it as ``"svg"`` or ``"png"``, without changing matplotlib's global state."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib") from None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        stream = io.BytesIO()
        figure.savefig(stream, format=form, dpi=160, metadata={"Date": None} if form == "svg" else None)
    return stream.getvalue()


def save(draw: Draw, size: tuple[float, float], path: Path) -> str:
    """Write ``path.svg`` and ``path.png``; return the SVG text."""
    drawing = render(draw, size, "svg")
    write_atomically(path.with_suffix(".svg"), drawing)
    write_atomically(path.with_suffix(".png"), render(draw, size, "png"))
    return drawing.decode()


def learned_functions(problem: Piecewise, results: Sequence[Result]) -> Draw:
    """Each method's learned function (first seed), before and after training, over the forbidden regions."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for panel, moment, title in zip(panels, ("first", "last"), ("before training", "after training"), strict=True):
            _piecewise_background(panel, problem)
            for result in results:
                _learned(panel, problem, result, moment)
            panel.set_title(title, fontsize=9)
            panel.set_xlabel("x")
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
        panels[0].set_ylabel("y")

    return draw


def _learned(panel: Any, problem: Piecewise, result: Result, moment: str) -> None:
    """One curve, with its mean squared error in the legend."""
    seeds = result.figures.get(moment, {}).get("y")
    if not seeds:
        return
    x, target = problem.test.squeeze(-1), problem.target(problem.test).squeeze(-1)
    y = torch.tensor(seeds[0], dtype=torch.float64)
    label = f"{result.label} ({(y - target).square().mean():.2f})"
    panel.plot(x.tolist(), y.tolist(), label=label, **_line(result.key))


def _piecewise_background(panel: Any, problem: Piecewise) -> None:
    """The forbidden regions, the true function and the training samples."""
    x, target = problem.test, problem.target(problem.test).squeeze(-1)
    low, high = allowed_interval(problem)
    bottom, top = -7.0, 7.0
    grid = x.squeeze(-1).tolist()
    panel.fill_between(grid, bottom, low.clamp_min(bottom).tolist(), color="#f3d9d6", lw=0, step="mid")
    panel.fill_between(grid, high.clamp_max(top).tolist(), top, color="#f3d9d6", lw=0, step="mid")
    panel.plot(grid, target.tolist(), color="black", lw=1, ls="--", label="true function", zorder=2.5)
    samples = problem.train.squeeze(-1).tolist(), problem.target(problem.train).squeeze(-1).tolist()
    panel.plot(*samples, "o", ms=3.5, mfc="white", mec="black", mew=0.7, label="training samples", zorder=4)
    panel.set_ylim(bottom, top)
    panel.set_xlim(-2, 2)


def allowed_interval(problem: Piecewise) -> tuple[torch.Tensor, torch.Tensor]:
    """The interval that each grid point allows, from ``lower <= a y <= upper`` with ``a = ±1``."""
    rows = problem.constraint.affine(problem.test, torch.zeros_like(problem.test))
    sign = rows.A.reshape(-1).expand(len(problem.test))
    endless = torch.full_like(sign, torch.inf)
    lower = -endless if rows.lower is None else rows.lower.squeeze(-1)
    upper = endless if rows.upper is None else rows.upper.squeeze(-1)
    return torch.where(sign > 0, lower, -upper), torch.where(sign > 0, upper, -lower)


def trajectories(results: Sequence[Result], references: Sequence[dict[str, Any]]) -> Draw:
    """The trajectories from the first test state under each method (first seed) and reference, with the mean cost."""

    def draw(figure: Any) -> None:
        from matplotlib.patches import Ellipse

        panel = figure.subplots()
        for cx, cy, rx, ry in OBSTACLES:
            panel.add_patch(Ellipse((cx, cy), 2 * rx, 2 * ry, color="#d9d9d9", zorder=1))
        for row in references:
            _trajectory(panel, row["trajectory"], row["method"], row["label"], row["metrics"]["cost"], "--")
        for result in results:
            paths = result.figures.get("last", {}).get("trajectory")
            if paths:
                _trajectory(panel, paths[0], result.key, result.label, result.metrics["cost"], "-")
        panel.plot([0], [0], "*", color="black", ms=9, zorder=5)
        panel.annotate("goal", (0, 0), textcoords="offset points", xytext=(6, 5), fontsize=8)
        panel.set_aspect("equal")
        panel.set_xlabel("$p_x$")
        panel.set_ylabel("$p_y$")
        panel.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    return draw


def _trajectory(panel: Any, path: list[list[float]], method: str, label: str, cost: list[float], line: str) -> None:
    text = f"{label} ({statistics.fmean(cost):.0f})"
    across, along = zip(*path, strict=True)
    panel.plot(across, along, line, color=color(method), lw=1.5, label=text, zorder=3)
    panel.plot(across[:1], along[:1], "o", color="black", ms=3, zorder=4)


def descent_paths(paths: Sequence[dict[str, Any]]) -> Draw:
    """Raw and enforced outputs along each descent, one color per sample; the forbidden top is shaded."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        for panel, path in zip(panels.flat, paths, strict=True):
            _descent(panel, path)
        for panel in panels[1]:
            panel.set_xlabel("$y_1$")
        for panel in panels[:, 0]:
            panel.set_ylabel("$y_2$")
        panels[1, 0].legend(loc="lower left")

    return draw


def _descent(panel: Any, path: dict[str, Any]) -> None:
    panel.axhspan(CEILING, 3, color="#f3d9d6", lw=0)
    for sample, shade in zip(range(path["samples"]), ("#2f6db5", "#1a7f5a"), strict=False):
        for kind, style, name in (("raw", ":", "network"), ("y", "-", "enforced")):
            across, along = zip(*(step[sample] for step in path[kind]), strict=True)
            panel.plot(
                across, along, style, color=shade, marker=".", ms=2.5, lw=1.2, label=f"{name}, sample {sample + 1}"
            )
        panel.plot(*TARGETS[sample], "*", color=shade, ms=11, mec="black", mew=0.5)
    count = "one sample" if path["samples"] == 1 else "two samples"
    panel.set_title(f"{count}, learning rate {path['learning_rate']:g}", fontsize=9)
    panel.set_ylim(-0.4, 1.7)


def learning_curves(results: Sequence[Result], objective: str, limit: float | None) -> Draw:
    """Objective by epoch and by training time, and largest violation: mean and range over the seeds."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 3)
        for result in results:
            _curve(panels[0], result, "objective")
            _curve(panels[1], result, "objective", by="seconds")
            _curve(panels[2], result, "violation", floor=1e-17)
        for panel in panels[:2]:
            _objective_axis(panel, objective, limit)
        panels[2].set_yscale("log")
        panels[1].set_xscale("log")
        named = zip(panels, (objective, objective, "largest violation"), ("epoch", "seconds", "epoch"), strict=True)
        for panel, title, below in named:
            panel.set_title(title, fontsize=9)
            panel.set_xlabel(below)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)

    return draw


def _objective_axis(panel: Any, objective: str, limit: float | None) -> None:
    """Draw the limit as a line, use a log scale for errors, and keep a bad start from dominating the axis."""
    if limit is not None:
        panel.axhline(limit, color="black", lw=0.8, ls="--", label="limit")
        bottom, top = panel.get_ylim()  # with margins, which grow with the worst start
        panel.set_ylim(max(bottom, limit - abs(limit)), min(top, limit + 3 * abs(limit)))
    panel.set_yscale("log" if objective == "mse" else "linear")


def gap_histogram(results: Sequence[Result], best: Sequence[float]) -> Draw:
    """The number of test samples by their gap to the best known value, ``(f - f*) / |f*|``, first seed."""

    def draw(figure: Any) -> None:
        panel = figure.subplots()
        edges = [10 ** (-6 + 0.25 * step) for step in range(29)]
        for result in results:
            values = result.figures.get("last", {}).get("per_sample")
            if values:
                gaps = [max((value - least) / abs(least), edges[0]) for value, least in zip(values, best, strict=True)]
                panel.hist(gaps, edges, histtype="step", color=color(result.key), lw=1.5, label=result.label)
        panel.set_xscale("log")
        panel.set_xlabel("gap to the best known value of the sample")
        panel.set_ylabel("test samples")
        panel.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    return draw


def _curve(panel: Any, result: Result, name: str, floor: float = -math.inf, by: str = "epoch") -> None:
    """The mean and range over the seeds; values below the floor, which a log scale cannot show, are drawn at it."""
    across = result.history.get(by, [])
    curves = [[max(value, floor) for value in values] for values in result.history.get(name, [])]
    if len(across) != len(curves) or not any(math.isfinite(value) for values in curves for value in values):
        return  # files of version 0.1 have no seconds
    panel.plot(across, [statistics.fmean(values) for values in curves], label=result.label, **_line(result.key))
    low, high = list(map(min, curves)), list(map(max, curves))
    panel.fill_between(across, low, high, color=color(result.key), alpha=0.18, lw=0)


# The data of the figures, computed from a model: learned functions, trajectories, descent paths.


@torch.no_grad()
def picture(problem: Problem, model: HardNet) -> dict[str, Any]:
    """The data of the problem's figure for a model; empty if the problem has no figure."""
    training = model.training
    model.eval()
    shown = {name: rounded(value) for name, value in drawn(problem, model, stacked_net(model).seeds).items()}
    model.train(training)
    return shown


def first_seed(model: HardNet) -> HardNet:
    """The model of the first seed only, in evaluation mode, so that iterative layers spend no time on other seeds."""
    return HardNet(stacked_net(model).only(0), model.constraint, model.layer).eval()


@singledispatch
def drawn(problem: Problem, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """The data of a problem's figure for a policy; empty for a problem without a figure."""
    return {}


@drawn.register
def _(problem: Piecewise, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """The learned function on the grid: y ``(seeds, 401)``."""
    return {"y": policy(problem.test.expand(seeds, -1, -1)).squeeze(-1)}


@drawn.register
def _(problem: Programs, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """The objective of every test instance by the first seed: ``(samples,)``."""
    return {"per_sample": problem.value(policy(problem.test.expand(seeds, -1, -1))[0])}


@drawn.register
def _(problem: SuiteProblem, policy: HardNet, seeds: int) -> dict[str, Tensor]:
    """The objective of every test instance by the first seed: ``(samples,)``."""
    x = problem.inputs(problem.test)
    return {"per_sample": problem.value(first_seed(policy)(x.unsqueeze(0))[0], x)}


@drawn.register
def _(problem: Unicycle, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """The first test state's trajectory for each seed, ``(seeds, sub-steps, 2)``, and the first seed's costs."""
    states: list[Tensor] = []
    all_of_one = problem.test.expand(seeds, -1, -1)
    end = problem.rollout(policy, all_of_one, problem.cost_and_residual, record=_keep(states))
    return {"trajectory": torch.stack(states, 1), "per_sample": end.total[0, :, 0]}


def _keep(states: list[Tensor]) -> Callable[[Rollout], None]:
    """A recorder of positions."""
    return lambda now: states.append(now.state[:, 0, :2])


def gradient_paths() -> dict[str, Any]:
    """The four descents of Appendix C through HardNet-Aff."""
    enforce = HardNetAff(gradient_path.constraint())
    paths = []
    for case in gradient_path.CASES:
        path = gradient_path.descend(enforce, case)
        numbers = {name: rounded(value) for name, value in path._asdict().items()}
        paths.append(case._asdict() | numbers)
    return {"paths": paths}


def rounded(value: Tensor, digits: int = 5) -> Any:
    """Nested lists of numbers, rounded to the digits that a drawing can show."""
    if value.dim() == 0:
        return round(value.item(), digits)
    return [rounded(part, digits) for part in value]
