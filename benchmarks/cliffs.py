"""Where speed used to end on a CPU: degenerate and sparse rows, states without an answer, several threads; with peers.

    python -m benchmarks cliffs --out results/bench/cliffs_cpu.json

Processor time of one thread, tools in turns, medians; the two threads of the last table by the clock. A peer counts
where its answers meet the rows to 1e-6 and are as near as ours. Solvers keep their factor or setting up where they can.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from scipy import sparse

import hardnet as hn
from benchmarks.structured import FAMILIES, Structured
from hardnet_lab.experiments.results import environment, write_json

SIZES, SEEDS, REPEATS = (60, 200), range(1000, 1004), 3
"""Outputs of the structured polyhedra, their seeds, and how often each is timed."""
PEERS = ("daqp", "clarabel", "piqp")
Solve = Callable[..., np.ndarray]
"""One raw, and other numbers for the equalities if they change, to one point."""


def by_daqp(p: Structured) -> Solve:
    """One sample by DAQP, the box as bounds."""
    import daqp

    A, lower, upper, low, high, _ = (part.numpy() for part in p)
    least, most = np.maximum(np.append(low, lower), -1e30), np.minimum(np.append(high, upper), 1e30)
    sense, H = np.where(least == most, 5, 0).astype(np.int32), np.eye(A.shape[1])
    return lambda raw: daqp.solve(H, -raw, A, most, least, sense)[0]


def by_clarabel(p: Structured) -> Solve:
    """One sample by Clarabel at 1e-9, with sparse rows and one setting up."""
    clarabel: Any = import_module("clarabel")
    A, lower, upper, low, high, _ = (part.numpy() for part in p)
    rows, eye, equal = sparse.csc_matrix(A), sparse.csc_matrix(np.eye(A.shape[1])), lower == upper
    parts = [(rows[equal], upper[equal])]
    for matrix, bound, sign in ((rows, upper, 1), (rows, lower, -1), (eye, high, 1), (eye, low, -1)):
        kept = np.isfinite(bound) & ~(equal if matrix is rows else np.zeros(len(bound), dtype=bool))
        parts.append((sign * matrix[kept], sign * bound[kept]))
    matrix, right = sparse.vstack([part for part, _ in parts]).tocsc(), np.concatenate([b for _, b in parts])
    cones = [clarabel.ZeroConeT(int(equal.sum())), clarabel.NonnegativeConeT(len(right) - int(equal.sum()))]
    options = clarabel.DefaultSettings()
    options.verbose, options.max_threads, options.presolve_enable = False, 1, False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-9
    solver = clarabel.DefaultSolver(eye, np.zeros(A.shape[1]), matrix, right, cones, options)

    def solve(raw: np.ndarray, reach: np.ndarray | None = None) -> np.ndarray:
        solver.update(q=-raw)
        if reach is not None:
            solver.update(b=np.append(reach, right[len(reach) :]))
        return np.array(solver.solve().x)

    return solve


def by_piqp(p: Structured) -> Solve:
    """One sample by PIQP at 1e-9, with sparse rows and one setting up."""
    import piqp

    A, lower, upper, low, high, _ = (part.numpy() for part in p)
    rows, equal, n, solver = sparse.csc_matrix(A), lower == upper, A.shape[1], piqp.SparseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-9
    others = ~equal & (np.isfinite(lower) | np.isfinite(upper))
    given = rows[equal].tocsc(), upper[equal], rows[others].tocsc(), lower[others], upper[others]
    solver.setup(sparse.identity(n, format="csc"), np.zeros(n), *given, low, high)

    def solve(raw: np.ndarray, reach: np.ndarray | None = None) -> np.ndarray:
        solver.update(c=-raw, **({} if reach is None else {"b": reach}))
        solver.solve()
        return solver.result.x.copy()

    return solve


BUILD = {"daqp": by_daqp, "clarabel": by_clarabel, "piqp": by_piqp}


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of processor time, and the result."""
    started = time.process_time()
    found = function()
    return 1e3 * (time.process_time() - started), found


