"""hardnet demo | reproduce | suite | report: the paper's experiments, and other papers' benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from hardnet.cli.common import AsJson, app, print_json, print_table, typer


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the results and of the report.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """The paper's first table on this machine, in about a minute and offline: six methods, five seeds, a report.

    A second call continues where the first one stopped.
    """
    from hardnet_lab.experiments.demo import demonstrate, rows_of
    from hardnet_lab.train import bars

    if as_json:
        page, table = demonstrate(out)
        print_json({"page": str(page), "methods": rows_of(table)})
        return
    typer.echo("pwc: fit a curve with 50 points, on one side of a boundary that must never be crossed; 1000 epochs")
    with bars() as shown:
        page, table = demonstrate(out, shown)
    print_table(rows_of(table), ("method", "MSE", "max violation"))
    typer.echo(f"report: {page.resolve()}")


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help="pwc, pwcfull, pwcbox, opt, cbf, gradient, all or FILE.py:NAME.")],
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
    from hardnet_lab.experiments.run import reproduce as run
    from hardnet_lab.experiments.run import request
    from hardnet_lab.train import bars

    options: dict[str, Any] = {"methods": methods, "seeds": seeds, "epochs": epochs, "device": device}
    asked = request(experiment, **options, out=out, resume=resume, quick=quick, recipe=recipe)
    if as_json:
        print_json([str(path) for path in run(asked)])
        return
    with bars() as shown:
        paths = run(asked, shown)
    typer.echo(f"{len(paths)} results in {out}; see them with: hardnet report {out}")


@app.command()
def suite(
    name: Annotated[str, typer.Argument(help="dc3, pinet, snarenet, fsnet, hardnetpp or acopf.")],
    size: Annotated[str | None, typer.Option(help="Comma-separated cases or groups of them; all by default.")] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated names; those of the recipes by default.")] = None,
    seeds: Annotated[str | None, typer.Option(help="A range or a list; those of each case by default.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Those of the recipes by default.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the results, one flat file each.")] = Path("runs/suites"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that the folder holds.")] = False,
    recipe: Annotated[str | None, typer.Option(help="Comma-separated names; all of each case by default.")] = None,
    references: Annotated[
        bool,
        typer.Option("--references", help="Solve the test instances exactly instead, and write their optima to --out."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train the methods on another paper's benchmark, and compare them as that paper does."""
    from hardnet_lab.experiments.suites.catalog import read_suites, suite_note, suite_table
    from hardnet_lab.experiments.suites.references import write_references
    from hardnet_lab.experiments.suites.run import run_suite, suite_request
    from hardnet_lab.experiments.tables import markdown
    from hardnet_lab.train import bars

    options: dict[str, Any] = {"methods": methods, "seeds": seeds, "epochs": epochs, "device": device}
    asked = suite_request(name, size=size, **options, out=out, resume=resume, recipe=recipe)
    if references:
        solved = write_references(asked.cases, out, asked.device, (lambda line: None) if as_json else typer.echo)
        if as_json:
            print_json([str(path) for path in solved])
        return
    if as_json:
        print_json([str(path) for path in run_suite(asked)])
        return
    with bars() as shown:
        paths = run_suite(asked, shown)
    wanted = {case.name for case in asked.cases}
    for case, results in read_suites(out).items():
        if case in wanted:
            table = suite_table(case, results)
            typer.echo(f"\n{table.title}\n\n{markdown(table)}\n{suite_note(case, results)}\n")
    typer.echo(f"{len(paths)} results in {out}; see them with: hardnet report {out}")


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(help="Folder that reproduce wrote.")],
    out: Annotated[Path | None, typer.Option(help="The page, or its folder; report.html in RUNS by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page with every table and figure beside the paper's."""
    from hardnet_lab.experiments.report import write_report

    page = write_report(runs, out)
    if as_json:
        print_json({"page": str(page)})
    else:
        typer.echo(f"wrote {page}")
