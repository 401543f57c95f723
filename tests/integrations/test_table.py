"""Tables: each row once, in its order, certified; what has no answer concerns itself alone; a kill loses nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import hardnet as hn
from tests.cli.calling import call

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
from hardnet.integrations.table import Enforcer  # noqa: E402

SCALE = Path(__file__).parents[2] / "examples" / "scale"
COMMAND = [
    "enforce",
    "policy",
    "states.parquet",
    "out.parquet",
    "--net",
    "policy.py:build",
    "--set",
    "policy.py:limits",
]
COMMAND += ["--x", "speed,angle,load", "--keep", "id"]
D = torch.float64


def python(folder, *arguments, **environment):
    """A finished process of this Python in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, env=environment)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A saved model and a table of 8 row groups, as the examples make them."""
    folder = tmp_path_factory.mktemp("scale")
    for file in SCALE.iterdir():
        shutil.copy(file, folder) if file.is_file() else None
    result = python(folder, "policy.py", 4000)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy of it, and the working directory."""
    copied = tmp_path / "run"
    shutil.copytree(made, copied)
    monkeypatch.chdir(copied)
    return copied


def require_whole(path):
    """Each of the 4000 rows once, in order, with the y of the model and a certificate that holds."""
    sys.path.insert(0, str(SCALE))
    try:
        from policy import limits, make_model
    finally:
        sys.path.remove(str(SCALE))
    found, states = pq.read_table(path).sort_by("id"), pq.read_table("states.parquet")
    assert found["id"].to_pylist() == list(range(4000))
    x = torch.tensor([states[name].to_pylist() for name in ("speed", "angle", "load")]).T
    y = torch.tensor(found["y"].to_pylist())
    expected, raw = make_model()(x, return_raw=True)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
    assert hn.check(limits, y, x).ok
    assert all(found["ok"].to_pylist())
    moved = torch.tensor(found["moved"].to_pylist())
    torch.testing.assert_close(moved, (expected - raw).norm(dim=-1), rtol=1e-5, atol=1e-6)


def test_the_command_writes_each_row_once_in_its_order(folder, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, *COMMAND)
    assert code == 0, err
    assert "4000 of 4000 rows" in out
    assert len(list(Path("out.parquet").glob("part-*"))) == 8
    assert pq.read_table("out.parquet")["id"].to_pylist() == list(range(4000))
    require_whole("out.parquet")
    code, out, err = call(monkeypatch, capsys, *COMMAND, "--json")
    assert (code, err, json.loads(out)["rows"]) == (0, "", 4000)


def test_a_killed_run_goes_on(folder):
    command = [sys.executable, "-m", "hardnet", *COMMAND, "--batch", "20"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE)
    first = running.stderr.readline()
    time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert first.startswith(b"part-000000"), first + running.stderr.read()
    before = {path: path.stat().st_mtime_ns for path in Path("out.parquet").glob("part-*")}
    assert 0 < len(before) < 8
    again = python(folder, "-m", "hardnet", *COMMAND)
    assert again.returncode == 0, again.stderr
    require_whole("out.parquet")
    assert all(path.stat().st_mtime_ns == then for path, then in before.items()), "a finished part was written again"
    assert [path.name for path in Path("out.parquet").iterdir() if path.name.startswith(".")] == []


def test_a_damaged_part_is_made_again(folder, monkeypatch, capsys):
    call(monkeypatch, capsys, *COMMAND)
    part = Path("out.parquet/part-000003.parquet")
    part.write_bytes(part.read_bytes()[:-9])
    code, _, err = call(monkeypatch, capsys, *COMMAND)
    assert (code, err.count("part-")) == (0, 1)
    require_whole("out.parquet")


def test_two_processes_of_torchrun(folder):
    port = str(20000 + os.getpid() % 20000)
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port)
    result = python(folder, *launcher, "on_torchrun.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Totals(rows=2000, satisfied=2000") == 2
    require_whole("certified.parquet")


