"""The command line: what it prints, its exit codes, and one line for every mistake."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

import hardnet.cli
from hardnet.errors import FileError, HardNetError
from hardnet.experiments.inputs import build, read_inputs
from hardnet.model import HardNet
from hardnet.sets import Affine
from hardnet.storage import save


def call(monkeypatch, capsys, *arguments):
    """Exit code, output and error output of a command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["hardnet", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        hardnet.cli.main()
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "experiment: expected 'all' or one of pwc, pwcfull, pwcbox, opt, cbf, gradient, got 'nosuch'"),
        (["pwc", "--methods", "magic"], "--methods: expected 'all' or some of nn, soft"),
        (["pwc", "--seeds", "one"], "--seeds: expected a range like 1-5"),
        (["pwc", "--seeds", "9" * 23], "--seeds: expected a range like 1-5 of numbers below 2^63"),
        (["pwc", "--epochs", "0"], "--epochs: expected at least 1, got 0"),
        (["pwc", "--device", "quantum"], "--device: expected auto, cpu or cuda, got 'quantum'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path, arguments, message):
    code, out, err = call(monkeypatch, capsys, "reproduce", *arguments, "--out", tmp_path / "runs")
    assert code == 2
    assert err.startswith(f"hardnet: {message}")
    assert err.count("\n") == 1
    assert not out
    assert not (tmp_path / "runs").exists()


def test_unknown_options_and_commands_exit_with_2(monkeypatch, capsys):
    assert call(monkeypatch, capsys, "reproduce", "pwc", "--nosuch")[0] == 2
    assert call(monkeypatch, capsys, "conjure")[0] == 2


def test_no_space_left_is_one_line(monkeypatch, capsys, tmp_path):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    code, _, err = call(monkeypatch, capsys, "reproduce", "pwc", "--epochs", 1, "--seeds", 1, "--out", tmp_path)
    assert code == 2
    assert err == f"hardnet: {tmp_path / 'pwc' / 'run.json'}: could not be written; No space left on device\n"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_reproduce_and_report(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--methods", "aff", "--seeds", 1, "--quick", "--device", "cpu", "--out", tmp_path)
    code, out, _ = call(monkeypatch, capsys, "reproduce", "pwc", *options)
    assert code == 0
    assert "1 results in" in out
    code, out, _ = call(monkeypatch, capsys, "report", tmp_path, "--json")
    assert code == 0
    assert "<html" in Path(json.loads(out)["page"]).read_text()
    code, _, err = call(monkeypatch, capsys, "report", tmp_path / "empty")
    assert code == 2
    assert err.count("\n") == 1


def test_reproduce_prints_json_when_asked(monkeypatch, capsys, tmp_path):
    code, out, _ = call(monkeypatch, capsys, "reproduce", "gradient", "--json", "--out", tmp_path)
    assert (code, json.loads(out)) == (0, [str(tmp_path / "gradient" / "aff.json")])


def test_interrupted_runs_exit_with_130(monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("hardnet.experiments.run.request", stop)
    assert call(monkeypatch, capsys, "reproduce", "pwc", "--json")[0] == 130


def test_methods(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "methods", "--json")
    assert code == 0
    assert "aff" in [row["name"] for row in json.loads(out)]
    code, out, _ = call(monkeypatch, capsys, "methods")
    assert code == 0
    assert "guarantee" in out


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
    "body", ["raise ValueError('no luck')", "return torch.nn.Linear(2, 4)", "import nosuch", "1 / 0"]
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


def test_the_command_alone_prints_a_page(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys)
    assert code == 0
    assert len(out.splitlines()) <= 24
    commands = {line.split()[1] for line in out.splitlines() if line.startswith("  hardnet ")}
    known = {command.callback.__name__ for command in hardnet.cli.app.registered_commands}
    assert commands == known - {"report"}  # which stands behind reproduce
    assert "hardnet report" in out


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


def test_doctor(monkeypatch, capsys):
    from hardnet.experiments import doctor

    few = {name: doctor.PROBLEMS[name] for name in ("nearest point, shared A",)}
    monkeypatch.setattr(doctor, "PROBLEMS", few)
    monkeypatch.setattr(doctor, "SAMPLES", 4)
    code, out, _ = call(monkeypatch, capsys, "doctor", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["versions"]["hardnet"] == hardnet.__version__
    assert set(found["milliseconds"]) == set(few)
    assert all(times["forward"] > 0 for times in found["milliseconds"].values())
    code, out, _ = call(monkeypatch, capsys, "doctor", "--no-timing")
    assert code == 0
    assert "kernels" in out
    assert "pip install" in doctor.in_words(found | {"extras": {"cpu": {"numba": None}}})


def test_demo_ends_with_the_path_of_its_report(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    from hardnet.experiments import demo

    brief = lambda *names, **options: request(*names, **options, quick=True, seeds="1", methods="aff")
    request = demo.request
    monkeypatch.setattr(demo, "request", brief)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(monkeypatch, capsys, "demo", "--out", tmp_path)
    assert code == 0
    page = Path(out.splitlines()[-1].removeprefix("report: "))
    assert "<html" in page.read_text()
    assert "HardNet-Aff" in out
    code, out, _ = call(monkeypatch, capsys, "demo", "--out", tmp_path, "--json")  # nothing is trained again
    assert [row["method"] for row in json.loads(out)["methods"]] == ["HardNet-Aff"]


def test_the_version(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "--version")
    assert code == 0
    assert out.startswith(f"hardnet {hardnet.__version__} ")


def test_warmup_runs_every_shape_of_problem_once(monkeypatch, capsys):
    from hardnet.experiments import warmup

    small = {name: warmup.PROBLEMS[name] for name in ("nearest point, shared A",)}
    monkeypatch.setattr(warmup, "PROBLEMS", small)
    monkeypatch.setattr(warmup, "HAS_NUMBA", True)
    code, out, _ = call(monkeypatch, capsys, "warmup", "--json")
    assert code == 0
    assert list(json.loads(out)) == [f"nearest point, shared A, {dtype}" for dtype in ("float32", "float64")]
    monkeypatch.setattr(warmup, "HAS_NUMBA", False)
    code, out, _ = call(monkeypatch, capsys, "warmup")
    assert (code, "numba is not installed" in out) == (0, True)


def test_check_of_a_model_that_is_not_there(monkeypatch, capsys, saved):
    code, _, err = call(monkeypatch, capsys, "check", "nothing", "x.csv", "--net", "mynet:build")
    assert code == 2
    assert "not a saved model" in err


def test_inputs_from_every_kind_of_file(tmp_path):
    from numpy import save as save_array
    from safetensors.torch import save_file

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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mynet", "--net: expected module:function, got 'mynet'"),
        ("nosuchmodule:build", "--net: nosuchmodule:build cannot be called"),
        ("mynet:nosuch", "--net: mynet:nosuch cannot be called"),
        ("builtins:dict", "--net: expected a function that returns a module, got dict"),
    ],
)
def test_networks_that_cannot_be_built(saved, name, message):
    with pytest.raises(HardNetError, match=message):
        build(name)


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "hardnet", "--help"], capture_output=True, text=True, check=True)
    assert all(
        command in done.stdout for command in ("reproduce", "report", "methods", "check", "warmup", "demo", "doctor")
    )


def test_methods_can_be_measured_on_the_spot(monkeypatch, capsys):
    from hardnet.experiments import measured

    rows = measured.measure(names=["aff"], seconds=0.01)
    monkeypatch.setattr(measured, "measure", lambda device: rows)
    code, out, _ = call(monkeypatch, capsys, "methods", "--measure", "--json")
    assert code == 0
    assert json.loads(out) == rows
    code, out, _ = call(monkeypatch, capsys, "methods", "--measure")
    assert code == 0
    assert "| aff" in out
