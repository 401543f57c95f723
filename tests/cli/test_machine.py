"""The commands about the machine: doctor and warmup."""

import json
from importlib.util import find_spec

import hardnet.cli
from tests.cli.calling import call


def test_doctor(monkeypatch, capsys):
    from hardnet.cli import doctor

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


def test_warmup_runs_every_shape_of_problem_once(monkeypatch, capsys):
    from hardnet import warming

    small = {name: warming.PROBLEMS[name] for name in ("nearest point, shared A",)}
    monkeypatch.setattr(warming, "PROBLEMS", small)
    monkeypatch.setattr(warming, "HAS_NUMBA", True)
    code, out, _ = call(monkeypatch, capsys, "warmup", "--json")
    assert code == 0
    assert list(json.loads(out)) == [f"nearest point, shared A, {dtype}" for dtype in ("float32", "float64")]
    monkeypatch.setattr(warming, "HAS_NUMBA", False)
    code, out, _ = call(monkeypatch, capsys, "warmup")
    assert (code, "numba is not installed" in out) == (0, True)


def test_warmup_compiles_every_kernel_in_a_process_of_its_own():
    from hardnet import warming

    kernels = {problem.kernel for problem in warming.PROBLEMS.values()}
    assert sorted(kernels) == sorted(warming.SLOWEST_FIRST)
    assert all(find_spec(f"hardnet.kernels.cpu.{kernel}") for kernel in kernels - {""})
