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
