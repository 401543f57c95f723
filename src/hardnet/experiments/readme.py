"""The README's and the docs' tables, generated from the result files: ``python -m hardnet.experiments.readme``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from hardnet.errors import FileError
from hardnet.experiments import tables
from hardnet.experiments.report import read_runs
from hardnet.experiments.results import Result
from hardnet.experiments.speed import DEVICE_RECORDS, speed_tables

SHOWN = ("pwc", "opt", "cbf")
"""The experiments that the README itself shows; the page of results shows all."""


def update(root: Path) -> list[Path]:
    """Rewrite the generated blocks of the README and the docs from ``results/``; return the pages touched."""
    runs = read_runs(root / "results" / "paper")
    blocks = {
        root / "README.md": {
            "results": lambda: paper_tables(runs, SHOWN),
            "speed": lambda: speed_tables(root / "results" / "bench"),
        },
        root / "docs" / "reproduce.md": {"results": lambda: paper_tables(runs, tuple(runs))},
        root / "docs" / "kernels.md": {"speed": lambda: speed_tables(root / "results" / "bench", DEVICE_RECORDS)},
    }
    for page, parts in blocks.items():
        page.write_text(fill(page.read_text(), parts))
    return list(blocks)


def fill(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """Put each generated part between its two markers, ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    for name, make in parts.items():
        block = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if not block.search(text):
            raise FileError(f"the page has no markers for its generated part '{name}'")
        content = make()
        text = block.sub(lambda match, content=content: f"{match[1]}{content}{match[2]}", text)
    return text


def paper_tables(runs: dict[str, list[Result]], names: tuple[str, ...]) -> str:
    """The tables of some experiments in Markdown, each with what made it."""
    parts = []
    for name in names:
        if name in tables.COLUMNS:
            table = tables.build(name, runs[name])
            heading = f"**{table.title}** (`hardnet reproduce {name}`)"
            parts.append(f"{heading}\n\n{tables.markdown(table)}\n{_made(runs[name])}\n")
    return "\n".join(parts)


def _made(results: list[Result]) -> str:
    """Device, versions, date and seeds of a table, from its result files."""
    stamp = results[0].environment
    seeds, epochs = results[0].seeds, results[0].epochs
    return (
        f"Mean (standard deviation) over seeds {seeds[0]}-{seeds[-1]}, {epochs} epochs; the paper's numbers in "
        f"brackets. {stamp['device']}, torch {stamp['versions']['torch']}, {stamp['date']}. T_train is for all "
        "seeds together; † breaks the constraints."
    )


def main() -> None:
    """Update the pages of the repository in the current folder, or in the folder that is given."""
    for page in update(Path(sys.argv[1] if len(sys.argv) > 1 else ".")):
        print(page)


if __name__ == "__main__":
    main()
