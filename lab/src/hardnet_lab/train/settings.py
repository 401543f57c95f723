"""Inputs and record of a run: the task, the settings, and the learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from hardnet.errors import HardNetError, sentence

Policy = Callable[[Tensor], Any]


class Task(Protocol):
    """What training needs from a problem; ``hardnet_lab.problems.Problem`` provides it."""

    train: Tensor
    validation: Tensor
    objective: ClassVar[str]
    violation: ClassVar[str]
    loop_budget: ClassVar[int]
    """Above 1, the loss has a loop whose body is the method `substep`, to be compiled on a GPU."""

    def loss(self, policy: Policy, x: Tensor, soft_weight: float, displacement: float = 0.0) -> Tensor:
        """The loss per sample; with a displacement the policy returns ``(y, raw)``."""
        ...

    def bounded_loss(
        self, policy: Policy, x: Tensor, soft_weight: float, budget: int, displacement: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The loss per sample in a fixed number of operations, and which samples would need more."""
        ...

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """The metrics, each with one number per seed."""
        ...


SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        epochs: Passes over the training samples.
        batch_size: Samples per step; the last step of an epoch takes the rest.
        soft_weight: Weight of the squared residuals in the loss.
        penalize_enforced: Whether the residuals are penalized in epochs with the layer too; after an exact layer
            they are zero up to rounding, and computing them wastes time.
        warm_epochs: Epochs before the layer is switched on (the paper's warm start).
        learning_rate: Adam's learning rate in the first epoch.
        schedule: ``"constant"``, or ``"cosine"``: the rate falls to zero along half a cosine, epoch by epoch.
        weight_decay: If above 0, AdamW with this decay.
        clip: Clip each seed's gradient at this multiple of the running mean of its norm; None for no clipping.
        displacement: Weight of ``|y - raw|^2`` in the loss in epochs with the layer.
        judge_every: Epochs between two entries of the history.
        judge_last: Number of epochs at the end that all enter the history.
        capture: Whether steps may be captured on a GPU; the layer must then not read values.
    """

    epochs: int
    batch_size: int
    soft_weight: float = 0.0
    penalize_enforced: bool = True
    warm_epochs: int = 0
    learning_rate: float = 1e-4
    schedule: str = "constant"
    weight_decay: float = 0.0
    clip: float | None = None
    displacement: float = 0.0
    judge_every: int = 10
    judge_last: int = 1
    capture: bool = True

    def __post_init__(self) -> None:
        """Refuse counts below 1 and unknown schedules."""
        for name in ("epochs", "batch_size", "judge_every"):
            if getattr(self, name) < 1:
                raise HardNetError(sentence(name, "at least 1", getattr(self, name)))
        if self.schedule not in SCHEDULES:
            raise HardNetError(sentence("schedule", f"one of {', '.join(SCHEDULES)}", repr(self.schedule)))

    def penalty(self, enforce: bool) -> float:
        """The weight of the squared residuals in an epoch with or without the layer."""
        return self.soft_weight if self.penalize_enforced or not enforce else 0.0

    def pull(self, enforce: bool) -> dict[str, float]:
        """The loss argument ``displacement=weight`` in an epoch with the layer; empty without it, where y is raw."""
        return {"displacement": self.displacement} if enforce and self.displacement else {}

    def judged(self, epoch: int) -> bool:
        """Whether the epoch with this index enters the history."""
        return epoch % self.judge_every == 0 or epoch >= self.epochs - max(1, self.judge_last)


@dataclass
class History:
    """Learning curves: one entry per evaluated epoch with one number per seed; `seconds` is training time so far."""

    epoch: list[int] = field(default_factory=list)
    loss: list[list[float]] = field(default_factory=list)
    objective: list[list[float]] = field(default_factory=list)
    violation: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


# Optimization: Adam or AdamW for all seeds at once, a cosine schedule, and gradient clipping per seed.
#
# Everything here can be captured in a CUDA graph.


MEMORY = 0.99
"""Decay of the running mean of gradient norms: the share that one step keeps."""


def build_optimizer(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Adam:
    """One fused Adam for all seeds, with its state allocated from the start for graphs and checkpoints to refer to."""
    captured = parameters[0].is_cuda
    kind = torch.optim.AdamW if settings.weight_decay else torch.optim.Adam
    rate: float | Tensor = settings.learning_rate
    if captured and settings.schedule != "constant":
        rate = torch.tensor(rate, device=parameters[0].device)  # a graph reads the rate of each epoch from here
    optimizer = kind(parameters, lr=rate, weight_decay=settings.weight_decay, fused=True, capturable=captured)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, settings: Settings, epoch: int) -> None:
    """``rate_0 (1 + cos(pi epoch / epochs)) / 2`` for the cosine schedule; a constant rate stays as it is."""
    if settings.schedule == "constant":
        return
    rate = settings.learning_rate * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Clipping:
    """``g <- g min(1, factor mean / |g|)`` for each seed, where `mean` is a running mean of the previous norms.

    A batch with an extreme gradient then moves its seed no farther than `factor` ordinary steps would, and does not
    affect the other seeds. A gradient that is not finite is replaced by zeros.

    Args:
        factor: Largest norm allowed, as a multiple of the running mean.
        seeds: Leading dimension of every parameter.
        device: Device of the parameters.

    Attributes:
        mean: ``(seeds,)``, the running mean of the norms that were applied; zero before the first step.
    """

    factor: float
    seeds: int

    def __init__(self, factor: float, seeds: int, device: torch.device) -> None:
        self.factor, self.seeds = factor, seeds
        self.mean: Tensor = torch.zeros(seeds, dtype=torch.float64, device=device)

    def __call__(self, parameters: list[nn.Parameter], skip: Tensor | None = None) -> None:
        """Clip the gradients in place; a skipped step does not change the running mean."""
        gradients = [p.grad for p in parameters if p.grad is not None and p.shape[:1] == (self.seeds,)]
        squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]
        norm = torch.stack(squares).sum(0).sqrt().to(self.mean.dtype)
        finite = norm.isfinite()
        allowed = torch.where(self.mean > 0, torch.minimum(norm, self.factor * self.mean), norm)
        allowed = torch.where(finite, allowed, 0.0)
        for gradient in gradients:
            scale = (allowed / norm.clamp_min(1e-300)).to(gradient.dtype)
            kept = torch.where(_spread(finite, gradient), gradient, 0.0)
            gradient.copy_(kept * _spread(scale.where(finite, 0.0), gradient))
        self._follow(allowed, finite if skip is None else finite & ~skip)

    def _follow(self, norm: Tensor, counted: Tensor) -> None:
        """Move the running mean toward the norms that were applied."""
        after = torch.where(self.mean > 0, MEMORY * self.mean + (1 - MEMORY) * norm, norm)
        self.mean.copy_(torch.where(counted, after, self.mean))


def _spread(per_seed: Tensor, like: Tensor) -> Tensor:
    """``(seeds,)`` as ``(seeds, 1, ..., 1)``."""
    return per_seed.reshape(-1, *[1] * (like.dim() - 1))
