"""Inputs and record of a run: the task, the settings, and the learning curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor

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
