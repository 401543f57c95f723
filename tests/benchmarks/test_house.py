"""The figures of the house."""

from benchmarks.families import ONE_PASS, TORCH, served_by
from benchmarks.house import figures, private_names
from hardnet.kernels.cpu import affine, launch


def test_every_file_stands_in_one_room():
    found = figures()
    assert found["rooms"]["all"]["files"] == sum(own["files"] for name, own in found["rooms"].items() if name != "all")


def test_private_names_are_seen_once_each(tmp_path):
    file = tmp_path / "uses.py"
    file.write_text("import torch\nfrom torch._C import _is_tracing\ntorch._C._is_tracing()\ntorch._dynamo.reset()\n")
    assert private_names([file]) == ["torch._C._is_tracing", "torch._dynamo.reset"]


def test_a_family_serves_only_while_it_is_asked_to():
    before = affine.MOST_SHARED_NUMBERS, launch.HAS_NUMBA
    with served_by(TORCH):
        assert not launch.HAS_NUMBA
    with served_by(ONE_PASS):
        assert affine.MOST_SHARED_NUMBERS > 10**9
    assert before == (affine.MOST_SHARED_NUMBERS, launch.HAS_NUMBA)
