"""Variants of a recipe change what they say, and are trained on the training rows alone."""

import torch

from benchmarks.recipes import VARIANTS, trained, varied
from hardnet_lab.experiments.suites.catalog import WIDE
from hardnet_lab.experiments.suites.references import solve_interior
from hardnet_lab.problems.suites import SuitePrograms


def test_every_variant_but_the_recipe_itself_changes_something():
    assert [name for name, change in VARIANTS.items() if varied(WIDE, change) == WIDE] == ["recipe"]
    assert varied(WIDE, VARIANTS["width/2"]).hidden.sizes == (1024, 1024)
    assert varied(WIDE, VARIANTS["epochs*2"]).epochs == 200


def test_a_variant_is_judged_by_the_gap_on_the_validation_rows():
    problem = SuitePrograms("programs-small", 6, 3, 2, samples=60)
    optimum = solve_interior(problem, problem.inputs(problem.validation)).value
    problem.test = torch.full_like(problem.test, torch.nan)
    found = trained(problem, varied(WIDE, {"width": 1 / 256, "epochs": 0.02}), optimum, [1])
    assert 0 <= found["gap"] < 10
