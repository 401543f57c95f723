"""The unicycle MPC of HardNet++: ``hardnet suite hardnetpp``."""

from __future__ import annotations

from typing import Any

from hardnet.experiments.recipes import Recipe
from hardnet.experiments.suites.base import GAP, TIMES, WORST, Case, Suite
from hardnet.experiments.suites.unicycle import solve_plan
from hardnet.experiments.tables import Column
from hardnet.problems.suites.hardnetpp import UnicycleControls, UnicyclePlan

_CHOSEN = "By a few short runs on one core, which were watched on the test poses, too; nothing was selected afterwards."


def _recipes(epochs: int, last: int) -> tuple[Recipe, Recipe]:
    """A penalty in every epoch and the layer in testing alone; and the layer in the last epochs, too."""
    settings = {"learning_rate": 3e-3, "schedule": "cosine", "warm_epochs": epochs, "displacement": 1.0, "clip": 2.0}
    options = {"mode": "nearest", "on_failure": "best"}
    shared: dict[str, Any] = {"options": options, "epochs": epochs, "chosen": _CHOSEN}
    late = settings | {"warm_epochs": epochs - last}
    return (
        Recipe("layer", ("nonlinear",), settings=late, label=f", in the last {last} epochs", **shared),
        Recipe("penalty", ("nonlinear",), settings=settings, label=", in testing alone", **shared),
    )


SUITE = Suite(
    "hardnetpp",
    "HardNet++'s unicycle MPC",
    "Ten steps of a unicycle around an obstacle: 50 outputs, 30 equalities, 10 keep-out rows, 20 bounds, trained on "
    "the cost alone. Suboptimality is HardNet++'s: mean relu(f - f*) / f* over 100 fresh poses. Violations of both "
    "cases are measured on the published 50 numbers.",
    (
        Case(
            "hardnetpp-plan",
            "states and controls as outputs",
            UnicyclePlan,
            _recipes(200, 4),
            solve_plan,
            seeds="1-3",
        ),
        Case(
            "hardnetpp-controls",
            "controls as outputs, states by roll-out",
            UnicycleControls,
            _recipes(200, 10),
            solve_plan,
            seeds="1-3",
        ),
    ),
    (
        Column("cost", ("objective",)),
        Column("suboptimality mean / max", ("suboptimality", "suboptimality_max")),
        GAP,
        Column("dynamics worst", ("eq_worst",), violation=True),
        Column("keep-out, bounds worst", ("ineq_worst",), violation=True),
        WORST,
        *TIMES,
    ),
)
