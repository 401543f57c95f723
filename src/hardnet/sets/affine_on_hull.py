"""Affine on a region of inputs: ``y = A x + b`` for every x in the convex hull of given vertices."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, UnsupportedSetError, sentence
from hardnet.region import Data, Own
from hardnet.sets.arguments import Unknown
from hardnet.sets.base import AffineRows, ConstraintSet, Name, Number
from hardnet.shapes import require_like
from hardnet.solvers import Status, project_affine
from hardnet.structure import BoxedRows


class RegionNumbers(NamedTuple):
    """The required output, where one is.

    Attributes:
        target: ``A x + b``, ``(*batch, n)``; n is 0 where the map is learned.
        size: ``|A| |x| + |b|``, ``(*batch, n)``.
        inside: Whether x is in the region, ``(*batch)`` bool.
    """

    target: Tensor
    size: Tensor
    inside: Tensor


class AffineOnRegion(ConstraintSet):
    """``y = A x + b`` for x in the convex hull of `vertices`; no demand on y anywhere else.

    Without A and b the map is whatever affine map the network learns (method ``police``): a demand on the network, not
    on one output, so that a certificate has no row to check.

    Args:
        vertices: Corners of the region of inputs, ``(c, d)``.
        A: ``(n, d)``, or None for a learned map.
        b: ``(n,)`` or a number; 0 where only A is given.
        name: What errors and certificates call these rows.
    """

    def __init__(
        self, vertices: Number, A: Number | None = None, b: Number | None = None, *, name: Name = None
    ) -> None:
        super().__init__(name)
        if A is None and b is not None:
            raise ShapeError(sentence("A", "a matrix where b is given", "none", "pass A, or leave both out"))
        self.take("vertices", vertices, kind="finite")
        self.take("A", A, kind="finite")
        self.take("b", b, kind="finite")
        self._check()

    @property
    def given(self) -> bool:
        """Whether the affine map is given, not learned."""
        return self.has("A")

    @property
    def polyhedral(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A given map fixes y at each x of the region: affine rows whose bounds depend on x."""
        return self.given

    @property
    def constant(self) -> bool:
        """Never: what is allowed depends on whether x is in the region."""
        return False

    @property
    def dim(self) -> int | None:
        """n, where the map is given."""
        shape = self.known_shape("A")
        return None if shape is None else shape[0]

    def map(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``A`` and ``b`` in the dtype of x, with b as a vector."""
        A = self.number("A", None, x)
        b = self.number("b", None, x) if self.has("b") else A.new_zeros(())
        return A, b.expand(len(A))

    def numbers(self, x: Any, like: Tensor) -> RegionNumbers:
        """The target at x, its size, and whether x is in the region."""
        vertices = self.number("vertices", None, like)
        if isinstance(x, Unknown):
            target = like.new_full((like.shape[-1],), torch.nan)
            return RegionNumbers(target, target, torch.ones((), dtype=torch.bool, device=like.device))
        if not isinstance(x, Tensor) or x.shape[-1:] != vertices.shape[-1:]:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(sentence("x", f"shape (*batch, {vertices.shape[-1]}), as the vertices have", got))
        if x.shape[:-1] != like.shape[:-1]:
            raise ShapeError(sentence("x", f"the batch of raw, {tuple(like.shape[:-1])}", tuple(x.shape)))
        require_like("vertices", vertices, x)
        if not self.given:
            none = x[..., :0]
            return RegionNumbers(none, none, in_hull(x, vertices))
        A, b = self.map(x)
        return RegionNumbers(x @ A.mT + b, x.abs() @ A.abs().mT + b.abs(), in_hull(x, vertices))

    def data(self, numbers: RegionNumbers, like: Tensor) -> Data:
        """``target <= y <= target`` in the region, infinite bounds outside; nothing where the map is learned."""
        if not self.given:
            return Own(self, numbers)
        inside = numbers.inside.unsqueeze(-1)
        lower, upper = (torch.where(inside, numbers.target, absent) for absent in (-torch.inf, torch.inf))
        return BoxedRows(torch.eye(like.shape[-1], dtype=like.dtype, device=like.device), lower, upper)

    def rows(self, numbers: RegionNumbers, like: Tensor) -> AffineRows:
        """The identity; only where the map is given."""
        if not self.given:
            raise UnsupportedSetError("AffineOnRegion with a learned map has no affine rows; use method='police'")
        return super().rows(numbers, like)

    def residual(self, numbers: RegionNumbers, y: Tensor) -> Tensor:
        """``|y - target|`` where x is in the region, else 0."""
        error = (y[..., : numbers.target.shape[-1]] - numbers.target).abs()
        return torch.where(numbers.inside.unsqueeze(-1), error, 0)

    def scale(self, numbers: RegionNumbers, y: Tensor) -> Tensor:
        """``|A| |x| + |b| + |y|``."""
        return numbers.size + y[..., : numbers.target.shape[-1]].abs()

    def _check(self) -> None:
        """Refuse shapes that do not fit, and vertices that are not constants."""
        vertices = self.fixed("vertices")
        if vertices is None or vertices.dim() != 2:
            got = "a function or parameter" if vertices is None else tuple(vertices.shape)
            raise ShapeError(sentence("vertices", "a constant of shape (c, d), one corner per row", got))
        shape = self.known_shape("A")
        if self.given and (shape is None or len(shape) != 2 or shape[1] != vertices.shape[1]):
            got = "a function of x" if shape is None else tuple(shape)
            raise ShapeError(sentence("A", f"shape (n, {vertices.shape[1]}), since inputs have that size", got))


def in_hull(x: Tensor, vertices: Tensor) -> Tensor:
    """Whether x ``(*batch, d)`` is a convex combination of the vertices ``(c, d)``, to rounding: ``(*batch)`` bool."""
    count = len(vertices)
    points, corners = x.detach().double(), vertices.detach().double()
    free = torch.zeros(count, dtype=corners.dtype, device=corners.device)
    A = torch.cat([corners.mT, torch.ones_like(free)[None], torch.eye(count, dtype=free.dtype, device=free.device)])
    exact = torch.cat([points, torch.ones_like(points[..., :1])], dim=-1)
    lower, upper = (
        torch.cat([exact, side.expand(*exact.shape[:-1], count)], dim=-1) for side in (free, free + torch.inf)
    )
    start = (free + 1 / count).expand(*points.shape[:-1], count)
    return project_affine(start, A, lower, upper).status == Status.SOLVED
