"""Our tables with the paper's numbers: one data model, written as Markdown and as HTML."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hardnet_lab.experiments import limits, paper
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import Result

HOLDS = 1e-4
"""A method whose mean largest violation is above this does not satisfy the constraints."""
ABSENT = "-"
OURS = "aff"
"""The paper's own method, which the page highlights."""


@dataclass(frozen=True)
class Column:
    """One column: a title and the metrics that share its cells, separated by slashes."""

    title: str
    metrics: tuple[str, ...]
    violation: bool = False


_TIMES = (Column("T_test (ms)", ("test_ms",)), Column("T_train (s)", ("train_s",)))
_VIOLATIONS = (
    Column("max violation", ("max_violation",), violation=True),
    Column("mean violation", ("mean_violation",), violation=True),
)
_PIECEWISE = (Column("MSE", ("mse",)), *_VIOLATIONS, *_TIMES)
_PROGRAMS = (
    Column("objective", ("objective",)),
    Column("last 100 epochs", ("objective_last_epochs",)),
    Column("≤ max / mean / #", ("ineq_max_violation", "ineq_mean_violation", "ineq_violated"), violation=True),
    Column("= max / mean / #", ("eq_max_violation", "eq_mean_violation", "eq_violated"), violation=True),
    *_TIMES,
)
_OWN = (Column("objective", ("objective",)), *_VIOLATIONS, *_TIMES)
_CONTROL = (Column("cost", ("cost",)), *_VIOLATIONS, *_TIMES)

TITLES: dict[str, str] = {
    "pwc": "Piecewise constraints",
    "pwcfull": "Piecewise constraints, data on the whole domain",
    "pwcbox": "Piecewise lower and upper bounds",
    "opt": "Learning to solve nonconvex programs",
    "cbf": "Safe control of a unicycle",
    "gradient": "Gradient paths",
}
COLUMNS: dict[str, tuple[Column, ...]] = {
    "pwc": _PIECEWISE,
    "pwcfull": _PIECEWISE,
    "pwcbox": _PIECEWISE,
    "opt": _PROGRAMS,
    "cbf": _CONTROL,
}
NAMES = {
    "nn": "NN",
    "soft": "Soft-Constrained",
    "dc3": "DC3",
    "aff": "HardNet-Aff",
    "optimizer": "Optimizer (IPOPT)",
    "cbf-qp-published": "CBF-QP (published objective)",
}
"""Labels of rows that only the paper has."""


@dataclass(frozen=True)
class Row:
    """One method: its numbers per seed, and the paper's numbers if it has any."""

    method: str
    label: str
    metrics: dict[str, list[float]]
    published: paper.Published
    network: bool = True
    differs: str | None = None
    """The recipe's differences from the published training; None for the published one."""

    @property
    def feasible(self) -> bool | None:
        """Whether the constraints hold; None if nothing was measured."""
        values = self.metrics.get("max_violation")
        return None if not values else statistics.fmean(values) <= HOLDS


@dataclass(frozen=True)
class Table:
    """All methods of one problem, with the paper's numbers and the limit."""

    problem: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    limit: dict[str, Any] | None
    heading: str = ""

    @property
    def title(self) -> str:
        """The title of the table."""
        return self.heading or TITLES.get(self.problem, self.problem)

    def header(self) -> list[str]:
        """Titles of the columns; if there is a limit, the ratio to it follows the first column."""
        titles = [column.title for column in self.columns]
        return ["method", titles[0], *(["of limit"] if self.limit else []), *titles[1:]]


def build(problem: str, results: Sequence[Result]) -> Table:
    """The table of a problem: limits, published recipe, rows that only the paper has, then other recipes."""
    known = limits.load(problem) or {"limit": None, "rows": []}
    published = paper.published(problem)
    rows = [_limit_row(row, published) for row in known["rows"]]
    as_published = [r for r in results if r.recipe == "published"]
    rows += [Row(r.method, _label(r), _numbers(r), published.get(r.method, {})) for r in as_published]
    present = {row.method for row in rows}
    rows += [Row(name, NAMES[name], {}, numbers) for name, numbers in published.items() if name not in present]
    others = [r for r in results if r.recipe != "published"]
    rows += [Row(r.key, _label(r), _numbers(r), {}, differs=r.differs) for r in others]
    columns = tuple(c for c in COLUMNS.get(problem, _OWN) if any(_filled(row, c) for row in rows))
    return Table(problem, columns, tuple(rows), known["limit"])


def _label(result: Result) -> str:
    """The method, and why it failed if it did."""
    return f"{result.label} (gave up: {result.failure})" if result.failure else result.label


