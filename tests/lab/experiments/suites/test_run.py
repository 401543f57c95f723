"""Running a suite: flat result files, resuming, sizes and what is refused."""

from dataclasses import replace
from functools import partial

import pytest

from hardnet.errors import FileError, HardNetError
from hardnet_lab.experiments.recipes import Recipe
from hardnet_lab.experiments.results import read_result
from hardnet_lab.experiments.suites import catalog as base
from hardnet_lab.experiments.suites import run as suite_run
from hardnet_lab.experiments.suites.catalog import SUITES, find_case, find_suite, read_suites, suite_note, suite_table
from hardnet_lab.experiments.tables import Column
from hardnet_lab.problems import Hidden
from hardnet_lab.problems.suites import SuitePrograms

TINY = Recipe(
    "tiny",
    ("soft", "dc3", "aff", "projection"),
    Hidden((8,), kaiming=False),
    {"batch_size": 16, "displacement": 0.1},
    epochs=2,
    label="",
)


OTHER = replace(TINY, name="other", methods=("projection",), label=", other")


def case(name, **options):
    build = partial(SuitePrograms, name, 6, 3, 2, samples=60)
    return base.Case(name, "a small one", build, (TINY, OTHER), lambda problem, x: None, seeds="1-2", **options)


@pytest.fixture
def toy(monkeypatch):
    columns = (Column("objective", ("objective",)), base.GAP, base.WORST, *base.TIMES)
    suite = base.Suite(
        "toy", "Toys", "about", (case("toy-one", sizes=("both",)), case("toy-two", sizes=("both",))), columns
    )
    monkeypatch.setattr(base, "SUITES", {"toy": suite})
    return suite


def run(out, **options):
    return suite_run.run_suite(suite_run.suite_request("toy", **({"device": "cpu"} | options), out=out))


def test_results_are_flat_files_and_read_back_in_order(toy, tmp_path):
    paths = run(tmp_path)
    assert [path.name for path in paths] == [
        f"toy-{case}.{method}.json"
        for case in ("one", "two")
        for method in ("soft", "dc3", "aff", "projection", "other.projection")
    ]
    assert not list(tmp_path.glob("*.safetensors")), "only results stay"
    found = read_suites(tmp_path)
    assert {name: [result.method for result in results] for name, results in found.items()} == {
        "toy-one": ["soft", "dc3", "aff", "projection", "projection"],
        "toy-two": ["soft", "dc3", "aff", "projection", "projection"],
    }
    exact = found["toy-one"][3]
    assert exact.label == "HardNet-Cvx (exact projection)"
    assert (exact.seeds, exact.epochs) == ([1, 2], 2)
    assert max(exact.metrics["worst_violation"]) < 1e-12
    assert "2 epochs" in suite_note("toy-one", found["toy-one"])
    table = suite_table("toy-one", found["toy-one"])
    assert [row.label for row in table.rows][-1] == "HardNet-Cvx (exact projection), other"


def test_a_second_run_resumes_or_is_refused(toy, tmp_path):
    first = run(tmp_path, size="one", methods="aff")[0]
    before = read_result(first).environment["date"]
    with pytest.raises(FileError, match="use --resume"):
        run(tmp_path, size="one", methods="aff")
    with pytest.raises(FileError, match="holds another run"):
        run(tmp_path, size="one", methods="aff", seeds="3", resume=True)
    assert read_result(run(tmp_path, size="one", methods="aff", resume=True)[0]).environment["date"] == before
    assert run(tmp_path, size="two", methods="aff"), "the other case is not in the way"


def test_a_recipe_can_be_asked_for_alone(toy, tmp_path):
    (path,) = run(tmp_path, size="one", recipe="other")
    assert path.name == "toy-one.other.projection.json"
    assert read_result(path).recipe == "other"
    assert [path.name for path in run(tmp_path, size="one", methods="aff")] == ["toy-one.aff.json"]


def test_a_group_of_sizes_is_all_its_cases(toy):
    assert [case.short for case in toy.choose("both")] == ["one", "two"]
    assert [case.short for case in toy.choose("two")] == ["two"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size": "three"}, "--size: expected 'all' or some of both, one, two, got three"),
        ({"methods": "magic"}, "--methods: expected"),
        ({"recipe": "magic"}, "--recipe: expected some of tiny, other, got magic"),
        ({"epochs": 0}, "--epochs: expected at least 1"),
        ({"size": "one", "methods": "police"}, "toy-one: "),
    ],
)
def test_what_is_wrong_is_one_sentence(toy, tmp_path, options, told):
    with pytest.raises(HardNetError) as error:
        run(tmp_path, **options)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("*.json"))


def test_an_unknown_suite_is_refused():
    with pytest.raises(HardNetError, match="suite: expected one of dc3"):
        suite_run.suite_request("dc4")


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_is_whole(name):
    suite = find_suite(name)
    for entry in suite.cases:
        assert entry.name.startswith(f"{name}-")
        assert find_case(entry.name) == (suite, entry)
        assert all(recipe.methods and recipe.epochs and recipe.chosen for recipe in entry.recipes)
        assert len({recipe.name for recipe in entry.recipes}) == len(entry.recipes)
    known = {entry.name for entry in suite.cases}
    given = base.published(name)
    assert set(given["cases"]) <= known
    assert given["source"] or not given["cases"]
    for rows in given["cases"].values():
        assert all(1 <= len(numbers) <= 2 for row in rows for numbers in row["metrics"].values())
