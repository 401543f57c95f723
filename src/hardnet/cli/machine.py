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
    """Compile the CPU kernels ahead of time, on all cores, so that no first call computes without them."""
    from hardnet.warming import warmup as compile_all

    compiled = compile_all(quiet=as_json)
    if as_json:
        print_json(compiled)