def _limit_row(row: dict[str, Any], published: dict[str, paper.Published]) -> Row:
    metrics = row["metrics"] | {"test_ms": [row["timing"]["test_ms"]]}
    return Row(row["method"], row["label"], metrics, published.get(row["method"], {}), network=False)


def _numbers(result: Result) -> dict[str, list[float]]:
    """Metrics and times of a run in one dictionary."""
    return result.metrics | {name: [value] for name, value in result.timing.items()}


def _filled(row: Row, column: Column) -> bool:
    return any(name in row.metrics or name in row.published for name in column.metrics)


def number(value: float) -> str:
    """Three decimals, fewer for large values, and scientific notation for values that would print as zero."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0:
        return "0"
    if size < 5e-4:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.{3 if size < 10 else 2 if size < 1000 else 0}f}"


def spread(values: Sequence[float]) -> str:
    """``mean (standard deviation)`` over the seeds, population form as in the paper; only the mean for one seed."""
    mean = statistics.fmean(values)
    deviation = math.sqrt(statistics.fmean((value - mean) ** 2 for value in values))
    return number(mean) if len(values) == 1 else f"{number(mean)} ({number(deviation)})"


def ours(row: Row, column: Column) -> str:
    """The measured cell; only means if several metrics share it."""
    values = [row.metrics.get(name) for name in column.metrics]
    if not any(values):
        return ABSENT
    if len(values) == 1:
        return spread(values[0] or [math.nan])
    return " / ".join(number(statistics.fmean(value)) if value else ABSENT for value in values)


def theirs(row: Row, column: Column) -> str:
    """The paper's cell, or an empty string."""
    pairs = [row.published.get(name) for name in column.metrics]
    if not any(pairs):
        return ""
    if len(pairs) == 1 and pairs[0]:
        return " ".join([_plain(pairs[0][0]), *(f"({_plain(deviation)})" for deviation in pairs[0][1:])])
    return " / ".join(_plain(pair[0]) if pair else ABSENT for pair in pairs)


def _plain(value: float) -> str:
    """A number as printed in the paper; large values need no decimals."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:g}"


def of_limit(table: Table, row: Row) -> str:
    """``value / limit``; marked with a dagger for a method that violates the constraints and may beat the limit."""
    values = row.metrics.get(table.limit["metric"]) if table.limit else None
    if not values or not table.limit:
        return ABSENT
    ratio = f"{statistics.fmean(values) / table.limit['value']:.3f}"
    return ratio if row.feasible else f"{ratio} †"


def markdown(table: Table) -> str:
    """The table in Markdown, with the paper's numbers in brackets."""
    lines = []
    for row in table.rows:
        cells = [_with_paper(ours(row, column), theirs(row, column)) for column in table.columns]
        ratio = [of_limit(table, row)] if table.limit else []
        if row.differs is not None:
            lines.append([f"*{row.differs}:*", *[""] * (len(table.header()) - 1)])
        lines.append([row.label, cells[0], *ratio, *cells[1:]])
    return table_text(table.header(), lines) + "\n"


def _with_paper(measured: str, published: str) -> str:
    return f"{measured} [{published}]" if published else measured


def as_html(table: Table) -> str:
    """The table in HTML, with the paper's numbers in small print below ours."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in table.header())
    body = "".join(_html_row(table, row) for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_row(table: Table, row: Row) -> str:
    cells = [_html_cell(row, column) for column in table.columns]
    ratio = [f"<td>{of_limit(table, row)}</td>"] if table.limit else []
    kind = " class='ours'" if row.method == OURS else "" if row.network else " class='reference'"
    above = ""
    if row.differs is not None:
        above = f"<tr class='recipe'><td colspan='{len(table.header())}'>{html.escape(row.differs)}</td></tr>"
    return f"{above}<tr{kind}><th>{html.escape(row.label)}</th>{cells[0]}{''.join(ratio)}{''.join(cells[1:])}</tr>"


def _html_cell(row: Row, column: Column) -> str:
    measured, published = ours(row, column), theirs(row, column)
    below = f"<small>{html.escape(published)}</small>" if published else ""
    return f"<td{_state(row, column)}>{html.escape(measured)}{below}</td>"


def _state(row: Row, column: Column) -> str:
    """The cell's class: green if a violation is within `HOLDS`, red if not."""
    values = row.metrics.get(column.metrics[0])
    if not column.violation or not values:
        return ""
    return " class='holds'" if statistics.fmean(values) <= HOLDS else " class='broken'"
