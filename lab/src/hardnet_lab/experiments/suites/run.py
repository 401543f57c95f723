"""Run a suite: its cases, recipes and methods as rows, with the machinery of the paper's experiments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from hardnet.errors import HardNetError, sentence
from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.recipes import Method, Recipe
from hardnet_lab.experiments.run import Row, choose_device, run_rows
from hardnet_lab.experiments.suites.catalog import Case, Suite, find_suite
from hardnet_lab.problems import Problem
from hardnet_lab.train import Display


@dataclass(frozen=True)
class SuiteRequest:
    """What to run, already checked.

    Attributes:
        suite: The suite.
        cases: The cases of the requested sizes.
        methods: The requested methods; None for those of the recipes.
        seeds: The requested seeds; None for those of the cases.
        epochs: Epochs of every run; None for those of the recipes.
        device: The device to train on.
        out: The folder of the result files ``CASE.METHOD.json``.
        resume: Whether to continue from the files in the folder.
        recipes: Names of the requested recipes; None for all recipes of each case.
    """

    suite: Suite
    cases: list[Case]
    methods: list[Method] | None
    seeds: list[int] | None
    epochs: int | None
    device: torch.device
    out: Path
    resume: bool = False
    recipes: list[str] | None = None


def suite_request(
    name: str,
    *,
    size: str | None = None,
    methods: str | None = None,
    seeds: str | None = None,
    epochs: int | None = None,
    device: str = "auto",
    out: str | Path = "runs/suites",
    resume: bool = False,
    recipe: str | None = None,
) -> SuiteRequest:
    """Check the arguments before anything is run or written."""
    suite = find_suite(name)
    specs.choose_epochs(epochs, "", quick=False)
    rows = None if methods is None else specs.choose_methods(methods)
    chosen = None if seeds is None else specs.choose_seeds(seeds)
    cases = suite.choose(size)
    ways = None if recipe is None else _choose_recipes(cases, recipe)
    return SuiteRequest(suite, cases, rows, chosen, epochs, choose_device(device), Path(out), resume, ways)


def _choose_recipes(cases: list[Case], names: str) -> list[str]:
    """The recipes of a comma-separated list; each must belong to one of the cases."""
    known = list(dict.fromkeys(recipe.name for case in cases for recipe in case.recipes))
    asked = [name.strip() for name in names.split(",")]
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise HardNetError(sentence("--recipe", f"some of {', '.join(known)}", ", ".join(unknown)))
    return asked


def run_suite(asked: SuiteRequest, display: Display | None = None) -> list[Path]:
    """Train everything in the request and return the paths of the result files."""
    return run_rows(lambda shown: _rows(asked, shown), asked.out, asked.device, display)


def _rows(asked: SuiteRequest, display: Display) -> list[Row]:
    """One row per case, recipe and method that can express the case; the display notes why others are left out."""
    rows = []
    for case in asked.cases:
        problem = case.build().to(asked.device)
        wanted = [recipe for recipe in case.recipes if asked.recipes is None or recipe.name in asked.recipes]
        for recipe in wanted:
            rows += [_row(asked, case, problem, recipe, m) for m in _methods(asked, case, problem, recipe, display)]
    return rows


def _methods(asked: SuiteRequest, case: Case, problem: Problem, recipe: Recipe, display: Display) -> list[Method]:
    """The methods to run with a recipe, without those that cannot express the case.

    By default these are the recipe's own methods. Requested methods run with the requested recipes, or else with the
    first recipe and any other that lists them.
    """
    own = [specs.all_methods()[name] for name in recipe.methods or ()]
    wanted = asked.methods or own
    if asked.methods is not None and asked.recipes is None and recipe is not case.recipes[0]:
        wanted = [method for method in own if method in asked.methods or method.name in {m.name for m in asked.methods}]
    able = []
    for method in wanted:
        reason = specs.refusal(method, problem)
        if reason is None:
            able.append(method)
        elif asked.methods is not None and len(asked.cases) == 1:
            raise HardNetError(f"{case.name}: {reason}")
        else:
            display.note(f"{case.name} {method.name}: left out, {reason}")
    return able


def _row(asked: SuiteRequest, case: Case, problem: Problem, recipe: Recipe, method: Method) -> Row:
    seeds = asked.seeds or specs.choose_seeds(case.seeds)
    epochs = specs.choose_epochs(asked.epochs, case.name, quick=False, usual=recipe.epochs)
    named = "" if recipe is case.recipes[0] else f"{recipe.name}."
    how = asked.resume, asked.device, recipe, f"{case.name}.{named}", False
    return Row(case.name, problem, method, seeds, epochs, asked.out, *how)