def test_two_tasks_of_a_slurm_array(folder):
    own = folder / "bin"
    own.mkdir()
    (own / "hardnet").write_text(f'#!/bin/sh\nexec {sys.executable} -m hardnet "$@"\n')
    (own / "hardnet").chmod(0o755)
    path = f"{own}{os.pathsep}{os.environ['PATH']}"
    tasks = [
        subprocess.Popen(["sh", "on_slurm.sh"], env={**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": task})
        for task in "12"
    ]
    assert [task.wait(600) for task in tasks] == [0, 0]
    require_whole("certified.parquet")


def test_two_actors_of_ray(folder):
    pytest.importorskip("ray", reason="Ray is not installed")
    pytest.importorskip("pandas", reason="Ray Data needs pandas")
    paths = os.pathsep.join([str(folder), *sys.path])
    result = python(folder, "on_ray.py", PYTHONPATH=paths, RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
    assert result.returncode == 0, result.stderr
    require_whole("certified.parquet")


def crossing(x):
    """Lower and upper bounds of which some contradict each other."""
    return x[..., :1]


def test_a_row_without_an_answer_concerns_itself_alone():
    sets = hn.Affine(torch.ones(1, 2, dtype=D), lower=crossing, upper=1.0, name="window") & hn.Box(-1.0, 3.0)
    x = torch.linspace(-2, 2.5, 10, dtype=D).unsqueeze(-1)
    x[3] = torch.nan
    model = hn.HardNet(torch.nn.Linear(1, 2).double(), sets, "projection")
    table = pa.table({"x": pa.array([None if value != value else value for value in x[:, 0].tolist()])})
    found = Enforcer(model)(table).to_pydict()
    good = (x[:, 0] <= 1).tolist()
    assert found["ok"] == good
    assert [all(value == value for value in y) for y in found["y"]] == good
    assert [reason is None for reason in found["worst"]] == good
    torch.testing.assert_close(torch.tensor(found["y"], dtype=D)[good], model(x[good]))


def test_a_broken_row_is_named_and_exits_with_1(folder, monkeypatch, capsys):
    Path("free.py").write_text(
        "import torch, hardnet as hn\n"
        "rows = hn.Affine(torch.eye(2), upper=torch.tensor([1e-3, 2e-3]), name='cap')\n"
        "def build():\n    torch.manual_seed(0)\n    return hn.HardNet(torch.nn.Linear(3, 2), rows, 'none')\n"
        "def state(table):\n"
        "    return torch.tensor([table[name].to_pylist() for name in ('speed', 'angle', 'load')]).T\n"
    )
    sys.path.insert(0, "")
    from free import build, rows, state

    model = build()
    hn.save(model, "free")
    code, out, err = call(
        monkeypatch, capsys, "enforce", "free", "states.parquet", "free.parquet", "--net", "free.py:build",
        "--x", "free.py:state", "--batch", "77",
    )  # fmt: skip
    assert code == 1, err
    table = pq.read_table("states.parquet")
    y = model(state(table))
    certificate, found = hn.check(rows, y, state(table)), pq.read_table("free.parquet").to_pydict()
    assert found["ok"] == certificate.satisfied.tolist()
    assert f"{sum(found['ok'])} of 4000" in out
    worst = [certificate.names[place] for place in certificate.violation.argmax(-1).tolist()]
    assert found["worst"] == [None if ok else name for ok, name in zip(found["ok"], worst, strict=True)]


def refused(monkeypatch, capsys, *arguments):
    """The one line with which a command is refused."""
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err


def test_what_cannot_be_read_exits_with_2_in_one_line(folder, monkeypatch, capsys):
    Path("words.txt").write_text("no table")
    pq.write_table(pa.table({"x": ["a", "b"]}), "words.parquet")
    model = ["--net", "policy.py:build", "--set", "policy.py:limits"]
    for source in ("none.parquet", "words.txt", "words.parquet", "states.parquet"):
        out = f"out-of-{source}"
        assert source in refused(monkeypatch, capsys, "enforce", "policy", source, out, *model) or source[0] == "w"
    for shards in ("0/2", "3/2", "1", "a/b"):
        assert "shards" in refused(monkeypatch, capsys, *COMMAND, "--shards", shards)
    assert "keep" in refused(monkeypatch, capsys, *COMMAND[:-1], "y")
    call(monkeypatch, capsys, *COMMAND, "--shards", "1/4")
    pq.write_table(pq.read_table("states.parquet").slice(7), "states.parquet")
    assert "another table" in refused(monkeypatch, capsys, *COMMAND)
    assert "something else" in refused(monkeypatch, capsys, *COMMAND[:3], "policy", *COMMAND[4:])


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float64(), 3), pa.large_list(pa.int64())])
def test_columns_of_lists(kind):
    model = hn.HardNet(torch.nn.Linear(4, 2).double(), hn.Box(-0.1, 0.1))
    rows = [[1, 2, 3], None, [4, 5, 6]]
    table = pa.table({"first": [0.5, 1.5, 2.5], "x": pa.array(rows, kind)})
    found = Enforcer(model, ["first", "x"])(table).to_pydict()
    x = torch.tensor([[0.5, 1, 2, 3], [2.5, 4, 5, 6]], dtype=D)
    torch.testing.assert_close(torch.tensor(found["y"], dtype=D)[[0, 2]], model(x))
    assert found["ok"] == [True, False, True]
    with pytest.raises(hn.errors.HardNetError, match="lists of one length"):
        Enforcer(model, ["x"])(pa.table({"x": [[1.0], [1.0, 2.0]]}))


def test_an_empty_row_group_and_a_folder_of_files(folder, monkeypatch, capsys):
    Path("many").mkdir()
    table = pq.read_table("states.parquet")
    pq.write_table(table.slice(0, 1500), "many/a.parquet")
    pq.write_table(table.slice(0, 0), "many/b.parquet")
    pq.write_table(table.slice(1500), "many/c.parquet")
    code, _, err = call(monkeypatch, capsys, "enforce", "policy", "many", *COMMAND[3:])
    assert code == 0, err
    require_whole("out.parquet")
