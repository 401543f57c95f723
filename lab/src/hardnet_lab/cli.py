"""hardnet demo | reproduce | suite | report: the paper's experiments, and other papers' benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hardnet.cli.common import AS_JSON, argument, command, print_json, print_table

SHARED = (
    argument("--epochs", type=int, help="Those of the recipes by default."),
    argument("--device", default="auto", help="auto, cpu or cuda."),
    argument("--resume", action="store_true", help="Go on with the run that the folder holds."),
    argument("--submit", help="local:N or slurm: each method of each case as a job."),
    AS_JSON,
)
"""What reproduce and suite both take."""
OUT = {"type": Path, "help": "Folder of the results."}
METHODS = "Comma-separated names, or all; those of the recipes by default."


@command(argument("--out", default=Path("runs"), **OUT), AS_JSON)
def demo(out: Path, as_json: bool) -> None:
    """The paper's first table on this machine, in about a minute and offline: six methods, five seeds, a report.

    A second call continues where the first one stopped.
    """
    from hardnet_lab.experiments.demo import demonstrate, rows_of
    from hardnet_lab.train import bars

    if as_json:
        page, table = demonstrate(out)
        print_json({"page": str(page), "methods": rows_of(table)})
        return
    print("pwc: fit a curve with 50 points, on one side of a boundary that must never be crossed; 1000 epochs")
    with bars() as shown:
        page, table = demonstrate(out, shown)
    print_table(rows_of(table), ("method", "MSE", "max violation"))
    print(f"report: {page.resolve()}")


@command(
    argument("experiment", help="pwc, pwcfull, pwcbox, opt, cbf, gradient, all or FILE.py:NAME."),
    argument("--methods", help=METHODS),
    argument("--seeds", default="1-5", help="A range or a list: 1-5, or 1,2,7."),
    argument("--out", default=Path("runs"), **OUT),
    argument("--quick", action="store_true", help="A few epochs only, to see every part work."),
    argument("--recipe", help="published, best or both, comma-separated; both unless methods are named."),
    *SHARED,
)
def reproduce(experiment: str, out: Path, submit: str | None, as_json: bool, **how: Any) -> None:
    """Train the methods of an experiment, all seeds at once, and write one result file per method."""
    from hardnet_lab.experiments.run import reproduce as run
    from hardnet_lab.experiments.run import request, rows_of, submit_rows
    from hardnet_lab.experiments.submit import Job
    from hardnet_lab.train import Silence, bars

    asked = request(experiment, out=out, **how)
    if submit is not None:
        rows = rows_of(asked, Silence())
        names = [experiment if asked.own is not None else row.name for row in rows]
        parts = [{"methods": row.method.name, "recipe": row.recipe.name} if row.problem else {} for row in rows]
        kept = {"out": out} | {name: how[name] for name in ("seeds", "epochs", "device", "quick")}
        jobs = [Job(run, request, name, kept | part) for name, part in zip(names, parts, strict=True)]
        _tell(submit_rows(rows, out, asked.device, submit, jobs), out, as_json)
        return
    if as_json:
        _tell(run(asked), out, as_json)
        return
    with bars() as shown:
        paths = run(asked, shown)
    _tell(paths, out, as_json)


@command(
    argument("name", help="dc3, pinet, snarenet, fsnet, hardnetpp, caffnet or acopf."),
    argument("--size", help="Comma-separated cases or groups of them; all by default."),
    argument("--methods", help=METHODS),
    argument("--seeds", help="A range or a list; those of each case by default."),
    argument("--out", default=Path("runs/suites"), **OUT),
    argument("--recipe", help="Comma-separated names; all of each case by default."),
    argument("--references", action="store_true", help="Solve the test instances exactly instead; write their optima."),
    *SHARED,
)
def suite(name: str, out: Path, references: bool, submit: str | None, as_json: bool, **how: Any) -> None:
    """Train the methods on another paper's benchmark, and compare them as that paper does."""
    from hardnet_lab.experiments.run import submit_rows
    from hardnet_lab.experiments.submit import Job
    from hardnet_lab.experiments.suites.catalog import read_suites, suite_note, suite_table
    from hardnet_lab.experiments.suites.references import write_references
    from hardnet_lab.experiments.suites.run import rows_of, run_suite, suite_request
    from hardnet_lab.experiments.tables import markdown
    from hardnet_lab.train import Silence, bars

    asked = suite_request(name, out=out, **how)
    if references:
        solved = write_references(asked.cases, out, asked.device, (lambda line: None) if as_json else print)
        if as_json:
            print_json([str(path) for path in solved])
        return
    if submit is not None:
        rows = rows_of(asked, Silence())
        short = {case.name: case.short for case in asked.cases}
        parts = [{"size": short[row.name], "methods": row.method.name, "recipe": row.recipe.name} for row in rows]
        kept = {"out": out} | {name: how[name] for name in ("seeds", "epochs", "device")}
        jobs = [Job(run_suite, suite_request, name, kept | part) for part in parts]
        _tell(submit_rows(rows, out, asked.device, submit, jobs), out, as_json)
        return
    if as_json:
        _tell(run_suite(asked), out, as_json)
        return
    with bars() as shown:
        paths = run_suite(asked, shown)
    wanted = {case.name for case in asked.cases}
    for case, results in read_suites(out).items():
        if case in wanted:
            table = suite_table(case, results)
            print(f"\n{table.title}\n\n{markdown(table)}\n{suite_note(case, results)}\n")
    _tell(paths, out, as_json)


@command(
    argument("runs", type=Path, help="Folder that reproduce wrote."),
    argument("--out", type=Path, help="The page, or its folder; report.html in RUNS by default."),
    AS_JSON,
)
def report(runs: Path, out: Path | None, as_json: bool) -> None:
    """Write one self-contained page with every table and figure beside the paper's."""
    from hardnet_lab.experiments.report import write_report

    page = write_report(runs, out)
    if as_json:
        print_json({"page": str(page)})
    else:
        print(f"wrote {page}")


def _tell(paths: list[Path], out: Path, as_json: bool) -> None:
    """Say where the results are."""
    if as_json:
        print_json([str(path) for path in paths])
    else:
        print(f"{len(paths)} results in {out}; see them with: hardnet report {out}")
