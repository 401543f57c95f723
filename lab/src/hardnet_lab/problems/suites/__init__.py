"""Problems of other papers' benchmarks, each with its published data recipe and its exact optima.

`hardnet_lab.experiments.suites` defines how they are trained and which published numbers they are compared with.
"""

from hardnet_lab.problems.suites.base import SuiteProblem, fingerprint, reference
from hardnet_lab.problems.suites.programs import SuitePrograms

__all__ = ["SuiteProblem", "SuitePrograms", "fingerprint", "reference"]
