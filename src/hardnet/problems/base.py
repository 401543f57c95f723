"""A problem is data, a constraint, a loss and its metrics; no method and no network lives in it.

Every tensor is float64 with any leading batch dimensions: the trainer stacks its seeds in front, so inputs are
``(seeds, batch, input_dim)`` and what is returned per sample is ``(seeds, batch)``.

Called by `hardnet.experiments.compare`, `hardnet.experiments.inputs` and others.
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

Where a loss weighs the displacement, its policy gives ``(y, raw)``.
"""


@dataclass(frozen=True)
class Hidden:
    """The hidden blocks of the backbone: Linear, then BatchNorm if asked, the activation, then Dropout if asked.

    Attributes:
        sizes: The widths.
        batch_norm: Whether every block is normalized.
        dropout: The share of units dropped after every block, or one share per block.
        activation: ``"relu"`` or ``"silu"``.
        skip: Whether a linear map of the input is added to the output: ``raw = W x + net(x)``.
        kaiming: Whether weights start Kaiming-normal, as published; else as torch draws them, 2.4 times smaller.
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
        steps: Correction steps in training, run in testing too.
        test_steps: Further steps in testing, until no residual exceeds `tolerance`.
        step_size: Of the correction.
        momentum: Of the correction, in heavy-ball form.
        predicted: Outputs that the network predicts, the rest being solved from the equalities; None without
            completion.
        flipped_lower: Whether the published code gives the lower-bound residual's gradient the wrong sign here.
        tolerance: Of the further steps in testing.
    """

    steps: int
    step_size: float
    test_steps: int = 0
    momentum: float = 0.5
    predicted: tuple[int, ...] | None = None
    flipped_lower: bool = False
    tolerance: float = 1e-4


def violation_metrics(residual: Tensor, prefix: str = "") -> dict[str, Tensor]:
    """``max, mean, #{> 1e-4}`` over the rows, then the mean over the samples, of ``(*leading, samples, rows)``."""
    names = (f"{prefix}max_violation", f"{prefix}mean_violation", f"{prefix}violated")
    return {name: value.mean(-1) for name, value in zip(names, summarize(residual), strict=True)}


class Problem(ABC):
    """Data, constraint, loss and metrics of one experiment.

    Attributes:
        name: As the command line spells it.
        input_dim: Numbers in one input x.
        encoded_dim: Numbers in ``encode(x)``, which the network sees.
        output_dim: Numbers in one output y.
        train: Training inputs ``(samples, input_dim)``; `validation` and `test` likewise.
        constraint: The set C(x).
        hidden: The backbone's hidden blocks.
        batch_size: Of the published training.
        soft_weight: Weight of the squared residuals in the loss of every method but NN.
        warm_epochs: Epochs that HardNet-Aff trains without its layer.
        dc3: The published DC3 settings; None where nothing is published.
        network: Makes the network from its numbers of inputs and outputs; None for the backbone of `hidden`.
        capturable: Whether its loss can be captured on a GPU: it never looks at values.
        objective: The metric that training lowers.
        violation: The metric that is zero when every constraint holds.
        loop_budget: Iterations that `bounded_loss` should be given at first; 1 where the loss has no loop.
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
        """What the network sees of x; x itself unless the problem says otherwise."""
        return x

    def inputs(self, x: Tensor) -> Tensor:
        """What a policy is given of a row of data; all of it unless the problem says otherwise."""
        return x

    def verify(self) -> None:  # noqa: B027
        """Say what is wrong with the problem before anything runs; nothing by default."""

    @abstractmethod
    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """``objective + soft_weight * sum residual^2 + displacement * |y - raw|^2``, ``(*leading, samples)``.

        A weight of zero skips its term altogether; with a displacement the policy gives ``(y, raw)``.
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
            The loss, and which samples would have needed a larger budget (their loss is then too small).
        """
        loss = self.loss(policy, x, soft_weight, displacement)
        return loss, torch.zeros_like(loss, dtype=torch.bool)

    @abstractmethod
    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """The metrics of the paper's table, each ``(*leading,)``, means over the samples.

        Those that `objective` and `violation` name are among them.
        """

    def to(self, device: torch.device | str) -> Self:
        """A copy of the problem on another device."""
        moved, memo = copy.copy(self), {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor | nn.Module):
                setattr(moved, name, copy.deepcopy(value, memo).to(device))
        return moved


def both_outputs(answer: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """``(y, raw)`` of what a policy gave; y stands for raw where it gave y alone."""
    return answer if isinstance(answer, tuple) else (answer, answer)


def moved(y: Tensor, raw: Tensor) -> Tensor:
    """``|y - raw|^2`` per sample; y counts as a constant, so that the term pulls on raw alone.

    A sample without an answer (NaN, where nobody may look at the layer) is pulled nowhere.
    """
    return (y.detach() - raw).nan_to_num(0.0).square().sum(-1)


def random_state(seed: int) -> Any:
    """Numpy's legacy generator, which the published data sets were drawn from."""
    try:
        import numpy as np
    except ImportError:
        raise MissingExtraError("numpy", "experiments") from None
    return np.random.RandomState(seed)


def random_generator(seed: int) -> Any:
    """Numpy's present generator, which newer data sets were drawn from."""
    random_state(seed)  # says so where numpy is missing
    import numpy as np

    return np.random.default_rng(seed)


def split(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Training, validation and test parts in order: 83.34, 8.33 and the rest in per cent, as published."""
    total = samples.shape[0]
    train, validation = int(total * 0.8334), int(total * 0.0833)
    return samples[:train], samples[train : train + validation], samples[train + validation :]
