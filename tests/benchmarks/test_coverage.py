"""Coverage by room, from the report of the tracer."""

import json

from benchmarks import coverage


def test_shares_are_summed_by_room_and_in_all(tmp_path):
    count = lambda statements, run: {"summary": {"num_statements": statements, "covered_lines": run}}
    files = {
        "src/hardnet/sets/ball.py": count(10, 5),
        "lib/hardnet/sets/base.py": count(30, 25),
        "hardnet/rows.py": count(0, 0),
    }
    (tmp_path / "report.json").write_text(json.dumps({"files": files}))
    result = coverage.record(tmp_path / "report.json", tmp_path / "coverage.json", "a part of the tests")
    assert result["rooms"]["sets"] == {"statements": 40, "run": 30, "percent": 75.0}
    assert result["rooms"]["rows"]["percent"] == 100.0
    assert result["total"] == {"statements": 40, "run": 30, "percent": 75.0}
    written = json.loads((tmp_path / "coverage.json").read_text())
    assert written["note"] == "a part of the tests"
    assert {"command", "date"} <= written["environment"].keys()
