"""The one stamp: it says what a figure was made with, and claims no revision that it does not know."""

import subprocess
import sys

import pytest
import torch

from hardnet_lab.experiments import results as stamp


def test_the_stamp_says_everything():
    made = stamp.environment("cpu", seed=3)
    assert list(made) == ["command", "revision", "versions", "device", "threads", "date", "seed"]
    assert made["seed"] == 3
    assert made["threads"] == torch.get_num_threads()
    assert made["versions"]["torch"] == torch.__version__
    assert made["device"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["/somewhere/bin/hardnet", "reproduce", "pwc"], "hardnet reproduce pwc"),
        (["/somewhere/benchmarks/__main__.py", "scale", "--out", "a b"], "python -m benchmarks scale --out 'a b'"),
    ],
)
def test_a_command_is_named_without_its_folder(argv, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", argv)
    assert stamp.command() == said


def test_the_revision_is_that_of_a_tracked_file_and_changes_are_marked(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    try:
        subprocess.run([*git, "init", "-q"], check=True)
    except OSError:
        pytest.skip("no git")
    tracked, other = tmp_path / "tracked.py", tmp_path / "other.py"
    tracked.write_text("1\n")
    other.write_text("1\n")
    subprocess.run([*git, "add", "tracked.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert commit.startswith(stamp.revision(tracked))
    assert stamp.revision(other) is None
    tracked.write_text("2\n")
    assert stamp.revision(tracked).endswith(" with changes")


def test_the_revision_of_a_copy_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv(stamp.REVISION, "abc123")
    assert stamp.environment("cpu")["revision"] == "abc123"
