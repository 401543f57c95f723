"""Pictures of the guides: small seeded runs of the code on their pages."""

from __future__ import annotations

from functools import cache

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from torch import Tensor, nn

import hardnet as hn
from benchmarks.pictures.style import Draw, Palette, bare, legend, panels

GOAL, CENTER, RADIUS, RATE = torch.tensor([3.0, 0.0]), torch.tensor([1.5, 0.1]), 0.7, 2.0
STAY_OUT = hn.Affine(
    lambda p: 2 * (p - CENTER).unsqueeze(-2),
    lower=lambda p: -RATE * ((p - CENTER).square().sum(-1, keepdim=True) - RADIUS**2),
)


@cache
def drives(filtered: bool) -> Tensor:
    """Paths ``(steps, starts, 2)`` of the controller ``goal - p``, without or with the layer."""
    layer = hn.layers.Projection(STAY_OUT)
    places = [torch.stack([torch.full((10,), -0.4), torch.linspace(-0.9, 0.9, 10)], -1)]
    for _ in range(200):
        wish = GOAL - places[-1]
        places.append(places[-1] + 0.02 * (layer(wish, places[-1]) if filtered else wish))
    return torch.stack(places)


def filtered(palette: Palette) -> Figure:
    """The same controller with and without the filter."""
    figure, axes = panels(palette, 2, 2.7)
    for panel, on, title in zip(axes, (False, True), ("the controller alone", "behind the layer"), strict=True):
        bare(panel)
        panel.add_patch(Circle(CENTER.tolist(), RADIUS, facecolor="none", edgecolor=palette.bad, hatch="///"))
        for path in drives(on).unbind(1):
            panel.plot(*path.T, color=palette.good if on else palette.soft, linewidth=1.4)
            panel.plot(*path[0], "o", color=palette.ink, markersize=3)
        panel.plot(*GOAL, "*", color=palette.other, markersize=13)
        panel.set(xlim=(-0.6, 3.3), ylim=(-1.1, 1.15))
        panel.set_title(title)
    return figure


def simulate(x: Tensor) -> Tensor:
    """One step of five tanks that exchange a share of their content; the total is conserved."""
    source = torch.Generator().manual_seed(0)
    share = torch.rand(5, 5, generator=source)
    share = torch.linalg.matrix_exp(0.1 * (share - torch.diag(share.sum(0))))
    return x + (x / (1 + x)) @ (share - torch.eye(5)).T


def starts(count: int, source: torch.Generator) -> Tensor:
    """Uniform points of the simplex, times a total between 0.5 and 2."""
    amounts = -torch.rand(count, 5, generator=source).log()
    return (0.5 + 1.5 * torch.rand(count, 1, generator=source)) * amounts / amounts.sum(-1, keepdim=True)