def in_turns(calls: dict[str, Callable[[], Any]], repeats: int = REPEATS) -> tuple[dict[str, float], dict[str, Any]]:
    """Median milliseconds of each call, and its last result."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    found: dict[str, Any] = {}
    for _ in range(repeats):
        for name, call in calls.items():
            spent, found[name] = timed(call)
            times[name].append(spent)
    return {name: median(values) for name, values in times.items()}, found


def good(p: Structured, y: np.ndarray, ours: np.ndarray) -> bool:
    """Whether a peer's answers meet rows and box to 1e-6 of their terms, and are as near as ours."""
    A, lower, upper, low, high, raw = (part.numpy() for part in p)
    value, size = y @ A.T, np.maximum(np.abs(y) @ np.abs(A).T, 1.0)
    beyond = np.maximum(np.maximum(value - upper, lower - value) / size, 0.0).max()
    outside = np.maximum(np.maximum(y - high, low - y), 0.0).max()
    theirs, own = (np.linalg.norm(raw - point, axis=1) for point in (y, ours))
    return bool(np.isfinite(y).all() and beyond < 1e-6 and outside < 1e-6 and (theirs <= own * (1 + 1e-5) + 1e-5).all())


def degenerate() -> Iterator[dict[str, Any]]:
    """Each family: the time of a sample over that of the best peer, mean and worst, and what is solved."""
    for name, family in FAMILIES.items():
        ratios, solved, certified, times = [], [], [], []
        for n in SIZES:
            for p in (family(seed, n) for seed in SEEDS):
                constraint = hn.Box(p.box_lower, p.box_upper) & hn.Affine(p.A, lower=p.lower, upper=p.upper)
                layer = hn.layers.Projection(constraint, on_unsolved="best")
                layer(p.raw)
                calls: dict[str, Callable[[], Any]] = {"hardnet": lambda layer=layer, p=p: layer(p.raw)}
                for peer, build in BUILD.items():
                    solve = build(p)
                    calls[peer] = lambda solve=solve, p=p: np.array([solve(raw) for raw in p.raw.numpy()])
                spent, found = in_turns(calls)
                y = found["hardnet"]
                best = min((spent[peer] for peer in BUILD if good(p, found[peer], y.numpy())), default=np.nan)
                ratios.append(spent["hardnet"] / best)
                times.append(spent["hardnet"] / len(p.raw))
                solved.append(float((layer.solve(p.raw).status == 0).double().mean()))
                certified.append(hn.check(constraint, y).ok)
        kept = [ratio for ratio in ratios if np.isfinite(ratio)]
        row = {"family": name, "problems": len(ratios), "ratio, mean": mean(kept), "ratio, worst": max(kept)}
        yield {**row, "ms a sample, mean": mean(times), "solved": mean(solved), "certified": all(certified)}


def dispatch_plan(samples: int) -> tuple[hn.sets.ConstraintSet, torch.Tensor, Structured]:
    """60 units over 24 hours: 1380 ramps and 24 balances that depend on x, all in compressed rows, and a box.

    Returns the set, x, and the polyhedron of the first x with the raws of all samples; equalities come last.
    """
    source, hours, units = np.random.default_rng(0), 24, 60
    capacity, steps = source.uniform(50, 400, units), (hours - 1) * units
    plan = source.uniform(0.3, 0.7, (samples, hours, units)) * capacity
    index, entry = np.arange(hours * units).reshape(hours, units), np.tile(np.arange(steps), 2)
    ends = np.append(index[1:].ravel(), index[:-1].ravel())
    ramps = sparse.csr_matrix((np.repeat([1.0, -1.0], steps), (entry, ends)), (steps, hours * units)).toarray()
    rows = torch.from_numpy(np.concatenate([ramps, np.kron(np.eye(hours), np.ones(units))]))
    x, limit = torch.from_numpy(plan.sum(-1)), torch.from_numpy(np.tile(0.45 * capacity, hours - 1))
    high = torch.from_numpy(np.tile(capacity, hours))
    between = lambda side: lambda x: torch.cat([(side * limit).expand(len(x), -1), x], -1)
    constraint = hn.Box(0.0, high) & hn.Affine(rows.to_sparse_csr(), lower=between(-1), upper=between(1))
    raw = torch.from_numpy(plan.reshape(samples, -1)) + 0.3 * high * torch.from_numpy(
        source.normal(size=(samples, 1440))
    )
    return (
        constraint,
        x,
        Structured(rows, between(-1)(x[:1])[0], between(1)(x[:1])[0], torch.zeros_like(high), high, raw),
    )


