"""The training loop over stacked seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Generator, Tensor, nn

from hardnet.errors import HardNetError, MissingExtraError, sentence
from hardnet_lab.train.distributed import World
from hardnet_lab.train.settings import Clipping, History, Policy, Settings, Task, build_optimizer, set_rate
from hardnet_lab.train.stacked import StackedMLP, StackedModule

# Sample order and dropout masks of one epoch, drawn for each seed from its own random stream.


class Batches:
    """Shuffled batches ``(seeds, batch, n)``, drawn once per epoch and kept on the device.

    A mask belongs to a position in the epoch, so several processes that share a batch use the same masks as a
    single process would.

    Args:
        samples: ``(samples, n)``.
        streams: One CPU generator per seed.
        net: The network that the dropout masks are for.
    """

    samples: Tensor
    streams: Sequence[torch.Generator]
    net: StackedMLP | StackedModule
    masks: list[Tensor]

    def __init__(self, samples: Tensor, streams: Sequence[Generator], net: StackedMLP | StackedModule) -> None:
        self.samples, self.streams, self.net = samples, streams, net
        device, count = samples.device, samples.shape[0]
        self.order: Tensor = torch.zeros(len(streams), count, dtype=torch.long, device=device)
        widths = net.sizes[1:-1] if net.dropouts else ()
        self.masks = [torch.ones(len(streams), count, width, dtype=torch.bool, device=device) for width in widths]
        self._drawer = Generator(device)

    def shuffle(self) -> None:
        """Draw the order and the masks of the next epoch."""
        count = self.samples.shape[0]
        order = [torch.randperm(count, generator=stream) for stream in self.streams]
        self.order.copy_(torch.stack(order))
        for seed, stream in enumerate(self.streams if self.masks else ()):
            self._drawer.manual_seed(int(torch.randint(2**62, (), generator=stream)))
            for mask, dropout in zip(self.masks, self.net.dropouts, strict=True):
                if float(dropout.rate):  # pyright: ignore[reportArgumentType]
                    draw_mask(mask[seed], 1 - float(dropout.rate), self._drawer)  # pyright: ignore[reportArgumentType]

    def take(self, rows: slice | Tensor) -> Tensor:
        """Return the inputs at these positions of the epoch, ``(seeds, batch, n)``, and set the network's masks."""
        for mask, dropout in zip(self.masks, self.net.dropouts, strict=True):
            dropout.mask = mask[:, rows]  # pyright: ignore[reportArgumentType]
        return self.samples[self.order[:, rows]]


def draw_mask(mask: Tensor, keep: float, generator: Generator) -> None:
    """Fill a bool mask with True with probability `keep`, exact to 2^-32, from 32 random bits per entry.

    Drawing whole words and comparing them is several times faster on a CPU than torch's Bernoulli draws.
    """
    words = torch.empty((mask.numel() + 1) // 2, dtype=torch.long, device=mask.device)
    words.random_(-(2**63), None, generator=generator)
    bits = words.view(torch.int32)[: mask.numel()].view_as(mask)
    torch.lt(bits, min(round(keep * 2**32) - 2**31, 2**31 - 1), out=mask)


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


# Progress display in training: a bar per method with percent and time left, and loss and violation if they fit.


class Display(Protocol):
    """Shows runs in progress."""

    def begin(self, label: str, training: Training) -> None:
        """Show that a run starts or resumes."""
        ...

    def update(self, training: Training) -> None:
        """Show that an epoch of the run has ended."""
        ...

    def note(self, text: str) -> None:
        """Show one line of text."""
        ...


class Silence:
    """Shows nothing."""

    def begin(self, label: str, training: Training) -> None:
        """Do nothing."""

    def update(self, training: Training) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""


class Bars:
    """One bar per run on the terminal, drawn by rich."""

    def __init__(self) -> None:
        try:
            from rich import progress
            from rich.console import Console
        except ImportError as error:
            raise MissingExtraError("rich") from error
        self.progress = progress.Progress(*_columns(progress, Console().width), refresh_per_second=4)
        self._bar: progress.TaskID | None = None

    def begin(self, label: str, training: Training) -> None:
        """Add a bar."""
        total = training.settings.epochs
        self._bar = self.progress.add_task(label, total=total, completed=training.epoch, loss="-", violation="-")

    def update(self, training: Training) -> None:
        """Advance the bar; the numbers are means over the seeds at the last evaluated epoch."""
        if self._bar is not None:
            loss, violation = _mean(training.history.loss), _mean(training.history.violation)
            self.progress.update(self._bar, completed=training.epoch, loss=loss, violation=violation)

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self.progress.console.print(text, highlight=False, markup=False)


WIDE = 110
"""Terminal width, in columns, from which loss and violation are shown after the bar."""


def _columns(progress: Any, width: int) -> list[Any]:
    """Name, bar, percent and time left, which fit into 80 columns; loss and violation where there is room."""
    from rich.table import Column

    name = progress.TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=36))
    left = progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True))
    shown = [name, progress.BarColumn(bar_width=20), progress.TaskProgressColumn(), left]
    numbers = progress.TextColumn("loss {task.fields[loss]}  violation {task.fields[violation]}")
    return [*shown, numbers] if width >= WIDE else shown


@contextmanager
def bars() -> Iterator[Bars]:
    """Bars that are drawn while the context is open."""
    shown = Bars()
    with shown.progress:
        yield shown


def _mean(entries: list[list[float]]) -> str:
    return f"{sum(entries[-1]) / len(entries[-1]):.4g}" if entries else "-"
