"""What `explain` says of cost is what was recorded."""

from pathlib import Path

import torch

import hardnet as hn
from benchmarks.costs import PACKAGED, packaged_costs
from hardnet.layers.auto import recorded

ROOT = Path(__file__).parents[2]


def test_the_figures_are_the_recorded_ones():
    """A record that is made again goes into the package by ``python -m benchmarks.pages``."""
    assert (ROOT / PACKAGED).read_text() == packaged_costs(ROOT / "results" / "bench")


def test_explain_prints_the_cost_of_both_at_the_nearest_size():
    told = str(hn.explain(hn.Affine(torch.randn(9, 18), upper=1.0)))
    assert "10 rows on 20 outputs" in told
    assert "nearest point" in told
    assert recorded("cpu", 18, 9) in told
    assert recorded("meta", 2, 2) is None
