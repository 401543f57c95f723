"""Learning a function on [-2, 2] under piecewise constraints: pwc, pwcfull and pwcbox of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hardnet.metrics import penalty, summarize
from hardnet.sets import Affine
from hardnet_lab.problems.base import DC3Settings, Policy, Problem, both_outputs, moved, random_state

Piece = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pieces:
    """A function given by its four pieces on (-inf, -1], (-1, 0], (0, 1] and (1, inf)."""

    far_left: Piece
    left: Piece
    right: Piece
    far_right: Piece

    def __call__(self, x: Tensor) -> Tensor:
        """The value at each entry of x, from the piece that contains it."""
        left = torch.where(x <= -1, self.far_left(x), self.left(x))
        right = torch.where(x <= 1, self.right(x), self.far_right(x))
        return torch.where(x <= 0, left, right)


def _constant(value: float) -> Piece:
    return lambda x: torch.full_like(x, value)


def _wave(x: Tensor) -> Tensor:
    return torch.sin(math.pi / 2 * (x + 1))


def _hill(x: Tensor) -> Tensor:
    return 4 - 9 * (x - 2 / 3) ** 2


TARGET = Pieces(lambda x: -5 * _wave(x), _constant(0.0), _hill, lambda x: 5 * (1 - x) + 3)
SIGN = Pieces(_constant(-1.0), _constant(1.0), _constant(-1.0), _constant(1.0))
BOUND = Pieces(
    lambda x: -5 * _wave(x) ** 2, _constant(0.0), lambda x: -_hill(x) * x, lambda x: 4.5 * (1 - x) + 3
)  # sign(x) * y <= bound(x): each piece bounds y from one side only

BOX_TARGET = Pieces(
    lambda x: -5 * _wave(x) - 2, _constant(-2.0), lambda x: 2 - 9 * (x - 2 / 3) ** 2, lambda x: 3 / x**2 - 2
)
BOX_LOWER = Pieces(
    lambda x: 5 * _wave(x) ** 2 - 2,
    _constant(-2.0),
    lambda x: _hill(x) * x - 2,  # printed without the -2 in the paper, which would make the target infeasible
    lambda x: 3 / x**3 - 2,
)
BOX_UPPER = Pieces(
    lambda x: -3 * _wave(x), _constant(-2.0), lambda x: 3 - 4 * (x - 0.5) ** 2, _constant(2.0)
)  # the second piece is an equality: lower = upper = -2


def _one_sided_matrix(x: Tensor) -> Tensor:
    return SIGN(x).unsqueeze(-1)


class Piecewise(Problem):
    """``min sum |y(x) - target(x)|^2`` over the training points, with y in C(x) everywhere.

    The metrics are taken over a grid of 401 points on [-2, 2], whose residuals count as the 401 rows of one
    sample: the maximum, mean and number of violations are over the grid.

    Args:
        name: The name on the command line.
        points: Number of training points.
        span: Training points are uniform on ``[-span, span]``.
        box: Whether every piece has both a lower and an upper bound, instead of one of them.
    """

    validation: Tensor
    test: Tensor

    objective = "mse"
    input_dim = encoded_dim = output_dim = 1
    batch_size = 500
    soft_weight: float = 10.0

    def __init__(self, name: str, points: int, span: float, *, box: bool = False) -> None:
        self.name = name
        self.train: Tensor = torch.from_numpy(random_state(17).uniform(-span, span, (points, 1)))
        self.validation = self.test = torch.linspace(-2, 2, 401, dtype=torch.float64).unsqueeze(-1)
        self.target: Pieces = BOX_TARGET if box else TARGET
        self.warm_epochs = 100 if box else 0
        self.dc3 = DC3Settings(steps=10, step_size=1e-2, flipped_lower=box)
        if box:
            self.constraint = Affine(torch.ones(1, 1, dtype=torch.float64), lower=BOX_LOWER, upper=BOX_UPPER)
        else:
            self.constraint = Affine(_one_sided_matrix, upper=BOUND)

    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """``|y - target|^2 + soft_weight * sum residual^2 + displacement * |y - raw|^2`` per sample."""
        y, raw = both_outputs(policy(x))
        error = (y - self.target(x)).square().sum(-1)
        if soft_weight:
            error = error + soft_weight * penalty(self.constraint, y, x)
        return error + displacement * moved(y, raw) if displacement else error

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """Mean squared error, and violations over the points of x as if they were the rows of one sample."""
        y = policy(x)
        largest, mean, number = summarize(self.constraint.violation(y, x).squeeze(-1))
        mse = (y - self.target(x)).square().mean((-2, -1))
        return {"mse": mse, "max_violation": largest, "mean_violation": mean, "violated": number}


def pwc() -> Piecewise:
    """50 points on [-1.2, 1.2]: the outer parts of [-2, 2] are out of distribution."""
    return Piecewise("pwc", 50, 1.2)


def pwcfull() -> Piecewise:
    """50 points on all of [-2, 2]."""
    return Piecewise("pwcfull", 50, 2.0)


def pwcbox() -> Piecewise:
    """10 points on [-2, 2], with a lower and an upper bound on every piece."""
    return Piecewise("pwcbox", 10, 2.0, box=True)
