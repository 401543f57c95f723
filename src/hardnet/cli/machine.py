"""hardnet doctor | warmup: what this machine has, and how long its kernels take."""

from __future__ import annotations

from typing import Annotated

from hardnet.cli.common import AsJson, app, print_json, typer


@app.command()
def doctor(
    timing: Annotated[
        bool, typer.Option(help="Time one call of each kernel; the first time they are compiled.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """What is installed, which kernels are active, and how long one call of each takes."""
    from hardnet.cli.doctor import examine, in_words

    findings = examine(timing)
    if as_json:
        print_json(findings)
    else:
        typer.echo(in_words(findings))


@app.command()
def warmup(as_json: AsJson = False) -> None:
    """Compile the CPU kernels ahead of time, on all cores, so that no first call waits for them."""
    from hardnet.warming import warm

    compiled = {}
    for what, seconds in warm():
        compiled[what] = seconds
        if not as_json:
            typer.echo(f"{seconds:6.1f} s  {what}")
    if as_json:
        print_json(compiled)
    else:
        typer.echo("ready" if compiled else "nothing to compile: numba is not installed (pip install 'hardnet[cpu]')")
