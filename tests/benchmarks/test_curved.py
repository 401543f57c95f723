"""The benchmark of curved sets answers every sample and writes its figures."""

import json

from benchmarks import curved


def test_curved_answers_all_and_writes_numbers(tmp_path, monkeypatch):
    small = {name: case for name, case in curved.cases(0.02).items() if "FSNet" not in name and "100" not in name}
    monkeypatch.setattr(curved, "cases", lambda _: small)
    curved.main_table("cpu", tmp_path / "curved.json", rounds=1)
    written = json.loads((tmp_path / "curved.json").read_text())
    assert written["cases"].keys() == small.keys()
    assert all(row["answered"] == 1.0 and row["violation"] < 1e-9 for row in written["cases"].values())


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    small = {name: case for name, case in curved.cases(0.02).items() if "n = " in name}
    monkeypatch.setattr(curved, "cases", lambda _: small)
    for revision, again in (("abc", False), ("abc with changes", True)):
        monkeypatch.setattr(curved, "environment", lambda *_, own=revision: {"revision": own})
        first = curved.main_table("cpu", tmp_path / "curved.json", rounds=1)
        with monkeypatch.context() as patch:
            patch.setattr(curved, "measure", lambda *_: {"samples": 0})
            second = curved.main_table("cpu", tmp_path / "curved.json")
        assert (second["cases"] != first["cases"]) is again  # changes may be others
