"""DC3's programs: ``min 1/2 y'Qy + p'y`` (or ``p'sin y``)  s.t.  ``A y <= b, C y = x``; Pinet uses them too.

Numpy's legacy generator with seed 17 draws, in this order, Q = diag(random(n)), p = random(n),
C = normal(equalities x n), X = uniform(-1, 1), A = normal(inequalities x n); ``b = sum_j |(A C⁺)_ij|``. Every size
starts from the same seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.sets import Affine, Box, Equality, Nonlinear
from hardnet.sets.base import ConstraintSet
from hardnet_lab.problems.base import DC3Settings, Hidden, random_state, split
from hardnet_lab.problems.programs import draw
from hardnet_lab.problems.suites.base import SuiteProblem, fingerprint

PINET_PARTS = 7952, 1024
"""Training and validation samples of Pinet's split; the last 1024 are the test set."""


def _right_hand_side(x: Tensor) -> Tensor:
    """The input is the right-hand side of the equalities."""
    return x


class SuitePrograms(SuiteProblem):
    """``min 1/2 y'Qy + p'sin y  s.t.  A y <= b, C y = x`` for x in the unit box, in DC3's order of draws.

    Args:
        name: The name of the case.
        variables: n, the length of y.
        equalities: Rows of C, the length of x.
        inequalities: Rows of A.
        convex: Whether the objective is ``1/2 y'Qy + p'y``.
        parts: Training and validation samples, before the test samples; the paper's shares by default.
        samples: Right-hand sides drawn, before the split.
        seed: The seed of the draw.
    """

    hidden = Hidden(batch_norm=True, dropout=0.2)
    dc3_order: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        variables: int = 100,
        equalities: int = 50,
        inequalities: int = 50,
        *,
        convex: bool = True,
        parts: tuple[int, int] | None = None,
        samples: int = 10000,
        seed: int = 17,
    ) -> None:
        drawn = draw(variables, inequalities, equalities, samples, dc3_order=self.dc3_order, seed=seed)
        self.name, self.output_dim, self.convex = name, variables, convex
        self.Q, self.p = torch.from_numpy(drawn.Q), torch.from_numpy(drawn.p)
        self.A: Tensor = torch.from_numpy(drawn.A)
        self.b: Tensor = torch.from_numpy(drawn.b)
        self.C: Tensor = torch.from_numpy(drawn.C)
        self.inequalities: Affine = Affine(self.A, upper=self.b)
        self.equalities: Equality = Equality(self.C, _right_hand_side)
        self.constraint = self.inequalities & self.equalities
        self.rows: Tensor = torch.cat([self.A, self.C])
        self.dc3 = DC3Settings(
            steps=10, test_steps=10, step_size=1e-7, predicted=tuple(drawn.predicted.tolist()), tolerance=1e-4
        )
        X = torch.from_numpy(drawn.X)
        train, validation, test = split(X) if parts is None else X.split([*parts, samples - sum(parts)])
        self.take_data(train, validation, test, fingerprint(drawn.Q, drawn.p, drawn.C, drawn.X, drawn.A))

    def value(self, y: Tensor, x: Tensor) -> Tensor:
        """``1/2 y'Qy + p'sin y`` (convex: ``+ p'y``) per sample."""
        linear = y if self.convex else y.sin()
        return (0.5 * self.Q * y.square() + self.p * linear).sum(-1)

    def residuals(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """``|C y - x|`` and ``relu(A y - b)``."""
        return self.equalities.violation(y, x), self.inequalities.violation(y, x)

    def penalty(self, y: Tensor, x: Tensor) -> Tensor:
        """``sum relu(A y - b)^2 + sum (C y - x)^2`` per sample, by one matrix product for the whole batch."""
        inequalities, equalities = (y @ self.rows.T).split([len(self.b), self.input_dim], -1)
        return (inequalities - self.b).clamp_min(0).square().sum(-1) + (equalities - x).square().sum(-1)


# Programs with separable objective and rows, or with second-order cones: those of SnareNet and FSNet.
#
# ``min 1/2 y'Qy + p'φ(y) + weight |y|  s.t.  C y = x, rows(y) <= bound(x), |y_j| <= box``, with Q diagonal. The rows
# are ``H y² + G ψ(y)`` with ψ the identity, sine or cosine, or cones ``|A_i y + b_i| - c_i'y``.


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


# SnareNet's programs: 100 outputs and 50 equalities ``C y = x`` beside affine or quadratic inequalities.
#
# Numbers are drawn with numpy's legacy generator, seed 2025. noncvx draws in the order of HardNet's paper; cvx_qcqp
# draws, in this order, Q = 0.5 rand(n) (diagonal), p = U(-1, 1), C = U(-1, 1), X = U(-0.5, 0.5), G = U(-1, 1),
# H = U(0, 0.1) (diagonals), and bounds ``y'H_i y + G_i'y`` by ``h_i = |C⁺'H_i C⁺|₂ r² + |G_i C⁺| r + 0.1`` with r the
# largest norm of any x, so that C⁺ x is feasible.


SEED, SAMPLES = 2025, 10000
N, EQUALITIES = 100, 50
MARGIN = 0.1


class Noncvx(Separable):
    """``min 1/2 y'Qy + p'sin y  s.t.  A y <= b, C y = x``: HardNet's recipe with a different seed."""

    hidden = Hidden()

    def __init__(self) -> None:
        drawn = draw(N, 50, EQUALITIES, SAMPLES, seed=SEED)
        Q, p, A, b, C, X = (torch.from_numpy(part) for part in drawn[:6])
        self.dc3 = DC3Settings(steps=10, step_size=1e-7, predicted=tuple(drawn.predicted.tolist()))
        super().__init__("snarenet-noncvx", Objective(Q, p, "sin"), C, SeparableRows(A), b)
        self.take_data(*split(X), fingerprint(Q, p, A, C, X))


class ConvexQCQP(Separable):
    """``min 1/2 y'Qy + p'y  s.t.  y'H_i y + G_i'y <= h_i (i = 1..m), C y = x``."""

    hidden = Hidden()
    batch_size = 100

    def __init__(self, inequalities: int) -> None:
        random = random_state(SEED)
        Q, p = random.rand(N) * 0.5, random.uniform(-1, 1, N)
        C, X = random.uniform(-1, 1, (EQUALITIES, N)), random.uniform(-0.5, 0.5, (SAMPLES, EQUALITIES))
        G, H = random.uniform(-1, 1, (inequalities, N)), random.uniform(0, 0.1, (inequalities, N))
        objective = Objective(torch.from_numpy(Q), torch.from_numpy(p))
        rows = SeparableRows(torch.from_numpy(G), torch.from_numpy(H))
        bound = torch.from_numpy(_bound(C, X, G, H))
        super().__init__(f"snarenet-qcqp{inequalities}", objective, torch.from_numpy(C), rows, bound)
        self.take_data(*split(torch.from_numpy(X)), fingerprint(Q, p, C, X, G, H))


def _bound(C: Any, X: Any, G: Any, H: Any) -> Any:
    """The bounds h, ``(m,)``."""
    import numpy as np

    inverse, longest = np.linalg.pinv(C), np.linalg.norm(X, axis=1).max()
    curvature = np.linalg.norm(np.einsum("na,mn,nb->mab", inverse, H, inverse), 2, axis=(1, 2))
    return curvature * longest**2 + np.linalg.norm(G @ inverse, axis=1) * longest + MARGIN


# FSNet's programs: 100 outputs, 50 equalities ``C y = x``, 50 inequalities, every output in [-5, 5].
#
# Numpy's legacy generator with seed 2025 draws, in this order, Q = 0.5 rand(n) (diagonal), p = U(-1, 1), C = U(-1, 1),
# X = U(-1, 1) (10000 x 50), and then G = U(-1, 1) with ``h = sum_j |(G C⁺)_ij|`` and, for qcqp, H = U(0, 0.1); or, for
# socp, y0 = U(-1, 1) and for every cone A_i, b_i, c_i = U(-1, 1) with ``d_i = |A_i y0 + b_i| - c_i'y0``. Torch's
# generator with seed 2025 shuffles the samples: 7000 for training, 1000 for validation, 2000 for the test.


DRAWN_BY = 2025
PARTS = 7000, 1000, 2000
"""Samples for training, validation and test."""
OUTPUTS, BALANCES, INEQUALITIES, BOX = 100, 50, 50, 5.0
Shape = Literal["convex", "nonconvex", "nonsmooth"]
"""Shape of the objective and, with it, of the rows."""
Rows = Literal["qp", "qcqp", "socp"]


class FSNet(Separable):
    """One of FSNet's nine problems; those with nonconvex cones are not implemented.

    Args:
        shape: The objective is ``1/2 y'Qy + p'y`` (convex), ``1/2 y'Qy + p'sin y`` (nonconvex), or the latter
            ``+ 0.1 |y|`` (nonsmooth).
        rows: ``qp``: ``G y <= h`` if convex, otherwise ``G sin y <= h cos x``; ``qcqp``:
            ``1/2 y'H_i y + G_i'y <= h_i`` if convex, otherwise with ``G_i'cos y``; ``socp``:
            ``|A_i y + b_i| <= c_i'y + d_i``.
    """

    hidden = Hidden((1024, 1024, 1024, 1024), activation="silu")
    batch_size = 512

    def __init__(self, shape: Shape, rows: Rows) -> None:
        random = random_state(DRAWN_BY)
        Q, p = random.rand(OUTPUTS) * 0.5, random.uniform(-1, 1, OUTPUTS)
        C, X = random.uniform(-1, 1, (BALANCES, OUTPUTS)), random.uniform(-1, 1, (sum(PARTS), BALANCES))
        drawn, inequalities, bound = _cones(random) if rows == "socp" else _separable(random, C, shape, rows)
        objective = Objective(torch.from_numpy(Q), torch.from_numpy(p))
        if shape != "convex":
            objective = objective._replace(curve="sin", weight=0.1 if shape == "nonsmooth" else 0.0)
        follows = shape != "convex" and rows == "qp"
        given = objective, torch.from_numpy(C), inequalities, bound, BOX
        super().__init__(f"fsnet-{shape}-{rows}", *given, follows=follows)
        train, validation, test = shuffled(torch.from_numpy(X))
        self.take_data(train, validation, test, fingerprint(Q, p, C, X, *drawn))


def shuffled(X: Tensor) -> list[Tensor]:
    """The samples in the published order of torch's generator, split into training, validation and test."""
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(DRAWN_BY))
    return list(X[order].split(PARTS))


