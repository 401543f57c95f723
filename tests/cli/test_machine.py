"""The commands about the machine: doctor and warmup."""

import json
import shutil
import sys
from pathlib import Path

import pytest

import hardnet as hn
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


def test_warmup_compiles_every_kernel_once(monkeypatch, capsys):
    pytest.importorskip("numba")
    from hardnet import warming

    monkeypatch.setattr(warming, "HAS_NUMBA", True)
    monkeypatch.setattr(warming, "KERNELS", {"pooling": ("float64",)})
    code, out, _ = call(monkeypatch, capsys, "warmup", "--json")
    assert code == 0
    assert list(json.loads(out)) == ["pooling, float64"]
    assert hn.warmup(quiet=True) == {"pooling, float64": 0.0}
    monkeypatch.setattr(warming, "HAS_NUMBA", False)
    code, out, _ = call(monkeypatch, capsys, "warmup")
    assert (code, "numba is not installed" in out) == (0, True)


def test_warmup_knows_every_kernel():
    from hardnet import warming

    folder = Path(warming.__file__).parent / "kernels" / "cpu"
    has_entries = {path.stem for path in folder.glob("*.py") if "\nENTRIES = " in path.read_text(encoding="utf-8")}
    assert has_entries == set(warming.KERNELS)


@pytest.mark.skipif(shutil.which("false") is None, reason="needs a program that fails")
def test_a_kernel_that_cannot_be_compiled_ahead_is_named(monkeypatch):
    pytest.importorskip("numba")
    from hardnet import warming

    monkeypatch.setattr(warming, "HAS_NUMBA", True)
    monkeypatch.setattr(warming, "KERNELS", {"pooling": ("float64",)})
    monkeypatch.setattr(warming, "cached", lambda key: ())
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(hn.errors.HardNetError, match="pooling, float64: could not be compiled"):
        hn.warmup(quiet=True)
