"""What `explain` says of cost is what was recorded."""

import json
from pathlib import Path

import pytest
import torch

import hardnet as hn
from hardnet.layers.costs import RECORDS, recorded

BENCH = Path(__file__).parents[2] / "results" / "bench"
SETS = {(2, 2): "barrier rows", (10, 5): "polyhedral cone", (20, 10): "polyhedron, n = 20"}


def test_the_figures_are_the_recorded_ones():
    rows = json.loads((BENCH / "methods_cpu.json").read_text())["rows"]
    for n, m, *known in RECORDS["cpu"].costs:
        for method, cost in zip(("aff", "projection"), known, strict=True):
            (row,) = (row for row in rows if row["set"].startswith(SETS[n, m]) and row["method"] == method)
            assert row["forward_ms"] + row["backward_ms"] == pytest.approx(cost, rel=0.01)
    rows = json.loads((BENCH / "nearest_h200.json").read_text())["rows"]
    for n, m, *known in RECORDS["cuda"].costs:
        for what, cost in zip(("closed form", "nearest point"), known, strict=True):
            (row,) = (row for row in rows if (row["what"], row["n"], row["m"]) == (what, n, m))
            assert row["B"] == RECORDS["cuda"].samples
            assert row["both_ms"] == pytest.approx(cost, rel=0.01)


def test_explain_prints_the_cost_of_both_at_the_nearest_size():
    told = str(hn.explain(hn.Affine(torch.randn(9, 18), upper=1.0)))
    assert "10 rows on 20 outputs" in told
    assert "nearest point 62.4 ms, closed form 1.28 ms" in told
    assert recorded("meta", 2, 2) is None
