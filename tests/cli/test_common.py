"""The command line as a whole: its page, its version, its exit codes, and one line for every mistake."""

import subprocess
import sys

import pytest

import hardnet.cli
from hardnet.cli.common import COMMANDS
from tests.cli.calling import call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "experiment: expected 'all', one of pwc, pwcfull, pwcbox, opt, cbf, gradient, or your own"),
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


def test_interrupted_runs_exit_with_130(monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("hardnet_lab.experiments.run.request", stop)
    assert call(monkeypatch, capsys, "reproduce", "pwc", "--json")[0] == 130


def test_the_command_alone_prints_a_page(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys)
    assert code == 0
    assert len(out.splitlines()) <= 24
    commands = {line.split()[1] for line in out.splitlines() if line.startswith("  hardnet ")}
    assert commands == set(COMMANDS) - {"report"}  # which stands behind reproduce
    assert "hardnet report" in out


def test_the_version(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "--version")
    assert code == 0
    assert out.startswith(f"hardnet {hardnet.__version__} ")


def test_a_reader_who_leaves_is_no_error():
    command = f"{sys.executable} -m hardnet methods --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_a_table_is_as_wide_as_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(monkeypatch, capsys, "methods")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "hardnet", "--help"], capture_output=True, text=True, check=True)
    assert all(
        command in done.stdout for command in ("reproduce", "report", "methods", "check", "warmup", "demo", "doctor")
    )
