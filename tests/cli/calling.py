"""The command line, called in this process."""

import sys

import pytest

import hardnet.cli


def call(monkeypatch, capsys, *arguments):
    """Exit code, output and error output of a command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["hardnet", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        hardnet.cli.main()
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err
