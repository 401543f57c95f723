"""How the best recipe of the piecewise problems was chosen: candidates compared on validation points alone.

    python -m benchmarks.recipes --out results/bench/recipes_cpu.json

The points are drawn like the training points, from another seed; the grid of the tables is never looked at. Every
candidate trains the exact projection, five seeds, as long as published.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hardnet.experiments.recipes import AS_PUBLISHED
from hardnet.experiments.results import write_json
from hardnet.experiments.row import build_model
from hardnet.experiments.specs import PUBLISHED_EPOCHS, all_methods
from hardnet.experiments.stamp import environment
from hardnet.problems import PROBLEMS
from hardnet.problems.base import random_state
from hardnet.train import Training, streams_of

SEEDS, POINTS, DRAW = range(1, 6), 200, 18
SPAN = {"pwc": 1.2, "pwcfull": 2.0, "pwcbox": 2.0}
RATES: tuple[dict[str, Any], ...] = ({}, {"learning_rate": 1e-3, "schedule": "cosine"})
DISPLACEMENTS = (0.0, 0.1, 1.0, 3.0)
CANDIDATES = [rate | {"displacement": weight, "warm_epochs": 0} for rate in RATES for weight in DISPLACEMENTS]


def judge(name: str, candidate: dict[str, Any], epochs: int) -> float:
    """The mean squared error on the validation points, averaged over the seeds."""
    problem, method, streams = PROBLEMS[name](), all_methods()["projection"], streams_of(list(SEEDS))
    model = build_model(problem, method, streams)
    recipe = replace(AS_PUBLISHED, settings=candidate)
    settings = recipe.adapt(method.settings(problem, epochs, model.layer.guarantee))
    training = Training(problem, model, streams, replace(settings, judge_every=epochs))
    training.run()
    x = torch.from_numpy(random_state(DRAW).uniform(-SPAN[name], SPAN[name], (POINTS, 1)))
    with torch.no_grad():
        return statistics.fmean(problem.evaluate(model.eval(), training.stacked(x))["mse"].tolist())


def main() -> None:
    """Judge every candidate on every problem, and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=PUBLISHED_EPOCHS)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for candidate in CANDIDATES:
        errors = {name: judge(name, candidate, asked.epochs) for name in SPAN}
        rows.append({"settings": candidate, "validation_mse": errors})
        print(candidate, {name: round(value, 4) for name, value in errors.items()}, flush=True)
        write_json(asked.out, {"environment": environment("cpu", DRAW), "rows": rows})


if __name__ == "__main__":
    main()
