"""The report as one HTML page that needs no other file: tables, figures and the environments of the results."""

from __future__ import annotations

import base64
import html
import statistics
from collections.abc import Sequence
from typing import Any

from hardnet_lab.experiments import paper, tables
from hardnet_lab.experiments.results import Result
from hardnet_lab.experiments.sections import Section, note
from hardnet_lab.experiments.style import CSS

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
