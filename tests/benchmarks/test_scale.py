"""The growth and roofline benchmarks: their arithmetic on known answers, and a small run on the CPU."""

import json

import pytest

from hardnet.benchmarks import roofline, scale


def test_exponent_of_a_power_law_ignores_the_overhead_of_small_sizes():
    sizes = [1, 10, 100, 1000, 10000]
    assert scale.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert scale.exponent(sizes, [50.0, 50.0, 100.0, 1000.0, 10000.0]) == pytest.approx(1.0)


def test_floor_counts_every_number_once():
    forward, both = roofline.floors((10, 3, 2), bandwidth=40.0)
    assert forward == 6 + 6 + 4
    assert both == forward + 12 + 9 + 8
    assert roofline.operations((1, 2, 1)) == 8 + 4 + 1 / 3 + 2


def test_scale_writes_numbers_and_curves(tmp_path, monkeypatch, capsys):
    tiny = {"B": ((2, 3, 2), (4, 3, 2)), "n": ((2, 2, 2), (2, 4, 2)), "m": ((2, 4, 1), (2, 4, 2))}
    monkeypatch.setitem(scale.SWEEPS, "cpu", tiny)
    out = tmp_path / "scale.json"
    result = scale.main_table("cpu", out)
    assert json.loads(out.read_text())["sweeps"].keys() == result["sweeps"].keys() == {"B", "n", "m"}
    assert out.with_suffix(".png").stat().st_size > 1000
    assert "mathematics" in capsys.readouterr().out


def test_roofline_draws_recorded_numbers(tmp_path):
    row = {"m": 2, "n": 2, "operations": 1e6, "forward_ms": 2.0, "forward_floor_ms": 1.0, "forward_multiple": 2.0}
    roofline.draw({"copy_bytes_per_ms": 1e6, "rows": [row]}, tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").stat().st_size > 1000
