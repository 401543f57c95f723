"""Second-order cones: ``|A y + b| <= c'y + d``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.conic import project_intersection
from hardnet.functional.samples import Policy
from hardnet.sets.base import Number
from hardnet.sets.curved import CurvedSet
from hardnet.solvers.blocks import SecondOrder


class SecondOrderCone(CurvedSet):
    """``|A(x) y + b(x)| <= c(x)'y + d(x)``.

    Args:
        A: ``(k, n)``, or a function of x that returns ``(*batch, k, n)``.
        b: ``(k,)``, or a function that returns ``(*batch, k)``.
        c: ``(n,)``, or a function that returns ``(*batch, n)``.
        d: A number, or a function that returns ``(*batch)``.
    """

    def __init__(self, A: Number, b: Number, c: Number, d: Number) -> None:
        super().__init__()
        for name, value in (("A", A), ("b", b), ("c", c), ("d", d)):
            self._take(name, value)
        for name, dims in (("A", 2), ("b", 1), ("c", 1), ("d", 0)):
            shape = self._shape(name)
            if shape is not None and len(shape) != dims:
                expected = {"A": "shape (k, n)", "b": "shape (k,)", "c": "shape (n,)", "d": "one number"}[name]
                raise ShapeError(sentence(name, expected, tuple(shape), "a function of x gives batches"))
        self._require_nonempty()

    @property
    def dim(self) -> int | None:
        """n, where A or c is constant."""
        shapes = (self._shape(name) for name in ("A", "c"))
        return next((shape[-1] for shape in shapes if shape is not None), None)

    def numbers(self, x: Any, like: Tensor) -> SecondOrder:
        """``A(x), b(x), c(x), d(x)``."""
        n = like.shape[-1]
        A = self._expect("A", self._number("A", x, like), like, (None, n))
        b = self._expect("b", self._number("b", x, like), like, (A.shape[-2],))
        c = self._expect("c", self._number("c", x, like), like, (n,))
        return SecondOrder(A, b, c, self._expect("d", self._number("d", x, like), like, ()))

    def residual(self, numbers: SecondOrder, y: Tensor) -> Tensor:
        """``relu(|A y + b| - c'y - d)``, one row."""
        z = numbers.image().value(y)
        return (torch.linalg.vector_norm(z[..., :-1], dim=-1, keepdim=True) - z[..., -1:]).clamp_min(0)

    def scale(self, numbers: SecondOrder, y: Tensor) -> Tensor:
        """The norm of ``|A||y| + |b|`` and ``|c|'|y| + |d|`` together, one row."""
        return numbers.image().size(y)[..., :1]

    def block(self, numbers: SecondOrder) -> SecondOrder:
        """The numbers themselves."""
        return numbers

    def project(
        self, numbers: SecondOrder, raw: Tensor, *, on_infeasible: Policy = "raise", on_invalid: Policy = "raise"
    ) -> Tensor:
        """By Newton on the optimality conditions: a cone seen through A has no closed form."""
        return project_intersection(raw, [numbers], on_infeasible=on_infeasible, on_invalid=on_invalid)
