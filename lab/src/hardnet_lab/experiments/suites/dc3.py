"""DC3's programs (Donti, Rolnick and Kolter 2021): simple and nonconvex at 50 + 50 rows, and eight other sizes."""

from __future__ import annotations

from functools import partial

from hardnet_lab.experiments.suites.base import GAP, GAP_MAX, TIMES, WORST, Case, Suite
from hardnet_lab.experiments.suites.programs import LONGER, LONGEST, SWEEP, WIDE, optimal_programs, solve_convex
from hardnet_lab.experiments.tables import Column
from hardnet_lab.problems.suites import SuitePrograms

SWEEPS = tuple((equalities, 50) for equalities in (10, 30, 70, 90)) + tuple((50, rows) for rows in (10, 30, 70, 90))
"""Equalities and inequalities of the sweeps, on the convex objective."""


def _sweep(equalities: int, inequalities: int) -> Case:
    varied = f"neq{equalities}" if inequalities == 50 else f"nineq{inequalities}"
    name = f"dc3-{varied}"
    return Case(
        name,
        f"simple, {equalities} equalities and {inequalities} inequalities",
        partial(SuitePrograms, name, equalities=equalities, inequalities=inequalities),
        (SWEEP, LONGEST) if inequalities > 50 else (SWEEP,),
        solve_convex,
        ("sweep",),
        seeds="1",
    )


SUITE = Suite(
    "dc3",
    "DC3's programs",
    "min ½ y'Qy + p'y (simple) or ½ y'Qy + p'sin y (nonconvex) subject to A y = x and G y ≤ h: 100 variables, 10000 "
    "instances, the last 833 for testing. Columns max and mean are those of DC3: of every sample, averaged.",
    (
        Case("dc3-simple", "simple", partial(SuitePrograms, "dc3-simple"), (WIDE, LONGER), solve_convex, ("main",)),
        Case(
            "dc3-nonconvex",
            "nonconvex",
            partial(SuitePrograms, "dc3-nonconvex", convex=False),
            (WIDE, LONGER),
            optimal_programs,
            ("main",),
        ),
        *(_sweep(*sizes) for sizes in SWEEPS),
    ),
    (
        Column("objective", ("objective",)),
        GAP,
        GAP_MAX,
        Column("eq max / mean", ("eq_max", "eq_mean"), violation=True),
        Column("ineq max / mean", ("ineq_max", "ineq_mean"), violation=True),
        WORST,
        *TIMES,
    ),
)
