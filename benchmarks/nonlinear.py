"""Nonlinear rows: share of samples that reach the set, distance, and cost of retraction, nearest point and backward.

Times on a CPU are processor time (one thread), the minimum of a few rounds; on a GPU wall time. Raw outputs are drawn
separately for each family, around a point of the set or around 0, with the noise in its name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from benchmarks.curved import Case
from hardnet.solvers.nonlinear.solve import NonlinearStatus
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.experiments.timing import capture, measure_cpu, measure_processor

ROUNDS, SEED = 2, 0
ENOUGH = 400.0
"""Milliseconds to spend on further rounds of quick calls."""
HORIZON, STEP = 10, 0.2
PASSES, MANY = (16, 8), 4096
"""Numbers of passes of captured layers, and the batch size of the small families on a GPU."""


def rows(g: Callable[..., Tensor], n: int, **options: Any) -> hn.Nonlinear:
    """The equalities g = 0."""
    return hn.Nonlinear(g, dim=n, lower=0.0, upper=0.0, **options)


def ellipsoid(y: Tensor, x: Any) -> Tensor:
    """An ellipsoid with axes 3, 1 and 1/2."""
    return (y[..., :1] / 3).square() + y[..., 1:2].square() + 4 * y[..., 2:].square() - 1


def hyperbola(y: Tensor, x: Any) -> Tensor:
    """``y1 y2 = 1``."""
    return y[..., :1] * y[..., 1:] - 1


def torus(y: Tensor, x: Any) -> Tensor:
    """A torus with radii 2 and 1/2."""
    around = torch.linalg.vector_norm(y[..., :2], dim=-1, keepdim=True)
    return (around - 2).square() + y[..., 2:].square() - 0.25


def parabola(y: Tensor, x: Tensor) -> Tensor:
    """``(y1 / 2)^2 + x^2 + y2 = 0``."""
    return (y[..., :1] / 2).square() + x.square() + y[..., 1:]


def rotation(y: Tensor, x: Any) -> Tensor:
    """``Q'Q = I`` for nine outputs: six rows."""
    Q = y.unflatten(-1, (3, 3))
    upper = torch.triu_indices(3, 3, device=y.device)
    return (Q.mT @ Q - torch.eye(3, dtype=y.dtype, device=y.device))[..., upper[0], upper[1]]


class RotationBySums(torch.nn.Module):
    """The same rows without a matrix product or indexing by two tensors, whose derivatives take many launches."""

    places: Tensor
    identity: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([0, 1, 2, 4, 5, 8]))
        self.register_buffer("identity", torch.tensor([1, 0, 0, 1, 0, 1], dtype=torch.float64))

    def forward(self, y: Tensor, x: Any) -> Tensor:
        """The upper triangle of ``Q'Q - I``."""
        Q = y.unflatten(-1, (3, 3))
        products = (Q.unsqueeze(-1) * Q.unsqueeze(-2)).sum(-3)
        return products.flatten(-2).index_select(-1, self.places) - self.identity


def column(y: Tensor, x: Tensor) -> Tensor:
    """Balances of an extractive distillation column: nine outputs, six rows, three of them bilinear."""
    y1, y2, y3, y4, y5, y6, y7, y8, y9 = y.unbind(-1)
    x1, x2, x3 = x.unbind(-1)
    own = [x1 + x2 - y1 - y2, 0.697616946 * x1 - y1 * y3 - y2 * y6, 0.302383054 * x1 - y1 * y4 - y2 * y7]
    return torch.stack([*own, y3 + y4 + y5 - 1, y6 + y7 + y8 - 1, x3 * y1 - y9], dim=-1)


def unicycle(y: Tensor, x: Tensor) -> Tensor:
    """Ten steps of a unicycle from x ``(..., 3)``: outputs are states ``(10, 3)``, then speeds and turning rates."""
    states, inputs = y[..., : 3 * HORIZON].unflatten(-1, (-1, 3)), y[..., 3 * HORIZON :].unflatten(-1, (-1, 2))
    before = torch.cat([x.unsqueeze(-2), states[..., :-1, :]], dim=-2)
    angle, speed = before[..., 2], inputs[..., 0]
    rate = torch.stack([speed * angle.cos(), speed * angle.sin(), inputs[..., 1]], dim=-1)
    return (states - before - STEP * rate).flatten(-2)


def keep_out(y: Tensor, x: Tensor) -> Tensor:
    """``q'Qq - 1 >= 0`` at each of ten positions q."""
    q = y[..., : 3 * HORIZON].unflatten(-1, (-1, 3))[..., :2]
    return 0.51020408 * q[..., 0].square() + 0.90702948 * q[..., 1].square() - 1


