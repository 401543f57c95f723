"""The command line of the benchmarks hands on what it was given."""

import sys

import pytest

from benchmarks import __main__ as command


def test_a_comparison_gets_its_options(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(command, "compare", lambda task, **options: seen.update(options, task=task))
    argv = ["benchmarks", "closed-form", "--device", "cpu", "--revision", "abc", "--peers", "qr, solve"]
    monkeypatch.setattr(sys, "argv", [*argv, "--seconds", "0.5", "--note", "shared", "--out", str(tmp_path / "a.json")])
    command.main()
    assert seen == {"task": "closed-form", "device": "cpu", "out": tmp_path / "a.json", "peers": ["qr", "solve"],
                    "revision": "abc", "seconds": 0.5, "note": "shared"}  # fmt: skip


def test_without_a_tag_no_earlier_revision_is_compared(monkeypatch, capsys):
    seen = {}
    monkeypatch.setattr(command, "compare", lambda task, **options: seen.update(options))
    monkeypatch.setattr(command, "last_tag", lambda: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "nearest-point", "--device", "cpu"])
    command.main()
    assert seen["revision"] is None
    assert "REV=" in capsys.readouterr().out


@pytest.mark.parametrize("task", command.ALONE)
def test_every_benchmark_of_ours_alone_is_there(task, monkeypatch):
    module = __import__(f"benchmarks.{task}", fromlist=["main_table"])
    seen = {}
    monkeypatch.setattr(module, "main_table", lambda **options: seen.update(options))
    monkeypatch.setattr(sys, "argv", ["benchmarks", task, "--device", "cpu"])
    command.main()
    assert seen["device"] == "cpu"
