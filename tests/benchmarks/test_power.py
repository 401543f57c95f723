"""The benchmark of the power flow runs, and agrees with IPOPT."""

import pytest

from benchmarks import power


def test_the_nearest_dispatch_is_measured(tmp_path):
    pytest.importorskip("casadi")
    found = power.main_table("cpu", tmp_path / "power.json", {"case9": 2})
    for row in found["grids"].values():
        assert row["nearest"]["feasible"] == row["retract"]["feasible"] == 1
        assert row["nearest"]["distance"] == pytest.approx(row["ipopt"]["distance"], rel=1e-5)
        assert row["retract"]["distance"] >= row["nearest"]["distance"] - 1e-9
    assert (tmp_path / "power.json").exists()
