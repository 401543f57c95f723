"""Sets seen in scaled units: each keeps the set in the units of y, and rewrites the numbers that it gives at x."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import UnsupportedSetError, sentence
from hardnet.functional.conic import project_intersection
from hardnet.functional.l1_ball import L1
from hardnet.functional.quadratic import project_quadratic
from hardnet.functional.samples import Policy
from hardnet.products import times
from hardnet.sets.affine import Affine, Box, Boxed
from hardnet.sets.base import ConstraintSet, Number
from hardnet.sets.curved import CurvedSet
from hardnet.sets.l1_ball import AbsoluteSet
from hardnet.sets.sums import Sums
from hardnet.solvers.conic.blocks import Balls, Block, Intervals, Quadratics, SecondOrder, SemiDefinite
from hardnet.structure import BoxedRows


class ScaledNumbers(NamedTuple):
    """The numbers of the set in the units of y, as rows beside a box or a block in scaled units, and the units."""

    own: Any
    scaled: Any
    mean: Tensor
    std: Tensor


class ScaledSet(ConstraintSet):
    """``mean + std z in C(x)``: what the two sets below share.

    Args:
        constraint: C(x), which gives the numbers and names.
        mean: ``(n,)`` or a number, or a function of x.
        std: The same, > 0.
    """

    def __init__(self, constraint: ConstraintSet, mean: Number, std: Number) -> None:
        super().__init__(constraint.name)
        if constraint.dim is not None:
            self._sizes["n"] = constraint.dim
        self.constraint = constraint
        self.take("mean", mean, ("n",), "finite")
        self.take("std", std, ("n",), "positive")

    @property
    def label(self) -> str:
        """What the set is called."""
        return self.constraint.label

    @property
    def constant(self) -> bool:
        """Whether the set and the scale are."""
        return self.constraint.constant and self._shared("mean") and self._shared("std")

    def follow(self, like: Tensor) -> bool:
        """Move the written constants of the set and of the scale."""
        return super().follow(like) | self.constraint.follow(like)

    def units(self, x: Any, like: Tensor) -> tuple[Tensor, Tensor]:
        """``mean, std`` at x, each ``(n,)`` or ``(*batch, n)``; NaN for a std that is not positive."""
        mean, std = (self.number(name, x, like) for name in ("mean", "std"))
        std = torch.where(std > 0, std, torch.nan)
        return tuple(part.expand(*part.shape[:-1], like.shape[-1]) for part in (mean, std))  # pyright: ignore[reportReturnType]

    def row_names(self, numbers: ScaledNumbers, like: Tensor, label: str | None = None) -> list[str]:
        """Those of the set."""
        return self.constraint.row_names(numbers.own, like, label)


class ScaledRows(ScaledSet, Boxed):
    """``lower - A mean <= (A std) z <= upper - A mean``; the bounds of single outputs stay a box, divided by std.

    Args:
        constraint: A polyhedral set.
        mean: ``(n,)`` or a number, or a function of x.
        std: The same, > 0.
        keep_box: With False the bounds of single outputs are rows as well, in the units of y.
    """

    def __init__(self, constraint: ConstraintSet, mean: Number, std: Number, *, keep_box: bool = True) -> None:
        super().__init__(constraint, mean, std)
        if not constraint.polyhedral:
            expected = "a set of the library, or one of your own with affine rows"
            raise UnsupportedSetError(sentence("constraint", expected, type(constraint).__name__))
        self.keep_box = keep_box

    @property
    def declares_equalities(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the set does."""
        return self.constraint.declares_equalities

    def numbers(self, x: Any, like: Tensor) -> ScaledNumbers:
        """The general rows and the box of the set, as they are in scaled units."""
        return self._scaled(self.constraint.numbers(x, like), *self.units(x, like))

    def essential(self, numbers: ScaledNumbers) -> ScaledNumbers:
        """Those of the set, in scaled units."""
        return self._scaled(self.constraint.essential(numbers.own), numbers.mean, numbers.std)

    def _scaled(self, own: Any, mean: Tensor, std: Tensor) -> ScaledNumbers:
        """The record of the numbers of the set."""
        rows = self.constraint.structure(own, std) if self.keep_box else self._as_rows(own, std)
        return ScaledNumbers(own, scale_rows(rows, mean, std), mean, std)

    def _as_rows(self, own: Any, like: Tensor) -> BoxedRows:
        """The rows of the set without a box; those that are equalities stay so."""
        rows = self.constraint.rows(own, like)
        declared = set(self.constraint.equality_rows(own, like))
        return BoxedRows(*rows, equality=tuple(row in declared for row in range(rows.A.shape[-2])))

    def structure(self, numbers: ScaledNumbers, like: Tensor) -> BoxedRows:
        """What `numbers` found."""
        return numbers.scaled

    def structure_names(
        self, numbers: ScaledNumbers, like: Tensor, label: str | None = None
    ) -> tuple[list[str], list[str]]:
        """Those of the set."""
        if self.keep_box:
            return self.constraint.structure_names(numbers.own, like, label)
        return super().structure_names(numbers, like, label)

    def equality_rows(self, numbers: ScaledNumbers, like: Tensor) -> list[int]:
        """Those of the set."""
        return self.constraint.equality_rows(numbers.own, like)

    def declared_rows(self, count: int) -> list[int]:
        """Those of the set."""
        return self.constraint.declared_rows(count)

    def fixed_matrix(self, like: Tensor) -> Tensor | None:
        """The A of `rows`, where it is constant."""
        A, scale, boxed = self.constraint.fixed_matrix(like), self._fixed_units(like), self._coordinates(like)
        if A is None or scale is None or boxed is None:
            return None
        return torch.cat([A[:boxed], A[boxed:] * scale[1]])

    def fixed_bounds(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """The bounds of `rows`, NaN where only x knows them."""
        A, bounds = self.constraint.fixed_matrix(like), self.constraint.fixed_bounds(like)
        scale, boxed = self._fixed_units(like), self._coordinates(like)
        if A is None or bounds is None or scale is None or boxed is None:
            return None
        moved = [side - A @ scale[0] for side in bounds]
        return tuple(torch.cat([side[:boxed] / scale[1], side[boxed:]]) if boxed else side for side in moved)  # pyright: ignore[reportReturnType]

    def _fixed_units(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """``mean, std`` where they are constants."""
        return self.units(None, like) if self._shared("mean") and self._shared("std") else None

    def _coordinates(self, like: Tensor) -> int | None:
        """How many of the first rows are coordinates of a box; None where only x knows."""
        if not self.keep_box or type(self.constraint).structure in (ConstraintSet.structure, Affine.structure):
            return 0
        return like.shape[-1] if isinstance(self.constraint, (Box, Sums)) else None


def scale_rows(rows: BoxedRows, mean: Tensor, std: Tensor) -> BoxedRows:
    """``lower - A mean <= (A std) z <= upper - A mean`` and ``(box - mean) / std``."""
    shift = times(rows.A, mean)
    lower, upper = (None if side is None else side - shift for side in rows[1:3])
    box_lower, box_upper = (None if side is None else (side - mean) / std for side in rows[3:5])
    return BoxedRows(rows.A * std.unsqueeze(-2), lower, upper, box_lower, box_upper, *rows[5:])


class ScaledCurved(ScaledSet, CurvedSet):
    """A curved set in scaled units; its row keeps the units of y.

    Args:
        constraint: A `CurvedSet`.
        mean: ``(n,)`` or a number, or a function of x.
        std: The same, > 0.
    """

    def numbers(self, x: Any, like: Tensor) -> ScaledNumbers:
        """The block of the set, as it is in scaled units."""
        own = self.constraint.numbers(x, like)
        assert isinstance(self.constraint, CurvedSet)
        units = self.units(x, like)
        return ScaledNumbers(own, scale_block(self.constraint.block(own), *units), *units)

    def residual(self, numbers: ScaledNumbers, y: Tensor) -> Tensor:
        """That of the block."""
        return numbers.scaled.residual(y)

    def scale(self, numbers: ScaledNumbers, y: Tensor) -> Tensor:
        """That of the block."""
        return numbers.scaled.scale(y)

    def block(self, numbers: ScaledNumbers) -> Block:
        """What `numbers` found."""
        return numbers.scaled

    def project(
        self, numbers: ScaledNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """The nearest point in scaled units."""
        if isinstance(numbers.scaled, Quadratics):
            return project_quadratic(raw, *numbers.scaled, on_infeasible=on_infeasible, on_invalid=on_invalid)
        return project_intersection(raw, [numbers.scaled], on_infeasible=on_infeasible, on_invalid=on_invalid)


class ScaledL1(ScaledSet, AbsoluteSet):
    """An L1 ball in scaled units: another one, with ``std weights`` as its weights.

    Args:
        constraint: An `L1Ball`.
        mean: ``(n,)`` or a number, or a function of x.
        std: The same, > 0.
    """

    def numbers(self, x: Any, like: Tensor) -> ScaledNumbers:
        """The numbers of the set, and the ball in scaled units."""
        own = self.constraint.numbers(x, like)
        assert isinstance(self.constraint, AbsoluteSet)
        center, radius, weights = self.constraint.ball(own)
        mean, std = self.units(x, like)
        weights = std if weights is None else weights * std
        return ScaledNumbers(own, L1((center - mean) / std, radius, weights), mean, std)

    def ball(self, numbers: ScaledNumbers) -> L1:
        """What `numbers` found."""
        return numbers.scaled


def scale_block(block: Block, mean: Tensor, std: Tensor) -> Block:
    """The block of z with ``mean + std z`` in the block given."""
    if isinstance(block, Quadratics):
        P = (block.P + block.P.mT) / 2
        slope = times(P, mean) + block.q
        value = ((slope + block.q) * mean).sum(-1) / 2 + block.r
        return Quadratics(std.unsqueeze(-1) * P * std.unsqueeze(-2), std * slope, value)
    if isinstance(block, Balls):
        block = block.cone()  # an ellipsoid
    if isinstance(block, SecondOrder):
        offset = (block.c * mean).sum(-1) + block.d
        return SecondOrder(block.A * std.unsqueeze(-2), block.b + times(block.A, mean), block.c * std, offset)
    if isinstance(block, SemiDefinite):
        F0 = block.F0 + (block.F * mean[..., None, None]).sum(-3)
        return SemiDefinite(F0, block.F * std[..., None, None])
    shift = times(block.A, mean)
    return Intervals(block.A * std.unsqueeze(-2), block.lower - shift, block.upper - shift)
