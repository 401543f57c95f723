"""Training recipes for DC3's and Pinet's programs, and the solvers for their exact optima."""

from __future__ import annotations

from dataclasses import replace

from hardnet_lab.experiments.optimal import optimal_programs
from hardnet_lab.experiments.recipes import PROGRAM_NETWORK, PROGRAM_SETTINGS, Recipe
from hardnet_lab.experiments.suites.base import METHODS
from hardnet_lab.experiments.suites.convex import solve_convex
from hardnet_lab.experiments.suites.interior import solve_interior

_CHOSEN = (
    "Settings of an earlier study that compared them on test rows of these programs; the initial weights were chosen "
    "on validation rows, and the runs of this table selected nothing."
)
_CHOSEN_LARGE = "The better of two learning rates, two dropouts and two displacements on the validation rows, one seed."
WIDE = Recipe(
    "wide",
    METHODS,
    PROGRAM_NETWORK,
    PROGRAM_SETTINGS,
    epochs=100,
    chosen=_CHOSEN,
    label="",
)
"""For 100 variables."""
LONGER = replace(
    WIDE,
    name="longer",
    methods=("projection",),
    epochs=150,
    chosen="Longer training: the best of seven variants on the validation rows of the nonconvex programs, one seed.",
    label=", longer training",
)
"""The same network, trained longer."""
SWEEP = replace(WIDE, methods=("dc3", "projection"))
"""For the sweeps over sizes."""
LONGEST = replace(
    LONGER,
    epochs=600,
    chosen="Four times the epochs were the best of one, two and four on validation rows; six were not tried there.",
)
"""For the sizes with the most inequalities."""
WIDER = replace(
    WIDE,
    hidden=replace(PROGRAM_NETWORK, sizes=(4096, 4096)),
    settings=PROGRAM_SETTINGS | {"learning_rate": 1e-3},
    epochs=24,
    chosen=_CHOSEN_LARGE,
)
"""For 1000 variables."""

LONGER_LARGE = replace(
    WIDER,
    name="longer",
    methods=("projection",),
    epochs=48,
    chosen="Longer training: twice the epochs, as longer training was best on validation rows of the small programs.",
    label=", longer training",
)
"""For 1000 variables and the nonconvex objective."""

__all__ = [
    "LONGER",
    "LONGER_LARGE",
    "LONGEST",
    "SWEEP",
    "WIDE",
    "WIDER",
    "optimal_programs",
    "solve_convex",
    "solve_interior",
]
