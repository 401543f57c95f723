"""Second-order cones: ``|A y + b| <= c'y + d``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from hardnet.errors import sentence
from hardnet.functional.conic import project_intersection
from hardnet.products import times
from hardnet.sets.base import Name, Number
from hardnet.sets.curved import CurvedSet
from hardnet.solvers.conic.blocks import SecondOrder
from hardnet.structure import BoxedRows


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

    def residual(self, numbers: SecondOrder, y: Tensor) -> Tensor:
        """``relu(|A y + b| - c'y - d)``, one row."""
        return numbers.residual(y)

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

    def scale(self, numbers: SecondOrder, y: Tensor) -> Tensor:
        """The norm of ``|A||y| + |b|`` and ``|c|'|y| + |d|`` together, one row."""
        return numbers.scale(y)

    def project(self, numbers: SecondOrder, raw: Tensor, **policies: Any) -> Tensor:
        """By Newton on the optimality conditions: a cone seen through A has no closed form."""
        return project_intersection(raw, [numbers], **policies)
