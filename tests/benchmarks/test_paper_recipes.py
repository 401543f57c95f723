"""The study behind the best recipes of the piecewise problems: variants, seeds and errors are written down."""

import json
from dataclasses import replace

from benchmarks import paper_recipes
from hardnet_lab.experiments.recipes import recipe_of


def test_every_variant_has_an_error_on_points_of_its_own(tmp_path, monkeypatch):
    short = replace(recipe_of("pwc", "best"), epochs=2)
    monkeypatch.setattr(paper_recipes, "recipe_of", lambda *_: short)
    paper_recipes.main(["--problems", "pwc", "--seeds", "101-102", "--out", str(tmp_path / "study.json")])
    told = json.loads((tmp_path / "study.json").read_text())
    assert told["seeds"] == [101, 102]
    assert told["errors"]["pwc"].keys() == paper_recipes.VARIANTS.keys()
    assert all(0 < error < 1e3 for error in told["errors"]["pwc"].values())
