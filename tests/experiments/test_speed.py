"""Recorded benchmarks as tables: ours in milliseconds, the others as ratios, wrong answers marked."""

import json

from hardnet.experiments import speed

STAMP = {"device": "a CPU", "threads": 2, "torch": "2", "date": "2026-01-02T03:04"}


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
    line = speed.affine({"rows": rows}).splitlines()[2]
    assert [cell.strip() for cell in line.strip("|").split("|")][2:] == ["1", "2x (lstsq)", "2", "2x (qr)", "-"]
    rows.append(common | {"who": "two products", "forward_ms": 0.5, "both_ms": 0.5})
    assert speed.affine({"rows": rows}).splitlines()[2].endswith("| 2x                  |")


def test_contenders_show_scaled_times_and_failures():
    common = {"B": 10, "n": 4, "m": 2, "shared_A": False}
    figures = {"forward_multiple": 2.0, "both_multiple": 3.0, "violation": 1e-6, "gradient_error": 1e-7}
    rows = [
        common | {"who": "qr", "forward_ms": 3.0, "both_ms": 4.0, "timed_share": 0.5} | figures,
        common | {"who": "cholesky", "error": "_LinAlgError: not positive-definite"},
    ]
    lines = speed.contenders({"rows": rows}).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["10, 2x4", "per sample", "qr~", "3", "2", "4", "3", "1e-06", "1e-07"]
    assert cells[1] == ["10, 2x4", "per sample", "cholesky", "LinAlgError", "-", "-", "-", "-", "-"]


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
    assert speed.speed_tables(tmp_path) == ""
    (tmp_path / "projection_cpu.json").write_text(json.dumps({"environment": STAMP, "rows": []}))
    assert "a CPU, 2 threads, torch 2, 2026-01-02" in speed.speed_tables(tmp_path)
