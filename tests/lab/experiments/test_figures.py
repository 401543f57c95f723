"""What the figures draw is what the problems say."""

import pytest
import torch

from hardnet_lab.experiments import figures
from hardnet_lab.problems import PROBLEMS, Piecewise


@pytest.mark.parametrize("name", ["pwc", "pwcfull", "pwcbox"])
def test_the_target_lies_in_the_interval_that_is_left_white(name):
    problem = PROBLEMS[name]()
    assert isinstance(problem, Piecewise)
    low, high = figures.allowed_interval(problem)
    target = problem.target(problem.test).squeeze(-1)
    assert (low <= target + 1e-12).all()
    assert (target <= high + 1e-12).all()
    outside = torch.where(low.isfinite(), low - 1, high + 1).unsqueeze(-1)
    assert (problem.constraint.violation(outside, problem.test) > 0.99).all()


def test_rendering_leaves_matplotlib_as_it_was():
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    drawing = figures.render(lambda figure: figure.subplots().plot([0, 1]), (2, 2), "svg")
    assert dict(matplotlib.rcParams) == before
    assert drawing == figures.render(lambda figure: figure.subplots().plot([0, 1]), (2, 2), "svg")


def test_every_method_has_a_color_that_never_changes():
    assert figures.color("aff") == figures.COLORS["aff"]
    assert figures.color("rayen") == figures.color("rayen") in figures.OTHERS
