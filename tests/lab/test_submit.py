"""--submit: each row is a job of its own, and the results are those of a run without it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import call

pytest.importorskip("submitit", reason="submitit is not installed")
QUICK = ("--seeds", "1,2", "--device", "cpu")


def numbers(folder):
    """What the result files of a folder say, without times and machines."""
    found = {}
    for path in sorted(Path(folder).rglob("*.json")):
        content = json.loads(path.read_text())
        if "metrics" in content:
            found[str(path.relative_to(folder))] = (content["metrics"], content.get("failure"))
    return found


def test_jobs_on_this_machine_give_the_results_of_one_run(monkeypatch, capsys, tmp_path):
    asked = ("reproduce", "pwc", "--methods", "aff,none", "--quick", *QUICK, "--out")
    assert call(monkeypatch, capsys, *asked, tmp_path / "one")[0] == 0
    code, out, err = call(monkeypatch, capsys, *asked, tmp_path / "jobs", "--submit", "local:2")
    assert (code, "2 results" in out) == (0, True), err
    assert numbers(tmp_path / "jobs") == numbers(tmp_path / "one") != {}
    code, _, err = call(monkeypatch, capsys, *asked, tmp_path / "jobs", "--submit", "local:2")
    assert code == 2
    assert "--resume" in err
    assert call(monkeypatch, capsys, *asked, tmp_path / "jobs", "--submit", "local:1", "--resume")[0] == 0


@pytest.mark.parametrize("how", ["local", "local:0", "local:x", "cloud", "slurm:partition"])
def test_other_places_are_refused(monkeypatch, capsys, tmp_path, how):
    asked = ("reproduce", "pwc", "--methods", "aff", "--quick", *QUICK, "--out", tmp_path / "runs", "--submit", how)
    code, _, err = call(monkeypatch, capsys, *asked)
    assert (code, "--submit" in err, err.count("\n")) == (2, True, 1)


@pytest.mark.slow
def test_a_suite_as_jobs(monkeypatch, capsys, tmp_path):
    asked = ("suite", "dc3", "--size", "simple,nonconvex", "--recipe", "wide", "--methods", "nn", "--epochs", "1")
    asked += (*QUICK, "--out", tmp_path, "--submit", "local:2", "--json")
    code, out, err = call(monkeypatch, capsys, *asked)
    assert code == 0, err
    paths = [Path(path) for path in json.loads(out)]
    assert [path.name for path in paths] == ["dc3-simple.nn.json", "dc3-nonconvex.nn.json"]
    assert not [path for path in paths if json.loads(path.read_text()).get("failure")]


@pytest.mark.parametrize(
    "asked",
    [
        ("reproduce", "pwc", "--methods", "aff,none", "--quick"),
        ("suite", "dc3", "--size", "simple,nonconvex", "--methods", "aff", "--recipe", "wide"),
    ],
)
def test_slurm_gets_one_array(tmp_path, asked):
    """A stand-in for sbatch notes what it is given, and runs nothing."""
    own = tmp_path / "bin"
    own.mkdir()
    (own / "srun").write_text("#!/bin/sh\n")
    (own / "sbatch").write_text(f'#!/bin/sh\ncp "$1" {own}/given\necho Submitted batch job 77\n')
    for file in own.iterdir():
        file.chmod(0o755)
    command = [sys.executable, "-m", "hardnet", *asked, *QUICK]
    command += ["--out", str(tmp_path / "runs"), "--submit", "slurm:partition=long,timeout_min=90,gpus_per_node=1"]
    environment = {**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert result.returncode == 0, result.stderr
    given = (own / "given").read_text()
    assert "--array=0-1" in given
    assert "--partition=long" in given
    assert "--time=90" in given
    assert "--gpus-per-node=1" in given
