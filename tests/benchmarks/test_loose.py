"""Variants of the recipes of curved rows are judged on validation rows that all hold."""

import torch

from benchmarks.loose import WEIGHTS, judged
from benchmarks.recipes import varied
from hardnet_lab.experiments.suites.catalog import LOOSE
from tests.lab.problems.suites.test_separable import small


def test_a_variant_is_judged_with_every_row_enforced():
    problem = small("squares")
    problem.test = torch.full_like(problem.test, torch.nan)
    recipe = varied(LOOSE, {"width": 1 / 256, "epochs": 0.01})
    found = judged(problem, recipe, 5, [1])
    assert found["worst_violation"] < 1e-9
    assert varied(LOOSE, WEIGHTS["weight 10"]).settings["soft_weight"] == 10