def _separable(random: Any, C: Any, shape: Shape, rows: Rows) -> tuple[list[Any], Any, Any]:
    """The arrays as drawn, the rows and their bound."""
    import numpy as np

    G = random.uniform(-1, 1, (INEQUALITIES, OUTPUTS))
    h = torch.from_numpy(np.abs(G @ np.linalg.pinv(C)).sum(1))
    given = torch.from_numpy(G)
    if rows == "qp":
        return [G], SeparableRows(given, curve="identity" if shape == "convex" else "sin"), h
    H = random.uniform(0, 0.1, (INEQUALITIES, OUTPUTS))
    curve = "identity" if shape == "convex" else "cos"
    return [G, H], SeparableRows(given, 0.5 * torch.from_numpy(H), curve), h


def _cones(random: Any) -> tuple[list[Any], Any, Any]:
    """The arrays as drawn, the cones and their bound d."""
    inside = torch.from_numpy(random.uniform(-1, 1, OUTPUTS))
    cones = [
        [random.uniform(-1, 1, size) for size in ((INEQUALITIES, OUTPUTS), INEQUALITIES, OUTPUTS)]
        for _ in range(INEQUALITIES)
    ]
    A, b, c = (torch.stack([torch.from_numpy(part) for part in parts]) for parts in zip(*cones, strict=True))
    rows = ConeRows(A, b, c)
    return [inside, A, b, c], rows, rows(inside, inside)
