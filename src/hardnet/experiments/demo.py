"""What ``hardnet demo`` shows: the paper's first table, trained here with the best recipe under it, and its report.

Called by `hardnet.cli.experiments`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hardnet.experiments import tables
from hardnet.experiments.report import write_report
from hardnet.experiments.run import reproduce, request
from hardnet.experiments.sections import read_runs
from hardnet.train import Display

PROBLEM = "pwc"


def demonstrate(out: Path, display: Display | None = None) -> tuple[Path, tables.Table]:
    """Train the paper's methods on its first problem, and the best recipe, and write the report.

    Args:
        out: The folder of the results; what it holds of the same run is not trained again.
        display: Shows the training.

    Returns:
        The path of the page, and the table.
    """
    with one_thread():
        reproduce(request(PROBLEM, out=out, resume=True, device="cpu"), display)
    return write_report(out), tables.build(PROBLEM, read_runs(out)[PROBLEM])


@contextmanager
def one_thread() -> Iterator[None]:
    """A second thread gains a quarter for networks so small; where another program has its core, it costs minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rows_of(table: tables.Table) -> list[dict[str, str]]:
    """The rows that were trained here, as they are printed: each cell by the title of its column."""
    trained = [row for row in table.rows if row.network and row.metrics]
    return [
        {"method": row.label} | {column.title: tables.ours(row, column) for column in table.columns} for row in trained
    ]
