"""Recorded benchmarks as tables: ours in milliseconds, the others as ratios, wrong answers marked."""

import json

from benchmarks import speed
from benchmarks.tools import KEPT, LAST, OURS

STAMP = {"device": "a CPU", "threads": 2, "versions": {"torch": "2"}, "date": "2026-01-02 03:04", "revision": "abc"}


def cells(table):
    """The cells of a table's lines, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def row(tool, forward=None, both=None, **more):
    """One recorded row, 10 samples of 2x4."""
    times = {key: value for key, value in (("forward_ms", forward), ("both_ms", both)) if value is not None}
    return {"B": 10, "n": 4, "m": 2, "equalities": 0, "shared": False, "tool": tool} | times | more


def test_ratios_mark_wrong_answers_parts_of_a_batch_and_passes_that_were_not_timed():
    rows = [
        row(OURS, 1.0, 2.0, right=True),
        row(LAST, 1.5, 2.0, right=True),
        row("wrong", 5.0, 6.0, right=False),
        row("plain", 3.0, right=True, share=0.5),
        row("broken", error="ValueError: no"),
    ]
    table = speed.ratios({"rows": rows, "last_revision": "abc"})
    assert table.splitlines()[0].split("|")[2].strip() == "10, 2x4"
    assert cells(table) == [
        [OURS, "1 / 2 ms"],
        ["hardnet at abc", "1.5 / 1"],
        ["wrong", "5 / 3 !"],
        ["plain", "3 / -~"],
        ["broken", "-"],
    ]


def test_ours_keeps_its_factor_where_all_samples_share_the_matrix():
    rows = [row(OURS, 9.0, 9.0), row(OURS, 4.0, 4.0, shared=True), row(KEPT, 2.0, 4.0, shared=True)]
    assert cells(speed.ratios({"rows": rows}, shared=True)) == [[OURS, "2 / 1"], [KEPT, "2 / 4 ms"]]
    assert cells(speed.ratios({"rows": rows}, shared=False)) == [[OURS, "9 / 9 ms"]]


def test_multiples_of_the_floor_stand_beside_their_targets_and_a_launch_is_none():
    found = {"what": "closed form", "dtype": "float32", "forward_ms": 0.02, "both_ms": 0.05, "forward_multiple": 2.0,
             "both_multiple": 3.0, "forward_target": 2.5}  # fmt: skip
    rows = [row("", **found), row("", **found | {"forward_floor_ms": 1e-6, "both_floor_ms": 1.0})]
    rows.append(row("", **found | {"dtype": "float64"}))
    lines = cells(speed.on_device({"rows": rows}))
    assert lines == [
        ["closed form", "10, 2x4", "20", "2 (2.5)", "50", "3"],
        ["closed form", "10, 2x4", "20", "-", "50", "3"],
    ]
    assert len(cells(speed.on_device({"rows": rows}, dtype="float64"))) == 1


def test_growth_stands_beside_the_mathematics():
    sweep = {"exponents": {"forward": 0.97, "both": 0.98}, "expected": 1.0}
    assert cells(speed.growth({"sweeps": {"B": sweep}})) == [["B", "0.97", "0.98", "1"]]


def test_only_what_was_recorded_is_shown(tmp_path):
    assert speed.speed_tables(tmp_path, speed.RECORDS) == ""
    content = {"environment": STAMP, "rows": [row(OURS, 1.0, 2.0)], "note": "Shared."}
    (tmp_path / "nearest_point_cpu.json").write_text(json.dumps(content))
    text = speed.speed_tables(tmp_path, speed.RECORDS)
    assert (
        "a CPU, 2 threads, torch 2, 2026-01-02, revision abc; data: `results/bench/nearest_point_cpu.json`. Shared."
        in text
    )
