"""Generate the tables of the README and the docs from the result files: ``python -m benchmarks.pages``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import cliff_tables, methods, power
from benchmarks.costs import PACKAGED, packaged_costs
from benchmarks.curved import curved_tables
from benchmarks.speed import DEVICE_RECORDS, RECORDS, speed_tables
from hardnet.errors import FileError
from hardnet.files import write_atomically
from hardnet_lab.experiments import tables
from hardnet_lab.experiments.report import read_runs
from hardnet_lab.experiments.results import Result
from hardnet_lab.experiments.suites.catalog import SUITES, Case, Suite, find_suite, read_suites, suite_note, suite_table

MARKED = re.compile(r"(?P<head><!-- (?P<name>[\w-]+):begin -->\n).*?(?P<tail><!-- (?P=name):end -->)", re.DOTALL)


def parts(results: Path) -> dict[str, Callable[[], str]]:
    """Every generated part by the name of its markers; pages show it between these markers."""
    runs = read_runs(results / "paper")
    return {
        "results": lambda: paper_tables(runs, tuple(runs)),
        "speed": lambda: speed_tables(results / "bench", RECORDS),
        "curved": lambda: curved_tables(results / "bench"),
        "cliffs": lambda: cliff_tables.page(results / "bench"),
        "kernels": lambda: speed_tables(results / "bench", DEVICE_RECORDS),
        "methods": lambda: methods.table(results / "bench" / "methods_cpu.json"),
        "power": lambda: power.page(results / "bench" / "power_cpu.json"),
        "suites": lambda: suite_pages(results / "suites", MOST_COLUMNS),
        "suites-full": lambda: suite_pages(results / "suites"),
    }


def update(root: Path) -> list[Path]:
    """Rewrite the generated parts of README and docs from ``results/``; return the pages that have any."""
    known = parts(root / "results")
    pages = [
        page for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if MARKED.search(page.read_text())
    ]
    for page in pages:
        write_atomically(page, fill(page.read_text(), known).encode())
    return pages


def fill(text: str, known: dict[str, Callable[[], str]]) -> str:
    """Insert each generated part between its two markers, ``<!-- name:begin -->`` and ``<!-- name:end -->``."""

    def fresh(match: re.Match[str]) -> str:
        if match["name"] not in known:
            raise FileError(f"no generated part '{match['name']}'; there are {', '.join(known)}")
        return f"{match['head']}{known[match['name']]()}{match['tail']}"

    return MARKED.sub(fresh, text)


def paper_tables(runs: dict[str, list[Result]], names: tuple[str, ...]) -> str:
    """The tables of some experiments in Markdown, each with its environment."""
    parts = []
    for name in names:
        if name in tables.COLUMNS:
            table = tables.build(name, runs[name])
            heading = f"**{table.title}** (`hardnet reproduce {name}`)"
            parts.append(f"{heading}\n\n{tables.markdown(table)}\n{_made(runs[name])}\n")
    return "\n".join(parts)


MOST_COLUMNS = 5
"""Columns of a table that a page shows, with the method; the page behind its link has all."""


def suite_pages(folder: Path, most: int | None = None) -> str:
    """Every suite with its description, its sizes, and the tables of its recorded runs, of at most some columns."""
    found = read_suites(folder)
    return "\n".join(_suite_page(find_suite(name), found, most) for name in SUITES)


def _suite_page(suite: Suite, found: dict[str, list[Result]], most: int | None) -> str:
    sizes = ", ".join(f"`{name}`" for name in suite.sizes())
    head = f"## {suite.title}\n\n{suite.about} Sizes: {sizes}.\n"
    own = [(case, found[case.name]) for case in suite.cases if case.name in found]
    parts = [f"\n{_case_table(suite.name, case, results, most)}" for case, results in own]
    return "".join([head, *(parts or ["\nNo run is recorded yet.\n"])])


def _case_table(suite: str, case: Case, results: list[Result], most: int | None) -> str:
    table = suite_table(case.name, results)
    heading = f"**{table.title}** (`hardnet suite {suite} --size {case.short}`)"
    if most is None:
        return f"{heading}\n\n{tables.markdown(table)}\n{suite_note(case.name, results)}\n"
    return f"{heading}\n\n{tables.markdown(replace(table, columns=_fullest(table, most - 1)))}\n"


def _fullest(table: tables.Table, most: int) -> tuple[tables.Column, ...]:
    """The columns, in their order, that have a number for the most rows, ours or published."""
    filled = {
        column: sum(any(name in row.metrics or name in row.published for name in column.metrics) for row in table.rows)
        for column in table.columns
    }
    kept = sorted(table.columns, key=lambda column: -filled[column])[:most]
    return tuple(column for column in table.columns if column in kept)


def _made(results: list[Result]) -> str:
    """Device, versions, date and seeds of a table, from its result files."""
    stamp = results[0].environment
    seeds, epochs = results[0].seeds, results[0].epochs
    others = [result for result in results if result.recipe != results[0].recipe]
    other = "".join(
        f" The {result.recipe} recipe: {result.epochs} epochs, {result.environment['device']}, "
        f"{result.environment['date']}."
        for result in others[:1]
    )
    return (
        f"Mean (standard deviation) over seeds {seeds[0]}-{seeds[-1]}, {epochs} epochs; the paper's numbers in "
        f"brackets. {stamp['device']}, torch {stamp['versions']['torch']}, {stamp['date']}. T_train is for all "
        f"seeds together; † breaks the constraints.{other}"
    )


def main() -> None:
    """Update the pages and the packaged costs of the repository in the current folder or in the given one."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    write_atomically(root / PACKAGED, packaged_costs(root / "results" / "bench").encode())
    for page in (root / PACKAGED, *update(root)):
        print(page)


if __name__ == "__main__":
    main()
