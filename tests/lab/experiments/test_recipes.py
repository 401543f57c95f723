"""Recipes: data that training obeys, rows of their own under the published ones."""

from dataclasses import fields

import pytest
import torch

from hardnet.errors import HardNetError
from hardnet_lab.experiments import recipes, tables
from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.recipes import AS_PUBLISHED, BEST_RECIPES, choose_recipes
from hardnet_lab.experiments.report import read_runs, write_report
from hardnet_lab.experiments.results import read_result
from hardnet_lab.experiments.run import build_model, reproduce, request
from hardnet_lab.problems import PROBLEMS
from hardnet_lab.train import Settings, streams_of

SHORT = {"seeds": "1-2", "epochs": 3, "device": "cpu"}


@pytest.mark.parametrize("name", BEST_RECIPES)
def test_a_recipe_is_data_that_training_takes(name):
    recipe, problem = BEST_RECIPES[name], PROBLEMS[name]()
    known = {field.name for field in fields(Settings)}
    assert recipe.settings.keys() <= known
    method = specs.all_methods()[recipe.methods[0]]
    settings = recipe.adapt(method.settings(problem, 10))
    assert settings.epochs == 10
    assert all(getattr(settings, key) == value for key, value in recipe.settings.items())
    assert recipe.differs
    assert recipe.chosen
    model = build_model(problem, method, streams_of([1]), recipe)
    assert model.net.sizes[1:-1] == recipe.network(problem).sizes


def test_the_published_recipe_changes_nothing():
    problem = PROBLEMS["opt"]()
    settings = specs.all_methods()["aff"].settings(problem, 1000)
    assert AS_PUBLISHED.adapt(settings) == settings
    assert AS_PUBLISHED.network(problem) == problem.hidden
    assert AS_PUBLISHED.differs == ""


def test_unknown_recipes_are_refused_by_name():
    assert choose_recipes("best, published") == ["best", "published"]
    with pytest.raises(HardNetError, match="--recipe: expected some of published, best, got worst"):
        choose_recipes("worst")


def test_best_rows_stand_under_the_published_ones_with_what_differs(tmp_path):
    paths = reproduce(request("pwcbox", **SHORT, methods="aff,projection", recipe="published,best", out=tmp_path))
    written = [path.relative_to(tmp_path).as_posix() for path in paths]
    assert written == [
        "pwcbox/aff.json",
        "pwcbox/projection.json",
        "best/pwcbox/aff.json",
        "best/pwcbox/projection.json",
    ]
    result = read_result(paths[3])
    assert (result.recipe, result.key) == ("best", "projection-best")
    assert "‖y - raw‖²" in result.differs
    assert max(result.metrics["max_violation"]) == 0
    runs = read_runs(tmp_path)
    assert [r.recipe for r in runs["pwcbox"]] == ["published", "published", "best", "best"]
    text = tables.markdown(tables.build("pwcbox", runs["pwcbox"]))
    assert text.index("HardNet-Cvx (exact projection) ") < text.index(result.differs)
    page = write_report(tmp_path).read_text()
    assert result.label in page
    assert "‖y - raw‖²" in page


def test_methods_asked_for_by_name_run_as_published_unless_a_recipe_is_named(tmp_path):
    paths = reproduce(request("pwc", **SHORT, methods="aff", out=tmp_path))
    assert [path.parent.name for path in paths] == ["pwc"]
    assert not (tmp_path / "best").exists()


def test_what_takes_hours_on_a_cpu_is_left_out_unless_asked_for(tmp_path):
    from hardnet_lab.experiments.run import _rows

    class Notes:
        def __init__(self):
            self.said = []

        def note(self, text):
            self.said.append(text)

    notes = Notes()
    rows = _rows(request("opt", **SHORT, out=tmp_path), "opt", notes)
    assert all(row.recipe is AS_PUBLISHED for row in rows)
    assert any("best recipe takes hours on a CPU" in text for text in notes.said)
    asked = _rows(request("opt", **SHORT, recipe="best", out=tmp_path), "opt", notes)
    assert [(row.recipe.name, row.epochs) for row in asked] == [("best", 3)]
    assert recipes.recipe_of("opt", "best").epochs == 100


def test_the_displacement_enters_the_loss_where_the_layer_is_on():
    problem = PROBLEMS["pwc"]()
    x = problem.train.unsqueeze(0)
    raw = torch.full_like(x, 5.0)
    y = raw.clamp_max(1.0)
    plain = problem.loss(lambda _: y, x)
    pulled = problem.loss(lambda _: (y, raw), x, 0.0, 0.5)
    torch.testing.assert_close(pulled, plain + 0.5 * (y - raw).square().sum(-1), rtol=1e-14, atol=0)
