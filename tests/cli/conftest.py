"""A saved model for the commands that read one."""

import sys

import pytest
import torch

from hardnet import HardNet, save
from hardnet.sets import Affine


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A saved model whose third output sum is bounded, with its network in a module, and inputs in a file."""
    (tmp_path / "mynet.py").write_text("import torch\ndef build():\n    return torch.nn.Linear(2, 3)\n")
    model = HardNet(torch.nn.Linear(2, 3), Affine(torch.ones(1, 3), upper=torch.zeros(1)))
    save(model, tmp_path / "model")
    (tmp_path / "x.csv").write_text("1.0,2.0\n3.0,-4.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    return tmp_path
