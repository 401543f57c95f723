"""What curved sets share: they are blocks ``G(y) in K``, so that any of them can be intersected and projected."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hardnet.errors import EMPTY
from hardnet.functional.conic import solve_intersection
from hardnet.functional.quadratic import solve_quadratic
from hardnet.sets.base import ConstraintSet
from hardnet.solvers.conic.blocks import Block, Quadratics
from hardnet.solvers.conic.solve import project_intersection
from hardnet.solvers.solution import Solution, Status


class CurvedSet(ConstraintSet):
    """A convex set with a block: it adds `block` to what every set has, and always has a projection of its own.

    Where the `record` of its numbers is a block, the numbers are the block.
    """

    projectable = True
    curved = True

    def block(self, numbers: Any) -> Block:
        """The set as one block of the solver, from its numbers at x."""
        return numbers

    def row_count(self, numbers: Any, like: Tensor) -> int:
        """One row."""
        return 1

    def solve(self, raw: Tensor, x: Any = None, *, tolerance: float = 1e-9) -> Solution:
        """The projection with its `Solution`: status, residual, iterations and multipliers of each sample."""
        block = self.block(self.numbers(x, raw))
        if isinstance(block, Quadratics):
            return solve_quadratic(raw, *block)
        return solve_intersection(raw, [block], tolerance=tolerance)

    def _require_nonempty(self) -> None:
        """Refuse an empty set at construction, where every number is a constant without batch dimensions."""
        origin = self.origin()
        if origin is None or not self.constant or origin.is_meta:
            return
        block = self.block(self.numbers(None, origin))
        lead = type(block)(*(field.unsqueeze(0) for field in block))
        if int(project_intersection(origin.unsqueeze(0), [lead]).status) == Status.INFEASIBLE:
            raise EMPTY.of(self.label)
