"""The commands of the library: methods, explain and check."""

import json
import sys

import numpy
import pytest
import torch
from safetensors.torch import save_file

from hardnet import save
from hardnet.cli.inputs import build
from hardnet.errors import HardNetError
from tests.cli.calling import call


def test_methods(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "methods", "--json")
    assert code == 0
    assert "aff" in [row["name"] for row in json.loads(out)]
    code, out, _ = call(monkeypatch, capsys, "methods")
    assert code == 0
    assert "guarantee" in out


def test_check(monkeypatch, capsys, saved):
    code, out, _ = call(monkeypatch, capsys, "check", "model", "x.csv", "--net", "mynet:build", "--json")
    assert code == 0
    assert json.loads(out)["samples"] == json.loads(out)["satisfied"] == 2
    code, out, _ = call(monkeypatch, capsys, "check", "model", "x.csv", "--net", "mynet:build")
    assert code == 0
    assert "2 of 2 samples satisfy every row" in out


@pytest.fixture
def moving(saved):
    """The same with a bound that depends on x, behind a method that promises nothing: the outputs break it."""
    (saved / "moving.py").write_text(
        "import torch, hardnet as hn\n"
        "def build():\n"
        "    torch.manual_seed(1)\n"
        "    bound = lambda x: -x.square().sum(-1, keepdim=True) - 100\n"
        "    return hn.HardNet(torch.nn.Linear(2, 3), hn.Affine(torch.ones(1, 3), upper=bound), 'none')\n"
    )
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.syspath_prepend(saved)
    sys.modules.pop("moving", None)
    save(build("moving:build"), saved / "broken", example=torch.zeros(1, 2))
    yield saved
    monkeypatch.undo()


def test_check_of_a_broken_constraint_exits_with_1(monkeypatch, capsys, moving):
    code, out, err = call(monkeypatch, capsys, "check", "broken", "x.csv", "--net", "moving:build")
    assert (code, err) == (1, "")
    assert "0 of 2 samples satisfy every row" in out
    code, out, _ = call(monkeypatch, capsys, "check", "broken", "x.csv", "--net", "moving:build", "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


STRANGE = {
    "wide.csv": lambda path: path.write_text("1.0,2.0,3.0\n"),
    "words.csv": lambda path: path.write_text("one,two\n"),
    "ragged.csv": lambda path: path.write_text("1.0,2.0\n3.0\n"),
    "empty.csv": lambda path: path.write_text(""),
    "words.npy": lambda path: numpy.save(path, numpy.array([["one", "two"]])),
    "objects.npy": lambda path: numpy.save(path, numpy.array([[None, {}]]), allow_pickle=True),
    "number.npy": lambda path: numpy.save(path, numpy.array(3.0)),
    "vector.npy": lambda path: numpy.save(path, numpy.zeros(3)),
    "void.npy": lambda path: path.write_bytes(b""),
    "cut_archive.npy": lambda path: path.write_bytes(b"PK\3\4" + bytes(60)),
    "cut.npy": lambda path: (numpy.save(path, numpy.zeros((9, 2))), path.write_bytes(path.read_bytes()[:-9])),
    "complex.npy": lambda path: numpy.save(path, numpy.zeros((3, 2), dtype=complex)),
    "nothing.npy": lambda path: numpy.save(path, numpy.zeros((0, 2))),
    "none.npy": lambda path: None,
    "folder.npy": lambda path: path.mkdir(),
    "other.xlsx": lambda path: path.write_text("1"),
    "other.safetensors": lambda path: save_file({"y": torch.zeros(2, 2)}, path),
}


@pytest.mark.parametrize("name", STRANGE)
def test_data_that_cannot_be_judged_exits_with_2_in_one_line(monkeypatch, capsys, saved, name):
    STRANGE[name](saved / name)
    code, out, err = call(monkeypatch, capsys, "check", "model", name, "--net", "mynet:build")
    assert (code, out) == (2, "")
    assert err.startswith("hardnet: ")
    assert err.count("\n") == 1
    assert name in err


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError('no luck')",
        "return torch.nn.Linear(2, 4)",
        "import nosuch",
        "1 / 0",
        "raise SystemExit(0)",
        "raise SystemExit",
        "raise MemoryError",
        "return build()",
    ],
)
def test_networks_that_cannot_be_judged_exit_with_2(monkeypatch, capsys, saved, body):
    (saved / "mynet.py").write_text(f"import torch\ndef build():\n    {body}\n")
    code, _, err = call(monkeypatch, capsys, "check", "model", "x.csv", "--net", "mynet:build")
    assert code == 2
    assert err.startswith("hardnet: ")


