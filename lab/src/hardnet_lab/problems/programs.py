"""Learning to solve ``min 1/2 y'Qy + p'sin y  s.t.  A y <= b, C y = x``: the paper's problem opt."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.sets import Affine, Equality
from hardnet_lab.problems.base import (
    DC3Settings,
    Hidden,
    Policy,
    Problem,
    both_outputs,
    moved,
    random_state,
    split,
    violation_metrics,
)


class Coefficients(NamedTuple):
    """The coefficients of a family of programs; every row of `X` is the right-hand side of one program."""

    Q: Any  # (n,), the diagonal
    p: Any  # (n,)
    A: Any  # (inequalities, n)
    b: Any  # (inequalities,)
    C: Any  # (equalities, n)
    X: Any  # (samples, equalities)
    predicted: Any  # (n - equalities,), the variables that DC3 predicts


def draw(
    n: int, inequalities: int, equalities: int, samples: int, *, dc3_order: bool = False, seed: int = 17
) -> Coefficients:
    """Draw a family of programs as published: in the order of this paper, or in the order of the DC3 paper.

    ``b = sum_j |(A C⁺)_ij|`` makes ``C⁺ x`` feasible for every x in the unit box.
    """
    random = random_state(seed)
    import numpy as np  # random_state has already raised if it is missing

    Q, p = random.random_sample(n), random.random_sample(n)
    if dc3_order:
        C = random.normal(size=(equalities, n))
        X = random.uniform(-1, 1, size=(samples, equalities))
        A = random.normal(size=(inequalities, n))
    else:
        A = random.normal(size=(inequalities, n))
        C = random.normal(size=(equalities, n))
        X = random.uniform(-1, 1, size=(samples, equalities))
    b = np.abs(A @ np.linalg.pinv(C)).sum(1)
    predicted = random.choice(n, n - equalities, replace=False)
    return Coefficients(Q, p, A, b, C, X, predicted)


def _right_hand_side(x: Tensor) -> Tensor:
    """The input of the network is the right-hand side of the equalities."""
    return x


class Programs(Problem):
    """``min 1/2 y'Qy + p'sin y  s.t.  A y <= b, C y = x`` for every x in the unit box; unsupervised.

    Args:
        variables: n, the length of y.
        inequalities: Rows of A.
        equalities: Rows of C, the length of x.
        samples: Right-hand sides drawn, before the split.
        convex: Whether the objective is ``1/2 y'Qy + p'y``.
        dc3_order: Whether to draw in the order of the DC3 paper, which gives different numbers.
    """

    encoded_dim: int
    p: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor

    objective = "objective"
    batch_size = 200
    soft_weight: float = 10.0
    warm_epochs = 100
    hidden: Hidden = Hidden(batch_norm=True, dropout=0.2)

    def __init__(
        self,
        variables: int = 100,
        inequalities: int = 50,
        equalities: int = 50,
        samples: int = 10000,
        *,
        convex: bool = False,
        dc3_order: bool = False,
    ) -> None:
        drawn = draw(variables, inequalities, equalities, samples, dc3_order=dc3_order)
        self.name = "opt"
        self.convex = convex
        self.input_dim = self.encoded_dim = equalities
        self.output_dim = variables
        self.Q, self.p = torch.from_numpy(drawn.Q), torch.from_numpy(drawn.p)
        self.inequalities: Affine = Affine(torch.from_numpy(drawn.A), upper=torch.from_numpy(drawn.b))
        self.equalities: Equality = Equality(torch.from_numpy(drawn.C), _right_hand_side)
        self.constraint = self.inequalities & self.equalities
        self.rows: Tensor = torch.cat([torch.from_numpy(drawn.A), torch.from_numpy(drawn.C)])
        self.b: Tensor = torch.from_numpy(drawn.b)
        self.train, self.validation, self.test = split(torch.from_numpy(drawn.X))
        self.dc3 = DC3Settings(steps=10, step_size=1e-7, predicted=tuple(drawn.predicted.tolist()))

    def value(self, y: Tensor) -> Tensor:
        """``1/2 y'Qy + p'sin y`` (convex: ``+ p'y``) per sample: ``(*batch,)``."""
        linear = y if self.convex else y.sin()
        return (0.5 * self.Q * y.square() + self.p * linear).sum(-1)

    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """``value(y) + soft_weight * sum residual^2 + displacement * |y - raw|^2`` per sample."""
        y, raw = both_outputs(policy(x))
        value = self.value(y)
        if soft_weight:
            value = value + soft_weight * self.penalty(y, x)
        return value + displacement * moved(y, raw) if displacement else value

    def penalty(self, y: Tensor, x: Tensor) -> Tensor:
        """``sum relu(A y - b)^2 + sum (C y - x)^2`` per sample, by one matrix product for the whole batch."""
        inequalities, equalities = (y @ self.rows.T).split([len(self.b), self.input_dim], -1)
        return (inequalities - self.b).clamp_min(0).square().sum(-1) + (equalities - x).square().sum(-1)

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """The objective, the largest violation, and the violations of inequalities and equalities separately."""
        y = policy(x)
        inequalities, equalities = self.inequalities.violation(y, x), self.equalities.violation(y, x)
        largest = torch.maximum(inequalities.amax(-1), equalities.amax(-1)).mean(-1)
        metrics = {"objective": self.value(y).mean(-1), "max_violation": largest}
        return metrics | violation_metrics(inequalities, "ineq_") | violation_metrics(equalities, "eq_")


def opt() -> Programs:
    """The 100 variables, 50 inequalities and 50 equalities of the paper."""
    return Programs()
