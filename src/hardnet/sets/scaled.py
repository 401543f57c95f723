"""A set in scaled units: the points z with ``mean + std z in C(x)``.

A network that is trained on scaled targets emits ``z = (y - mean) / std``: its constraint must be scaled as well, or it
holds for other numbers than those that anybody uses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hardnet.errors import NOT_FINITE, NOT_POSITIVE, DTypeError, UnsupportedSetError, sentence
from hardnet.functional.nonlinear import call
from hardnet.sets.base import ConstraintSet, Number
from hardnet.sets.curved import CurvedSet
from hardnet.sets.cvxpy import Cvxpy
from hardnet.sets.intersection import Intersection
from hardnet.sets.l1_ball import AbsoluteSet
from hardnet.sets.nonlinear import Nonlinear, NonlinearFunction
from hardnet.sets.relaxed import Relaxed
from hardnet.sets.scaled_sets import ScaledCurved, ScaledL1, ScaledRows
from hardnet.sets.smooth import Smooth
from hardnet.sets.sparse import SparseAffine


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
    if isinstance(constraint, Relaxed):
        return Relaxed(_rows(constraint.constraint, mean, std), constraint.get_buffer("weight"), name=constraint.name)
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