def planning(count: int, generator: torch.Generator) -> Case:
    """A unicycle that drives around an obstacle: 50 outputs, 30 equalities, 10 curved rows and 20 bounds."""
    draw = torch.rand(8 * count, 3, generator=generator, dtype=torch.float64)
    start = draw.new_tensor([-4.0, -2.4, -0.45]) + draw * draw.new_tensor([1.8, 4.8, 0.9])
    outside = (start[:, :2].square() * start.new_tensor([0.51020408, 0.90702948])).sum(-1) > 1.2
    start = start[outside][:count]
    share = torch.linspace(1 / HORIZON, 1, HORIZON, dtype=torch.float64).unsqueeze(-1)
    way = start.unsqueeze(-2) * (1 - share)
    guess = torch.cat([way.flatten(-2), torch.ones(count, 2 * HORIZON, dtype=torch.float64)], dim=-1)
    raw = guess + 0.3 * torch.randn(guess.shape, generator=generator, dtype=torch.float64)
    limit = torch.full((3 * HORIZON,), torch.inf, dtype=torch.float64)
    low = torch.cat([-limit, raw.new_tensor([0.0, -1.5]).repeat(HORIZON)])
    high = torch.cat([limit, raw.new_tensor([2.0, 1.5]).repeat(HORIZON)])
    n = raw.shape[-1]
    constraint = rows(unicycle, n) & hn.Nonlinear(keep_out, dim=n, lower=0.0) & hn.Box(low, high)
    return Case(constraint, raw, start)


class Quadratics(torch.nn.Module):
    """``y'A_i y + c_i'y - x_i`` for 50 rows on 100 outputs, with their Jacobian; a module, so it moves with the set."""

    A: Tensor
    c: Tensor
    S: Tensor

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        A = torch.randn(50, 100, 100, generator=generator, dtype=torch.float64) / 100
        c = torch.randn(50, 100, generator=generator, dtype=torch.float64) / 10
        for name, number in (("A", A), ("c", c), ("S", A + A.mT)):
            self.register_buffer(name, number)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """The values of the rows."""
        return torch.einsum("bi,mij,bj->bm", y, self.A, y) + y @ self.c.mT - x

    def slope(self, y: Tensor, x: Tensor) -> Tensor:
        """Their Jacobian."""
        return torch.einsum("mij,bj->bmi", self.S, y) + self.c


def quadratics(count: int, noise: float, generator: torch.Generator) -> Case:
    """50 quadratic equalities on 100 outputs, with their Jacobian, around a point of the set."""
    g = Quadratics(generator)
    point = torch.randn(count, 100, generator=generator, dtype=torch.float64)
    x = g(point, torch.zeros(1, dtype=torch.float64))
    raw = point + noise * torch.randn(count, 100, generator=generator, dtype=torch.float64)
    return Case(rows(g, 100, jacobian=g.slope), raw, x)


def families(scale: float = 1.0) -> dict[str, Case]:
    """All families; `scale` changes the batch sizes."""
    generator = torch.Generator().manual_seed(SEED)
    many, few = max(2, int(1000 * scale)), max(2, int(100 * scale))
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    feed = torch.tensor([0.363557425, 1.312977767, 2.5], dtype=torch.float64).expand(many, 3)
    usual = torch.tensor([0.2, 1.5, 0.1, 0.9, 0.05, 0.1, 0.05, 0.8, 0.3], dtype=torch.float64)
    return {
        "ellipsoid, noise 2": Case(rows(ellipsoid, 3), 2 * draw(many, 3)),
        "hyperbola, noise 2": Case(rows(hyperbola, 2), 2 * draw(many, 2)),
        "torus, noise 2": Case(rows(torus, 3), 2 * draw(many, 3)),
        "parabola, noise 2": Case(
            rows(parabola, 2), 2 * draw(many, 2), torch.rand(many, 1, generator=generator, dtype=torch.float64)
        ),
        "rotation, noise 0.3": Case(rows(rotation, 9), torch.eye(3).double().flatten() + 0.3 * draw(many, 9)),
        "rotation by sums, noise 0.3": Case(
            rows(RotationBySums(), 9), torch.eye(3).double().flatten() + 0.3 * draw(many, 9)
        ),
        "column, noise 0.2": Case(rows(column, 9), usual + 0.2 * draw(many, 9), feed),
        "unicycle, noise 0.3": planning(few, generator),
        "quadratics, noise 0.3": quadratics(max(2, int(64 * scale)), 0.3, generator),
        "quadratics, noise 1": quadratics(max(2, int(64 * scale)), 1.0, generator),
    }


