"""The command line: one file per group of commands. ``hardnet`` without a command prints an overview."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

from hardnet.cli import library, machine
from hardnet.cli.common import BAD_INPUT, app, typer
from hardnet.errors import HardNetError
from hardnet.laboratory import laboratory

__all__ = ["app", "library", "machine", "main"]

if find_spec("hardnet_lab") is not None:
    laboratory("cli")  # its commands join

PAGE = """\
hardnet {version}: neural networks whose outputs satisfy hard, input-dependent constraints

  hardnet demo                    the paper's first table on this machine, in a minute
  hardnet doctor                  what is installed, which kernels are active, how fast
  hardnet explain FILE.py:SET     which method enforces a set, and why not the others
  hardnet methods                 what each method takes and promises
  hardnet check MODEL DATA --net  does a saved model keep its constraint on these inputs
  hardnet enforce MODEL IN OUT    a saved model on a table of any length, row by row certified
  hardnet reproduce pwc           train and compare methods; then: hardnet report runs
  hardnet suite dc3               the same on another paper's benchmark
  hardnet warmup                  compile the kernels of this machine ahead

In Python:

  import hardnet as hn
  model = hn.HardNet(net, hn.Affine(A, upper=lambda x: x[..., :1]) & hn.Box(0.0, 1.0))
  print(model, hn.check(model.constraint, model(x), x))

Every command has --help, and --json where it prints data."""


def _version() -> str:
    """The version of hardnet."""
    import hardnet

    return hardnet.__version__


def _print_version(asked: bool) -> None:
    """Print the versions of hardnet, torch and Python, and exit."""
    if asked:
        import torch

        typer.echo(f"hardnet {_version()} (torch {torch.__version__}, Python {sys.version.split()[0]})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Neural networks whose outputs satisfy hard, input-dependent constraints."""
    if context.invoked_subcommand is None:
        typer.echo(PAGE.format(version=_version()))


def main() -> None:
    """Run a command; errors that the user can fix are printed in one line, with exit code 2."""
    try:
        app()
    except HardNetError as error:
        _leave(str(error), getattr(error, "exit_code", BAD_INPUT))
    except OSError as error:
        _leave(f"{error.filename or 'file'}: {error.strerror or error}", BAD_INPUT)


def _leave(message: str, code: int) -> None:
    typer.echo(f"hardnet: {' '.join(message.split())}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
