"""``python -m hardnet``, and ``hardnet``: the command line; `warmup` needs no package for it."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run a command."""
    if sys.argv[1:] == ["warmup"] and find_spec("typer") is None:
        from hardnet.warming import warmup

        warmup()
        return
    from hardnet.cli import main as run

    run()


if __name__ == "__main__":
    main()
