"""Tables of a suite: the exact optimum, our trained rows, and published rows, marked as such."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hardnet.errors import FileError
from hardnet_lab.experiments.results import Result, read_result
from hardnet_lab.experiments.suites import find_case, find_suite, known_suites
from hardnet_lab.experiments.suites.base import Case, Suite, published
from hardnet_lab.experiments.tables import Row, Table
from hardnet_lab.problems.suites import reference

RUN = ".run.json"
"""Suffix of the files that describe a run."""


def read_suites(folder: Path) -> dict[str, list[Result]]:
    """The results in a flat folder by case, in the order of the suites; empty if there are none."""
    files = [file for file in sorted(folder.glob("*.json")) if not file.name.endswith(RUN)]
    results = [read_result(file) for file in files if _of_a_suite(file)]
    order = [case.name for name in known_suites() for case in find_suite(name).cases]
    found = {name: [result for result in results if result.problem == name] for name in order}
    return {name: sorted(own, key=_place) for name, own in found.items() if own}


def _of_a_suite(file: Path) -> bool:
    """Whether a file is named like a result of a suite: CASE.METHOD.json."""
    return find_case(file.name.split(".", 1)[0]) is not None


def _place(result: Result) -> tuple[int, int]:
    """Sort key: the order of the recipes in the case, then the order of the methods in the recipe."""
    known = find_case(result.problem)
    recipes = known[1].recipes if known else ()
    for index, recipe in enumerate(recipes):
        if recipe.name == result.recipe:
            methods = recipe.methods or ()
            return index, methods.index(result.method) if result.method in methods else len(methods)
    return len(recipes), 0


def suite_table(name: str, results: Sequence[Result]) -> Table:
    """The table of a case: the optimum, then the trained rows, then the published rows."""
    known = find_case(name)
    if known is None:
        raise FileError(f"{name}: a case of no suite")
    suite, case = known
    rows = [*_optimum(case), *_trained(results), *_published(suite, case)]
    columns = tuple(column for column in suite.columns if any(_filled(row, column.metrics) for row in rows))
    return Table(name, columns, tuple(rows), None, f"{suite.title}: {case.title}")


def _filled(row: Row, metrics: tuple[str, ...]) -> bool:
    return any(name in row.metrics or name in row.published for name in metrics)


def _optimum(case: Case) -> list[Row]:
    """The mean of the recorded optima, if there are any."""
    known = reference(case.name)
    if known is None:
        return []
    mean = sum(known["optimum"]) / len(known["optimum"])
    metrics = {"objective": [mean], "worst_violation": [known["worst_violation"]], "gap": [0.0]}
    return [Row("optimizer", f"Exact optimum ({known['solver']})", metrics, {}, network=False)]


def _trained(results: Sequence[Result]) -> list[Row]:
    """Our rows."""
    rows = []
    for result in results:
        label = f"{result.label} (gave up: {result.failure})" if result.failure else result.label
        metrics = result.metrics | {name: [value] for name, value in result.timing.items()}
        rows.append(Row(result.method, label, metrics, {}))
    return rows


def _published(suite: Suite, case: Case) -> list[Row]:
    """The numbers published by others, marked as such."""
    rows = published(suite.name)["cases"].get(case.name, [])
    return [Row(row["label"], f"{row['label']} (published)", {}, row["metrics"], network=False) for row in rows]


def suite_note(name: str, results: Sequence[Result]) -> str:
    """How to read the table of a case, how its rows were trained, and in which environment."""
    first, known = results[0], find_case(name)
    stamp = first.environment
    over = f"Mean (standard deviation) over {len(first.seeds)} seeds" if len(first.seeds) > 1 else "One seed"
    ways = dict.fromkeys(result.differs for result in results if result.differs)
    text = (
        f"{over}, trained together in T_train seconds on {stamp.get('device', 'an unknown device')} (revision "
        f"{stamp.get('revision')}, torch {stamp.get('versions', {}).get('torch')}, {stamp.get('date')}): "
        f"{'; '.join(ways)}. Gap: (f - f*) / |f*| to the exact optimum, mean over the test set; the worst violation is "
        "that of all rows of all test samples; T_test: one network's answer to the whole test set."
    )
    used = {result.recipe for result in results}
    chosen = [recipe.chosen for recipe in (known[1].recipes if known else ()) if recipe.name in used]
    text += "".join(f" {way}" for way in dict.fromkeys(chosen))
    source = published(known[0].name)["source"] if known else ""
    return f"{text} In brackets, measured by others on other hardware: {source}." if source else text
