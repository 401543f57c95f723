"""SnareNet's programs: nonconvex with affine rows, and convex with 10, 50 and 100 quadratic rows."""

from __future__ import annotations

from functools import partial

from hardnet_lab.experiments.suites.base import TIMES, WORST, Case, Suite
from hardnet_lab.experiments.suites.programs import WIDE
from hardnet_lab.experiments.suites.separable import LOOSE, PENALIZED, solve_separable
from hardnet_lab.experiments.tables import Column
from hardnet_lab.problems.suites.snarenet import ConvexQCQP, Noncvx


def _quadratic(m: int) -> Case:
    recipes, title = (LOOSE, PENALIZED), f"cvx_qcqp, m = {m}"
    return Case(f"snarenet-qcqp{m}", title, partial(ConvexQCQP, m), recipes, solve_separable, ("qcqp",))


SUITE = Suite(
    "snarenet",
    "SnareNet's programs",
    "min ½ y'Qy + p'sin y subject to A y ≤ b and C y = x (noncvx), or ½ y'Qy + p'y subject to m rows "
    "y'H y + G y ≤ h and C y = x (cvx_qcqp): 100 variables, the last 833 of 10000 instances for testing. The gap is "
    "absolute, f - f*, in its geometric mean over the samples, where nothing counts below 1e-16.",
    (
        Case("snarenet-noncvx", "noncvx", Noncvx, (WIDE,), solve_separable),
        *(_quadratic(m) for m in (10, 50, 100)),
    ),
    (
        Column("absolute gap, geometric mean / max", ("absolute_gap_gmean", "absolute_gap_max")),
        Column("rows off by > 1e-4", ("violated",), violation=True),
        Column("eq max", ("eq_worst",), violation=True),
        WORST,
        *TIMES,
    ),
)
