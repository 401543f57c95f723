"""Comparing methods on a problem of one's own, from Python and from a file."""

import textwrap

import pytest
import torch
from torch import nn

import hardnet as hn
from hardnet.cli.inputs import find_set, object_of_file
from hardnet.errors import FileError, HardNetError
from hardnet_lab.experiments.report import write_report
from hardnet_lab.experiments.results import read_result
from hardnet_lab.experiments.run import request
from hardnet_lab.problems.own import own_problem

SHORT = {"seeds": 2, "epochs": 2, "device": "cpu"}


def caps(**changes):
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    loss = lambda y, x: (y - 1).square().sum(-1)
    given = {"name": "caps", "x": x, "constraint": hn.Box(0.0, lambda x: x), "loss": loss, "output_dim": 2}
    return hn.problems.OwnProblem(**given | changes)


def test_a_table_of_methods_and_what_stands_in_it():
    compared = hn.compare(caps(), methods=["nn", "projection"], **SHORT)
    assert [result.method for result in compared.results] == ["nn", "projection"]
    assert max(compared.results[1].metrics["max_violation"]) == 0
    assert compared.mean().keys() == {"nn", "projection"}
    assert "HardNet-Cvx (exact projection)" in str(compared)
    assert compared.folder is None


def test_a_stopped_comparison_goes_on_and_the_report_shows_it(tmp_path):
    first = hn.compare(caps(), methods="projection", out=tmp_path, **SHORT)
    before = (tmp_path / "caps" / "projection.json").stat().st_mtime_ns
    again = hn.compare(caps(), methods=["projection", "soft"], out=tmp_path, **SHORT)
    assert (tmp_path / "caps" / "projection.json").stat().st_mtime_ns == before
    assert first.results[0] == again.results[0]
    assert "caps" in write_report(tmp_path).read_text()


@pytest.mark.parametrize("kind", ["plain", "normalized"])
def test_any_network_is_stacked_over_its_seeds(kind):
    def network(inputs, outputs):
        middle = [nn.BatchNorm1d(8)] if kind == "normalized" else [nn.LayerNorm(8)]
        return nn.Sequential(nn.Linear(inputs, 8), *middle, nn.Tanh(), nn.Linear(8, outputs))

    both = hn.compare(caps(network=network), methods="projection", **SHORT)
    alone = hn.compare(caps(network=network), methods="projection", **SHORT | {"seeds": [2]})
    ours, theirs = both.results[0].metrics["objective"][1], alone.results[0].metrics["objective"][0]
    assert ours == pytest.approx(theirs, rel=1e-10)


def write(path, text):
    path.write_text("import torch\nimport hardnet as hn\n" + textwrap.dedent(text))
    return path


def test_a_file_names_a_problem(tmp_path):
    path = write(
        tmp_path / "mine.py",
        """
        def build():
            loss = lambda y, x: y.square().sum(-1)
            return hn.problems.OwnProblem("mine", torch.rand(40, 2), hn.Box(0.0, 1.0), loss, output_dim=2)
        ready = build()
        number = 3
        broken = lambda: 1 / 0
        """,
    )
    assert own_problem(f"{path}:build").name == own_problem(f"{path}:ready").name == "mine"
    with pytest.raises(HardNetError, match=r"mine\.py:number: expected a Problem, or what makes one, got int"):
        own_problem(f"{path}:number")
    with pytest.raises(HardNetError, match="cannot be built; ZeroDivisionError"):
        own_problem(f"{path}:broken")
    with pytest.raises(HardNetError, match="to define absent"):
        own_problem(f"{path}:absent")


def test_a_problem_names_its_set_and_what_is_none_is_named(tmp_path):
    path = write(
        tmp_path / "mine.py",
        """
        box, loss = hn.Box(0.0, 1.0), lambda y, x: y.sum(-1)
        ready = hn.problems.OwnProblem("mine", torch.rand(40, 2), box, loss, output_dim=2)
        number = torch.ones(3)
        """,
    )
    assert isinstance(find_set(f"{path}:ready"), hn.Box)
    with pytest.raises(HardNetError, match=r"mine\.py:number: expected a set, .* got Tensor"):
        find_set(f"{path}:number")
    with pytest.raises(HardNetError, match="problem: expected a problem, or a name, got int"):
        hn.compare(3)  # pyright: ignore[reportArgumentType]


def test_a_file_that_cannot_be_run_is_one_sentence(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        object_of_file(f"{tmp_path}/none.py:X")
    with pytest.raises(HardNetError, match="cannot be run; ModuleNotFoundError"):
        object_of_file(f"{write(tmp_path / 'bad.py', 'import nowhere_at_all')}:X")
    with pytest.raises(HardNetError, match=r"file: expected path/to/file.py:NAME"):
        object_of_file("folder/file:X")


def test_nothing_is_written_for_a_problem_that_is_refused(tmp_path):
    with pytest.raises(HardNetError, match="its loss is not finite"):
        hn.compare(caps(loss=lambda y, x: y.sum(-1).log()), out=tmp_path / "runs", **SHORT)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(HardNetError, match="name of the problem"):
        request(caps(name="pwc"), out=tmp_path)


def test_a_row_that_gave_up_is_tried_again(tmp_path, monkeypatch):
    from hardnet_lab.experiments.run import Row

    train = Row._train

    def failing(row, *rest):
        if row.method.name == "soft":
            raise HardNetError("training: the loss is not finite")
        return train(row, *rest)

    monkeypatch.setattr(Row, "_train", failing)
    compared = hn.compare(caps(), methods=["soft", "nn"], out=tmp_path, **SHORT)
    assert compared.results[0].failure == "training: the loss is not finite"
    assert "gave up: training: the loss is not finite" in str(compared)
    assert compared.mean().keys() == {"nn"}
    monkeypatch.setattr(Row, "_train", train)
    hn.compare(caps(), methods=["soft", "nn"], out=tmp_path, **SHORT)
    assert read_result(tmp_path / "caps" / "soft.json").failure == ""
