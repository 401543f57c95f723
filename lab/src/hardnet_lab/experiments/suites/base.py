"""A suite as data: its cases, their training recipes, the columns of its tables, and the published numbers.

The other files of this folder define the suites; its runner, tables and the report read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from torch import Tensor

from hardnet.errors import HardNetError, sentence
from hardnet_lab.experiments.optimal import Optimum
from hardnet_lab.experiments.recipes import Recipe
from hardnet_lab.experiments.tables import Column
from hardnet_lab.problems.suites import SuiteProblem

WITH_PENALTY = {"schedule": "cosine", "displacement": 1.0, "clip": 2.0}
"""Settings for training with a penalty instead of a layer on nonlinear rows, for most or all epochs."""
METHODS = ("soft", "dc3", "aff", "projection")
"""The methods trained on affine rows unless a recipe lists others."""
GAP = Column("gap", ("gap",))
GAP_MAX = Column("largest gap", ("gap_max",))
WORST = Column("worst violation", ("worst_violation",), violation=True)
TIMES = (Column("T_test (ms)", ("test_ms",)), Column("T_train (s)", ("train_s",)))
"""Columns for every suite: relative gap (mean and worst sample), violation of the worst sample, times."""


@dataclass(frozen=True)
class Case:
    """One problem of a suite.

    Attributes:
        name: Name of the problem and of its result files; it begins with the name of the suite.
        title: The title printed in tables.
        build: Makes the problem.
        recipes: The training recipes; methods requested by name take the first.
        solve: Finds the exact optimum of inputs ``(samples, input_dim)``; only for ``--references``.
        sizes: Groups such as "small" by which ``--size`` selects the case, besides its short name.
        seeds: The seeds to train unless others are requested.
    """

    name: str
    title: str
    build: Callable[[], SuiteProblem]
    recipes: tuple[Recipe, ...]
    solve: Callable[[Any, Tensor], Optimum]
    sizes: tuple[str, ...] = ()
    seeds: str = "1-5"

    @property
    def short(self) -> str:
        """The name within the suite."""
        return self.name.split("-", 1)[1]


@dataclass(frozen=True)
class Suite:
    """Cases that are compared in the same way.

    Attributes:
        name: The name on the command line.
        title: A short title.
        about: What is compared and how the metrics are defined, in a sentence or two.
        cases: The cases in the order of the tables.
        columns: Columns of the tables; the metrics are those of `hardnet_lab.problems.suites.SuiteProblem.evaluate`.
    """

    name: str
    title: str
    about: str
    cases: tuple[Case, ...]
    columns: tuple[Column, ...]

    def sizes(self) -> list[str]:
        """The values that ``--size`` accepts: the groups, then the cases."""
        groups = [name for case in self.cases for name in case.sizes]
        return list(dict.fromkeys([*groups, *(case.short for case in self.cases)]))

    def choose(self, sizes: str | None) -> list[Case]:
        """The cases of a comma-separated list of sizes; all of them by default."""
        if sizes is None or sizes == "all":
            return list(self.cases)
        asked = [size.strip() for size in sizes.split(",")]
        known = self.sizes()
        unknown = [size for size in asked if size not in known]
        if unknown:
            raise HardNetError(sentence("--size", f"'all' or some of {', '.join(known)}", ", ".join(unknown)))
        return [case for case in self.cases if {case.short, *case.sizes} & set(asked)]


@cache
def published(suite: str) -> dict[str, Any]:
    """Published numbers of a suite: ``source``, and ``cases``: rows ``{label, metrics: {name: [mean, deviation]}}``.

    They were measured by others on other hardware, and every table marks them as such.
    """
    file = resources.files("hardnet_lab.experiments") / "data" / "suites" / f"{suite}.json"
    return json.loads(file.read_text()) if file.is_file() else {"source": "", "cases": {}}
