"""DC3's programs: ``min 1/2 y'Qy + p'y`` (or ``p'sin y``)  s.t.  ``A y <= b, C y = x``; Pinet uses them too.

Numpy's legacy generator with seed 17 draws, in this order, Q = diag(random(n)), p = random(n),
C = normal(equalities x n), X = uniform(-1, 1), A = normal(inequalities x n); ``b = sum_j |(A C⁺)_ij|``. Every size
starts from the same seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.sets import Affine, Equality
from hardnet_lab.problems.base import DC3Settings, Hidden, split
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
        pinet_split: Whether the last 1024 of 10000 samples are the test set instead of the last 833.
        samples: Right-hand sides drawn, before the split.
    """

    hidden = Hidden(batch_norm=True, dropout=0.2)

    def __init__(
        self,
        name: str,
        variables: int = 100,
        equalities: int = 50,
        inequalities: int = 50,
        *,
        convex: bool = True,
        pinet_split: bool = False,
        samples: int = 10000,
    ) -> None:
        drawn = draw(variables, inequalities, equalities, samples, dc3_order=True)
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
        sizes = [*PINET_PARTS, samples - sum(PINET_PARTS)]
        train, validation, test = X.split(sizes) if pinet_split else split(X)
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
