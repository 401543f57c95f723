"""Seconds per epoch of training, compared with the plain network and the published code."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hardnet.layers.auto import build_layer
from hardnet.model import HardNet
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.problems import PROBLEMS, Problem
from hardnet_lab.train import Settings, StackedMLP, Training, streams_of

PLAIN = "none"
METHODS = (PLAIN, "aff")
SEEDS = (1, 2, 3, 4, 5)
PUBLISHED = {
    "cpu": {
        ("pwc", PLAIN): 0.0019,
        ("pwc", "aff"): 0.0024,
        ("opt", PLAIN): 0.24,
        ("opt", "aff"): 0.68,
        ("cbf", PLAIN): 3.2,
        ("cbf", "aff"): 6.35,
    },
    "cuda": {("opt", "aff"): 0.30, ("cbf", "aff"): 16.0},
}
"""Seconds per epoch and seed of the published code: on one CPU core, and on an H200."""
EPOCHS = {"pwc": 40, "opt": 4, "cbf": 3}
"""Timed epochs, after one that compiles, captures and warms up."""


def seconds_per_epoch(problem: Problem, method: str, seeds: Sequence[int], epochs: int) -> float:
    """The median epoch of a run of all seeds together, without compiling, capturing and evaluating."""
    streams = streams_of(seeds)
    layer, hidden = build_layer(problem.constraint, method), problem.hidden
    sizes = (problem.encoded_dim, *hidden.sizes, problem.output_dim)
    net = StackedMLP(sizes, streams, batch_norm=hidden.batch_norm, dropout=hidden.dropout, encode=problem.encode)
    model = HardNet(net, problem.constraint, layer).to(problem.train.device)
    settings = Settings(epochs + 1, problem.batch_size, judge_every=epochs + 1)
    clock: list[float] = []
    training = Training(problem, model, streams, settings)
    training.run(lambda run: clock.append(run.seconds - run.setup_seconds) or False)
    return statistics.median(after - before for before, after in pairwise(clock))


def run(device: str = "cpu", methods: Sequence[str] = METHODS, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Time every problem with every method; ratios are to the plain network and to the published code."""
    rows = []
    for name, epochs in EPOCHS.items():
        problem = PROBLEMS[name]().to(device)
        plain = seconds_per_epoch(problem, PLAIN, seeds, epochs)
        for method in methods:
            seconds = plain if method == PLAIN else seconds_per_epoch(problem, method, seeds, epochs)
            rows.append(_row(name, method, seconds, plain, len(seeds), device))
    return {"environment": environment(device, seeds[0]), "seeds": list(seeds), "rows": rows}


def _row(problem: str, method: str, seconds: float, plain: float, seeds: int, device: str) -> dict[str, Any]:
    published = PUBLISHED[torch.device(device).type].get((problem, method))
    return {
        "problem": problem,
        "method": method,
        "seconds_per_epoch": seconds,
        "seconds_per_epoch_and_seed": seconds / seeds,
        "ratio_to_plain": seconds / plain,
        "published": published,
        "times_faster": None if published is None else published * seeds / seconds,
    }


def main_table(device: str = "cpu", out: Path | None = None, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Run, print the table, write JSON to `out` if given, and return the data."""
    result = run(device, METHODS, seeds)
    columns = list(result["rows"][0])
    print(table_text(columns, [[row[column] for column in columns] for row in result["rows"]]))
    if out is not None:
        write_json(out, result, indent=1)
    return result
