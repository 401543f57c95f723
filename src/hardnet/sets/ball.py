"""Balls: ``|y - center| <= radius``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import BoundsError, ShapeError, sentence
from hardnet.functional.ball import project_ball
from hardnet.functional.samples import Policy
from hardnet.sets.base import Number
from hardnet.sets.curved import CurvedSet
from hardnet.solvers.blocks import SecondOrder


class BallNumbers(NamedTuple):
    """``center (*batch, n)`` and ``radius (*batch)``."""

    center: Tensor
    radius: Tensor


class Ball(CurvedSet):
    """``|y - center(x)| <= radius(x)``.

    Args:
        center: ``(n,)``, or a function of x that returns ``(*batch, n)``.
        radius: A number >= 0, or a function that returns ``(*batch)``.
    """

    def __init__(self, center: Number, radius: Number) -> None:
        super().__init__()
        self._take("center", center)
        self._take("radius", radius)
        shape, fixed = self._shape("center"), self._fixed("radius")
        if shape is not None and len(shape) != 1:
            raise ShapeError(sentence("center", "shape (n,)", tuple(shape), "a function of x gives (*batch, n)"))
        if fixed is not None and fixed.dim() != 0:
            raise ShapeError(sentence("radius", "one number", f"shape {tuple(fixed.shape)}"))
        if fixed is not None and not (fixed.isfinite() and fixed >= 0):
            raise BoundsError(sentence("radius", "a finite number >= 0", fixed.item(), "a negative one is empty"))

    @property
    def dim(self) -> int | None:
        """n, where the center is constant."""
        shape = self._shape("center")
        return None if shape is None else shape[-1]

    def numbers(self, x: Any, like: Tensor) -> BallNumbers:
        """``center(x), radius(x)``."""
        center = self._expect("center", self._number("center", x, like), like, (like.shape[-1],))
        return BallNumbers(center, self._expect("radius", self._number("radius", x, like), like, ()))

    def residual(self, numbers: BallNumbers, y: Tensor) -> Tensor:
        """``relu(|y - center| - radius)``, one row."""
        distance = torch.linalg.vector_norm(y - numbers.center, dim=-1)
        return (distance - numbers.radius).clamp_min(0).unsqueeze(-1)

    def scale(self, numbers: BallNumbers, y: Tensor) -> Tensor:
        """``|y| + |center| + radius``, one row."""
        lengths = torch.linalg.vector_norm(y, dim=-1) + torch.linalg.vector_norm(numbers.center, dim=-1)
        return (lengths + numbers.radius.abs()).unsqueeze(-1)

    def block(self, numbers: BallNumbers) -> SecondOrder:
        """``|I y - center| <= 0'y + radius``."""
        eye = torch.eye(numbers.center.shape[-1], dtype=numbers.center.dtype, device=numbers.center.device)
        return SecondOrder(eye, -numbers.center, torch.zeros_like(eye[0]), numbers.radius)

    def project(
        self, numbers: BallNumbers, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """``center + (raw - center) min(1, radius / |raw - center|)``; a negative radius is invalid."""
        return project_ball(raw, *numbers, on_invalid=on_invalid)
