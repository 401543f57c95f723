"""Tables: means and spreads, the paper's numbers beside, the distance to the limit."""

import math

import pytest

from hardnet_lab.experiments import paper, tables
from hardnet_lab.experiments.results import Result
from tests.lab.experiments.fabricated import result


def results(problem, methods=("nn", "aff")):
    return [Result(**result(problem, method)) for method in methods]


def test_numbers_print_with_as_many_digits_as_they_have():
    shown = [tables.number(value) for value in (0.0, 1.64e-16, 0.1636, -14.0412, 518.85, 15380.4, float("nan"))]
    assert shown == ["0", "1.6e-16", "0.164", "-14.04", "518.85", "15380", "nan"]
    assert tables.number(2.0e-4) == "2.0e-4"


def test_spread_is_the_population_standard_deviation():
    assert tables.spread([1.0, 3.0]) == "2.000 (1.000)"
    assert tables.spread([2.5]) == "2.500"
    assert tables.spread([math.nan, 1.0]) == "nan (nan)"
    assert tables.spread([math.inf, 1.0]) == "inf (nan)"


def test_the_paper_stands_beside_every_method_it_has():
    text = tables.markdown(tables.build("pwc", results("pwc")))
    lines = {line.split(" | ")[0].strip("| "): " ".join(line.split()) for line in text.splitlines()}
    assert "0.220 (0.014) [0.16 (0.01)]" in lines["HardNet-Aff"]
    assert "[1.85 (0.19)]" in lines["NN"]
    assert lines["DC3"].startswith("| DC3 | - [1.15 (0.1)]")  # not run: the paper's numbers alone
    assert lines["method"] == "| method | MSE | max violation | mean violation | T_test (ms) | T_train (s) |"


def test_the_ratio_to_the_limit_and_its_mark():
    table = tables.build("cbf", results("cbf"))
    ratios = {row.method: tables.of_limit(table, row) for row in table.rows}
    assert ratios["optimal"] == "1.000"
    assert ratios["cbf-qp"] == f"{968.355 / 486.8017:.3f}"
    assert ratios["nominal"].endswith("†")
    assert ratios["aff"] == f"{520.02 / 486.8017:.3f}"
    assert ratios["nn"].endswith("†")
    assert ratios["soft"] == tables.ABSENT


def test_metrics_that_share_a_cell():
    table = tables.build("opt", results("opt"))
    assert [row.method for row in table.rows][:3] == ["optimizer", "nn", "aff"]
    text = tables.markdown(table)
    assert "0 / 0 / 0 [0 / 0 / 0]" in text
    assert "[15.1 / 6.4 / 50]" in text
    assert "last 100 epochs" not in text
    data = result("opt", "aff")
    data["metrics"]["objective_last_epochs"] = [-14.04]
    assert "last 100 epochs" in tables.markdown(tables.build("opt", [Result(**data)]))


def test_cells_are_colored_by_what_was_measured_and_escaped():
    data = result("pwc", "nn")
    data["label"] = "<NN>"
    text = tables.as_html(tables.build("pwc", [Result(**data), *results("pwc", ("aff",))]))
    assert "&lt;NN&gt;" in text
    assert "<NN>" not in text
    assert text.count("class='broken'") == 2
    assert text.count("class='holds'") == 2
    ours = text[text.index("<tr class='ours'>") :].split("</tr>")[0]
    assert ours.count("class='holds'") == 2


@pytest.mark.parametrize("problem", tables.COLUMNS)
def test_every_published_row_has_a_name_and_known_metrics(problem):
    known = {name for column in tables.COLUMNS[problem] for name in column.metrics}
    for method, numbers in paper.published(problem).items():
        assert method in tables.NAMES
        assert set(numbers) <= known


def test_published_values():
    assert paper.published("pwc")["aff"]["mse"] == [0.16, 0.01]
    assert paper.published("opt")["dc3"]["objective"] == [-12.57, 0.04]
    assert paper.published("cbf")["aff"]["cost"] == [518.85, 8.71]
    assert paper.published("cbf")["aff"]["train_s"][0] == pytest.approx(370.05 * 60)
    assert paper.published("gradient") == {}
