"""Inputs from files of every kind, and files that hold none."""

import pytest
import torch
from safetensors.torch import save_file

from hardnet.cli.inputs import read_inputs
from hardnet.errors import FileError, HardNetError


def test_inputs_from_every_kind_of_file(tmp_path):
    from numpy import save as save_array

    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    save_file({"x": x}, tmp_path / "x.safetensors")
    save_array(tmp_path / "x.npy", x.numpy())
    (tmp_path / "x.csv").write_text("1.0,2.0\n")
    for kind in ("safetensors", "npy", "csv"):
        assert torch.equal(read_inputs(tmp_path / f"x.{kind}"), x)


@pytest.mark.parametrize("kind", ["safetensors", "npy", "csv"])
def test_unreadable_inputs(tmp_path, kind):
    (tmp_path / f"x.{kind}").write_text("nonsense")
    with pytest.raises(FileError, match="not readable as inputs"):
        read_inputs(tmp_path / f"x.{kind}")


def test_inputs_of_another_kind(tmp_path):
    with pytest.raises(HardNetError, match=r"data: expected a file of kind .safetensors, .npy, .csv"):
        read_inputs(tmp_path / "x.xlsx")


def test_a_header_line_is_named(tmp_path):
    (tmp_path / "x.csv").write_text("speed,load\n1,2\n")
    with pytest.raises(FileError, match="a header line is not read: leave it out"):
        read_inputs(tmp_path / "x.csv")
