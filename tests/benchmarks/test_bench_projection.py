"""The benchmark of the projection: peers that are there are judged, peers that are not are listed."""

import json

import pytest
import torch

from benchmarks import peers, projection
from benchmarks.projection import Size, main_table, problem

SIZES = [Size(6, 4, 3), Size(6, 5, 7, equalities=2), Size(6, 5, 2, shared=True)]


def test_the_table_holds_us_and_the_installed_peers(tmp_path, capsys):
    pytest.importorskip("daqp")
    out = tmp_path / "projection.json"
    result = main_table("cpu", out, SIZES, peers=["DAQP loop", "DAQP loop + derivative", "pinet 100"], seconds=0.001)
    assert json.loads(out.read_text())["rows"] == result["rows"]
    for row in result["rows"]:
        assert row["right"], row
        if row["tool"] in ("hardnet", "DAQP loop + derivative"):
            assert row["violation"] <= 1e-12
            assert row["gradient error"] <= 1e-8
    printed = capsys.readouterr().out
    assert "6,5,2eq+5" in printed
    assert ("pinet 100" in result["missing"]) == (not projection.all_peers("cpu")["pinet 100"].installed)
    assert f"not installed: {', '.join(result['missing']) or 'none'}" in printed


def test_a_peer_that_fails_is_a_result(monkeypatch):
    def broken(case):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(projection, "all_peers", lambda device: {"broken": peers.Peer((), broken)})
    rows = main_table("cpu", sizes=SIZES[:1], seconds=0.001)["rows"]
    assert rows[1]["error"] == "RuntimeError: no such luck"


def test_slow_peers_run_on_a_part_and_are_scaled(monkeypatch):
    monkeypatch.setattr(projection, "all_peers", lambda device: {"part": peers.Peer((), peers.ours, 2)})
    row = main_table("cpu", sizes=SIZES[:1], seconds=0.001)["rows"][1]
    assert row["scaled"]
    assert row["distance"] <= 1e-12


def test_on_a_gpu_the_floor_and_our_own_torch_path_stand_beside_the_peers(monkeypatch):
    assert list(projection.all_peers("cuda")) == ["hardnet, plain torch", *projection.ON_DEVICE]
    seen = []
    monkeypatch.setattr(projection.gpu, "HAS_TRITON", True)
    run = projection.without_kernels(problem(SIZES[0], "cpu", torch.float64, 0))
    monkeypatch.setattr(
        projection, "ours", lambda case: run._replace(forward=lambda: seen.append(projection.gpu.HAS_TRITON))
    )
    projection.without_kernels(None).forward()
    assert seen == [False]
    assert projection.gpu.HAS_TRITON
    rows = [{"forward": 2.0, "forward+backward": 9.0}, {"forward": 4.0}, {"error": "no"}]
    first, second, third = projection._with_floor(rows, Size(10, 3, 2), torch.float64, 800.0)
    assert first["forward floor"] == 10 * (2 * 3 + 2 * 3 + 2 * 2) * 8 / 800  # A, raw and y, both bounds
    assert first["forward x floor"] == 2.0 / first["forward floor"]
    assert set(second) == {"forward", "forward floor", "forward x floor"}
    assert third == {"error": "no"}
    assert projection._with_floor([{"forward": 2.0}], Size(10, 3, 2), torch.float64, None) == [{"forward": 2.0}]


def test_problems_are_feasible_and_outside():
    case = problem(Size(50, 6, 8, equalities=3), "cpu", torch.float64, 0)
    assert (case.lower[:, :3] == case.upper[:, :3]).all()
    product = (case.A @ case.raw.unsqueeze(-1)).squeeze(-1)
    assert ((product > case.upper) | (product < case.lower)).any(-1).all()
