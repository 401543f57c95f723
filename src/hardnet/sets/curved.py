"""Curved sets: balls, convex quadratics, second-order cones and matrix inequalities, each one block ``G(y) in K``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from hardnet.errors import ASYMMETRIC, EMPTY, INDEFINITE, sentence
from hardnet.functional.conic import project_intersection, solve_intersection
from hardnet.functional.elementary import project_ball, solve_ball
from hardnet.functional.quadratic import Spectrum, diagonalize, project_quadratic, solve_quadratic
from hardnet.products import times
from hardnet.sets.base import ConstraintSet, Name, Number
from hardnet.solvers.conic.blocks import Balls, Block, Quadratics, SecondOrder, SemiDefinite, convex
from hardnet.solvers.conic.solve import project_intersection as solve_blocks
from hardnet.solvers.solution import Solution, Status
from hardnet.structure import BoxedRows


class CurvedSet(ConstraintSet):
    """A convex set with a block: it adds `block` to what every set has, and always has a projection of its own.

    Where the `record` of its numbers is a block, the numbers are the block.
    """

    projectable = True
    curved = True

    def block(self, numbers: Any) -> Block:
        """The set as one block of the solver, from its numbers at x."""
        return numbers

    def residual(self, numbers: Any, y: Tensor) -> Tensor:
        """How far the block is violated, one row: 0 inside, NaN where y is."""
        return self.block(numbers).excess(y).clamp_min(0)

    def scale(self, numbers: Any, y: Tensor) -> Tensor:
        """The size of the terms that the block adds up, one row."""
        return self.block(numbers).scale(y)

    def row_count(self, numbers: Any, like: Tensor) -> int:
        """One row."""
        return 1

    def solve(self, raw: Tensor, x: Any = None, *, tolerance: float = 1e-9) -> Solution:
        """The projection with its `Solution`: status, residual, iterations and multipliers of each sample."""
        block = self.block(self.numbers(x, raw))
        if isinstance(block, Balls):
            return solve_ball(raw, *block)
        if isinstance(block, Quadratics):
            return solve_quadratic(raw, *block)
        return solve_intersection(raw, [block], tolerance=tolerance)

    def project(self, numbers: Any, raw: Tensor, *, factor: Spectrum | None = None, **policies: Any) -> Tensor:
        """A ball in closed form, a quadratic by a root in one dimension, others by their optimality conditions."""
        block = self.block(numbers)
        if isinstance(block, Balls):
            return project_ball(raw, *block, on_invalid=policies.get("on_invalid", "raise"))
        if isinstance(block, Quadratics):
            return project_quadratic(raw, *block, factor=factor, **policies)
        return project_intersection(raw, [block], **policies)

    def _require_nonempty(self) -> None:
        """Refuse an empty set at construction, where every number is a constant without batch dimensions."""
        origin = self.origin()
        if origin is None or not self.constant or origin.is_meta:
            return
        block = self.block(self.numbers(None, origin))
        lead = type(block)(*(field.unsqueeze(0) for field in block))
        if int(solve_blocks(origin.unsqueeze(0), [lead]).status) == Status.INFEASIBLE:
            raise EMPTY.of(self.label)


class Ball(CurvedSet):
    """``|y - center(x)| <= radius(x)``.

    Args:
        center: ``(n,)``, or a function of x that returns ``(*batch, n)``.
        radius: A number >= 0, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    smooth = True
    record = Balls

    def __init__(self, center: Number, radius: Number, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("center", center, ("n",), "finite")
        self.take("radius", radius, (), "size")

    def level(self, numbers: Balls, y: Tensor) -> Tensor:
        """``|y - center|^2 - radius^2``, one row; a negative radius leaves no point."""
        square = (y - numbers.center).square().sum(-1)
        return (square - numbers.radius * numbers.radius.abs()).unsqueeze(-1)


class Quadratic(CurvedSet):
    """``1/2 y'P(x)y + q(x)'y + r(x) <= 0`` with P positive semidefinite.

    Args:
        P: ``(n, n)``, or a function of x that returns ``(*batch, n, n)``.
        q: ``(n,)``, or a function that returns ``(*batch, n)``.
        r: A number, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    smooth = True
    record = Quadratics

    def __init__(self, P: Number, q: Number, r: Number, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("P", P, ("n", "n"), "finite")
        self.take("q", q, ("n",), "finite")
        self.take("r", r, (), "finite")
        fixed = self.fixed("P")
        if fixed is not None and not fixed.is_meta:
            _require_convex(fixed)
        self._require_nonempty()

    def level(self, numbers: Quadratics, y: Tensor) -> Tensor:
        """``1/2 y'Py + q'y + r``, one row."""
        return numbers.excess(y)

    def factorize(self) -> Spectrum | None:
        """The eigendecomposition of a constant P, to be kept; None where P depends on x."""
        fixed = self.fixed("P")
        return None if fixed is None or fixed.dim() > 2 else diagonalize(fixed)


def _require_convex(P: Tensor) -> None:
    """Refuse a constant P that is asymmetric or has a negative eigenvalue, beyond the rounding of its dtype."""
    exact = P.double()
    tolerance = 8 * P.shape[-1] * torch.finfo(P.dtype).eps * exact.abs().amax().item()
    off = (exact - exact.mT).abs().amax().item()
    if off > tolerance:
        raise ASYMMETRIC.of("P", f"|P - P'| up to {off:.3g}")
    values = torch.linalg.eigvalsh(exact)
    if not bool(convex(values, P.dtype).all()):
        raise INDEFINITE.of("P", f"the eigenvalue {values.min().item():.6g}")


class SecondOrderCone(CurvedSet):
    """``|A(x) y + b(x)| <= c(x)'y + d(x)``.

    Args:
        A: ``(k, n)``, or a function of x that returns ``(*batch, k, n)``.
        b: ``(k,)``, or a function that returns ``(*batch, k)``.
        c: ``(n,)``, or a function that returns ``(*batch, n)``.
        d: A number, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    smooth = True
    record = SecondOrder
    nonzero: ClassVar[dict[str, str]] = {
        "k": sentence("A", "at least one row", "none", "write c'y + d >= 0 as hn.Affine")
    }

    def __init__(self, A: Number, b: Number, c: Number, d: Number, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("A", A, ("k", "n"), "finite")
        self.take("b", b, ("k",), "finite")
        self.take("c", c, ("n",), "finite")
        self.take("d", d, (), "finite")
        self._require_nonempty()

    def level(self, numbers: SecondOrder, y: Tensor) -> Tensor:
        """``|A y + b| - (c'y + d)``, one row, with zero derivatives of the norm at 0.

        Squares would be smooth at the axis, too, but flat where ``c'y + d = 0``: a step stops there for ever.
        """
        square = (times(numbers.A, y) + numbers.b).square().sum(-1, keepdim=True)
        off = square > 0
        length = torch.where(off, torch.where(off, square, 1.0).sqrt(), 0.0)
        return length - (numbers.c * y).sum(-1, keepdim=True) - numbers.d.unsqueeze(-1)

    def level_rows(self, numbers: SecondOrder) -> BoxedRows:
        """``c'y + d >= 0``, which follows from the level; as an affine row it holds in every step."""
        return BoxedRows(numbers.c.unsqueeze(-2), -numbers.d.unsqueeze(-1), None, None, None)


class LMI(CurvedSet):
    """``F0(x) + sum_i y_i F_i(x)`` positive semidefinite.

    Args:
        F0: ``(k, k)`` symmetric, or a function of x that returns ``(*batch, k, k)``.
        F: ``(n, k, k)``, each symmetric, or a function that returns ``(*batch, n, k, k)``; where they come from a
            function only the symmetric parts count.
        name: What errors and certificates call it.
    """

    record = SemiDefinite
    nonzero: ClassVar[dict[str, str]] = {"k": sentence("F0", "a matrix of order 1 or more", "one without entries")}

    def __init__(self, F0: Number, F: Number, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("F0", F0, ("k", "k"), "finite")
        self.take("F", F, ("n", "k", "k"), "finite")
        for matrix in ("F0", "F"):
            fixed = self.fixed(matrix)
            if fixed is not None and not fixed.is_meta and fixed.numel():
                _require_symmetric(matrix, fixed)
        self._require_nonempty()


def _require_symmetric(name: str, F: Tensor) -> None:
    """Refuse constant matrices that are not symmetric."""
    off = (F - F.mT).abs().max().item()
    if off > 1e-6 * F.abs().max().item():
        raise ASYMMETRIC.of(name, f"|{name} - {name}'| up to {off:.3g}")
