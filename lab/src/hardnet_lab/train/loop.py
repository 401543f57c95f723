"""The training loop over stacked seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from hardnet.errors import HardNetError, sentence
from hardnet_lab.train.batches import Batches
from hardnet_lab.train.distributed import World
from hardnet_lab.train.optimization import Clipping, build_optimizer, set_rate
from hardnet_lab.train.settings import History, Policy, Settings, Task
from hardnet_lab.train.stacked import StackedMLP
from hardnet_lab.train.stacked_module import StackedModule

if TYPE_CHECKING:
    from hardnet.model import HardNet


class InterruptedRunError(HardNetError):
    """The run was stopped between two epochs and can be resumed."""

    exit_code = 130
    """Of a command that was interrupted."""


class Training:
    """A run in progress: the model, the optimizer, the seeds' random streams, the epoch, and the learning curves.

    The loss is summed over the batch and over the seeds; the seeds' parameters are disjoint, so each seed gets
    its own gradient.

    Args:
        task: Data, loss and metrics.
        model: A `HardNet` around a `StackedMLP` or a `StackedModule`, on the device of the data.
        streams: The generators that initialized the network, one per seed.
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
        self.world.synchronize_statistics(model)
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
        """What the loss calls: the model, which also returns raw where the loss has a displacement term."""
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
        """The part of `seconds` spent on compiling and capturing."""
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
        """Captured steps on a single GPU if the settings allow it; eager steps otherwise."""
        if self.settings.capture and self.task.train.is_cuda and self.world.size == 1:
            from hardnet_lab.train.capture import CapturedSteps

            return CapturedSteps(self)
        return self._eager_steps

    def _eager_steps(self, enforce: bool) -> Tensor:
        """Run one epoch eagerly and return the summed loss of each seed."""
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
        if isinstance(module, (StackedMLP, StackedModule)):
            return module
    raise HardNetError(sentence("model", "a model around a StackedMLP or a StackedModule", type(model).__name__))
