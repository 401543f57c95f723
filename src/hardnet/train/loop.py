"""One readable training loop over stacked seeds.

Called by `hardnet.experiments.pictures`, `hardnet.experiments.recipes` and others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Generator, Tensor, nn

from hardnet.errors import HardNetError, sentence
from hardnet.train.batches import Batches
from hardnet.train.distributed import World
from hardnet.train.optimisation import Clipping, build_optimizer, set_rate
from hardnet.train.stacked import StackedMLP
from hardnet.train.stacked_module import StackedModule

if TYPE_CHECKING:
    from hardnet.model import HardNet

Policy = Callable[[Tensor], Any]


class Task(Protocol):
    """What training needs of a problem; ``hardnet.problems.Problem`` has it."""

    train: Tensor
    validation: Tensor
    objective: ClassVar[str]
    violation: ClassVar[str]
    loop_budget: ClassVar[int]
    """Above 1, the loss has a loop whose body is the method `substep`, to be compiled on a GPU."""

    def loss(self, policy: Policy, x: Tensor, soft_weight: float, displacement: float = 0.0) -> Tensor:
        """The loss per sample; with a displacement the policy gives ``(y, raw)``."""
        ...

    def bounded_loss(
        self, policy: Policy, x: Tensor, soft_weight: float, budget: int, displacement: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The loss per sample in a fixed number of operations, and which samples needed more."""
        ...

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """The metrics, each one number per seed."""
        ...


SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        epochs: Passes over the training samples.
        batch_size: Samples per step; the last step of an epoch takes what is left.
        soft_weight: Weight of the squared residuals in the loss.
        penalise_enforced: Whether the residuals are weighed where the layer is on, too; after an exact layer they are
            zero up to rounding, and computing them is lost time.
        warm_epochs: Epochs before the layer is switched on (the paper's warm start).
        learning_rate: Of Adam, in the first epoch.
        schedule: ``"constant"``, or ``"cosine"``: the rate falls to zero along half a cosine, epoch by epoch.
        weight_decay: Above 0, AdamW with this decay.
        clip: Cut each seed's gradient at so many times the running mean of its norm; None leaves it.
        displacement: Weight of ``|y - raw|^2`` in the loss, where the layer is on.
        judge_every: Epochs between two entries of the history.
        judge_last: How many of the last epochs all enter the history.
        capture: Whether steps may be captured on a GPU: the layer must not look at the data.
    """

    epochs: int
    batch_size: int
    soft_weight: float = 0.0
    penalise_enforced: bool = True
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
        """Refuse numbers that cannot be counted with."""
        for name in ("epochs", "batch_size", "judge_every"):
            if getattr(self, name) < 1:
                raise HardNetError(sentence(name, "at least 1", getattr(self, name)))
        if self.schedule not in SCHEDULES:
            raise HardNetError(sentence("schedule", f"one of {', '.join(SCHEDULES)}", repr(self.schedule)))

    def penalty(self, enforce: bool) -> float:
        """The weight of the squared residuals in an epoch with or without the layer."""
        return self.soft_weight if self.penalise_enforced or not enforce else 0.0

    def pull(self, enforce: bool) -> dict[str, float]:
        """``displacement=weight`` of the loss in an epoch with the layer; nothing without it, where y is raw."""
        return {"displacement": self.displacement} if enforce and self.displacement else {}

    def judged(self, epoch: int) -> bool:
        """Whether the epoch of this index enters the history."""
        return epoch % self.judge_every == 0 or epoch >= self.epochs - max(1, self.judge_last)


@dataclass
class History:
    """Learning curves: one entry per judged epoch, one number per seed in each; `seconds` of training until then."""

    epoch: list[int] = field(default_factory=list)
    loss: list[list[float]] = field(default_factory=list)
    objective: list[list[float]] = field(default_factory=list)
    violation: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class InterruptedRunError(HardNetError):
    """The run was stopped between two epochs and can be resumed."""


class Training:
    """A run in progress: the model, Adam, the seeds' streams, how far it is, and what was seen on the way.

    The loss is summed over the batch and over the seeds; the seeds' parameters are disjoint, so each seed's
    gradient is its own.

    Args:
        task: Data, loss and metrics.
        model: A `HardNet` around a `StackedMLP` or a `StackedModule`, on the device of the data.
        streams: The generators that initialised the network, one per seed.
        settings: How to train.
        world: The processes that share the batches.
    """

    task: Task
    model: HardNet
    streams: list[torch.Generator]
    settings: Settings
    optimizer: torch.optim.Optimizer
    clipping: Clipping | None
    epoch: int
    seconds: float

    def __init__(
        self, task: Task, model: HardNet, streams: Sequence[Generator], settings: Settings, world: World | None = None
    ) -> None:
        self.task, self.model, self.streams, self.settings = task, model, list(streams), settings
        self.world: World = world or World()
        self.world.synchronise_statistics(model)
        self.parameters: list[torch.nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(self.parameters, settings)
        device = task.train.device
        self.clipping = None if settings.clip is None else Clipping(settings.clip, len(self.streams), device)
        self.batches: Batches = Batches(task.train, self.streams, stacked_net(model))
        self.history: History = History()
        self.epoch = 0
        self.seconds = 0.0
        self._steps = self._choose_steps()

    def run(self, watch: Callable[[Training], bool] | None = None) -> bool:
        """Train to the last epoch; `watch` is called after each epoch and stops the run by returning True.

        Returns:
            Whether the last epoch was reached.
        """
        while self.epoch < self.settings.epochs:
            started = time.perf_counter()
            loss = self._train_epoch()
            self.seconds += time.perf_counter() - started
            if self.settings.judged(self.epoch):
                self._judge(loss)
            self.epoch += 1
            if watch is not None and watch(self):
                break
        return self.epoch >= self.settings.epochs

    def policy(self, enforce: bool) -> Policy:
        """What the loss calls: the model, or the model with its raw output where the loss weighs the displacement."""
        asked = {"return_raw": True} if self.settings.pull(enforce) else {}
        return partial(self.model, enforce=enforce, **asked)

    def loss(self, x: Tensor, enforce: bool) -> Tensor:
        """The loss per sample ``(seeds, batch)``."""
        penalty, pull = self.settings.penalty(enforce), self.settings.pull(enforce)
        return self.task.loss(self.policy(enforce), x, penalty, **pull)

    def stacked(self, x: Tensor) -> Tensor:
        """The same inputs ``(batch, n)`` for every seed: ``(seeds, batch, n)``."""
        return x.expand(len(self.streams), *x.shape)

    @property
    def setup_seconds(self) -> float:
        """The part of `seconds` that went into compiling and capturing."""
        return getattr(self._steps, "seconds", 0.0)

    @property
    def enforced(self) -> bool:
        """Whether the layer is on in this epoch."""
        return self.epoch >= self.settings.warm_epochs

    def _train_epoch(self) -> Tensor:
        self.model.train()
        self.batches.shuffle()
        set_rate(self.optimizer, self.settings, self.epoch)
        loss = self._steps(self.enforced)
        if loss.is_cuda:
            torch.cuda.synchronize(loss.device)
        return self.world.total(loss)

    @torch.no_grad()
    def _judge(self, loss: Tensor) -> None:
        self.model.eval()
        metrics = self.task.evaluate(partial(self.model, enforce=self.enforced), self.stacked(self.task.validation))
        self.history.epoch.append(self.epoch)
        self.history.loss.append(loss.tolist())
        self.history.objective.append(metrics[self.task.objective].tolist())
        self.history.violation.append(metrics[self.task.violation].tolist())
        self.history.seconds.append(round(self.seconds, 3))

    def _choose_steps(self) -> Callable[[bool], Tensor]:
        """Replay captured steps on a GPU; run them one by one where graphs do not reach."""
        if self.settings.capture and self.task.train.is_cuda and self.world.size == 1:
            from hardnet.train.capture import CapturedSteps

            return CapturedSteps(self)
        return self._eager_steps

    def _eager_steps(self, enforce: bool) -> Tensor:
        """One epoch, step by step; the summed loss of each seed."""
        count, size = self.batches.samples.shape[0], self.settings.batch_size
        summed = self.batches.samples.new_zeros(len(self.streams))
        for start in range(0, count, size):
            x = self.batches.take(self.world.share(start, min(start + size, count)))
            loss = self.loss(x, enforce).sum(1)
            self.optimizer.zero_grad(set_to_none=True)
            loss.sum().backward()
            self.world.sum_gradients(self.parameters)
            if self.clipping is not None:
                self.clipping(self.parameters)
            self.optimizer.step()
            summed += loss.detach()
        return summed


def stacked_net(model: nn.Module) -> StackedMLP | StackedModule:
    """The stacked network inside a model."""
    for module in model.modules():
        if isinstance(module, StackedMLP | StackedModule):
            return module
    raise HardNetError(sentence("model", "a model around a StackedMLP or a StackedModule", type(model).__name__))
