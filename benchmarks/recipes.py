"""How the recipes for the suites of programs were chosen: variants compared by their gap on the validation split.

``python -m benchmarks.recipes dc3-nonconvex [--only "NAME;NAME"] [--epochs N] [--device cuda] [--out FILE]``. For
programs with affine rows, `hardnet_lab.experiments.suites.references` finds the optima of the validation rows; other
programs are compared by their objective there. Test rows are not used.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.recipes import Recipe
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.experiments.run import build_model, choose_device, partly_enforced
from hardnet_lab.experiments.suites.catalog import find_case
from hardnet_lab.experiments.suites.references import solve_interior
from hardnet_lab.problems.suites import SuiteProblem, SuitePrograms
from hardnet_lab.train import Training, streams_of

VARIANTS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "kaiming": {"hidden": {"kaiming": True}},
    "rate/2": {"settings": {"learning_rate": 1e-3}},
    "rate*2": {"settings": {"learning_rate": 4e-3}},
    "decay 0": {"settings": {"weight_decay": 0.0}},
    "decay 0.03": {"settings": {"weight_decay": 0.03}},
    "decay 0.3": {"settings": {"weight_decay": 0.3}},
    "no dropout": {"hidden": {"dropout": 0.0}},
    "dropout 0.1": {"hidden": {"dropout": (0.1, 0.0)}},
    "dropout 0.4": {"hidden": {"dropout": (0.4, 0.0)}},
    "displacement 0.03": {"settings": {"displacement": 0.03}},
    "displacement 0.3": {"settings": {"displacement": 0.3}},
    "displacement 1": {"settings": {"displacement": 1.0}},
    "batch 256": {"settings": {"batch_size": 256}},
    "epochs*1.5": {"epochs": 1.5},
    "epochs*2": {"epochs": 2.0},
    "rate/2, epochs*1.5": {"settings": {"learning_rate": 1e-3}, "epochs": 1.5},
    "rate/2, epochs*1.5, dropout 0.1": {
        "settings": {"learning_rate": 1e-3},
        "hidden": {"dropout": (0.1, 0.0)},
        "epochs": 1.5,
    },
    "epochs*4": {"epochs": 4.0},
    "rate/2, epochs*4": {"settings": {"learning_rate": 1e-3}, "epochs": 4.0},
    "rate/4, epochs*4": {"settings": {"learning_rate": 5e-4}, "epochs": 4.0},
    "rate/2, penalty 1, epochs*4": {"settings": {"learning_rate": 1e-3, "soft_weight": 1.0}, "epochs": 4.0},
    "rate/4, penalty 1, epochs*4": {"settings": {"learning_rate": 5e-4, "soft_weight": 1.0}, "epochs": 4.0},
    "penalty 1": {"settings": {"soft_weight": 1.0}},
    "penalty 10": {"settings": {"soft_weight": 10.0}},
    "penalty 10, epochs*4": {"settings": {"soft_weight": 10.0}, "epochs": 4.0},
    "width/2": {"width": 0.5},
    "width*2": {"width": 2.0},
}
"""The changes of each variant to the recipe; `epochs` and `width` are factors."""


def varied(recipe: Recipe, change: dict[str, Any]) -> Recipe:
    """The recipe with the changes of a variant."""
    assert recipe.hidden is not None
    assert recipe.epochs is not None
    hidden = replace(recipe.hidden, **change.get("hidden", {}))
    sizes = tuple(int(size * change.get("width", 1.0)) for size in hidden.sizes)
    settings, options = recipe.settings | change.get("settings", {}), recipe.options | change.get("options", {})
    epochs = int(recipe.epochs * change.get("epochs", 1.0))
    return replace(recipe, hidden=replace(hidden, sizes=sizes), settings=settings, options=options, epochs=epochs)


def trained(problem: SuiteProblem, recipe: Recipe, optimum: torch.Tensor | None, seeds: list[int]) -> dict[str, float]:
    """Objective (and relative gap if the optima are known) on the validation rows, worst violation, and seconds."""
    assert recipe.methods is not None
    method, streams = specs.all_methods()[recipe.methods[-1]], streams_of(seeds)
    model = build_model(problem, method, streams, recipe).to(problem.train.device)
    settings = recipe.adapt(method.settings(problem, recipe.epochs or 1, model.layer.guarantee))
    behind = model if recipe.loose is None else partly_enforced(model, recipe.loose)
    training = Training(problem, behind, streams, replace(settings, judge_every=recipe.epochs))
    training.run()
    x = problem.inputs(problem.validation)
    with torch.no_grad():
        y = model.eval()(training.stacked(x))
        value, violation = problem.value(y, x), problem.constraint.violation(y, training.stacked(x)).amax().item()
    found = {"objective": value.mean().item(), "violation": violation}
    if optimum is not None:
        found["gap"] = ((value - optimum) / optimum.abs()).mean().item()
    return found | {"train_s": training.seconds, "setup_s": training.setup_seconds}


def main(arguments: list[str] | None = None) -> None:
    """Train every variant and print the gaps."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--only", help="variants, separated by semicolons; all by default")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", default="101")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    device, known = choose_device(asked.device), find_case(asked.case)
    if known is None:
        parser.error(f"{asked.case}: a case of no suite")
    problem = known[1].build().to(device)
    recipe = known[1].recipes[0]
    if asked.epochs:
        recipe = replace(recipe, epochs=asked.epochs)
    affine = isinstance(problem, SuitePrograms)
    optimum = solve_interior(problem, problem.inputs(problem.validation)).value if affine else None
    names = list(VARIANTS) if asked.only is None else asked.only.split(";")
    rows: list[dict[str, Any]] = []
    seeds = specs.choose_seeds(asked.seeds)
    told = {"case": asked.case, "recipe": recipe.differs, "environment": environment(device, seeds[0])}
    for name in names:
        torch.compiler.reset()
        try:
            found = trained(problem, varied(recipe, VARIANTS[name]), optimum, seeds)
        except RuntimeError as error:  # a failing variant must not stop the others
            found = {"failure": str(error).splitlines()[0]}
        rows.append({"variant": name} | found)
        print(rows[-1], flush=True)
        if asked.out:
            write_json(asked.out, told | {"rows": rows}, indent=1)


if __name__ == "__main__":
    main()
