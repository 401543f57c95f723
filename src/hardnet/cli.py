"""hardnet reproduce | report | methods | check | warmup: the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from hardnet.errors import HardNetError, MissingExtraError

try:
    import typer
except ImportError:
    sys.exit(f"hardnet: {MissingExtraError('typer', 'experiments')}")

BAD_INPUT, BROKEN, INTERRUPTED = 2, 1, 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help="pwc, pwcfull, pwcbox, opt, cbf, gradient or all.")],
    methods: Annotated[str | None, typer.Option(help="Comma-separated names, or all; the paper's by default.")] = None,
    seeds: Annotated[str, typer.Option(help="A range or a list: 1-5, or 1,2,7.")] = "1-5",
    epochs: Annotated[int | None, typer.Option(help="1000 by default, as published.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that the folder holds.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few epochs only, to see every part work.")] = False,
    recipe: Annotated[
        str | None, typer.Option(help="published, best or both, comma-separated; both unless methods are named.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train the methods of an experiment, all seeds at once, and write one result file per method."""
    from hardnet.experiments.run import reproduce as run
    from hardnet.experiments.run import request
    from hardnet.train import bars

    options: dict[str, Any] = {"methods": methods, "seeds": seeds, "epochs": epochs, "device": device}
    asked = request(experiment, **options, out=out, resume=resume, quick=quick, recipe=recipe)
    if as_json:
        _print_json([str(path) for path in run(asked)])
        return
    with bars() as shown:
        paths = run(asked, shown)
    typer.echo(f"{len(paths)} results in {out}; see them with: hardnet report {out}")


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(help="Folder that reproduce wrote.")],
    out: Annotated[Path | None, typer.Option(help="The page, or its folder; report.html in RUNS by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page with every table and figure beside the paper's."""
    from hardnet.experiments.report import write_report

    page = write_report(runs, out)
    if as_json:
        _print_json({"page": str(page)})
    else:
        typer.echo(f"wrote {page}")


@app.command()
def methods(
    measure: Annotated[bool, typer.Option(help="Measure violation and time of each on standard sets, now.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, with --measure.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Table 1 of the paper: what each method of the library enforces and promises."""
    from dataclasses import asdict

    from hardnet.layers.table import methods as rows

    if measure:
        _measure_methods(device, as_json)
        return
    table = [asdict(row) for row in rows()]
    if as_json:
        _print_json(table)
    else:
        _print_table(table, ("name", "constraint", "input_dependence", "guarantee", "computation"))


def _measure_methods(device: str, as_json: bool) -> None:
    """Print what every method reaches on every standard set, and what it costs."""
    from hardnet.experiments import measured
    from hardnet.experiments.run import choose_device

    rows = measured.measure(str(choose_device(device)))
    if as_json:
        _print_json(rows)
    else:
        typer.echo(f"{measured.overview(rows)}\n\n{measured.table(rows)}")


@app.command()
def check(
    model: Annotated[Path, typer.Argument(help="Folder that hn.save wrote.")],
    data: Annotated[Path, typer.Argument(help="Inputs x, one sample a row: .safetensors (tensor x), .npy or .csv.")],
    net: Annotated[str, typer.Option(help="module:function that builds the network, or the whole HardNet.")],
    tolerance: Annotated[float | None, typer.Option(help="Absolute; a few roundings by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Certificate of a saved model on a data file; exit code 0: it holds, 1: broken, 2: could not be judged."""
    from hardnet.experiments.inputs import certify

    certificate = certify(model, data, net, tolerance)
    if as_json:
        satisfied = certificate.satisfied
        numbers = {"samples": satisfied.numel(), "satisfied": int(satisfied.sum())}
        rows = {name: row._asdict() for name, row in certificate.by_name().items()}
        _print_json(numbers | {"max_violation": certificate.max_violation, "ok": certificate.ok, "rows": rows})
    else:
        typer.echo(str(certificate))
    raise typer.Exit(0 if certificate.ok else BROKEN)


@app.command()
def warmup(as_json: AsJson = False) -> None:
    """Compile the kernels of this machine ahead, so that no first call of a program waits for them."""
    from hardnet.experiments.warmup import warm

    compiled = warm()
    if as_json:
        _print_json(compiled)
        return
    for what, seconds in compiled.items():
        typer.echo(f"{seconds:6.1f} s  {what}")
    typer.echo("ready" if compiled else "nothing to compile: numba is not installed (pip install 'hardnet[cpu]')")


def _print_version(asked: bool) -> None:
    """The version of hardnet and of what its numbers depend on, and leave."""
    if asked:
        import torch

        import hardnet

        typer.echo(f"hardnet {hardnet.__version__} (torch {torch.__version__}, Python {sys.version.split()[0]})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Neural networks whose outputs satisfy hard, input-dependent constraints."""


def main() -> None:
    """Run a command; what the user can put right is said in one line, with exit code 2."""
    from hardnet.train import InterruptedRunError

    try:
        app()
    except InterruptedRunError as stop:
        _leave(str(stop), INTERRUPTED)
    except HardNetError as error:
        _leave(str(error), BAD_INPUT)
    except OSError as error:
        _leave(f"{error.filename or 'file'}: {error.strerror or error}", BAD_INPUT)


def _leave(message: str, code: int) -> None:
    typer.echo(f"hardnet: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, default=str))


def _print_table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError as error:
        raise MissingExtraError("rich", "experiments") from error
    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
