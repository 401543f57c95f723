"""What the commands share: how they are declared, exit codes, and how data is printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Any, NamedTuple, TypeVar

__all__ = ["AS_JSON", "BAD_INPUT", "BROKEN", "COMMANDS", "argument", "command", "print_json", "print_table"]

BAD_INPUT, BROKEN, STOPPED = 2, 1, 130
Function = TypeVar("Function", bound=Callable[..., "int | None"])


class Argument(NamedTuple):
    """What `argparse` takes for one argument."""

    names: tuple[str, ...]
    how: dict[str, Any]


class Command(NamedTuple):
    """A function with the arguments that it takes by name; what it returns is the exit code."""

    run: Callable[..., int | None]
    arguments: tuple[Argument, ...]


COMMANDS: dict[str, Command] = {}
"""Every command by its name; those of the laboratory join where it is installed."""


def argument(*names: str, **how: Any) -> Argument:
    """One argument of a command, as `argparse.ArgumentParser.add_argument` takes it."""
    return Argument(names, how)


def command(*arguments: Argument) -> Callable[[Function], Function]:
    """Make a function a command of its name; its docstring is the help."""

    def known(function: Function) -> Function:
        COMMANDS[function.__name__] = Command(function, arguments)
        return function

    return known


AS_JSON = argument("--json", dest="as_json", action="store_true", help="Print JSON instead of text.")


def print_json(content: Any) -> None:
    """Print data as JSON, for programs."""
    print(json.dumps(content, indent=2, default=str))


def print_table(rows: Sequence[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print some columns of the rows as a table as wide as the terminal, for people."""
    cells = [columns, *(tuple(str(row[column]) for column in columns) for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    room = shutil.get_terminal_size().columns - 2 * (len(columns) - 1)
    while sum(widths) > room and max(widths) > 12:
        widths[widths.index(max(widths))] -= 1
    for index, row in enumerate(cells):
        parts = [wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for line in range(max(map(len, parts))):
            texts = [part[line] if line < len(part) else "" for part in parts]
            print("  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip())
        if index == 0:
            print("  ".join("-" * width for width in widths))