@cache
def totals(enforced: bool) -> Tensor:
    """Total mass ``(steps, starts)`` of a surrogate applied to its own output, relative to the start."""
    torch.manual_seed(1)
    source = torch.Generator().manual_seed(2)
    law = hn.Equality(torch.ones(1, 5), lambda x: x.sum(-1, keepdim=True)) & hn.Box(lower=0.0)
    net = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 5))
    model = hn.HardNet(net, law, method="auto" if enforced else "none")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        x = starts(64, source)
        loss = (model(x) - simulate(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    states = [starts(20, source)]
    with torch.no_grad():
        for _ in range(200):
            states.append(model(states[-1]))
    mass = torch.stack(states).sum(-1)
    return mass / mass[0]


def surrogate(palette: Palette) -> Figure:
    """The total mass of both surrogates over time."""
    figure, (panel,) = panels(palette, 1, 2.7)
    for enforced, label, color in ((False, "network alone", palette.bad), (True, "law enforced", palette.good)):
        for i, line in enumerate(totals(enforced).unbind(1)):
            panel.plot(line, color=color, linewidth=1.1, label=label if i == 0 else None)
    panel.set(xlabel="step", ylabel="total mass / at the start")
    legend(panel, palette, loc="best")
    return figure


@cache
def portfolios() -> tuple[Tensor, Tensor, Tensor]:
    """The limits, and the risks of a softmax and of the enforced weights."""
    torch.manual_seed(0)
    factor = torch.tril(0.05 + 0.1 * torch.rand(5, 5, dtype=torch.float64))
    floor = (factor.T @ torch.full((5,), 0.2, dtype=torch.float64)).norm()
    limit = lambda x: floor * (1.05 + x[..., 0].abs())
    zeros = torch.zeros(5, dtype=torch.float64)
    allowed = hn.Simplex(5) & hn.SecondOrderCone(A=factor.T, b=zeros, c=zeros, d=limit)
    x = 0.12 * torch.randn(300, 1, dtype=torch.float64)
    raw = (3 * torch.randn(300, 5, dtype=torch.float64)).softmax(-1)
    y = hn.layers.HardNetCvx(allowed)(raw, x)
    return limit(x), (raw @ factor).norm(dim=-1), (y @ factor).norm(dim=-1)


def portfolio(palette: Palette) -> Figure:
    """The risk plotted over its limit."""
    figure, (panel,) = panels(palette, 1, 3.0)
    limit, before, after = portfolios()
    panel.plot(limit, before, "o", markerfacecolor="none", color=palette.bad, markersize=4, label="softmax")
    panel.plot(limit, after, "o", color=palette.good, markersize=3, label="after the layer")
    ends = [limit.min(), limit.max()]
    panel.plot(ends, ends, color=palette.other, linestyle=":", label="limit")
    panel.set(xlabel="limit on the risk of this sample", ylabel="risk |L'w|")
    panel.margins(y=0.2)
    legend(panel, palette, loc="upper left", ncols=3)
    return figure


SPREAD = torch.tensor([1.0, 0.1, 0.2, 0.4, 2.0], dtype=torch.float64)


def forecasts(palette: Palette) -> Figure:
    """Errors of a total and its regions, before and after two projections."""
    torch.manual_seed(0)
    sums = torch.tensor([[-1.0, 1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    regions = 10 + torch.randn(2000, 4, dtype=torch.float64)
    truth = torch.cat([regions.sum(-1, keepdim=True), regions], -1)
    raw, zero = truth + SPREAD * torch.randn_like(truth), torch.zeros(1, dtype=torch.float64)
    bars = {
        "as they come": (raw, palette.soft),
        "nearest point": (hn.functional.project_affine(raw, sums, zero, zero), palette.bad),
        "in the metric of the errors": (
            hn.functional.project_affine(raw, sums, zero, zero, metric=1 / SPREAD**2),
            palette.good,
        ),
    }
    figure, (panel,) = panels(palette, 1, 2.8)
    for i, (label, (y, color)) in enumerate(bars.items()):
        heights = (y - truth).square().mean(0).sqrt().tolist()
        drawn = panel.bar([k + 0.27 * (i - 1) for k in range(5)], heights, 0.25, color=color, label=label)
        panel.bar_label(drawn, fmt="%.2f", fontsize=7.5, color=palette.ink, padding=2)
    panel.set_xticks(range(5), ["total", *(f"region {i}" for i in range(1, 5))])
    panel.set_ylabel("root mean square error")
    legend(panel, palette, loc="upper center")
    return figure


def actions(palette: Palette) -> Figure:
    """Power of the battery over its charge: raw actions, enforced actions and limits."""
    torch.manual_seed(0)
    charge, demand = torch.rand(400, 1), 0.2 + 0.6 * torch.rand(400, 1)
    lower = torch.cat([-(1 - charge).clamp(max=0.5), torch.zeros_like(charge)], -1)
    upper = torch.cat([charge.clamp(max=0.5), torch.ones_like(charge)], -1)
    wish = torch.cat([0.5 * torch.randn(400, 1), demand], -1)
    played = hn.functional.project_box_rows(wish, torch.ones(1, 2), demand, demand, box_lower=lower, box_upper=upper)
    figure, axes = panels(palette, 2, 2.8)
    for panel, power, title, color in (
        (axes[0], wish, "wishes of a random policy", palette.bad),
        (axes[1], played, "after the layer", palette.good),
    ):
        limits(panel, palette)
        panel.plot(charge, power[:, 0], "o", color=color, markersize=3)
        panel.set(title=title, xlabel="charge of the battery", ylim=(-1.6, 1.6))
    axes[0].set_ylabel("power of the battery")
    return figure


def limits(panel: Axes, palette: Palette) -> None:
    """The power that the battery can give and take, over its charge."""
    charge = torch.linspace(0, 1, 101)
    lower, upper = -(1 - charge).clamp(max=0.5), charge.clamp(max=0.5)
    panel.fill_between(charge, lower, upper, color=palette.fill, linewidth=0)


def trades(palette: Palette) -> Figure:
    """Trades of a softmax and of the layer, asset by asset, for a budget of turnover."""
    torch.manual_seed(0)
    held = torch.softmax(0.5 * torch.randn(24), -1)
    wished = torch.softmax(held.log() + 0.6 * torch.randn(24), -1)
    allowed = hn.Simplex(24) & hn.L1Ball(held, 0.2)
    enforced = hn.layers.HardNetCvx(allowed)(wished)
    figure, axes = panels(palette, 2, 2.6)
    for panel, weights, color, title in (
        (axes[0], wished, palette.bad, "softmax"),
        (axes[1], enforced, palette.good, "behind the layer"),
    ):
        moved = weights - held
        panel.bar(range(24), moved, color=color)
        panel.axhline(0, color=palette.line, linewidth=1)
        turnover, count = moved.abs().sum().item(), int((moved != 0).sum())
        panel.set(title=f"{title}: turnover {turnover:.2f}, {count} trades", xlabel="asset", ylim=(-0.07, 0.07))
    axes[0].set_ylabel("change of the weight")
    return figure


def inside(palette: Palette) -> Figure:
    """Samples of a Gaussian that are projected onto a set, and those of the distribution on the set."""
    torch.manual_seed(0)
    allowed = hn.Ball([0.0, 0.0], 1.0) & hn.Affine([[1.0, 1.0]], upper=0.6)
    base = torch.distributions.Independent(torch.distributions.Normal(torch.tensor([0.3, 0.2]), 0.8), 1)
    raw = base.sample((600,))
    projected = hn.layers.HardNetCvx(allowed)(raw)
    figure, axes = panels(palette, 2, 3.2)
    for panel, points, color, title in (
        (axes[0], projected, palette.bad, f"projected: {int((projected != raw).any(-1).sum())} of 600 on the boundary"),
        (axes[1], hn.distributions.Feasible(base, allowed).sample((600,)), palette.good, "Feasible: none"),
    ):
        bare(panel)
        panel.add_patch(Circle((0, 0), 1, facecolor=palette.fill, edgecolor=palette.line))
        panel.plot([-0.458, 1.058], [1.058, -0.458], color=palette.line, linewidth=1)
        panel.plot(*points.mT, "o", color=color, markersize=2)
        panel.set(title=title, aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    return figure


def ways(palette: Palette) -> Figure:
    """Where the points of the plane go: to the nearest of three pieces."""
    torch.manual_seed(0)
    allowed = hn.Box([-1.0, -0.8], [-0.2, 0.4]) | hn.Ball([0.8, 0.5], 0.45) | hn.Box([0.1, -1.0], [1.3, -0.7])
    raw = torch.rand(260, 2) * torch.tensor([3.0, 2.4]) - torch.tensor([1.4, 1.3])
    found = hn.layers.UnionLayer(allowed).solve(raw)
    figure, (panel,) = panels(palette, 1, 3.4)
    bare(panel)
    panel.add_patch(Rectangle((-1.0, -0.8), 0.8, 1.2, facecolor=palette.fill, edgecolor=palette.line))
    panel.add_patch(Circle((0.8, 0.5), 0.45, facecolor=palette.fill, edgecolor=palette.line))
    panel.add_patch(Rectangle((0.1, -1.0), 1.2, 0.3, facecolor=palette.fill, edgecolor=palette.line))
    for piece, color in enumerate((palette.good, palette.bad, palette.other)):
        own = found.piece == piece
        for start, end in zip(raw[own], found.y[own], strict=True):
            panel.plot([start[0], end[0]], [start[1], end[1]], color=color, linewidth=0.7)
        panel.plot(*raw[own].mT, "o", color=color, markersize=2.5)
    panel.set(aspect="equal", xlim=(-1.5, 1.7), ylim=(-1.4, 1.2))
    return figure


def profile(palette: Palette) -> Figure:
    """A noisy profile and the nearest rising one between bounds of each output."""
    torch.manual_seed(1)
    place = torch.arange(30.0)
    raw = 3 * torch.sigmoid((place - 15) / 5) + 0.7 * torch.randn(30)
    lower, upper = 2.6 * torch.sigmoid((place - 19) / 4) - 0.1, 3.2 * torch.sigmoid((place - 9) / 5) + 0.1
    y = hn.functional.project_monotone(raw, lower, upper)
    figure, (panel,) = panels(palette, 1, 2.8)
    panel.fill_between(place, lower, upper, color=palette.fill, linewidth=0, step="mid")
    panel.plot(place, raw, "o", color=palette.bad, markersize=4, label="raw")
    panel.step(place, y, where="mid", color=palette.good, linewidth=2, label="nearest rising profile")
    panel.set(xlabel="index", ylabel="output")
    legend(panel, palette)
    return figure


def mixing(palette: Palette) -> Figure:
    """The part of doubly stochastic matrices that pass a gradient to their logits, over the scale of these."""
    generator = torch.Generator().manual_seed(0)
    logits, upstream = (torch.randn(1024, 16, generator=generator) for _ in range(2))
    scales = [1, 2, 3, 5, 8, 12, 20, 30, 40]
    matrices = hn.DoublyStochastic(4)
    figure, (panel,) = panels(palette, 1, 2.8)
    for options, color, title in (
        ({"metric": "entropy"}, palette.good, "entropy"),
        ({"on_unsolved": "nan"}, palette.bad, "nearest"),
    ):
        layer, sizes = hn.layers.Projection(matrices, **options), []
        for scale in scales:
            raw = (scale * logits).requires_grad_()
            sizes.append(torch.autograd.grad(layer(raw), raw, upstream)[0].norm(dim=-1))
        for least, style in ((1e-3, "-"), (1e-8, "--")):
            part = [100 * (size > least).double().mean().item() for size in sizes]
            panel.plot(scales, part, style, color=color, label=f"{title}, longer than {least:.0e}")
    panel.set(xlabel="scale of the logits", ylabel="matrices with a gradient (%)", xscale="log", ylim=(0, 103))
    legend(panel, palette)
    return figure


def clamped(wish: Tensor, start: float, rate: float, acceleration: float) -> Tensor:
    """Bounds of 1, then the rate, then the acceleration, one clamp after the other."""
    plan, last = wish.clamp(-1, 1).tolist(), start
    for t, value in enumerate(plan):
        plan[t] = last = min(max(value, last - rate), last + rate)
    before, last = start, plan[0]
    for t, value in enumerate(plan[1:], 1):
        straight = 2 * last - before
        plan[t] = min(max(value, straight - acceleration), straight + acceleration)
        before, last = last, plan[t]
    return torch.tensor(plan)


def horizon(palette: Palette) -> Figure:
    """A noisy plan, three clamps, and the nearest plan within all limits."""
    torch.manual_seed(0)
    time = torch.arange(50.0)
    wish = 1.1 * torch.sin(time / 8) + 0.3 * torch.randn(50)
    plan = hn.layers.Projection(hn.Horizon(50, -1.0, 1.0, 0.2, 0.1, previous=0.0))(wish)
    figure, (panel,) = panels(palette, 1, 2.8)
    panel.axhspan(-1, 1, color=palette.fill, linewidth=0)
    panel.plot(time, wish, "o", color=palette.line, markersize=3, label="wish")
    panel.plot(time, clamped(wish, 0.0, 0.2, 0.1), color=palette.bad, label="three clamps")
    panel.plot(time, plan, color=palette.good, linewidth=2, label="nearest plan")
    panel.set(xlabel="time", ylabel="action")
    legend(panel, palette)
    return figure


PICTURES: dict[str, Draw] = {
    "ways": ways,
    "inside": inside,
    "horizon": horizon,
    "mixing": mixing,
    "profile": profile,
    "trades": trades,
    "filter": filtered,
    "surrogate": surrogate,
    "portfolio": portfolio,
    "forecasts": forecasts,
    "actions": actions,
}
