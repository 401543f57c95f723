"""Pinet's programs (Terpin et al. 2026): DC3's data with Pinet's own split, and a large size that we draw ourselves."""

from __future__ import annotations

from functools import partial

from hardnet_lab.experiments.suites.base import GAP, GAP_MAX, TIMES, WORST, Case, Suite
from hardnet_lab.experiments.suites.programs import (
    LONGER,
    LONGER_LARGE,
    WIDE,
    WIDER,
    optimal_programs,
    solve_convex,
    solve_interior,
)
from hardnet_lab.experiments.tables import Column
from hardnet_lab.problems.suites import SuitePrograms


def _small(kind: str) -> Case:
    name, convex = f"pinet-small-{kind}", kind == "convex"
    build = partial(SuitePrograms, name, convex=convex, pinet_split=True)
    return Case(name, f"small, {kind}", build, (WIDE, LONGER), solve_convex if convex else optimal_programs, ("small",))


def _large(kind: str) -> Case:
    name, convex = f"pinet-large-{kind}", kind == "convex"
    build = partial(SuitePrograms, name, 1000, 500, 500, convex=convex, pinet_split=True)
    recipes = (WIDER,) if convex else (WIDER, LONGER_LARGE)
    return Case(name, f"large, {kind}, our own draw", build, recipes, solve_interior, ("large",))


SUITE = Suite(
    "pinet",
    "Pinet's programs",
    "DC3's programs with the last 1024 of 10000 instances for testing: small is DC3's data bit for bit (100 variables, "
    "50 equalities, 50 inequalities); large has 1000, 500 and 500, drawn by the same recipe with seed 17, since the "
    "file of Pinet is not in its repository. Gap is Pinet's RS. A sample is missed if its violation exceeds 1e-3 or "
    "its gap 5 %.",
    (_small("convex"), _small("nonconvex"), _large("convex"), _large("nonconvex")),
    (
        Column("objective", ("objective",)),
        GAP,
        GAP_MAX,
        Column("violation, mean of samples", ("max_violation",), violation=True),
        WORST,
        Column("missed", ("missed",)),
        *TIMES,
    ),
)
