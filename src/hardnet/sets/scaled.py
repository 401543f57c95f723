"""A set in scaled units: the points z with ``mean + std z in C(x)``.

A network that is trained on scaled targets emits ``z = (y - mean) / std``: its constraint must be scaled as well, or it
holds for other numbers than those that anybody uses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.errors import NOT_FINITE, NOT_POSITIVE, DTypeError, UnsupportedSetError, sentence
from hardnet.functional.l1_ball import L1
from hardnet.functional.nonlinear import call
from hardnet.products import times
from hardnet.sets.affine import Affine, Box, Boxed
from hardnet.sets.base import ConstraintSet, Number
from hardnet.sets.curved import CurvedSet
from hardnet.sets.cvxpy import Cvxpy
from hardnet.sets.intersection import Intersection
from hardnet.sets.l1_ball import AbsoluteSet
from hardnet.sets.nonlinear import Nonlinear, NonlinearFunction, Smooth
from hardnet.sets.relaxed import Relaxed
from hardnet.sets.simplex import Sums
from hardnet.sets.sparse import SparseAffine
from hardnet.sets.union import Union
from hardnet.solvers.conic.blocks import Balls, Block, Intervals, Quadratics, SecondOrder, SemiDefinite
from hardnet.structure import BoxedRows

# Sets seen in scaled units: each keeps the set in the units of y, and rewrites the numbers that it gives at x.


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

    polyhedral = True

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

    def block(self, numbers: ScaledNumbers) -> Block:
        """What `numbers` found."""
        return numbers.scaled


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


def scaled(constraint: ConstraintSet, mean: Number, std: Number) -> ConstraintSet:
    """The set of all z with ``mean + std z in C(x)``, under the same names.

    General rows and curved sets keep their units, so that violations, and the weights of `Relaxed`, mean what they
    meant; the coordinates of a box are measured in scaled units and still hold exactly there. The nearest point is the
    nearest in scaled units.

    Args:
        constraint: C(x); its functions of x and learned numbers are kept, and see the same x.
        mean: ``(n,)`` or a number, or, for affine rows and curved sets, a function of x that returns ``(*batch, n)``.
        std: Like `mean`, > 0. Where a function of x gives another number that sample is refused.
    """
    if not isinstance(constraint, ConstraintSet):
        raise DTypeError(sentence("constraint", "a set", type(constraint).__name__, "build one with hn.Affine, ..."))
    if isinstance(constraint, SparseAffine):
        remedy = "scale its columns by std, and take A mean off its bounds"
        raise UnsupportedSetError(sentence("constraint", "a set whose rows are dense", "sparse rows", remedy))
    if isinstance(constraint, Intersection):
        return Intersection([scaled(part, mean, std) for part in constraint.parts], name=constraint.name)
    if isinstance(constraint, Union):
        return Union([scaled(piece, mean, std) for piece in constraint.pieces], name=constraint.name)
    if isinstance(constraint, Relaxed):
        rows, weight = _rows(constraint.constraint, mean, std), constraint.get_buffer("weight")
        return Relaxed(rows, weight, constraint.priority, name=constraint.name)
    if isinstance(constraint, Smooth):
        functions = (_compose(function, mean, std) for function in (constraint.inequality, constraint.equality))
        return Smooth(constraint.dim, *functions, name=constraint.name)
    if isinstance(constraint, Nonlinear):
        return _nonlinear(constraint, mean, std)
    if isinstance(constraint, Cvxpy):
        return _rebuilt(constraint, mean, std)
    if isinstance(constraint, AbsoluteSet):
        return ScaledL1(constraint, mean, std)
    return (ScaledCurved if isinstance(constraint, CurvedSet) else ScaledRows)(constraint, mean, std)


def _rows(constraint: ConstraintSet, mean: Number, std: Number) -> ConstraintSet:
    """The rows of a set that may give way, all in the units of y, in which its weights were written."""
    if isinstance(constraint, Intersection):
        return Intersection([_rows(part, mean, std) for part in constraint.parts], name=constraint.name)
    return ScaledRows(constraint, mean, std, keep_box=False)


class InUnits:
    """``function(mean + std z, ...)``: a function of y as one of z; an object, so that it can be pickled."""

    mean: Tensor
    std: Tensor

    def __init__(self, function: Any, mean: Number, std: Number) -> None:
        for name, value in (("mean", mean), ("std", std)):
            if callable(value) and not isinstance(value, Tensor):
                raise DTypeError(sentence(name, "constants for a set given by functions of y", "a function of x"))
        self.function = function
        self.mean, self.std = (torch.as_tensor(part, dtype=torch.float64).detach() for part in (mean, std))
        if not bool(self.mean.isfinite().all()):
            raise NOT_FINITE.of("mean")
        if not bool((self.std.isfinite() & (self.std > 0)).all()):
            raise NOT_POSITIVE.of("std")


class SmoothInUnits(InUnits):
    """A function of tensors, ``(z, x) -> values``."""

    def __call__(self, z: Tensor, x: Any) -> Tensor:
        """The values at ``mean + std z``."""
        return call(self.function, self.mean.to(z) + self.std.to(z) * z, x)


class SlopeInUnits(SmoothInUnits):
    """The Jacobian of such a function, which the chain rule multiplies by std."""

    def __call__(self, z: Tensor, x: Any) -> Tensor:
        """The Jacobian at ``mean + std z``, in z."""
        return super().__call__(z, x) * self.std.to(z)


class BuildInUnits(InUnits):
    """A function that builds CVXPY constraints."""

    def __call__(self, z: Any, **parameters: Any) -> Any:
        """The constraints of ``mean + std z``."""
        import cvxpy

        return self.function(self.mean.numpy() + cvxpy.multiply(self.std.numpy(), z), **parameters)


class ModuleInUnits(nn.Module):
    """A module that is a function of y and x, which stays a part of the set and is learned."""

    def __init__(self, inner: SmoothInUnits) -> None:
        super().__init__()
        self.inner, self.module = inner, inner.function

    def forward(self, z: Tensor, x: Any) -> Tensor:
        """What it gives at ``mean + std z``."""
        return self.inner(z, x)


def _compose(
    function: NonlinearFunction | None, mean: Number, std: Number, kind: type[SmoothInUnits] = SmoothInUnits
) -> NonlinearFunction | None:
    """The function in scaled units; None stays None."""
    if function is None:
        return None
    inner = kind(function, mean, std)
    return ModuleInUnits(inner) if isinstance(function, nn.Module) else inner


def _nonlinear(constraint: Nonlinear, mean: Number, std: Number) -> Nonlinear:
    """The same bounds on a function of z."""
    g, jacobian = _compose(constraint.g, mean, std), _compose(constraint.jacobian, mean, std, SlopeInUnits)
    assert g is not None
    bounds = {side: constraint.source(side) for side in ("lower", "upper")}
    return Nonlinear(g, dim=constraint.dim, jacobian=jacobian, name=constraint.name, **bounds)


def _rebuilt(constraint: Cvxpy, mean: Number, std: Number) -> Cvxpy:
    """The program again, with the variable in scaled units and the same parameters."""
    build = BuildInUnits(constraint._functions["build"], mean, std)
    return Cvxpy(build, constraint.dim, constraint.sources(), name=constraint.name)
