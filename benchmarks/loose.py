"""How the recipes for curved rows were chosen: variants compared by their objective on validation rows.

``python -m benchmarks.loose snarenet-qcqp50 [--only NAME,NAME] [--epochs N] [--rows N] [--device cuda] [--out FILE]``.
All rows of the constraint are enforced, so a lower mean is better and no optimum is needed; test rows are not used.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.recipes import VARIANTS, varied
from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.recipes import Recipe
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.experiments.run import build_model, choose_device, partly_enforced
from hardnet_lab.experiments.suites.catalog import find_case
from hardnet_lab.problems.suites import SuiteProblem
from hardnet_lab.train import Training, streams_of

WEIGHTS: dict[str, dict[str, Any]] = {f"weight {w:g}": {"settings": {"soft_weight": w}} for w in (0.3, 1.0, 3.0, 10.0)}
"""Variants of the penalty weight, in addition to those of `benchmarks.recipes`."""


def judged(problem: SuiteProblem, recipe: Recipe, rows: int, seeds: list[int]) -> dict[str, float]:
    """The mean objective and the worst violation on the first validation rows with all constraints enforced."""
    method, streams = specs.all_methods()[(recipe.methods or ("nonlinear",))[0]], streams_of(seeds)
    model = build_model(problem, method, streams, recipe).to(problem.train.device)
    settings = recipe.adapt(method.settings(problem, recipe.epochs or 1, model.layer.guarantee))
    training = Training(
        problem,
        partly_enforced(model, recipe.loose or "equalities"),
        streams,
        replace(settings, judge_every=recipe.epochs or 1),
    )
    training.run()
    with torch.no_grad():
        found = problem.evaluate(model.eval(), training.stacked(problem.validation[:rows]))
    metrics = {name: found[name].mean().item() for name in ("objective", "worst_violation")}
    return metrics | {"train_s": training.seconds, "setup_s": training.setup_seconds}


def main(arguments: list[str] | None = None) -> None:
    """Train every variant, and print and record each result immediately."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loose", description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--only", default=",".join(["recipe", *WEIGHTS]), help="comma-separated variants")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--seeds", default="101")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    device, known = choose_device(asked.device), find_case(asked.case)
    if known is None or known[1].recipes[0].loose is None:
        parser.error(f"{asked.case}: no case whose first recipe enforces its rows at the end")
    problem, recipe = known[1].build().to(device), known[1].recipes[0]
    recipe = replace(recipe, epochs=asked.epochs or recipe.epochs)
    seeds, rows = specs.choose_seeds(asked.seeds), []
    told = {"case": asked.case, "recipe": recipe.differs, "seeds": seeds, "environment": environment(device)}
    for name in asked.only.split(","):
        torch.compiler.reset()
        row = judged(problem, varied(recipe, (VARIANTS | WEIGHTS)[name]), asked.rows, seeds)
        rows.append({"variant": name} | row)
        print(name, row, flush=True)
        if asked.out:
            write_json(asked.out, told | {"rows": rows}, indent=1)


if __name__ == "__main__":
    main()
