"""POLICE: a network that is affine on a region of its inputs (Balestriero & LeCun, 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from hardnet.errors import ShapeError, UnsupportedSetError, sentence
from hardnet.layers.base import Guarantee, Layer
from hardnet.sets.affine_on_hull import AffineOnRegion
from hardnet.sets.base import ConstraintSet
from hardnet.shapes import require_like


class Abs(nn.Module):
    """``|x|`` as a module: an activation with one hinge at 0, like ReLU and leaky ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """The absolute value."""
        return x.abs()


HINGES = (nn.ReLU, nn.LeakyReLU, nn.PReLU, Abs)
"""Activations that are linear on both sides of 0."""

AFFINE = (nn.Linear, nn.Identity)
"""Modules that are affine everywhere as they are."""


class Police(Layer):
    """``h <- h - sign min(0, min_v sign h(v))`` before every activation, so that no hinge crosses the region.

    The sign of a hidden unit at the majority of the vertices selects one side of its hinge, and the unit is shifted
    until every vertex is on that side; the network is then one affine map on the convex hull of the vertices. This
    changes the network itself: `prepare` wraps it, `enforce` returns raw, and ``enforce=False`` has no effect.

    Args:
        constraint: `AffineOnRegion`; with a given map, its difference from the learned one is added for every input.
    """

    name = "police"
    accepts = "y = A x + b for all x in the hull of given inputs (A, b learned or given); nn.Sequential networks"
    guarantee = Guarantee.EXACT
    identity_inside = False

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only `AffineOnRegion`."""
        if constraint.has("vertices"):  # a region of inputs
            return None
        return f"{type(constraint).__name__} is not an AffineOnRegion; use method='auto'"

    def prepare(self, net: nn.Module) -> nn.Module:
        """The network with shifted hidden units."""
        return PoliceNetwork(net, cast(AffineOnRegion, self.constraint))

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Return raw: the prepared network already is affine on the region."""
        return raw


class Fold(NamedTuple):
    """What the weights and vertices determine, independent of the input.

    Attributes:
        shifts: What to subtract before each activation, ``(width,)`` each.
        correction: Given map minus learned map as ``(d + 1, n)``, the last row for the constant; None where learned.
    """

    shifts: list[Tensor]
    correction: Tensor | None


class PoliceNetwork(nn.Module):
    """A network of linear modules and hinges that is affine on a region of inputs.

    The vertices pass through the network with every batch, and gradients flow through the shifts. Nothing is cached
    between calls: some changes of the weights cannot be detected (a load by assignment, a write to ``.data``).

    Args:
        net: `nn.Linear` or (nested) `nn.Sequential` of `nn.Linear`, `nn.Identity`, `nn.ReLU`, `nn.LeakyReLU`,
            `nn.PReLU` and `Abs`.
        constraint: The region and the map.
    """

    def __init__(self, net: nn.Module, constraint: AffineOnRegion) -> None:
        super().__init__()
        self.net = net
        self._shared = (constraint,)  # in a tuple, so that only the layer registers it as a submodule
        self._check()

    @property
    def constraint(self) -> AffineOnRegion:
        """The region and the map."""
        return self._shared[0]

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``(*batch, d)`` to y ``(*batch, n)``, affine on the region."""
        require_like("vertices", self._vertices(), x)
        fold = self._measure()
        y = self._run(x, iter(fold.shifts))
        return y if fold.correction is None else y + _with_one(x) @ fold.correction

    def _measure(self) -> Fold:
        """Run the vertices through the network, shifting each unit to the side that most of them are on."""
        shifts: list[Tensor] = []
        vertices = self._vertices()
        y = vertices
        for module in self._modules_in_order():
            if isinstance(module, HINGES):
                shifts.append(hinge_shift(y))
                y = y - shifts[-1]
            y = module(y)
        if not self.constraint.given:
            return Fold(shifts, None)
        A, b = self.constraint.map(vertices)
        learned = torch.linalg.pinv(_with_one(vertices).double()).to(y.dtype) @ y
        return Fold(shifts, torch.cat([A.mT, b.unsqueeze(0)]) - learned)

    def _run(self, x: Tensor, shifts: Iterator[Tensor]) -> Tensor:
        """The network with the shifts subtracted."""
        for module in self._modules_in_order():
            x = module(x - next(shifts)) if isinstance(module, HINGES) else module(x)
        return x

    def _vertices(self) -> Tensor:
        """The corners of the region, ``(c, d)``."""
        return self.constraint.get_buffer("vertices")

    def _modules_in_order(self) -> list[nn.Module]:
        """The modules of nested sequences, in the order in which they run."""
        return [module for _, module in _flatten("net", self.net)]

    def _check(self) -> None:
        """Refuse any module that is not known to be affine or a hinge, naming it."""
        for name, module in _flatten("net", self.net):
            if not isinstance(module, HINGES + AFFINE):
                expected = "an nn.Sequential of Linear, Identity, ReLU, LeakyReLU, PReLU and Abs for method 'police'"
                remedy = "only hinges at 0 can be kept off a region; fold normalization into Linear, leave out dropout"
                raise UnsupportedSetError(sentence("net", expected, f"{type(module).__name__} at '{name}'", remedy))
        first = next((module for module in self._modules_in_order() if isinstance(module, nn.Linear)), None)
        width = self._vertices().shape[-1]
        if first is not None and first.in_features != width:
            raise ShapeError(sentence("net", f"inputs of size {width}, as the vertices have", first.in_features))


def _flatten(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of nested sequences with their names; a module used twice is yielded twice."""
    if type(module).forward is not nn.Sequential.forward:
        yield name, module
        return
    for place, child in enumerate(cast(nn.Sequential, module)):
        yield from _flatten(f"{name}.{place}", child)


def hinge_shift(values: Tensor) -> Tensor:
    """``sign min(0, min_v sign values(v))`` of each unit, to subtract from it: ``(c, width) -> (width,)``.

    The sign is that of the majority of vertices, counted in integers; a tie goes to the negative side.
    """
    votes = (values > 0).sum(dim=0)
    sign = torch.where(2 * votes > values.shape[0], 1, -1).to(values.dtype)
    return sign * (sign * values).amin(dim=0).clamp_max(0)


def _with_one(x: Tensor) -> Tensor:
    """``(x, 1)``: ``(*batch, d + 1)``."""
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
