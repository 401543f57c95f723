"""The report: one HTML page that needs no other file, with every table and figure beside the paper's, and Markdown."""

from __future__ import annotations

import base64
import html
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardnet.errors import FileError
from hardnet.files import write_atomically
from hardnet_lab.experiments import figures, limits, paper, tables
from hardnet_lab.experiments.recipes import BEST, PAPER
from hardnet_lab.experiments.results import RUN, Result, read_result
from hardnet_lab.experiments.suites.catalog import find_case, read_suites, suite_note, suite_table
from hardnet_lab.problems import PROBLEMS, Piecewise
from hardnet_lab.problems.suites import reference

ABOUT: dict[str, str] = {
    "pwc": "A function on [-2, 2] from 50 samples on [-1.2, 1.2]; elsewhere only the constraints inform it.",
    "pwcfull": "The same function from 50 samples on the whole of [-2, 2].",
    "pwcbox": "A function on [-2, 2] from 10 samples, bounded from both sides, on one piece by an equality.",
    "opt": "min ½ y'Qy + p'sin y subject to A y ≤ b and C y = x: 100 variables, 50 inequalities, 50 equalities, "
    "833 test instances.",
    "cbf": "A unicycle drives to the origin past two obstacles; barrier functions bound its control. 84 test states, "
    "cost and violations integrated over one second.",
    "gradient": "Gradient descent through HardNet-Aff on y₂ ≤ 0.9. One sample at learning rate 0.01 stalls on the "
    "boundary, where the remaining error is normal to it; a second sample or a larger rate frees it.",
}

REFERENCES = ("cbf-qp", "optimal")
"""Controllers without a network that the trajectory figure shows."""


@dataclass(frozen=True)
class Section:
    """The part of the page about one experiment."""

    name: str
    results: list[Result]
    table: tables.Table | None
    drawings: list[tuple[str, str]]
    """Name of the figure, and SVG text."""

    @property
    def title(self) -> str:
        """A short title."""
        return self.table.title if self.table else tables.TITLES.get(self.name, self.name)

    @property
    def about(self) -> str:
        """The problem in a sentence."""
        known = find_case(self.name)
        return ABOUT.get(self.name, "") if known is None else known[0].about


def read_runs(runs_dir: Path) -> dict[str, list[Result]]:
    """The results of each experiment, in the order of the paper; an error if the folder has none."""
    order = [method.name for method in PAPER]
    runs: dict[str, list[Result]] = {}
    for name in (*tables.TITLES, *_own_problems(runs_dir)):
        results = [read_result(file) for folder in (runs_dir, runs_dir / BEST) for file in _result_files(folder / name)]
        if results:
            runs[name] = sorted(results, key=lambda r: (r.recipe == BEST, _place(r.method, order)))
    runs |= read_suites(runs_dir)
    if not runs:
        raise FileError(f"{runs_dir}: no results here; expected files like pwc/aff.json, as 'hardnet reproduce' writes")
    return runs


def _own_problems(runs_dir: Path) -> list[str]:
    """Folders of results that do not belong to the paper's experiments."""
    folders = sorted(
        {entry.name for folder in (runs_dir, runs_dir / BEST) if folder.is_dir() for entry in folder.iterdir()}
    )
    described = [name for name in folders if any((runs_dir / place / name / RUN).is_file() for place in ("", BEST))]
    return [name for name in described if name not in tables.TITLES]


def _result_files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*.json")) if file.name != RUN]


def _place(method: str, order: list[str]) -> int:
    return order.index(method) if method in order else len(order)


def read_section(name: str, results: list[Result], folder: Path) -> Section:
    """The table and the figures of one experiment; the figures are written to the folder."""
    build = tables.build if find_case(name) is None else suite_table
    table = None if name == "gradient" else build(name, results)
    drawings = [
        (label, figures.save(draw, size, folder / f"{name}-{label}")) for label, draw, size in _drawings(name, results)
    ]
    return Section(name, results, table, drawings)


