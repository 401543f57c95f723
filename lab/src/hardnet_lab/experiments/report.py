"""The report: a self-contained page with every table and figure beside the paper's, and the tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hardnet.files import write_atomically
from hardnet_lab.experiments import tables
from hardnet_lab.experiments.report_page import page_of
from hardnet_lab.experiments.sections import Section, note, read_runs, read_section


def write_report(runs_dir: Path, out: Path | None = None) -> Path:
    """Write the page, and next to it the tables as Markdown and the figures as SVG and PNG.

    Args:
        runs_dir: Folder with ``<problem>/<method>.json``; all results in it are shown.
        out: The page; ``report.html`` in `runs_dir` by default, or in `out` if that is a folder.

    Returns:
        The path of the page.
    """
    runs = read_runs(runs_dir)
    page = _page_path(runs_dir, out)
    sections = [read_section(name, results, page.parent / "figures") for name, results in runs.items()]
    write_atomically(page, page_of(sections).encode())
    write_atomically(page.parent / "tables.md", markdown_tables(sections).encode())
    return page


def _page_path(runs_dir: Path, out: Path | None) -> Path:
    if out is None:
        return runs_dir / "report.html"
    return out if out.suffix in (".html", ".htm") else out / "report.html"


def markdown_tables(sections: Sequence[Section]) -> str:
    """All tables in Markdown."""
    parts = [
        f"## {s.table.title} ({s.name})\n\n{tables.markdown(s.table)}\n{note(s, 'in brackets')}\n"
        for s in sections
        if s.table
    ]
    return "\n".join(parts)
