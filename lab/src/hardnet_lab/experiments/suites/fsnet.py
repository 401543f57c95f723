"""FSNet's programs (Nguyen and Donti 2025): convex, nonconvex and nonsmooth, with affine, quadratic and conic rows."""

from __future__ import annotations

from functools import partial

from hardnet_lab.experiments.recipes import Recipe
from hardnet_lab.experiments.suites.base import GAP, GAP_MAX, TIMES, WORST, Case, Suite
from hardnet_lab.experiments.suites.separable import (
    BOXED,
    LONGER_CONES,
    LONGER_LOOSE,
    LOOSE,
    LOOSER,
    PENALIZED,
    solve_separable,
)
from hardnet_lab.experiments.tables import Column
from hardnet_lab.problems.suites.fsnet import FSNet, Rows, Shape


def _case(shape: Shape, rows: Rows, *recipes: Recipe) -> Case:
    title = f"{shape} {rows}"
    return Case(f"fsnet-{shape}-{rows}", title, partial(FSNet, shape, rows), recipes, solve_separable, (shape,))


SUITE = Suite(
    "fsnet",
    "FSNet's programs",
    "min ½ y'Qy + p'y (convex), + p'sin y (nonconvex), + 0.1 |y| besides (nonsmooth), subject to C y = x, |y| ≤ 5 and "
    "50 rows: G y ≤ h or G sin y ≤ h cos x (qp), quadratics (qcqp), cones (socp); 100 variables, 2000 test instances. "
    "The gap is relative (0.01 is FSNet's 1 %), Σ is the sum over the rows of a sample; optima of what is not convex "
    "are the best known ones, of a local solver.",
    (
        _case("convex", "qp", BOXED, PENALIZED),
        _case("convex", "qcqp", LOOSE, LONGER_LOOSE, PENALIZED),
        _case("convex", "socp", LOOSE, LONGER_CONES, PENALIZED),
        _case("nonconvex", "qp", LOOSER, PENALIZED),
        _case("nonsmooth", "qp", LOOSER, PENALIZED),
    ),
    (
        Column("objective", ("objective",)),
        GAP,
        GAP_MAX,
        Column("Σ eq mean / max", ("eq_sum", "eq_sum_worst"), violation=True),
        Column("Σ ineq mean / max", ("ineq_sum", "ineq_sum_worst"), violation=True),
        WORST,
        *TIMES,
    ),
)
