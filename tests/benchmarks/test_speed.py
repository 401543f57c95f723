"""Recorded benchmarks as tables: ours in milliseconds, the others as ratios, wrong answers marked."""

import json

from benchmarks import speed

STAMP = {"device": "a CPU", "threads": 2, "versions": {"torch": "2"}, "date": "2026-01-02T03:04"}


def test_projection_marks_wrong_answers_and_forward_only_peers():
    rows = [
        {"size": "10,5", "tool": "hardnet", "forward": 1.0, "forward+backward": 2.0, "right": True},
        {"size": "10,5", "tool": "slow", "forward": 5.0, "forward+backward": 20.0, "right": True},
        {"size": "10,5", "tool": "wrong", "forward": 5.0, "forward+backward": 6.0, "right": False},
        {"size": "10,5", "tool": "plain", "forward": 3.0, "right": True},
        {"size": "10,5", "tool": "broken", "error": "ValueError: no"},
    ]
    lines = speed.projection({"rows": rows}).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells == [["hardnet", "2 ms"], ["slow", "10x"], ["wrong", "3x !"], ["plain", "3x fwd"], ["broken", "-"]]


def test_affine_compares_with_the_best_alternative_of_each_pass():
    common = {"B": 10, "n": 4, "m": 2, "shared_A": False}
    rows = [
        common | {"who": "hardnet", "forward_ms": 1.0, "both_ms": 2.0},
        common | {"who": "qr", "forward_ms": 3.0, "both_ms": 4.0},
        common | {"who": "lstsq", "forward_ms": 2.0, "both_ms": 9.0},
    ]
    assert cells(speed.affine({"rows": rows}))[0][2:] == ["1", "2x (lstsq)", "2", "2x (qr)", "-", "-"]
    rows.append(common | {"who": "two products", "forward_ms": 0.5, "both_ms": 0.5})
    rows.append(common | {"who": "hardnet, torch alone", "forward_ms": 7.0, "both_ms": 8.0})
    assert cells(speed.affine({"rows": rows}))[0][6:] == ["2x", "7, 8"]
    kept = [row | {"shared_A": True} for row in rows]
    kept.append(kept[0] | {"who": "hardnet, factor kept", "forward_ms": 0.25})
    assert cells(speed.affine({"rows": kept}))[0][2:4] == ["0.25", "8x (lstsq)"]


def cells(table):
    """The cells of a table's lines, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def contender(who, **more):
    """A row of the table on a GPU, 10 samples of 2x4."""
    row = {"B": 10, "n": 4, "m": 2, "shared_A": False, "who": who, "forward_ms": 3.0, "both_ms": 4.0, "timed_share": 1}
    row |= {"forward_floor_ms": 0.01, "both_floor_ms": 0.02, "violation": 1e-6, "gradient_error": 1e-7}
    return row | {"forward_multiple": 2.0, "both_multiple": 3.0} | more


def test_contenders_show_scaled_times_failures_and_what_the_device_alone_takes():
    failed = {"B": 10, "n": 4, "m": 2, "shared_A": False, "who": "cholesky", "error": "_LinAlgError: not positive"}
    alone = {"forward_device_ms": 0.5, "both_device_ms": 0.75}
    lines = cells(speed.contenders({"rows": [contender("qr", timed_share=0.5), failed, contender("hardnet", **alone)]}))
    assert lines[0] == ["10, 2x4", "per sample", "qr~", "3", "-", "2", "4", "-", "3", "1e-06", "1e-07"]
    assert lines[1] == ["10, 2x4", "per sample", "cholesky", "LinAlgError", *["-"] * 7]
    assert lines[2][3:9] == ["3", "0.5", "2", "4", "0.75", "3"]


def test_errors_that_compare_nothing_are_not_shown():
    """The two products enforce nothing; the gradient of a shared A is a sum over the whole batch."""
    part = contender("qr", shared_A=True, timed_share=0.5)
    lines = cells(speed.contenders({"rows": [contender(speed.FLOOR, shared_A=True), part]}))
    assert lines[0][-2:] == ["-", "-"]
    assert lines[1][-2:] == ["1e-06", "-"]


def test_replays_of_ours_stand_beside_their_targets():
    alone = {"B": 10**6, "n": 2, "m": 2, "forward_device_ms": 0.02, "both_device_ms": 0.05}
    rows = [contender("hardnet", **alone), contender("hardnet"), contender("qr"), contender("hardnet", shared_A=True)]
    assert cells(speed.replayed({"rows": rows})) == [["1000000, 2x2", "20", "2 (2)", "50", "3 (3)"]]


def test_a_kept_factor_stands_beside_the_two_products():
    kept = contender(speed.KEPT, shared_A=True, forward_device_ms=0.03, both_device_ms=0.06)
    products = contender(speed.FLOOR, shared_A=True, forward_device_ms=0.01, both_device_ms=0.04)
    lines = cells(speed.shared({"rows": [kept, products, contender("hardnet", shared_A=True)]}))
    assert lines == [["10, 2x4", "30", "2", "3", "60", "3", "1.5"]]


def test_a_launch_is_no_multiple_of_the_memory_floor():
    row = contender("hardnet", forward_device_ms=0.006, both_device_ms=0.006, forward_floor_ms=1e-6, both_floor_ms=1e-6)
    assert cells(speed.replayed({"rows": [row]})) == [["10, 2x4", "6", "-", "6", "-"]]


def test_conditioning_shows_flagged_samples():
    row = {"path": "gram", "dtype": "float64", "condition": 1e8, "hardnet": float("nan"), "cholesky": None}
    assert cells(speed.conditioning({"conditioning": [row]})) == [["gram", "float64", "1e+08", "nan", "-"]]


def test_roofline_shows_targets_beside_multiples_of_one_dtype():
    row = {"dtype": "float32", "B": 10, "n": 4, "m": 2, "forward_ms": 1.0, "forward_multiple": 1.5, "both_ms": 2.0}
    row |= {"both_multiple": 2.5, "forward_target": 2.0, "both_target": None}
    content = {"rows": [row, row | {"dtype": "float64", "B": 99}]}
    assert "1.5 (2)" in speed.roofline(content)
    assert "99" not in speed.roofline(content)
    assert "99" in speed.roofline_double(content)


def test_growth_stands_beside_the_mathematics():
    sweep = {"exponents": {"forward": 0.97, "both": 0.98}, "expected": 1.0}
    assert speed.growth({"sweeps": {"B": sweep}}).splitlines()[2].split("|")[1:3] == [" B               ", " 0.97    "]


def test_only_what_was_recorded_is_shown(tmp_path):
    assert speed.speed_tables(tmp_path, speed.RECORDS) == ""
    (tmp_path / "projection_cpu.json").write_text(json.dumps({"environment": STAMP, "rows": []}))
    assert "a CPU, 2 threads, torch 2, 2026-01-02" in speed.speed_tables(tmp_path, speed.RECORDS)