def timed(work: Callable[[], Any], device: str, rounds: int) -> tuple[float, Any]:
    """Minimum milliseconds over `rounds` calls, plus more of quick calls until `ENOUGH`, and a result."""

    def finish() -> Any:
        result = work()
        torch.cuda.synchronize()
        return result

    once = lambda: measure_cpu(finish) if device == "cuda" else measure_processor(work)
    calls = [once() for _ in range(rounds)]
    least = min(elapsed for elapsed, _ in calls)
    more = [once()[0] for _ in range(int(ENOUGH / max(least, 1.0)) if rounds > 1 else 0)]
    return min(least, *more) if more else least, calls[-1][1]


def measure(family: Case, device: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Times and shares of one family."""
    constraint, raw = family.constraint.to(device), family.raw.to(device)
    x = None if family.x is None else family.x.to(device)
    layers = {
        mode: hn.layers.NonlinearLayer(constraint, mode=mode, on_infeasible="nearest", on_unsolved="best")
        for mode in ("retract", "nearest")
    }
    found: dict[str, Any] = {"samples": len(raw), "outputs": raw.shape[-1]}
    away = {}
    for mode, layer in layers.items():
        found[f"{mode} ms"], solution = timed(lambda own=layer: own.solve(raw, x), device, rounds)
        status = solution.status
        feasible = (status != NonlinearStatus.NOT_CONVERGED) & (status != NonlinearStatus.INFEASIBLE_LOCAL)
        found[f"{mode} feasible"] = feasible.double().mean().item()
        found[f"{mode} ok"] = (status == NonlinearStatus.OK).double().mean().item()
        found[f"{mode} violation"] = constraint.violation(solution.y, x)[feasible].amax().item()
        away[mode] = torch.where(feasible, torch.linalg.vector_norm(solution.y - raw, dim=-1), torch.nan)
    ratio = (away["retract"] / away["nearest"].clamp_min(1e-9)).nan_to_num(1.0)
    found["farther, mean"], found["farther, most"] = ratio.mean().item(), ratio.amax().item()
    leaf = raw.clone().requires_grad_()
    y = layers["nearest"](leaf, x)
    found["backward ms"] = timed(lambda: torch.autograd.grad(y.sum(), leaf, retain_graph=True), device, rounds)[0]
    for mode in layers if device == "cuda" else ():
        for passes in PASSES:
            found |= captured(constraint, raw, x, mode, passes)
    return found


def captured(
    constraint: hn.sets.ConstraintSet, raw: Tensor, x: Tensor | None, mode: Any, passes: int
) -> dict[str, Any]:
    """Milliseconds of a CUDA graph with this many passes, forward and with backward, and the share of ok samples."""
    layer = hn.layers.NonlinearLayer(
        constraint, mode=mode, iterations=passes, on_infeasible="nearest", on_unsolved="best"
    )
    leaf, own = raw.clone().requires_grad_(), f"{mode}, {passes} passes captured"
    found: dict[str, Any] = {f"{own}, ok": (layer.solve(raw, x).status == 0).double().mean().item()}
    ways = {"forward": lambda: layer(leaf, x), "both": lambda: torch.autograd.grad(layer(leaf, x).sum(), leaf)}
    for name, work in ways.items():
        try:
            found[f"{own}, {name} ms"] = timed(capture(work).replay, "cuda", 5)[0]
        except RuntimeError as error:  # what cannot be captured is part of the result
            found[f"{own}, {name} ms"] = f"not captured: {str(error).splitlines()[0]}"
    return found


def main_table(device: str, out: Path | None, scale: float | None = None, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure, print and write all families; on a GPU with `MANY` samples of the small ones."""
    results: dict[str, Any] = {}
    content = {"environment": environment(device, SEED), "clock": "wall" if device == "cuda" else "process"}
    content |= {"families": results}
    scale = (MANY / 1000 if device == "cuda" else 1.0) if scale is None else scale
    for name, family in families(scale).items():
        results[name] = measure(family, device, rounds)
        print(name, results[name], flush=True)
        if out is not None:
            write_json(out, content, indent=1)
    shown = (
        "retract ms",
        "nearest ms",
        "backward ms",
        "nearest ok",
        "retract feasible",
        "farther, mean",
        "farther, most",
    )
    lines = [[name, *(f"{row[key]:.4g}" for key in shown)] for name, row in results.items()]
    print(table_text(["family", *shown], lines))
    return content
