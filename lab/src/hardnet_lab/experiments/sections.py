"""The results in a folder as sections of a report, in the order of the paper, each with table, figures and a note."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardnet.errors import FileError
from hardnet_lab.experiments import figures, limits, tables
from hardnet_lab.experiments.recipes import BEST
from hardnet_lab.experiments.results import RUN, Result, read_result
from hardnet_lab.experiments.specs import PAPER
from hardnet_lab.experiments.suites import find_case
from hardnet_lab.experiments.suites.tables import read_suites, suite_note, suite_table
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
