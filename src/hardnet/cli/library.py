"""hardnet methods | explain | check | enforce: what the library enforces, how, and whether it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from hardnet.cli.common import BROKEN, AsJson, app, print_json, print_table, typer
from hardnet.laboratory import laboratory


@app.command()
def methods(
    measure: Annotated[bool, typer.Option(help="Measure violation and time of each on standard sets, now.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, with --measure.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Table 1 of the paper: what each method of the library enforces and guarantees."""
    from dataclasses import asdict

    from hardnet.layers.table import methods as rows

    if measure:
        _measure_methods(device, as_json)
        return
    table = [asdict(row) for row in rows()]
    if as_json:
        print_json(table)
    else:
        print_table(table, ("name", "constraint", "input_dependence", "guarantee", "computation"))


def _measure_methods(device: str, as_json: bool) -> None:
    """Print the violation and the time of every method on every standard set."""
    measured = laboratory("experiments.measured")
    rows = measured.measure(str(laboratory("experiments.run").choose_device(device)))
    if as_json:
        print_json(rows)
    else:
        typer.echo(f"{measured.overview(rows)}\n\n{measured.table(rows)}")


@app.command()
def explain(
    constraint: Annotated[str, typer.Argument(help="FILE.py:SET; a set, a model, or a function of one.")],
    data: Annotated[Path | None, typer.Option(help="Inputs x, as for check: rows that depend on x need one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which method 'auto' chooses for a set, the structure it found, and why not the others."""
    from hardnet.cli.inputs import find_set, read_inputs
    from hardnet.layers import explain as choose

    found = find_set(constraint)
    explanation = choose(found, None if data is None else read_inputs(data))
    if as_json:
        print_json({"set": str(found), "method": explanation.method, "reasons": explanation.reasons})
    else:
        typer.echo(f"{found}\n\n{explanation}")


@app.command()
def check(
    model: Annotated[Path, typer.Argument(help="Folder that hn.save wrote.")],
    data: Annotated[Path, typer.Argument(help="Inputs x, one sample a row: .safetensors (tensor x), .npy or .csv.")],
    net: Annotated[str, typer.Option(help="module:function or FILE.py:NAME: the network, or the whole HardNet.")],
    tolerance: Annotated[float | None, typer.Option(help="Absolute; a few roundings by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Certificate of a saved model on a data file; exit code 0: it holds, 1: violated, 2: could not be checked."""
    from hardnet.cli.inputs import certify

    certificate = certify(model, data, net, tolerance)
    if as_json:
        satisfied = certificate.satisfied
        numbers = {"samples": satisfied.numel(), "satisfied": int(satisfied.sum())}
        rows = {name: row._asdict() for name, row in certificate.by_name().items()}
        print_json(numbers | {"max_violation": certificate.max_violation, "ok": certificate.ok, "rows": rows})
    else:
        typer.echo(str(certificate))
    raise typer.Exit(0 if certificate.ok else BROKEN)


@app.command()
def enforce(
    model: Annotated[Path, typer.Argument(help="Folder that hn.save wrote.")],
    table: Annotated[Path, typer.Argument(help="A Parquet file, or a folder of them.")],
    out: Annotated[
        Path, typer.Argument(help="Folder of the results, a file for each row group; a second call goes on.")
    ],
    net: Annotated[str, typer.Option(help="module:function or FILE.py:NAME: the network, or the whole HardNet.")],
    constraint: Annotated[str | None, typer.Option("--set", help="FILE.py:NAME, for a set with functions.")] = None,
    x: Annotated[str, typer.Option("--x", help="Comma-separated columns, or FILE.py:NAME, a function.")] = "x",
    keep: Annotated[str, typer.Option(help="Comma-separated columns that the results have too.")] = "",
    shards: Annotated[str, typer.Option(help="k/n: only row groups k, k + n, ...; k from 1 to n.")] = "1/1",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 16384,
    as_json: AsJson = False,
) -> None:
    """Enforce a saved model on a table, with the certificate of each row.

    Exit code 0: every row holds its constraint, 1: some do not, 2: something could not be read.
    """
    from hardnet.cli.inputs import enforced

    show = (lambda line: None) if as_json else (lambda line: typer.echo(line, err=True))
    total = enforced(model, table, out, (net, constraint, x, keep), shards, device=device, batch=batch, show=show)
    if as_json:
        print_json(total._asdict() | {"ok": total.satisfied == total.rows})
    else:
        holds = f"{total.satisfied} of {total.rows} rows satisfy every row of their set"
        typer.echo(f"{holds}; largest violation {total.violation:.3g}; results in {out}")
    raise typer.Exit(0 if total.satisfied == total.rows else BROKEN)
