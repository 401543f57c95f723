"""What a solver returns: the value, how it ended, and how good it is. The caller raises or looks.

Called by `hardnet.functional.box_rows`, `hardnet.functional.box_rows_gradient` and others.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor


class Status(IntEnum):
    """How one sample of a batched solve ended (stored as int8 in `Solution.status`)."""

    SOLVED = 0
    INFEASIBLE = 1
    NOT_CONVERGED = 2
    INVALID = 3  # NaN or infinite data, or lower > upper


class Solution(NamedTuple):
    """The outcome of a batched solve, sample by sample.

    Attributes:
        y: Solution, ``(*batch, n)``.
        dual: Multipliers, ``(*batch, m)``; positive at the upper bound, negative at the lower.
        status: `Status` of each sample, ``(*batch)`` int8.
        iterations: Iterations spent on each sample, ``(*batch)`` int.
        residual: Scale-free KKT residual of y and dual, ``(*batch)``. A polyhedron whose rows are parallel to 1e-9 and
            less may have a SOLVED sample with a larger one: a point that meets the rows and is not proved the nearest.
    """

    y: Tensor
    dual: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor
