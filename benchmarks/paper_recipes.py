"""How the best recipes for the paper's piecewise problems were chosen: variants by their error on validation points.

``python -m benchmarks.paper_recipes [--problems pwc,pwcfull,pwcbox] [--seeds 101-105] [--out FILE]``. The published
problems have no validation points of their own, so 400 are drawn like the training points, with another seed; the grid
of the tables is not used.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.recipes import BEST, Recipe, recipe_of
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.experiments.run import build_model
from hardnet_lab.problems import PROBLEMS, Problem
from hardnet_lab.train import Training, streams_of

POINTS, SEED = 400, 1017
"""Number of validation points, and their seed."""
VARIANTS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "displacement 0": {"displacement": 0.0},
    "displacement 1": {"displacement": 1.0},
    "displacement 10": {"displacement": 10.0},
    "rate / 3": {"learning_rate": 1e-3},
    "rate / 3, constant": {"learning_rate": 1e-3, "schedule": "constant"},
    "rate / 3, displacement 1": {"learning_rate": 1e-3, "displacement": 1.0},
    "rate / 10, displacement 1": {"learning_rate": 3e-4, "displacement": 1.0},
}
"""Settings of the recipe that each variant changes."""


def validation_error(problem: Problem, recipe: Recipe, seeds: list[int]) -> float:
    """Mean objective over the seeds at the validation points, after training with the recipe."""
    method, streams = specs.all_methods()["projection"], streams_of(seeds)
    model = build_model(problem, method, streams, recipe)
    epochs = recipe.epochs or specs.choose_epochs(None, problem.name, quick=False)
    training = Training(problem, model, streams, recipe.adapt(method.settings(problem, epochs, model.layer.guarantee)))
    training.run()
    span = problem.train.abs().max()
    stream = torch.Generator().manual_seed(SEED)
    x = (2 * torch.rand(POINTS, 1, generator=stream, dtype=torch.float64) - 1) * span
    with torch.no_grad():
        return problem.loss(model.eval(), training.stacked(x)).mean().item()


def main(arguments: list[str] | None = None) -> None:
    """Train every variant on every problem, print the errors and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_recipes", description=__doc__)
    parser.add_argument("--problems", default="pwc,pwcfull,pwcbox")
    parser.add_argument("--seeds", default="101-105")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    seeds, errors = specs.choose_seeds(asked.seeds), {}
    told = {"environment": environment("cpu"), "seeds": seeds, "points": POINTS, "errors": errors}
    for name in asked.problems.split(","):
        recipe, errors[name] = recipe_of(name, BEST), {}
        for variant, change in VARIANTS.items():
            varied = replace(recipe, settings=recipe.settings | change)
            errors[name][variant] = validation_error(PROBLEMS[name](), varied, seeds)
            print(name, variant, errors[name][variant], flush=True)
        if asked.out is not None:
            write_json(asked.out, told, indent=1)
    print(
        table_text(
            ["variant", *errors], [[variant, *(errors[name][variant] for name in errors)] for variant in VARIANTS]
        )
    )


if __name__ == "__main__":
    main()
