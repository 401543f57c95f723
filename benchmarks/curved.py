"""Curved sets: time and violation of the nearest point on cones, matrix inequalities and programs of other papers.

``python -m benchmarks curved --device cpu|cuda --out FILE``. Times on a CPU are processor time (one thread). On a GPU
eager calls are timed between events, and forward with backward also as replays of a CUDA graph. The programs:
SnareNet's QCQP (100 outputs, 50 equalities, m diagonal quadratics), FSNet's convex QCQP and SOCP (the same outputs and
equalities, a box, 50 quadratics or 50 cones of 50 x 100), each drawn as in its paper.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet as hn
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.experiments.timing import capture, measure_processor, time_all

ROUNDS, SEED = 5, 2025
PATIENCE = 10_000.0
"""If the first timed call on a CPU takes more milliseconds than this, it is the only one."""
OUTPUTS, EQUALITIES = 100, 50


class Case(NamedTuple):
    """A set, raw outputs ``(B, n)`` and the input ``(B, d)`` or None."""

    constraint: hn.sets.ConstraintSet
    raw: Tensor
    x: Tensor | None = None


class Source:
    """Uniform and normal draws in float64 from one stream."""

    def __init__(self, seed: int = SEED) -> None:
        self.stream = torch.Generator().manual_seed(seed)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform draws between two numbers."""
        return low + (high - low) * torch.rand(*shape, generator=self.stream, dtype=torch.float64)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal draws."""
        return torch.randn(*shape, generator=self.stream, dtype=torch.float64)


def identity(x: Tensor) -> Tensor:
    """The right-hand side is the input."""
    return x


def quadratic_program(samples: int, rows: int, *, halved: bool, reach: float) -> Case:
    """``A y = x`` and diagonal quadratics, as SnareNet (not halved) and FSNet (halved, with a box) draw them."""
    draw = Source()
    A, x = draw.uniform(-1, 1, EQUALITIES, OUTPUTS), draw.uniform(-reach, reach, samples, EQUALITIES)
    G, H = draw.uniform(-1, 1, rows, OUTPUTS), draw.uniform(0, 0.1, rows, OUTPUTS)
    inverse = torch.linalg.pinv(A)
    bound = (G @ inverse).abs().sum(-1) * reach
    if not halved:
        curved = torch.linalg.matrix_norm(inverse.mT @ torch.diag_embed(H) @ inverse, 2)
        bound = bound + curved * EQUALITIES * reach**2 + 0.1
    P = torch.diag_embed(H if halved else 2 * H)
    constraint: hn.sets.ConstraintSet = hn.Equality(A, identity)
    if halved:
        constraint = constraint & hn.Box(-5.0 * torch.ones(OUTPUTS, dtype=torch.float64), 5.0)
        bound = bound + (H * (inverse.abs().sum(-1) * reach).square()).sum(-1) / 2
    for i in range(rows):
        constraint = constraint & hn.Quadratic(P[i], G[i], -bound[i])
    return Case(constraint, draw.normal(samples, OUTPUTS), x)


def cone_program(samples: int, cones: int = 50, size: int = 50) -> Case:
    """``A y = x``, a box, and cones with a common boundary point, as FSNet draws them."""
    draw = Source()
    A, center = draw.uniform(-1, 1, EQUALITIES, OUTPUTS), draw.uniform(-1, 1, OUTPUTS)
    x = draw.uniform(-1, 1, samples, EQUALITIES)
    constraint = hn.Equality(A, identity) & hn.Box(-5.0 * torch.ones(OUTPUTS, dtype=torch.float64), 5.0)
    for _ in range(cones):
        G, h = draw.uniform(-1, 1, size, OUTPUTS), draw.uniform(-1, 1, size)
        c = draw.uniform(-1, 1, OUTPUTS)
        constraint = constraint & hn.SecondOrderCone(G, h, c, torch.linalg.vector_norm(G @ center + h) - c @ center)
    return Case(constraint, draw.normal(samples, OUTPUTS), x)


def matrix_inequality(samples: int, order: int = 4, n: int = 5) -> Case:
    """``F0(x) + sum y_i F_i(x)`` positive semidefinite, with its own matrices for every sample."""
    draw = Source()
    F, y, root = draw.normal(samples, n, order, order), draw.normal(samples, n), draw.normal(samples, order, order)
    F = (F + F.mT) / 2
    F0 = root @ root.mT / order - (y[..., None, None] * F).sum(1)
    x = torch.cat([F0.unsqueeze(1), F], 1)
    return Case(hn.LMI(lambda x: x[:, 0], lambda x: x[:, 1:]), y + 3 * draw.normal(samples, n), x)


def second_order_cone(samples: int, n: int = 10) -> Case:
    """``|A y + b| <= c'y + d``, with its own numbers for every sample."""
    draw = Source()
    K, k, y = draw.normal(samples, n + 1, n), draw.normal(samples, n), draw.normal(samples, n)
    value = (K[:, :n] @ y.unsqueeze(-1)).squeeze(-1) + k
    d = torch.linalg.vector_norm(value, dim=-1) - (K[:, n] * y).sum(-1) + 1
    x = torch.cat([K, torch.cat([k, d.unsqueeze(-1)], -1).unsqueeze(-1)], -1)
    cone = hn.SecondOrderCone(
        lambda x: x[:, :-1, :-1], lambda x: x[:, :-1, -1], lambda x: x[:, -1, :-1], lambda x: x[:, -1, -1]
    )
    return Case(cone, y + 3 * draw.normal(samples, n), x)


