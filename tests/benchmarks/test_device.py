"""The benchmark of the device alone, its clock replaced: what it measures, beside which floor."""

import json

import pytest
import torch

from benchmarks import device
from benchmarks.problems import Size


@pytest.fixture
def on_cpu(monkeypatch):
    """Every replay calls its work once on the CPU and takes a millisecond."""

    def replay(work, sets):
        for numbers in sets:
            work(*numbers)
        return 1.0

    monkeypatch.setattr(device.timing, "replay_time", replay)
    monkeypatch.setattr(device, "large_problem", lambda size, _, dtype, seed=0: LARGE(size, "cpu", dtype, seed))


LARGE = device.large_problem


def test_times_stand_beside_the_floor_of_their_bytes(on_cpu):
    row = device.measure(
        "closed form", device.hn.functional.enforce_affine, Size(10, 3, 2), torch.float32, 40.0, (2, 3)
    )
    assert row["forward_floor_ms"] == 6 + 6 + 4
    assert row["forward_multiple"] == 1 / 16
    assert (row["forward_target"], row["both_target"]) == (2, 3)


def test_a_shared_matrix_stands_beside_the_two_products(on_cpu):
    case = LARGE(Size(5, 4, 2, shared=True), "cpu", torch.float32)
    both = device.shared_enforcements(case)
    assert list(both) == [device.KEPT, device.PRODUCTS]
    for enforce in both.values():
        assert device.replayed(enforce, Size(5, 4, 2, shared=True), torch.float32) == {
            "forward_ms": 1.0,
            "both_ms": 1.0,
        }


def test_the_run_writes_every_row(on_cpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(device.timing, "copy_bandwidth", lambda device, megabytes: 40.0)
    monkeypatch.setattr(device, "boxed", lambda bandwidth: {"what": "a box and one equality"})
    monkeypatch.setattr(device, "TARGETS", {(4, 2, 2): (2.0, 3.0)})
    monkeypatch.setattr(device, "NEAREST", {(4, 2, 2): None})
    monkeypatch.setattr(device, "SHARED", ((4, 2, 2),))
    monkeypatch.setattr(device, "eager", lambda what, enforce, size: {"what": f"{what}, eager"})
    result = device.main_table("cpu", tmp_path / "device.json", revision="abc")
    assert json.loads((tmp_path / "device.json").read_text())["rows"] == result["rows"]
    assert result["environment"]["revision"] == "abc"
    names = [row["what"] for row in result["rows"]]
    few = ["closed form", "nearest point", "a box and one equality", "closed form, eager", "nearest point, eager"]
    assert names == [*few, device.KEPT, device.PRODUCTS, "closed form"]
    assert capsys.readouterr().out.count("\n") == len(names)
    alone = device.main_table("cpu", nearest_only=True)
    assert [row["what"] for row in alone["rows"]] == few
