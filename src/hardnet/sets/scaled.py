"""A set in scaled units: the points z with ``mean + std z in C(x)``.

A network that is trained on scaled targets emits ``z = (y - mean) / std``: its constraint must be scaled as well, or it
holds for other numbers than those that anybody uses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.errors import NOT_FINITE, NOT_POSITIVE, DTypeError, UnsupportedSetError, sentence
from hardnet.functional.nonlinear import call
from hardnet.region import Data, Kind, in_units
from hardnet.sets.arguments import Unknown, UnknownError
from hardnet.sets.base import ConstraintSet, Number
from hardnet.sets.cvxpy import Cvxpy
from hardnet.sets.intersection import Intersection
from hardnet.sets.nonlinear import Nonlinear, NonlinearFunction, Smooth
from hardnet.sets.relaxed import Relaxed
from hardnet.sets.sparse import SparseAffine
from hardnet.sets.union import Union
from hardnet.solvers.conic.blocks import Balls, SecondOrder
from hardnet.structure import BoxedRows

# Sets seen in scaled units: each keeps the set in the units of y, and rewrites the numbers that it gives at x.


class ScaledNumbers(NamedTuple):
    """The numbers of the set in the units of y, as rows beside a box or a block in scaled units, and the units."""

    own: Any
    scaled: Any
    mean: Tensor
    std: Tensor


class Scaled(ConstraintSet):
    """``mean + std z in C(x)`` for a set that is data: rows, blocks and L1 balls in z.

    Args:
        constraint: C(x), which gives the numbers and names.
        mean: ``(n,)`` or a number, or a function of x.
        std: The same, > 0.
        keep_box: With False the bounds of single outputs are rows as well, in the units of y.
    """

    def __init__(self, constraint: ConstraintSet, mean: Number, std: Number, *, keep_box: bool = True) -> None:
        super().__init__(constraint.name)
        if not (constraint.polyhedral or constraint.is_made_of(Kind.CURVED) or constraint.is_made_of(Kind.ABSOLUTE)):
            expected = "a set of the library, or one of your own with affine rows"
            raise UnsupportedSetError(sentence("constraint", expected, type(constraint).__name__))
        if constraint.dim is not None:
            self._sizes["n"] = constraint.dim
        self.constraint, self.keep_box = constraint, keep_box
        self.take("mean", mean, ("n",), "finite")
        self.take("std", std, ("n",), "positive")

    @property
    def kinds(self) -> frozenset[Kind]:
        """Those of the set."""
        return self.constraint.kinds

    @property
    def polyhedral(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the set is a polyhedron."""
        return self.is_made_of(Kind.ROWS)

    @property
    def all_equal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all rows of the set are equalities by its class."""
        return self.constraint.all_equal

    @property
    def shape(self) -> Any:
        """The class of the block of a curved set; a ball becomes an ellipsoid."""
        own = getattr(self.constraint, "shape", None)
        return SecondOrder if own is Balls else own

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

    def numbers(self, x: Any, like: Tensor) -> ScaledNumbers:
        """Those of the set and what they describe in scaled units; NaN for a std that is not positive."""
        own = self.constraint.numbers(x, like)
        if isinstance(x, Unknown) and not (self._shared("mean") and self._shared("std")):
            raise UnknownError
        mean, std = (self.number(name, x, like) for name in ("mean", "std"))
        std = torch.where(std > 0, std, torch.nan)
        mean, std = (part.expand(*part.shape[:-1], like.shape[-1]) for part in (mean, std))
        return ScaledNumbers(own, self._in_units(own, mean, std), mean, std)

    def essential(self, numbers: ScaledNumbers) -> ScaledNumbers:
        """Those of the set, in scaled units."""
        own = self.constraint.essential(numbers.own)
        return numbers._replace(scaled=self._in_units(own, numbers.mean, numbers.std))

    def _in_units(self, own: Any, mean: Tensor, std: Tensor) -> Data:
        """What the numbers of the set describe, in z."""
        if not self.polyhedral:
            return in_units(self.constraint.data(own, std), mean, std)
        region = self.constraint.region_of(own, std)
        return in_units(region.rows(std) if self.keep_box else region.stacked(), mean, std)

    def data(self, numbers: ScaledNumbers, like: Tensor) -> Data:
        """What `numbers` found."""
        return numbers.scaled

    def alone(self, numbers: ScaledNumbers, like: Tensor) -> Any:
        """The block or the ball, where it is one."""
        return None if isinstance(numbers.scaled, BoxedRows) else numbers.scaled

    def row_names(self, numbers: ScaledNumbers, like: Tensor, label: str | None = None) -> list[str]:
        """Those of the set."""
        return self.constraint.row_names(numbers.own, like, label)


class ScaledRows(Scaled):
    """A polyhedron in scaled units; a file of version 0.2 calls it so."""


class ScaledCurved(Scaled):
    """A curved set or an L1 ball in scaled units, likewise."""


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
    if isinstance(constraint, Relaxed):  # its weights were written for rows in the units of y
        rows, weight = ScaledRows(constraint.constraint, mean, std, keep_box=False), constraint.get_buffer("weight")
        return Relaxed(rows, weight, constraint.priority, name=constraint.name)
    if isinstance(constraint, Smooth):
        functions = (_compose(function, mean, std) for function in (constraint.inequality, constraint.equality))
        return Smooth(constraint.dim, *functions, name=constraint.name)
    if isinstance(constraint, Nonlinear):
        return _nonlinear(constraint, mean, std)
    if isinstance(constraint, Cvxpy):
        return _rebuilt(constraint, mean, std)
    return (ScaledRows if constraint.polyhedral else ScaledCurved)(constraint, mean, std)


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
