"""The commands that train: reproduce, report and demo."""

import json
from pathlib import Path

import pytest
import torch

from tests.cli.calling import call


def test_reproduce_and_report(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--methods", "aff", "--seeds", 1, "--quick", "--device", "cpu", "--out", tmp_path)
    code, out, _ = call(monkeypatch, capsys, "reproduce", "pwc", *options)
    assert code == 0
    assert "1 results in" in out
    code, out, _ = call(monkeypatch, capsys, "report", tmp_path, "--json")
    assert code == 0
    assert "<html" in Path(json.loads(out)["page"]).read_text()
    code, _, err = call(monkeypatch, capsys, "report", tmp_path / "empty")
    assert code == 2
    assert err.count("\n") == 1


def test_reproduce_prints_json_when_asked(monkeypatch, capsys, tmp_path):
    code, out, _ = call(monkeypatch, capsys, "reproduce", "gradient", "--json", "--out", tmp_path)
    assert (code, json.loads(out)) == (0, [str(tmp_path / "gradient" / "aff.json")])


def test_the_demo_has_one_thread_and_leaves_the_others_to_the_caller():
    from hardnet_lab.experiments.demo import one_thread

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_demo_ends_with_the_path_of_its_report(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    from hardnet_lab.experiments import demo

    brief = lambda *names, **options: request(*names, **options, quick=True, seeds="1", methods="aff")
    request = demo.request
    monkeypatch.setattr(demo, "request", brief)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(monkeypatch, capsys, "demo", "--out", tmp_path)
    assert code == 0
    page = Path(out.splitlines()[-1].removeprefix("report: "))
    assert "<html" in page.read_text()
    assert "HardNet-Aff" in out
    code, out, _ = call(monkeypatch, capsys, "demo", "--out", tmp_path, "--json")  # nothing is trained again
    assert [row["method"] for row in json.loads(out)["methods"]] == ["HardNet-Aff"]
