"""Curved sets: balls, convex quadratics, second-order cones and matrix inequalities, each one block ``G(y) in K``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from hardnet.errors import ASYMMETRIC, EMPTY, INDEFINITE, sentence
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet, Name, Number
from hardnet.solvers.conic.blocks import Balls, Block, Quadratics, SecondOrder, SemiDefinite, convex
from hardnet.solvers.conic.solve import project_intersection
from hardnet.solvers.solution import Status


class CurvedSet(ConstraintSet):
    """A convex set with a block. Where the `record` of its numbers is a block, the numbers are the block."""

    kind = Kind.CURVED

    @property
    def shape(self) -> Any:
        """The class of its block, where that is known."""
        return self.record

    def block(self, numbers: Any) -> Block:
        """The set as one block of the solver, from its numbers at x."""
        return numbers

    def data(self, numbers: Any, like: Tensor) -> Block:
        """The block."""
        return self.block(numbers)

    def alone(self, numbers: Any, like: Tensor) -> Any:
        """A ball and a quadratic have formulas of their own."""
        return self.block(numbers)

    def _require_nonempty(self) -> None:
        """Refuse an empty set at construction, where every number is a constant without batch dimensions."""
        origin = self.origin()
        if origin is None or not self.constant or origin.is_meta:
            return
        block = self.block(self.numbers(None, origin))
        lead = type(block)(*(field.unsqueeze(0) for field in block))
        if int(project_intersection(origin.unsqueeze(0), [lead]).status) == Status.INFEASIBLE:
            raise EMPTY.of(self.label)


class Ball(CurvedSet):
    """``|y - center(x)| <= radius(x)``.

    Args:
        center: ``(n,)``, or a function of x that returns ``(*batch, n)``.
        radius: A number >= 0, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

    record = Balls

    def __init__(self, center: Number, radius: Number, *, name: Name = None) -> None:
        super().__init__(name)
        self.take("center", center, ("n",), "finite")
        self.take("radius", radius, (), "size")


class Quadratic(CurvedSet):
    """``1/2 y'P(x)y + q(x)'y + r(x) <= 0`` with P positive semidefinite.

    Args:
        P: ``(n, n)``, or a function of x that returns ``(*batch, n, n)``.
        q: ``(n,)``, or a function that returns ``(*batch, n)``.
        r: A number, or a function that returns ``(*batch)``.
        name: What errors and certificates call it.
    """

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
