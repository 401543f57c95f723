"""Programs with separable objective and rows, or with second-order cones: those of SnareNet and FSNet.

``min 1/2 y'Qy + p'φ(y) + weight |y|  s.t.  C y = x, rows(y) <= bound(x), |y_j| <= box``, with Q diagonal. The rows are
``H y² + G ψ(y)`` with ψ the identity, sine or cosine, or cones ``|A_i y + b_i| - c_i'y``. `snarenet.py` and `fsnet.py`
in this folder draw the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hardnet.sets import Affine, Box, Equality, Nonlinear
from hardnet.sets.base import ConstraintSet
from hardnet_lab.problems.suites.base import SuiteProblem

Curve = Callable[[Tensor], Tensor]
CURVES: dict[str, tuple[Curve, Curve]] = {
    "identity": (lambda y: y, torch.ones_like),
    "sin": (torch.sin, torch.cos),
    "cos": (torch.cos, lambda y: -y.sin()),
}
"""Each curve with its derivative."""


class Objective(NamedTuple):
    """``1/2 y'Qy + p'φ(y) + weight |y|``: Q is a diagonal ``(n,)``, p ``(n,)``, φ a name in `CURVES`."""

    Q: Tensor
    p: Tensor
    curve: str = "identity"
    weight: float = 0.0


class SeparableRows(nn.Module):
    """``H y² + G ψ(y)``, ``(*batch, m)``; H and G are ``(m, n)``; if H is None, the rows have no squares."""

    G: Tensor
    H: Tensor | None

    def __init__(self, G: Tensor, H: Tensor | None = None, curve: str = "identity") -> None:
        super().__init__()
        self.curve: str = curve
        self.register_buffer("G", G)
        self.register_buffer("H", H)

    @property
    def affine(self) -> bool:
        """Whether the rows are ``G y``."""
        return self.H is None and self.curve == "identity"

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """The values at y ``(*batch, n)``."""
        rows = CURVES[self.curve][0](y) @ self.G.mT
        return rows if self.H is None else rows + y.square() @ self.H.mT

    def jacobian(self, y: Tensor, x: Tensor) -> Tensor:
        """``2 H diag(y) + G diag(ψ'(y))``, ``(*batch, m, n)``."""
        rows = CURVES[self.curve][1](y).unsqueeze(-2) * self.G
        return rows if self.H is None else rows + 2 * y.unsqueeze(-2) * self.H


class ConeRows(nn.Module):
    """``|A_i y + b_i| - c_i'y``, ``(*batch, m)``; A is ``(m, k, n)``, b ``(m, k)``, c ``(m, n)``."""

    A: Tensor
    b: Tensor
    c: Tensor

    def __init__(self, A: Tensor, b: Tensor, c: Tensor) -> None:
        super().__init__()
        for name, value in (("A", A), ("b", b), ("c", c)):
            self.register_buffer(name, value)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """The values at y ``(*batch, n)``."""
        return self._inside(y).norm(dim=-1) - y @ self.c.mT

    def jacobian(self, y: Tensor, x: Tensor) -> Tensor:
        """``(A_i y + b_i)'A_i / |A_i y + b_i| - c_i'``, ``(*batch, m, n)``."""
        unit = nn.functional.normalize(self._inside(y), dim=-1)
        return torch.einsum("...mk,mkn->...mn", unit, self.A) - self.c

    def _inside(self, y: Tensor) -> Tensor:
        """``A_i y + b_i``, ``(*batch, m, k)``, by one matrix product."""
        return (y @ self.A.flatten(0, 1).mT).unflatten(-1, self.b.shape) + self.b


class CosineBound(nn.Module):
    """``h cos(x)``: bounds that depend on the input."""

    h: Tensor

    def __init__(self, h: Tensor) -> None:
        super().__init__()
        self.register_buffer("h", h)

    def forward(self, x: Tensor) -> Tensor:
        """The bounds at x ``(*batch, m)``."""
        return self.h * x.cos()


def right_hand_side(x: Tensor) -> Tensor:
    """The input is the right-hand side of the equalities."""
    return x


class Separable(SuiteProblem):
    """A family of the programs above; a subclass draws the numbers and passes the data to `take_data`.

    Args:
        name: The name of the case.
        objective: The objective to minimize.
        C: Matrix of the equalities ``C y = x``, ``(k, n)``.
        rows: The inequality rows; they become an affine set if they are affine.
        bound: Their bound h, ``(m,)``.
        box: Every output is between ``-box`` and ``box``; None where outputs are free.
        follows: Whether the bound is ``h cos(x)``, row by row.
    """

    def __init__(
        self,
        name: str,
        objective: Objective,
        C: Tensor,
        rows: SeparableRows | ConeRows,
        bound: Tensor,
        box: float | None = None,
        *,
        follows: bool = False,
    ) -> None:
        self.name, self.output_dim, self.box = name, C.shape[1], box
        self.Q, self.p, self.C = objective.Q, objective.p, C
        self.curve, self.weight = objective.curve, objective.weight
        self.equalities: Equality = Equality(C, right_hand_side)
        self.bound, self.follows = bound, follows
        self.inequalities: ConstraintSet = _rows(rows, CosineBound(bound) if follows else bound, self.output_dim)
        self.rows: SeparableRows | ConeRows = rows
        self.constraint = self.inequalities & self.equalities
        self.outputs: Box | None = None if box is None else Box(*_sides(box, C))
        if self.outputs is not None:
            self.constraint = self.constraint & self.outputs

    def value(self, y: Tensor, x: Tensor) -> Tensor:
        """``1/2 y'Qy + p'φ(y) + weight |y|`` per sample."""
        value = (0.5 * self.Q * y.square() + self.p * CURVES[self.curve][0](y)).sum(-1)
        return value + self.weight * y.norm(dim=-1) if self.weight else value

    def residuals(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """``|C y - x|``, and the violations of the rows and of the box side by side."""
        rows = self.inequalities.violation(y, x)
        if self.outputs is not None:
            rows = torch.cat([rows, self.outputs.violation(y, x)], -1)
        return self.equalities.violation(y, x), rows

    def penalty(self, y: Tensor, x: Tensor) -> Tensor:
        """The sum of squared violations per sample, in few operations and without reading values."""
        over = self.rows(y, x) - (self.bound * x.cos() if self.follows else self.bound)
        total = over.clamp_min(0).square().sum(-1) + (y @ self.C.mT - x).square().sum(-1)
        return total if self.box is None else total + (y.abs() - self.box).clamp_min(0).square().sum(-1)


def _rows(rows: SeparableRows | ConeRows, bound: Tensor | nn.Module, n: int) -> ConstraintSet:
    """The inequality rows as a set."""
    if isinstance(rows, SeparableRows) and rows.affine:
        return Affine(rows.G, upper=bound)
    return Nonlinear(rows, dim=n, upper=bound, jacobian=rows.jacobian)


def _sides(box: float, C: Tensor) -> tuple[Tensor, Tensor]:
    """Both bounds of every output."""
    side = C.new_full(C.shape[1:], box)
    return -side, side
