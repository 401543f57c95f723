"""What other platforms lack is not needed: locks of POSIX, Triton, numba; and a device without float64 is refused."""

import pytest
import torch

import hardnet as hn
from hardnet import shapes
from hardnet.layers import base
from tests.test_optional import CORE, WORK, run

WINDOWS = """
import sys

for name in ("fcntl", "termios", "resource", "pwd", "grp", "triton", "numba"):
    sys.modules[name] = None  # an import of it is an ImportError
"""
LOCKS = """
import pathlib, tempfile
from hardnet.files import sole_run, write_atomically

with tempfile.TemporaryDirectory() as place:
    path = pathlib.Path(place) / "folder" / "file"
    with sole_run(path.parent):
        write_atomically(path, b"old")
        write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
print("files work")
"""


def test_imports_and_plain_paths_need_nothing_of_posix():
    result = run(WINDOWS + CORE + WORK + LOCKS)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:2] == ["core works", "files work"]


@pytest.fixture
def without_double(monkeypatch):
    """The meta device stands for one without float64: no such hardware is here."""
    for module in (shapes, base):
        monkeypatch.setattr(module, "NO_DOUBLE", ("meta",))


@pytest.mark.parametrize(
    "enforce",
    [
        lambda raw: shapes.check_matrix(raw, torch.ones(1, 3, device=raw.device)),  # the functions' own check
        lambda raw: hn.layers.Projection(hn.Box(0.0, 1.0))(raw),
        lambda raw: hn.layers.Projection(hn.Affine(torch.ones(1, 3), upper=0.0)).to(raw.device)(raw),
        lambda raw: hn.HardNet(torch.nn.Identity(), hn.Ball(torch.zeros(3), 1.0)).to(raw.device)(raw),
        lambda raw: hn.check(hn.Box(0.0, 1.0), raw),
    ],
)
def test_a_device_without_double_is_refused_in_one_sentence(enforce, without_double):
    with pytest.raises(hn.errors.DeviceError, match=r"a device with float64.*layer\(raw.cpu\(\), x.cpu\(\)\)"):
        enforce(torch.zeros(2, 3, device="meta"))
