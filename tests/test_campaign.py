"""The oracles of the campaign find answers that are outside of the set, or inside and not the nearest."""

import pytest
import torch

import hardnet as hn
from tests.campaign import FAMILIES, run_round
from tests.campaigns.drawing import Draw

UNUSUAL = ("nonlinear", "start", "strict", "union", "onnx")
"""Not convex, or nearest in exact arithmetic alone, or too slow to build for a look at it."""
CONVEX = [name for name, family in FAMILIES.items() if name not in UNUSUAL and family(Draw(0), 2).nearest]
EVERY = [pytest.param(name, marks=pytest.mark.slow) if name == "onnx" else name for name in FAMILIES]


class Broken(torch.nn.Module):
    """A layer whose answers are spoilt by ``change(layer, raw, x)``."""

    def __init__(self, layer, change):
        super().__init__()
        self.layer, self.constraint, self.guarantee, self.change = layer, layer.constraint, layer.guarantee, change
        self.options = getattr(layer, "options", None)

    def forward(self, raw, x=None):
        return self.change(self.layer, raw, x)


def found(family, change, monkeypatch, rounds=16):
    """How many samples of a few rounds are outside, and how many farther than they need be."""
    drawn = FAMILIES[family]

    def broken(draw, count):
        case = drawn(draw, count)
        return case._replace(layer=Broken(case.layer, change))

    monkeypatch.setitem(FAMILIES, family, broken)
    verdicts = [run_round(family, seed, 16) for seed in range(rounds)]
    return sum(verdict["wrong"] for verdict in verdicts), sum(verdict["farther"] for verdict in verdicts)


@pytest.mark.parametrize("family", EVERY)
def test_right_answers_pass(family, monkeypatch):
    assert found(family, lambda layer, raw, x: layer(raw, x), monkeypatch) == (0, 0)


@pytest.mark.parametrize("family", EVERY)
def test_answers_a_little_outside_are_counted(family, monkeypatch):
    part = 0.3 if family == "half precision" else 1e-4  # of which a half keeps less than nothing
    assert found(family, lambda layer, raw, x: torch.lerp(layer(raw, x), raw, part), monkeypatch)[0] > 0


@pytest.mark.parametrize("family", CONVEX)
def test_answers_inside_that_are_not_the_nearest_are_counted(family, monkeypatch):
    """A hundredth of the way from the nearest point to the answer at 0: in a convex set, and farther from raw."""

    def farther(layer, raw, x):
        return torch.lerp(layer(raw, x), layer(torch.zeros_like(raw), x), 0.01)

    assert found(family, farther, monkeypatch)[1] > 0


def test_nonlinear_answers_that_are_not_the_nearest_are_counted(monkeypatch):
    def farther(layer, raw, x):
        return hn.layers.LAYERS["nonlinear"](layer.constraint, mode="retract")(raw, x)

    assert found("nonlinear", farther, monkeypatch)[1] > 0


def test_answers_of_a_union_that_another_piece_has_nearer_are_counted(monkeypatch):
    def farther(layer, raw, x):
        return hn.layers.Projection(layer.constraint.pieces[0])(raw)

    wrong, far = found("union", farther, monkeypatch)
    assert (wrong, far > 0) == (0, True)
