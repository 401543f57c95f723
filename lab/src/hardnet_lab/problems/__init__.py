"""Problems: data, constraint, loss and known answer of each experiment; problems contain no method."""

from collections.abc import Callable

from hardnet_lab.problems.base import DC3Settings, Hidden, Policy, Problem
from hardnet_lab.problems.own import OwnProblem
from hardnet_lab.problems.piecewise import Piecewise, pwc, pwcbox, pwcfull
from hardnet_lab.problems.programs import Programs, opt
from hardnet_lab.problems.unicycle import Unicycle, cbf

PROBLEMS: dict[str, Callable[[], Problem]] = {"pwc": pwc, "pwcfull": pwcfull, "pwcbox": pwcbox, "opt": opt, "cbf": cbf}
"""Every problem of the paper's tables, by its name on the command line."""

__all__ = ["PROBLEMS", "DC3Settings", "Hidden", "OwnProblem", "Piecewise", "Policy", "Problem", "Programs", "Unicycle"]
