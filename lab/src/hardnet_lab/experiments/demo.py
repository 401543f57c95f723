"""``hardnet demo``: train the paper's first table and the best recipe, and write the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hardnet_lab.experiments import tables
from hardnet_lab.experiments.report import read_runs, write_report
from hardnet_lab.experiments.run import reproduce, request
from hardnet_lab.train import Display

PROBLEM = "pwc"


def demonstrate(out: Path, display: Display | None = None) -> tuple[Path, tables.Table]:
    """Train the paper's methods on its first problem, and the best recipe, and write the report.

    Args:
        out: The folder of the results; existing results of the same run are not trained again.
        display: Shows the training progress.

    Returns:
        The path of the page, and the table.
    """
    with one_thread():
        reproduce(request(PROBLEM, out=out, resume=True, device="cpu"), display)
    return write_report(out), tables.build(PROBLEM, read_runs(out)[PROBLEM])


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: a second gains 25 % on such small networks, but costs minutes if its core is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rows_of(table: tables.Table) -> list[dict[str, str]]:
    """The rows that were trained here, as printed: each cell under the title of its column."""
    trained = [row for row in table.rows if row.network and row.metrics]
    return [
        {"method": row.label} | {column.title: tables.ours(row, column) for column in table.columns} for row in trained
    ]
