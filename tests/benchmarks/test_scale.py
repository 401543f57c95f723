"""The growth and roofline benchmarks: their arithmetic on known answers, and a small run on the CPU."""

import json

import pytest

from benchmarks import affine, affine_problems, roofline, scale
from hardnet.experiments import timing


def test_exponent_of_a_power_law_ignores_the_overhead_of_small_sizes():
    sizes = [1, 10, 100, 1000, 10000]
    assert scale.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert scale.exponent(sizes, [50.0, 50.0, 100.0, 1000.0, 10000.0]) == pytest.approx(1.0)
    assert scale.exponent(sizes, [50.0, 50.0, 150.0, 1000.0, 10000.0]) == pytest.approx(1.0)


def test_floor_counts_every_number_once():
    forward, both = affine_problems.floors((10, 3, 2), bandwidth=40.0)
    assert forward == 6 + 6 + 4
    assert both == forward + 12 + 9 + 8
    forward, both = affine_problems.floors((10, 3, 2), bandwidth=40.0, shared=True)
    assert forward == pytest.approx(0.6 + 6 + 4)
    assert both == pytest.approx(forward + 1.2 + 9 + 8)
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
    row = {
        "dtype": "float32",
        "m": 2,
        "n": 2,
        "operations": 1e6,
        "forward_ms": 2.0,
        "forward_floor_ms": 1.0,
        "forward_multiple": 2.0,
    }
    roofline.draw({"copy_bytes_per_ms": 1e6, "rows": [row]}, tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").stat().st_size > 1000


def test_a_slow_piece_of_work_is_called_once_and_says_so(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))  # every call takes a second
    calls = []
    timings = timing.time_each({"slow": lambda: calls.append(1) or len(calls)}, "cpu", slow=999.0)
    assert timings["slow"] == (1000.0, 1, 1)
    assert timing.time_each({"quick": lambda: 7}, "cpu", seconds=0.0, slow=1001.0)["quick"] == (1000.0, 5, 7)


def test_a_slow_contender_is_timed_on_a_part_of_the_batch(monkeypatch):
    monkeypatch.setattr(affine.cpu, "HAS_NUMBA", False)
    monkeypatch.setattr(affine, "SLOW", 0.0)
    monkeypatch.setattr(affine, "FEW", 4)
    rows = affine.measure((16, 3, 2), False, affine.torch.float64, "cpu", ("cholesky",), 0)
    shares = {row["who"]: row["timed_share"] for row in rows}
    assert shares == {"hardnet": 0.25, "cholesky": 0.25}
    assert all(row["violation"] < 1e-12 and row["gradient_error"] < 1e-6 for row in rows)


def test_a_contender_that_fails_is_a_row_with_its_error(monkeypatch):
    def broken(*numbers):
        raise affine.torch.linalg.LinAlgError("not positive-definite")

    monkeypatch.setitem(affine.ALTERNATIVES, "cholesky", broken)
    row = affine.measure((8, 3, 2), False, affine.torch.float64, "cpu", ("cholesky",), 0)[1]
    assert "not positive-definite" in row["error"]
    assert "forward_ms" not in row