def _drawings(name: str, results: list[Result]) -> list[tuple[str, figures.Draw, tuple[float, float]]]:
    """The figures for which the results contain data."""
    drawn: list[tuple[str, figures.Draw, tuple[float, float]]] = []
    shown = {key for result in results for part in result.figures.values() if isinstance(part, dict) for key in part}
    problem = PROBLEMS[name]() if name in PROBLEMS else None
    known = _known_limits(name)
    if isinstance(problem, Piecewise) and "y" in shown:
        drawn.append(("functions", figures.learned_functions(problem, results), (9.6, 4.6)))
    if "trajectory" in shown:
        references = [row for row in (known or {"rows": []})["rows"] if row["method"] in REFERENCES]
        drawn.append(("trajectories", figures.trajectories(results, references), (9.6, 3.6)))
    drawn += [
        ("paths", figures.descent_paths(result.figures["paths"]), (9.0, 5.4))
        for result in results
        if "paths" in result.figures
    ]
    best = known["rows"][0].get("per_sample") if known else None
    if best and "per_sample" in shown:
        drawn.append(("gaps", figures.gap_histogram(results, best), (9.6, 3.2)))
    if any(result.history.get("epoch") for result in results):
        limit, objective = known["limit"]["value"] if known else None, problem.objective if problem else "objective"
        drawn.append(("learning", figures.learning_curves(results, objective, limit), (12.0, 3.6)))
    return drawn


def _known_limits(name: str) -> dict[str, Any] | None:
    """The recorded limits of a problem, or the recorded optima of a suite's case, in the same format."""
    known = reference(name)
    if known is None:
        return limits.load(name)
    mean = statistics.fmean(known["optimum"])
    return {"limit": {"value": mean}, "rows": [{"method": "optimizer", "per_sample": known["optimum"]}]}


def note(section: Section, where: str) -> str:
    """How to read the table; `where` tells in which form it shows the paper's numbers."""
    if find_case(section.name) is not None:
        return suite_note(section.name, section.results)
    first = section.results[0]
    devices = ", ".join(
        sorted({str(result.environment.get("device", "an unknown device")) for result in section.results})
    )
    several = len(first.seeds) > 1
    over = f"Mean (standard deviation) over {len(first.seeds)} seeds" if several else "One seed"
    together = f" for all {len(first.seeds)} seeds trained together, the paper's for one," if several else ""
    text = (
        f"{over} after {first.epochs} epochs; {where}: the paper's. T_train is{together} on {devices}. "
        "T_test is one evaluation of the whole test set, and of one instance for an optimizer."
    )
    if section.table and section.table.limit:
        limit = section.table.limit
        text += f" Limit: {limit['label']}, {limit['value']:.3f}. † breaks the constraints, so it may beat the limit."
    return text


# The style sheet of the report page.


CSS = """\
:root { --ink: #1d2430; --soft: #667085; --line: #e4e7ec; --green: #e6f4ec; --red: #fbe9e7; --accent: #1a7f5a; }
* { box-sizing: border-box; }
body { margin: 0; background: #fafbfc; color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica
Neue", Arial, sans-serif; } main { max-width: 1240px; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { margin: 0; font-size: 2rem; letter-spacing: -0.02em; }
h2 { margin: 0 0 0.25rem; font-size: 1.3rem; letter-spacing: -0.01em; }
header p, section > p { margin: 0.25rem 0 1rem; color: var(--soft); }
code { padding: 0.1em 0.4em; border-radius: 4px; background: #eef1f5; color: var(--soft); font-size: 0.75em;
font-weight: 500; } nav { display: flex; flex-wrap: wrap; gap: 0.5rem; margin-bottom: 1.5rem; }
nav a { padding: 0.25rem 0.75rem; border: 1px solid var(--line); border-radius: 99px; background: white; color:
var(--ink); font-size: 0.85rem; text-decoration: none; }
nav a:hover { border-color: var(--accent); color: var(--accent); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 0.75rem; margin-bottom:
1.5rem; }
.card { display: flex; flex-direction: column; padding: 0.9rem 1rem; border: 1px solid var(--line); border-top: 3px
solid var(--accent); border-radius: 8px; background: white; } .card b { font-size: 0.8rem; font-weight: 600; }
.card span { margin: auto 0 0.15rem; padding-top: 0.35rem; font-size: 1.25rem; font-weight: 600; font-variant-numeric:
tabular-nums; } small { display: block; color: var(--soft); font-size: 0.78rem; }
section { margin-bottom: 1.5rem; padding: 1.5rem; border: 1px solid var(--line); border-radius: 10px; background:
white; } .scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.45rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
white-space: nowrap; } th:first-child, .plain th, .plain td { text-align: left; }
thead th { border-bottom: 2px solid var(--ink); font-weight: 600; } tbody th { font-weight: 500; }
.reference th, .reference td { color: var(--soft); font-style: italic; } .ours th, .ours td { font-weight: 600; }
.recipe td { text-align: left; white-space: normal; color: var(--soft); font-style: italic; padding-top: 1rem; }
.ours small { font-weight: 400; } .holds { background: var(--green); } .broken { background: var(--red); }
.plain td { white-space: normal; } .note { margin: 0.6rem 0 1rem; font-size: 0.8rem; }
figure { margin: 1.25rem auto 0; max-width: 1000px; } img { display: block; width: 100%; }
figcaption { padding: 0.25rem 0.6rem 0; color: var(--soft); font-size: 0.8rem; text-align: center; }
@media print { body { background: white; } section, .card { break-inside: avoid; } nav { display: none; }
"""


