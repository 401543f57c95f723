"""The command line: one file per group of commands. ``hardnet`` without a command prints an overview."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from typing import Any

from hardnet.cli import library, machine
from hardnet.cli.common import BAD_INPUT, BROKEN, COMMANDS, STOPPED
from hardnet.errors import HardNetError
from hardnet.laboratory import laboratory

__all__ = ["library", "machine", "main"]

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


class _Version(argparse.Action):
    """Print the versions of hardnet, torch and Python, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        import torch

        import hardnet

        print(f"hardnet {hardnet.__version__} (torch {torch.__version__}, Python {sys.version.split()[0]})")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    about = "Neural networks whose outputs satisfy hard, input-dependent constraints."
    whole = argparse.ArgumentParser("hardnet", description=about, allow_abbrev=False)
    whole.add_argument(
        "--version", action=_Version, nargs=0, dest=argparse.SUPPRESS, help="Print the version and exit."
    )
    parsers = whole.add_subparsers(dest="command", metavar="COMMAND")
    for name, (function, arguments) in COMMANDS.items():
        text = (function.__doc__ or "").strip()
        part = parsers.add_parser(name, help=text.split("\n")[0], description=text, allow_abbrev=False)
        for names, how in arguments:
            part.add_argument(*names, **how)
    return whole


def main() -> None:
    """Run a command; errors that the user can fix are printed in one line, with exit code 2."""
    asked = vars(parser().parse_args())
    name = asked.pop("command")
    try:
        if name is None:
            import hardnet

            print(PAGE.format(version=hardnet.__version__))
        code = COMMANDS[name].run(**asked) if name else 0
        sys.stdout.flush()
        sys.exit(code or 0)
    except HardNetError as error:
        _leave(str(error), getattr(error, "exit_code", BAD_INPUT))
    except KeyboardInterrupt:
        _leave("stopped", STOPPED)
    except BrokenPipeError:  # whoever reads the output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN)
    except OSError as error:
        _leave(f"{error.filename or 'file'}: {error.strerror or error}", BAD_INPUT)


def _leave(message: str, code: int) -> None:
    print(f"hardnet: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
