"""What the commands share: the application, exit codes, and how data is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from hardnet.errors import MissingExtraError

try:
    import typer
except ImportError:
    sys.exit(f"hardnet: {MissingExtraError('typer', 'cli')}")

__all__ = ["BAD_INPUT", "BROKEN", "AsJson", "app", "print_json", "print_table", "typer"]

BAD_INPUT, BROKEN = 2, 1

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def print_json(content: Any) -> None:
    """Print data as JSON, for programs."""
    typer.echo(json.dumps(content, indent=2, default=str))


def print_table(rows: Sequence[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print some columns of the rows as a table, for people."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)
