"""The comparison: tools are timed in turns, judged by the reference, and what fails is a result."""

import json
from contextlib import contextmanager

import pytest

from benchmarks import compare, processes, tools
from benchmarks.peers import Peer
from benchmarks.problems import Size
from benchmarks.processes import ROOT, Process, archived, start
from benchmarks.tools import LAST, OURS, PLAIN, PRODUCTS, TASKS, THIS, Tool
from benchmarks.worker import Worker, answer
from hardnet.errors import HardNetError

SIZES = [Size(6, 4, 3), Size(6, 5, 2, equalities=1), Size(6, 5, 2, shared=True)]


class Near(Process):
    """A worker in this process; requests and answers go through JSON all the same."""

    def __init__(self):
        self.worker = Worker()

    def ask(self, **request):
        return json.loads(json.dumps(answer(self.worker, **json.loads(json.dumps(request)))))


@pytest.fixture
def near(monkeypatch):
    @contextmanager
    def begin(name, sources=None):
        yield Near()

    monkeypatch.setattr(compare, "start", begin)
    monkeypatch.setattr(compare, "archived", lambda revision: ("0123456789", None))


@pytest.mark.parametrize("task", TASKS)
def test_every_tool_has_a_row_and_ours_are_right(task, near, tmp_path, capsys):
    peers = {"closed-form": ["qr", PRODUCTS], "nearest-point": ["DAQP loop"]}[task]
    out = tmp_path / "figures.json"
    result = compare.main_table(task, out=out, sizes=SIZES, peers=peers, revision="v0", seconds=0.001, note="a note")
    assert json.loads(out.read_text()) == json.loads(json.dumps(result))
    assert (result["last_revision"], result["note"]) == ("0123456789", "a note")
    assert {"command", "revision", "versions", "device", "date", "seed"} <= result["environment"].keys()
    for row in result["rows"]:
        if row["tool"] == PRODUCTS:
            assert row["shared"]
            assert "right" not in row
        else:
            assert row["right"], row
            assert row["violation"] <= 1e-12
            assert row["distance"] <= 1e-8
    first = {row["tool"]: row for row in result["rows"] if not row["shared"]}
    assert {OURS, LAST, PLAIN} <= first.keys()
    assert first[OURS]["forward_ratio"] == 1.0
    assert first[LAST]["forward_calls"] >= 9
    assert "6, (1eq+1)x5" in capsys.readouterr().out


def test_a_tool_that_fails_is_a_result(near, monkeypatch, capsys):
    def broken(case):
        raise RuntimeError("no such luck")

    monkeypatch.setitem(TASKS["closed-form"].tools, "broken", Tool(Peer((), broken)))
    missing = Tool(Peer(("no_such_package",), broken))
    monkeypatch.setitem(TASKS["closed-form"].tools, "absent", missing)
    result = compare.main_table("closed-form", sizes=SIZES[:1], peers=["broken", "absent"], seconds=0.001)
    assert [row["error"] for row in result["rows"] if row["tool"] == "broken"] == ["RuntimeError: no such luck"]
    assert result["missing"] == ["absent"]
    assert LAST not in {row["tool"] for row in result["rows"]}
    assert "not installed: absent" in capsys.readouterr().out


def test_a_slow_tool_runs_on_a_part_of_the_batch_and_is_scaled(near, monkeypatch):
    part = Tool(Peer((), tools.closed_form, 2))
    monkeypatch.setitem(TASKS["closed-form"].tools, "part", part)
    rows = compare.main_table("closed-form", sizes=SIZES[2:], peers=["part"], seconds=0.001)["rows"]
    row = next(row for row in rows if row["tool"] == "part")
    assert row["share"] == pytest.approx(2 / 6)
    assert row["right"]
    monkeypatch.setattr(compare, "SLOW", 0.0)
    monkeypatch.setattr(compare, "FEW", 4)
    rows = compare.main_table("closed-form", sizes=SIZES[:1], peers=[], seconds=0.001)["rows"]
    assert all(row["share"] == pytest.approx(4 / 6) and row["forward_calls"] == 1 for row in rows)


def test_a_wrong_answer_is_called_wrong(near, monkeypatch):
    def moved(case):
        run = tools.closed_form(case)
        return run._replace(both=lambda: (run.forward() + 0.1, {}))

    monkeypatch.setitem(TASKS["closed-form"].tools, "moved", Tool(Peer((), moved)))
    rows = compare.main_table("closed-form", sizes=SIZES[:1], peers=["moved"], seconds=0.001)["rows"]
    row = next(row for row in rows if row["tool"] == "moved")
    assert not row["right"]
    assert row["distance"] == pytest.approx(0.1)


def test_a_process_answers_and_an_ended_one_is_a_result():
    with start(THIS) as process:
        asked = {"do": "build", "task": "closed-form", "tool": "qr", "size": [6, 4, 3], "count": 6}
        found = process.ask(**asked, device="cpu", dtype="float64", seed=0)
        assert found["ms"].keys() == {"forward", "both"}
        assert "KeyError" in process.ask(do="time", tool="no such", key="forward", calls=1)["error"]
        process.process.kill()
        assert process.ask(do="drop") == {"error": "the process ended"}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_a_revision_is_unpacked_once(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "REVISIONS", tmp_path)
    commit, folder = archived("HEAD")
    assert (folder / "hardnet" / "__init__.py").exists()
    assert archived(commit) == (commit, folder)


def test_a_folder_of_sources_needs_no_git(tmp_path):
    assert archived(str(tmp_path)) == (tmp_path.name, tmp_path.resolve() / "src")


def test_a_revision_that_is_none_is_named():
    with pytest.raises(HardNetError, match="git rev-parse"):
        archived("no-such-revision")
