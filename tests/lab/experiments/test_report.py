"""The page: complete, self-contained, and honest about what was run."""

import math
import re

import pytest

from hardnet.errors import FileError
from hardnet_lab.experiments import report as report_page
from hardnet_lab.experiments import tables
from hardnet_lab.experiments.report import read_runs, write_report
from tests.lab.experiments.fabricated import result, write, write_runs


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder, problems=("pwc", "cbf"), methods=("nn", "aff"))
    return write_report(folder)


def test_the_page_stands_alone(page):
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert not re.search(r"(?:src|href)='(?!data:|#)", text)
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    assert text.count("<img") == 5


def test_the_page_has_every_table_figure_and_the_environment(page):
    text = page.read_text()
    for part in ("id='pwc'", "id='cbf'", "id='gradient'", "id='environment'", "0.16 (0.01)", "hardnet reproduce pwc"):
        assert part in text
    for stem in ("pwc-functions", "pwc-learning", "cbf-trajectories", "cbf-learning", "gradient-paths"):
        assert f"alt='{stem.replace('-', ': ')}'" in text
        assert (page.parent / "figures" / f"{stem}.svg").read_text().startswith("<?xml")
        assert (page.parent / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    assert "| 0.220 (0.014) [0.16 (0.01)]" in (page.parent / "tables.md").read_text()


def test_results_are_read_in_the_order_of_the_paper(page):
    runs = read_runs(page.parent)
    assert list(runs) == ["pwc", "cbf", "gradient"]
    assert [result.method for result in runs["pwc"]] == ["nn", "aff"]


def test_one_result_is_enough_and_the_page_goes_where_it_is_asked(tmp_path):
    write_runs(tmp_path / "runs", problems=("opt",), methods=("aff",))
    (tmp_path / "runs" / "gradient" / "aff.json").unlink()
    assert write_report(tmp_path / "runs", tmp_path / "web" / "page.html") == tmp_path / "web" / "page.html"
    assert write_report(tmp_path / "runs", tmp_path / "web2").name == "report.html"
    assert (tmp_path / "web2" / "tables.md").exists()


def test_a_run_that_diverged_is_shown_as_it_is(tmp_path):
    data = result("pwc", "aff")
    data["metrics"] = {name: [math.nan] * 5 for name in data["metrics"]}
    data["history"] |= {name: [[math.nan] * 5] * 11 for name in ("loss", "objective", "violation")}
    data["figures"]["last"]["y"] = [[math.nan] * 401]
    write(tmp_path / "pwc" / "aff.json", data)
    assert "nan (nan)" in write_report(tmp_path).read_text()


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"no results here; expected files like pwc/aff\.json"):
        write_report(tmp_path)


def test_a_broken_result_is_named(tmp_path):
    write_runs(tmp_path, problems=("pwc",), methods=("aff",))
    (tmp_path / "pwc" / "aff.json").write_text("{")
    with pytest.raises(FileError, match=r"aff\.json: not a readable JSON file"):
        write_report(tmp_path)


def test_a_headline_stands_beside_a_published_number_or_not_at_all(page):
    assert "class='card'" in page.read_text()
    column = tables.Column("objective", ("objective",))
    row = tables.Row("aff", "HardNet-Aff", {"objective": [1.0], "max_violation": [0.0]}, {})
    assert report_page._card(tables.Table("own", (column,), (row,), None)) == ""
