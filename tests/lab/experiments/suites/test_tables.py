"""Tables, notes, pages and the command line of the suites, from made-up result files."""

from benchmarks import pages
from hardnet_lab.experiments import tables
from hardnet_lab.experiments.report import write_report
from hardnet_lab.experiments.results import Result, write_result
from hardnet_lab.experiments.suites.catalog import read_suites, suite_note, suite_table
from hardnet_lab.problems.suites import reference
from tests.cli.calling import call


def write(folder, case="dc3-simple", methods=("projection", "dc3"), **given):
    """Result files of a case; made up."""
    best = reference(case)["optimum"]
    metrics = {"objective": [-15.0, -15.02], "gap": [3e-3, 2e-3], "worst_violation": [2e-14, 3e-14]}
    history = {"epoch": [0, 9], "loss": [[1.0, 1.0]] * 2, "objective": [[-14.0, -14.0], [-15.0, -15.0]]}
    history |= {"violation": [[0.0, 0.0]] * 2, "seconds": [1.0, 2.0]}
    for method in methods:
        result = Result(case, method, method.upper(), [1, 2], 10, metrics, history, {"train_s": 3.0, "test_ms": 1.5})
        result.figures = {"last": {"per_sample": [value + 0.01 for value in best]}}
        result.environment = {"device": "a device", "revision": "abc", "versions": {"torch": "2"}, "date": "today"}
        result.recipe, result.differs = "wide", "a wide network, 10 epochs"
        for name, value in given.items():
            setattr(result, name, value)
        write_result(folder / f"{case}.{method}.json", result)
    (folder / f"{case}.run.json").write_text("{}")
    return folder


def test_the_optimum_our_rows_and_the_published_ones_are_told_apart(tmp_path):
    found = read_suites(write(tmp_path))["dc3-simple"]
    table = suite_table("dc3-simple", found)
    labels = [row.label for row in table.rows]
    assert labels[:3] == ["Exact optimum (Clarabel)", "DC3", "PROJECTION"]
    assert labels[3:5] == ["OSQP (published)", "DC3 (published)"]
    text = tables.markdown(table)
    assert "| - [-13.46 (0.01)]" in text
    assert "-15.010 (0.010)" in text or "-15.01 (0.01" in text
    note = suite_note("dc3-simple", found)
    assert "2 seeds" in note
    assert "measured by others" in note
    assert "ResultsViz" in note


def test_a_run_that_gave_up_says_so_in_its_row(tmp_path):
    write(tmp_path, methods=("aff",), metrics={}, history={}, timing={}, figures={}, failure="NaN")
    row = suite_table("dc3-simple", read_suites(tmp_path)["dc3-simple"]).rows[1]
    assert row.label == "AFF (gave up: NaN)"


def test_a_folder_of_other_things_holds_no_suite(tmp_path):
    (tmp_path / "limits-opt.json").write_text("{}")
    assert read_suites(tmp_path) == {}


def test_the_report_shows_tables_curves_and_gaps(tmp_path):
    page = write_report(write(tmp_path)).read_text()
    assert "DC3&#x27;s programs: simple" in page
    assert page.count("<figure>") == 2
    assert "Exact optimum (Clarabel)" in (tmp_path / "tables.md").read_text()


def test_the_page_of_the_docs_has_every_suite(tmp_path):
    text = pages.suite_pages(write(tmp_path))
    assert "(`hardnet suite dc3 --size simple`)" in text
    assert "No run is recorded yet." in text


def test_the_command_line_says_what_is_wrong_in_one_sentence(monkeypatch, capsys, tmp_path):
    for arguments, told in (
        (["dc4"], "suite: expected one of dc3"),
        (["dc3", "--size", "huge"], "--size: expected 'all' or some of main"),
        (["dc3", "--methods", "magic"], "--methods: expected"),
        (["dc3", "--seeds", "x"], "--seeds: expected"),
    ):
        code, _, err = call(monkeypatch, capsys, "suite", *arguments, "--out", tmp_path)
        assert code == 2
        assert told in err
    assert not list(tmp_path.iterdir())