def cases(scale: float = 1.0) -> dict[str, Callable[[], Case]]:
    """All cases; `scale` shrinks the batches, for tests."""
    many, few = max(2, int(256 * scale)), max(2, int(100 * scale))
    train = max(2, int(512 * scale))
    return {
        "LMI 4 x 4, n = 5": lambda: matrix_inequality(many),
        "second-order cone, n = 10": lambda: second_order_cone(many),
        "SnareNet QCQP, 10 quadratics": lambda: quadratic_program(few, 10, halved=False, reach=0.5),
        "SnareNet QCQP, 100 quadratics": lambda: quadratic_program(few, 100, halved=False, reach=0.5),
        "FSNet convex QCQP": lambda: quadratic_program(train, 50, halved=True, reach=1.0),
        "FSNet convex SOCP": lambda: cone_program(train),
    }


def works(case: Case, device: str) -> tuple[hn.layers.HardNetCvx, dict[str, Callable[[], Any]]]:
    """The layer, and the calls to time."""
    layer = hn.layers.HardNetCvx(case.constraint.to(device), on_infeasible="nan")
    raw = case.raw.to(device).requires_grad_()
    x = None if case.x is None else case.x.to(device)
    weight = torch.linspace(-1, 1, raw.shape[-1], dtype=raw.dtype, device=device)
    both = lambda: torch.autograd.grad((layer(raw, x) * weight).sum(), raw)
    return layer, {"forward": lambda: layer(raw.detach(), x), "both": both}


def spent(work: Callable[[], Any], rounds: int) -> float:
    """Median milliseconds of processor time after a first call, which compiles; of one call beyond `PATIENCE`."""
    work()
    taken = [measure_processor(work)[0]]
    while len(taken) < rounds and taken[0] <= PATIENCE:
        taken.append(measure_processor(work)[0])
    return statistics.median(taken)


def captured(work: Callable[[], Any], replays: int = 10) -> float:
    """Milliseconds of one replay of the work as a CUDA graph."""
    graph = capture(work)
    return time_all({"replay": lambda: [graph.replay() for _ in range(replays)]}, "cuda")["replay"] / replays


def measure(case: Case, device: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Times, the share of samples that are answered, and the largest violation of these."""
    layer, todo = works(case, device)
    raw, x = case.raw.to(device), None if case.x is None else case.x.to(device)
    found: dict[str, Any] = {"samples": len(raw), "outputs": raw.shape[-1]}
    y = layer(raw, x)
    answered = ~y.isnan().any(-1)
    found["answered"] = answered.double().mean().item()
    worst = layer.constraint.violation(torch.where(answered.unsqueeze(-1), y, 0.0), x)
    found["violation"] = torch.where(answered, worst.reshape(len(raw), -1).amax(-1), 0.0).amax().item()
    if device == "cpu":
        found |= {f"{name} ms": spent(work, rounds) for name, work in todo.items()}
        return found
    found |= {f"{name} ms": value for name, value in time_all(todo, device).items()}
    found["both, captured ms"] = captured(todo["both"])
    return found


def curved_tables(folder: Path) -> str:
    """The recorded results, each file as a table with its environment."""
    return "\n".join(_recorded(path) for path in sorted(folder.glob("curved_*.json")))


def _recorded(path: Path) -> str:
    content = json.loads(path.read_text())
    rows, made = content["cases"], content["environment"]
    shown = [key for key in next(iter(rows.values())) if key.endswith("ms") or key in ("samples", "violation")]
    lines = [[name, *(f"{row[key]:.3g}" for key in shown)] for name, row in rows.items()]
    head = f"{made['device']}, torch {made['versions']['torch']}, float64, {made['date']} (`{made['command']}`)"
    note = "`both` is forward and backward; every sample was answered."
    return f"{head}. {note}\n\n{table_text(['set', *shown], lines)}\n"


def main_table(device: str, out: Path | None, scale: float = 1.0, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure all cases, print and write each one as it finishes; results of the same revision in the file are kept."""
    made = environment(device, SEED)
    content = {"environment": made, "clock": "wall" if device != "cpu" else "process", "cases": _written(out, made)}
    results = content["cases"]
    for name, case in cases(scale).items():
        if name not in results:
            results[name] = measure(case(), device, rounds)
            if out is not None:
                write_json(out, content, indent=1)
        print(name, results[name], flush=True)
    shown = [key for key in next(iter(results.values())) if key != "outputs"]
    print(table_text(["set", *shown], [[name, *(f"{row[key]:.4g}" for key in shown)] for name, row in results.items()]))
    return content


def _written(out: Path | None, made: dict[str, Any]) -> dict[str, Any]:
    """The cases in a file of this revision; none if the revision is unknown or its checkout has changes."""
    before = json.loads(out.read_text()) if out is not None and out.exists() else {}
    revision = made["revision"] or "changes"
    same = before.get("environment", {}).get("revision") == revision
    return before["cases"] if same and "changes" not in revision else {}