# The report as one HTML page that needs no other file: tables, figures and the environments of the results.


CAPTIONS: dict[str, str] = {
    "functions": "First seed. Shaded: forbidden. In parentheses: mean squared error.",
    "trajectories": "From the first test state, first seed. Grey: obstacles, which the barriers keep at a distance. In "
    "parentheses: mean cost over the test states.",
    "paths": "100 steps of gradient descent from the same weights. Shaded: forbidden. Stars: targets.",
    "gaps": "How far each test sample is from the best value known for it, first seed; what is below 1e-6, or better "
    "than that value, is drawn at 1e-6.",
    "learning": "On the validation set. Line: mean over the seeds; band: their range. Zero is drawn at 1e-17.",
}


def page_of(sections: Sequence[Section]) -> str:
    """The HTML of the page."""
    links = "".join(f"<a href='#{s.name}'>{html.escape(s.title)}</a>" for s in sections)
    body = "".join(_html_section(section) for section in sections)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>hardnet: the paper, reproduced</title><style>{CSS}</style></head><body><main>"
        "<header><h1>HardNet, reproduced</h1><p>Every table and figure beside the published numbers.</p>"
        f"<nav>{links}</nav></header>{_headlines(sections)}{body}{_environment(sections)}</main></body></html>\n"
    )


def _headlines(sections: Sequence[Section]) -> str:
    """One card per table of the paper: the measured and the published result of HardNet-Aff."""
    cards = "".join(_card(section.table) for section in sections if section.table)
    return f"<div class='cards'>{cards}</div>" if cards else ""


def _card(table: tables.Table) -> str:
    row = next((row for row in table.rows if row.method == tables.OURS and row.metrics), None)
    first = table.columns[0]
    if row is None or not tables.theirs(row, first):  # nothing is published for other problems and suites
        return ""
    violation = statistics.fmean(row.metrics["max_violation"])
    return (
        f"<div class='card'><b>{html.escape(table.title)}</b><span>{html.escape(tables.ours(row, first))}</span>"
        f"<small>{html.escape(first.title)}; paper {html.escape(tables.theirs(row, first))}</small>"
        f"<small>largest violation {tables.number(violation)}</small></div>"
    )


def _html_section(section: Section) -> str:
    images = "".join(_image(section.name, label, drawing) for label, drawing in section.drawings)
    table = ""
    if section.table:
        below = f"<p class='note'>{html.escape(note(section, 'in small print'))}</p>"
        table = f"<div class='scroll'>{tables.as_html(section.table)}</div>{below}"
    title, about = html.escape(section.title), html.escape(section.about)
    head = f"<h2>{title} <code>{section.name}</code></h2><p>{about}</p>"
    return f"<section id='{section.name}'>{head}{table}{images}</section>"


def _image(name: str, label: str, drawing: str) -> str:
    """An SVG embedded as an image, so that its identifiers do not clash with those of the others."""
    data = base64.b64encode(drawing.encode()).decode()
    image = f"<img alt='{name}: {label}' src='data:image/svg+xml;base64,{data}'>"
    return f"<figure>{image}<figcaption>{html.escape(CAPTIONS[label])}</figcaption></figure>"


def _environment(sections: Sequence[Section]) -> str:
    """Command, device, versions and date of every result, one line for results that share them."""
    made: dict[tuple[str, ...], list[Result]] = {}
    for result in (result for section in sections for result in section.results):
        made.setdefault(_made_with(result.environment), []).append(result)
    rows = "".join(_environment_row(how, results) for how, results in made.items())
    head = "".join(f"<th>{title}</th>" for title in ("results", "command", "device", "versions", "date"))
    return (
        f"<section id='environment'><h2>Environment</h2><p>The paper's times: {html.escape(paper.hardware())}.</p>"
        f"<div class='scroll'><table class='plain'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        "</div></section>"
    )


def _environment_row(how: tuple[str, ...], results: Sequence[Result]) -> str:
    names = ", ".join(f"{result.problem}/{result.method}" for result in results)
    dates = sorted(str(result.environment.get("date", "")) for result in results)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in (names, *how, when)) + "</tr>"


def _made_with(environment: dict[str, Any]) -> tuple[str, ...]:
    """Command, device and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items())
    return str(environment.get("command", "")), str(environment.get("device", "")), versions


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
