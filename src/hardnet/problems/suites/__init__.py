"""Problems of other papers' benchmarks, each with its published recipe of data and its exact optima.

`hardnet.experiments.suites` says how they are trained and what stands beside our numbers.
"""

from hardnet.problems.suites.base import SuiteProblem, fingerprint, reference
from hardnet.problems.suites.programs import SuitePrograms

__all__ = ["SuiteProblem", "SuitePrograms", "fingerprint", "reference"]