def test_a_network_that_fails_on_the_data_exits_with_2(monkeypatch, capsys, saved):
    body = "class Fails(torch.nn.Linear):\n    def forward(self, x):\n        raise IndexError('no such place')\n"
    (saved / "mynet.py").write_text(f"import torch\n{body}\ndef build():\n    return Fails(2, 3)\n")
    code, _, err = call(monkeypatch, capsys, "check", "model", "x.csv", "--net", "mynet:build")
    assert (code, err) == (2, "hardnet: x.csv: could not be judged; IndexError: no such place\n")


def test_a_script_that_leaves_by_itself_is_not_taken_for_a_verdict(monkeypatch, capsys, saved):
    (saved / "script.py").write_text("import sys, torch\ndef build():\n    return torch.nn.Linear(2, 3)\nsys.exit(0)\n")
    code, out, err = call(monkeypatch, capsys, "check", "model", "x.csv", "--net", "script.py:build")
    assert (code, out) == (2, "")
    assert "script.py: cannot be run; SystemExit: 0" in err
    code, _, err = call(monkeypatch, capsys, "explain", "script.py:build")
    assert (code, "SystemExit" in err) == (2, True)


SETS = """
import hardnet as hn
budget = hn.Affine([[1.0, 1.0]], upper=1.0, name="budget")
def moving():
    return hn.Affine(lambda x: x.unsqueeze(-2), upper=lambda x: x[..., :1], name="moving")
number = 3
"""


def test_explain(monkeypatch, capsys, tmp_path):
    (tmp_path / "allowed.py").write_text(SETS)
    (tmp_path / "x.csv").write_text("1.0,2.0\n3.0,-4.0\n")
    code, out, _ = call(monkeypatch, capsys, "explain", f"{tmp_path / 'allowed.py'}:budget")
    assert code == 0
    assert "name='budget'" in out
    assert "-> aff" in out
    place = f"{tmp_path / 'allowed.py'}:moving"
    code, out, _ = call(monkeypatch, capsys, "explain", place, "--data", tmp_path / "x.csv", "--json")
    assert code == 0
    assert json.loads(out)["method"] == "projection"


@pytest.mark.parametrize("name", ["allowed.py:nothing", "allowed.py:number", "allowed.py", "missing.py:set"])
def test_explain_of_what_is_no_set_is_one_line(monkeypatch, capsys, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "allowed.py").write_text(SETS)
    code, out, err = call(monkeypatch, capsys, "explain", name)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_check_of_a_model_that_is_not_there(monkeypatch, capsys, saved):
    code, _, err = call(monkeypatch, capsys, "check", "nothing", "x.csv", "--net", "mynet:build")
    assert code == 2
    assert "not a saved model" in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mynet", "--net: expected module:function or FILE.py:NAME, got 'mynet'"),
        ("nosuchmodule:build", "--net: nosuchmodule:build cannot be called"),
        ("mynet:nosuch", "--net: mynet:nosuch cannot be called"),
        ("builtins:dict", "--net: expected a function that returns a module, got dict"),
    ],
)
def test_networks_that_cannot_be_built(saved, name, message):
    with pytest.raises(HardNetError, match=message):
        build(name)


def test_methods_can_be_measured_on_the_spot(monkeypatch, capsys):
    from hardnet_lab.experiments import measured

    rows = measured.measure(names=["aff"], seconds=0.01)
    monkeypatch.setattr(measured, "measure", lambda device: rows)
    code, out, _ = call(monkeypatch, capsys, "methods", "--measure", "--json")
    assert code == 0
    assert json.loads(out) == rows
    code, out, _ = call(monkeypatch, capsys, "methods", "--measure")
    assert code == 0
    assert "| aff" in out


def test_a_network_comes_from_a_module_or_a_file(saved):
    assert isinstance(build("mynet:build"), torch.nn.Linear)
    assert isinstance(build("mynet.py:build"), torch.nn.Linear)
    with pytest.raises(HardNetError, match=r"--net: none\.py:build cannot be called; none\.py: no such file"):
        build("none.py:build")