def compressed(samples: int = 64) -> Iterator[dict[str, Any]]:
    """The dispatch, forward and with backward, beside loops over the solvers that take sparse rows."""
    constraint, x, p = dispatch_plan(samples)
    layer, raw = hn.HardNet(torch.nn.Identity(), constraint).layer, p.raw.clone().requires_grad_()
    calls: dict[str, Callable[[], Any]] = {
        "hardnet": lambda: layer(p.raw, x),
        "hardnet, with backward": lambda: layer(raw, x).square().sum().backward(),
    }
    for peer in ("clarabel", "piqp"):
        solve, reach = BUILD[peer](p), x.numpy()
        calls[f"{peer} loop"] = lambda solve=solve, reach=reach: np.array(
            [solve(*pair) for pair in zip(p.raw.numpy(), reach, strict=True)]
        )
    spent, found = in_turns(calls)
    ours = found["hardnet"].numpy()
    for name, ms in spent.items():
        apart = float(np.abs(found[name] - ours).max()) if "loop" in name else 0.0
        yield {"tool": name, "samples": samples, "ms": ms, "apart": apart}
    if not hn.check(constraint, found["hardnet"], x).ok:
        raise RuntimeError("a plan is outside")


def states(calls: int = 100) -> Iterator[dict[str, Any]]:
    """One state of a controller: three barrier rows beside a box, with an answer and without one."""
    A = torch.tensor([[[1.0, 0.3], [-0.4, 1.0], [0.5, -1.0]]], dtype=torch.float64)
    box, raw, x = hn.Box(-torch.ones(2).double(), torch.ones(2).double()), torch.tensor([[2.0, -3.0]]).double(), None
    rows = lambda bound: hn.Affine(lambda x: A, lower=lambda x: torch.tensor([[bound] * 3], dtype=torch.float64))
    tasks = {
        "feasible": hn.layers.Projection(box & rows(-0.5)),
        "infeasible, nan": hn.layers.Projection(box & rows(3.0), on_infeasible="nan"),
        "infeasible, nearest": hn.layers.Projection(box & rows(3.0), on_infeasible="nearest"),
        "infeasible, Relaxed": hn.layers.Projection(box & hn.Relaxed(rows(3.0))),
        "feasible, Relaxed": hn.layers.Projection(box & hn.Relaxed(rows(-0.5))),
    }
    x = torch.zeros(1, 1, dtype=torch.float64)
    for layer in tasks.values():
        layer(raw, x)
    spent, _ = in_turns({name: lambda layer=layer: layer(raw, x) for name, layer in tasks.items()}, calls)
    yield from ({"state": name, "ms": ms} for name, ms in spent.items())


def threads() -> Iterator[dict[str, Any]]:
    """Families where a call takes 5 ms or more, by the clock, on one thread and on two."""
    from benchmarks.box_rows import hierarchy, mixed

    p = FAMILIES["production"](1000, 200)
    degenerate = hn.Box(p.box_lower, p.box_upper) & hn.Affine(p.A, lower=p.lower, upper=p.upper)
    plan, x, q = dispatch_plan(16)
    cases = {case.name: (case.ours()[0], torch.from_numpy(case.raw), None) for case in (
        mixed(100, 20, True), mixed(50, 20, False), hierarchy(300, False), hierarchy(300, True))}  # fmt: skip
    cases |= {"production, degenerate": (degenerate, p.raw.repeat(4, 1), None), "dispatch, sparse": (plan, q.raw, x)}
    for name, (constraint, raw, x) in cases.items():
        layer, taken = hn.HardNet(torch.nn.Identity(), constraint).layer, {1: [], 2: []}
        layer(raw, raw if x is None else x)
        for _ in range(2 * REPEATS):
            for count, times in taken.items():
                torch.set_num_threads(count)
                started = time.perf_counter()
                layer(raw, raw if x is None else x)
                times.append(1e3 * (time.perf_counter() - started))
        torch.set_num_threads(1)
        one, two = min(taken[1]), min(taken[2])
        yield {"case": name, "one thread, ms": one, "two threads, ms": two, "ratio": two / one}


PARTS = {"degenerate": degenerate, "sparse": compressed, "states": states, "threads": threads}


def main_table(device: str = "cpu", out: Path | None = None) -> None:
    """Print and write every part."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"environment": environment(device)}
    for package in (*PEERS, "scipy"):
        try:
            found["environment"]["versions"][package] = version(package)
        except PackageNotFoundError:
            found["environment"]["versions"][package] = None
    for name, part in PARTS.items():
        found[name] = []
        for row in part():
            found[name].append(row)
            shown = ", ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
            print(f"{name}: {shown}", flush=True)
            if out:
                write_json(out, found)
