"""How cost grows: the fit on known answers, and a small run on the CPU."""

import json

import pytest

from benchmarks import scale
from benchmarks.problems import Size


def test_exponent_of_a_power_law_ignores_the_overhead_of_small_sizes():
    sizes = [1, 10, 100, 1000, 10000]
    assert scale.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert scale.exponent(sizes, [50.0, 50.0, 100.0, 1000.0, 10000.0]) == pytest.approx(1.0)
    assert scale.exponent(sizes, [50.0, 50.0, 150.0, 1000.0, 10000.0]) == pytest.approx(1.0)


def test_scale_writes_numbers(tmp_path, monkeypatch, capsys):
    tiny = {
        "B": (Size(2, 3, 2), Size(4, 3, 2)),
        "n": (Size(2, 2, 2), Size(2, 4, 2)),
        "m": (Size(2, 4, 1), Size(2, 4, 2)),
    }
    monkeypatch.setitem(scale.SWEEPS, "cpu", tiny)
    out = tmp_path / "scale.json"
    result = scale.main_table("cpu", out)
    assert json.loads(out.read_text())["sweeps"].keys() == result["sweeps"].keys() == {"B", "n", "m"}
    assert "mathematics" in capsys.readouterr().out
