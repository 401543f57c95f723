"""A problem is data, a constraint, a loss and its metrics; it contains no method and no network.

Every tensor is float64 with any leading batch dimensions. The trainer stacks its seeds in front, so inputs are
``(seeds, batch, input_dim)`` and results per sample are ``(seeds, batch)``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from hardnet.errors import MissingExtraError
from hardnet.metrics import summarize
from hardnet.sets.base import ConstraintSet

Policy = Callable[[Tensor], Any]
"""From inputs ``(*batch, input_dim)`` to outputs ``(*batch, output_dim)``: a network, enforced or raw.

Where the loss has a displacement term, its policy returns ``(y, raw)``.
"""


@dataclass(frozen=True)
class Hidden:
    """The hidden blocks of the backbone: Linear, optionally BatchNorm, the activation, optionally Dropout.

    Attributes:
        sizes: The widths.
        batch_norm: Whether every block is normalized.
        dropout: The share of units dropped in every block, or one share per block.
        activation: ``"relu"`` or ``"silu"``.
        skip: Whether a linear map of the input is added to the output: ``raw = W x + net(x)``.
        kaiming: Whether weights start Kaiming-normal, as published; otherwise torch's default, 2.4 times smaller.
    """

    sizes: tuple[int, ...] = (200, 200)
    batch_norm: bool = False
    dropout: float | tuple[float, ...] = 0.0
    activation: str = "relu"
    skip: bool = False
    kaiming: bool = True


@dataclass(frozen=True)
class DC3Settings:
    """The settings of the published DC3 baseline.

    Attributes:
        steps: Correction steps, in training and in testing.
        test_steps: Further steps in testing, until no residual exceeds `tolerance`.
        step_size: Step size of the correction.
        momentum: Momentum of the correction, in heavy-ball form.
        predicted: Outputs that the network predicts; the rest are solved from the equalities. None for no completion.
        flipped_lower: Whether the published code gives the gradient of the lower-bound residual the wrong sign here.
        tolerance: Tolerance of the further steps in testing.
    """

    steps: int
    step_size: float
    test_steps: int = 0
    momentum: float = 0.5
    predicted: tuple[int, ...] | None = None
    flipped_lower: bool = False
    tolerance: float = 1e-4


def violation_metrics(residual: Tensor, prefix: str = "") -> dict[str, Tensor]:
    """``max, mean, #{> 1e-4}`` of ``(*leading, samples, rows)`` over the rows, then averaged over the samples."""
    names = (f"{prefix}max_violation", f"{prefix}mean_violation", f"{prefix}violated")
    return {name: value.mean(-1) for name, value in zip(names, summarize(residual), strict=True)}


class Problem(ABC):
    """Data, constraint, loss and metrics of one experiment.

    Attributes:
        name: The name on the command line.
        input_dim: Length of one input x.
        encoded_dim: Length of ``encode(x)``, the input of the network.
        output_dim: Length of one output y.
        train: Training inputs ``(samples, input_dim)``; `validation` and `test` likewise.
        constraint: The set C(x).
        hidden: The backbone's hidden blocks.
        batch_size: Batch size of the published training.
        soft_weight: Weight of the squared residuals in the loss of every method but NN.
        warm_epochs: Epochs that HardNet-Aff trains without its layer.
        dc3: The published DC3 settings; None where nothing is published.
        network: Makes the network from its numbers of inputs and outputs; None for the backbone of `hidden`.
        capturable: Whether the loss can be captured on a GPU, that is, never reads values.
        objective: The metric that training minimizes.
        violation: The metric that is zero when every constraint holds.
        loop_budget: Initial number of iterations for `bounded_loss`; 1 where the loss has no loop.
    """

    name: str
    input_dim: int
    encoded_dim: int
    output_dim: int
    train: Tensor
    validation: Tensor
    test: Tensor
    constraint: ConstraintSet
    dc3: DC3Settings | None
    batch_size: int
    soft_weight: float
    hidden: Hidden = Hidden()
    network: Callable[[int, int], nn.Module] | None = None
    capturable: bool = True
    warm_epochs: int = 0
    objective: ClassVar[str]
    violation: ClassVar[str] = "max_violation"
    loop_budget: ClassVar[int] = 1

    def encode(self, x: Tensor) -> Tensor:
        """The network's input for x; x itself by default."""
        return x

    def inputs(self, x: Tensor) -> Tensor:
        """The part of a row of data that is passed to a policy; all of it by default."""
        return x

    def verify(self) -> None:  # noqa: B027
        """Raise if the problem is faulty, before anything runs; does nothing by default."""

    @abstractmethod
    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """``objective + soft_weight * sum residual^2 + displacement * |y - raw|^2``, ``(*leading, samples)``.

        A term with weight zero is not computed; with a displacement the policy returns ``(y, raw)``.
        """

    def bounded_loss(
        self, policy: Policy, x: Tensor, soft_weight: float, budget: int, displacement: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The loss in a fixed number of operations without host sync, for graph capture.

        Args:
            policy: The network.
            x: ``(*leading, samples, input_dim)``.
            soft_weight: As in `loss`.
            budget: Iterations of the inner loop, where the problem has one.
            displacement: As in `loss`.

        Returns:
            The loss, and which samples would have needed a larger budget (their loss is too small).
        """
        loss = self.loss(policy, x, soft_weight, displacement)
        return loss, torch.zeros_like(loss, dtype=torch.bool)

    @abstractmethod
    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """The metrics of the paper's table, each ``(*leading,)``, averaged over the samples.

        They include the metrics named by `objective` and `violation`.
        """

    def to(self, device: torch.device | str) -> Self:
        """A copy of the problem on another device."""
        moved, memo = copy.copy(self), {}
        for name, value in vars(self).items():
            if isinstance(value, (Tensor, nn.Module)):
                setattr(moved, name, copy.deepcopy(value, memo).to(device))
        return moved


def both_outputs(answer: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """``(y, raw)`` of a policy's result; y also serves as raw where the policy returned only y."""
    return answer if isinstance(answer, tuple) else (answer, answer)


def moved(y: Tensor, raw: Tensor) -> Tensor:
    """``|y - raw|^2`` per sample; y is treated as a constant, so that the term only moves raw.

    A refused sample (y is NaN, where values may not be read) contributes zero.
    """
    return (y.detach() - raw).nan_to_num(0.0).square().sum(-1)


def random_state(seed: int) -> Any:
    """Numpy's legacy generator, from which the published data sets were drawn."""
    try:
        import numpy as np
    except ImportError:
        raise MissingExtraError("numpy") from None
    return np.random.RandomState(seed)


def random_generator(seed: int) -> Any:
    """Numpy's current generator, from which newer data sets were drawn."""
    random_state(seed)  # raises if numpy is missing
    import numpy as np

    return np.random.default_rng(seed)


def split(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Training, validation and test parts in order: 83.34 %, 8.33 % and the rest, as published."""
    total = samples.shape[0]
    train, validation = int(total * 0.8334), int(total * 0.0833)
    return samples[:train], samples[train : train + validation], samples[train + validation :]
