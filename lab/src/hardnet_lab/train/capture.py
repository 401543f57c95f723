"""Training steps on a GPU as CUDA graphs: forward, backward and Adam in one launch, without reading values.

The graph counts its own steps on the device. A step whose inner loop was too short for some sample changes
nothing and is not counted, and neither is any step after it. At the end of the epoch the host reads how many
steps were taken, captures a longer loop, and continues from there, so every counted step is exact.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.errors import ConvergenceError

if TYPE_CHECKING:
    from hardnet_lab.train.loop import Training
    from hardnet_lab.train.settings import Policy, Task

MARGIN = 1.05
"""Captured loop length relative to what the measured batch needed."""
GROWTH = 1.15
"""A loop that was too short is captured again, longer by this factor."""
LONGEST = 5000
"""Training fails if a loop of this length is still too short."""
WARM_UP = 2
"""Runs before a capture, in which libraries initialize and kernels compile."""
REFIT_EPOCHS = 50
"""Epochs between two measurements of the loop length that the samples need."""


class Key(NamedTuple):
    """What a captured step depends on."""

    size: int
    enforce: bool


class CapturedSteps:
    """One epoch of captured steps: ``steps(enforce)`` returns the summed loss of each seed.

    Args:
        training: The run whose model and optimizer the steps update.

    Attributes:
        seconds: Time spent on compiling and capturing so far.
    """

    seconds: float
    taken: Tensor
    summed: Tensor

    def __init__(self, training: Training) -> None:
        self.training = training
        self.task: Task = with_compiled_loop(training.task)
        self.seconds = 0.0
        self.budget = training.task.loop_budget
        device = training.batches.samples.device
        self.taken = torch.zeros((), dtype=torch.long, device=device)
        self.summed = torch.zeros(len(training.streams), dtype=torch.float64, device=device)
        self.skip: Tensor = torch.zeros((), dtype=torch.float32, device=device)
        # Fused Adam skips the update of parameters and step counts where this number on the device is 1.
        training.optimizer.found_inf = self.skip  # pyright: ignore[reportAttributeAccessIssue]
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        # The same two objects throughout: a new one would trigger another compilation.
        self._policies = {enforce: training.policy(enforce) for enforce in (False, True)}

    def __call__(self, enforce: bool) -> Tensor:
        """Take all steps of an epoch: the full batches, then the rest."""
        count, size = self.training.batches.samples.shape[0], self.training.settings.batch_size
        self.taken.zero_()
        self.summed.zero_()
        if self.training.epoch % REFIT_EPOCHS == 0 or not self._graphs:
            self._fit(enforce)
        full, rest = divmod(count, size)
        if full:
            self._take(Key(size, enforce), full)
        if rest:
            self._take(Key(self._rest_size(rest), enforce), full + 1)
        return self.summed.clone()

    def _rest_size(self, rest: int) -> int:
        """Size of a short last batch: padded, so one graph serves all, unless batch norm would see the padding."""
        return rest if self.training.batches.net.norms else self.training.settings.batch_size

    def _take(self, key: Key, until: int) -> None:
        """Replay the step until `until` steps of this epoch are taken, lengthening the loop where it was too short."""
        while (missing := until - int(self.taken)) > 0:
            graph = self._graphs.get(key) or self._capture(key)
            for _ in range(missing):
                graph.replay()
            if int(self.taken) < until:
                self._lengthen()

    def _fit(self, enforce: bool) -> None:
        """Set the length of the inner loop to what the first batch needs now, where that is shorter."""
        if self.task.loop_budget == 1:
            return
        count = min(self.training.settings.batch_size, self.training.batches.samples.shape[0])
        budget = int(MARGIN * self._needed(slice(0, count), enforce)) + 1
        if budget < self.budget:
            self.budget = budget
            self._graphs.clear()

    @torch.no_grad()
    def _needed(self, rows: slice, enforce: bool) -> int:
        """Number of times the loss of a batch calls the policy."""
        calls = 0

        def counted(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return self.training.model(x, enforce=enforce)

        self.training.task.loss(counted, self.training.batches.take(rows), 0.0)
        return calls

    def _lengthen(self) -> None:
        if self.budget >= LONGEST or self.task.loop_budget == 1:
            raise ConvergenceError(f"training: a sample needs more than {self.budget} steps of its inner loop")
        self.budget: int = int(self.budget * GROWTH) + 1
        self._graphs.clear()

    def _capture(self, key: Key) -> torch.cuda.CUDAGraph:
        """Record one step without executing it."""
        started = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), unchanged_buffers(self.training.model):
            for _ in range(WARM_UP):
                self._gradients(key)
        torch.cuda.current_stream().wait_stream(stream)
        self.training.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=stream):
            self._step(key)
        self._graphs[key] = graph
        self.seconds += time.perf_counter() - started
        return graph

    def _step(self, key: Key) -> None:
        """The recorded step: gradients, then an update that takes effect only if every sample finished."""
        loss, unfinished = self._gradients(key)
        stop = unfinished.any()
        self.skip.copy_(stop)
        if self.training.clipping is not None:
            self.training.clipping(self.training.parameters, stop)
        self.training.optimizer.step()
        self.summed += loss.detach().sum(1).where(~stop, 0.0)
        self.taken += ~stop

    def _gradients(self, key: Key) -> tuple[Tensor, Tensor]:
        """Loss and gradients of the next batch, selected by the counter on the device."""
        training, count = self.training, self.training.batches.samples.shape[0]
        places = self.taken * training.settings.batch_size + torch.arange(key.size, device=self.taken.device)
        x = training.batches.take(places.clamp_max(count - 1))
        policy = self._policies[key.enforce]
        penalty, pull = training.settings.penalty(key.enforce), training.settings.pull(key.enforce)
        loss, unfinished = self.task.bounded_loss(policy, x, penalty, self.budget, **pull)
        loss = loss.where(places < count, 0.0)  # the padding of a short batch has no gradient
        training.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        return loss, unfinished


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Restore running statistics on exit, so that the warm-up runs do not change them."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    for buffer, value in kept:
        buffer.copy_(value)


def with_compiled_loop(task: Task) -> Task:
    """A copy of the task whose loop body, the method `substep`, is compiled; the task itself if it has no loop."""
    if task.loop_budget == 1:
        return task
    plain = task.substep  # pyright: ignore[reportAttributeAccessIssue]
    fused = torch.compile(plain, dynamic=False)

    def body(policy: Policy, now: Any, *rest: Any) -> Any:
        """Run the first pass uncompiled: its state has no gradient yet and would need a compilation of its own."""
        return (fused if now[0].requires_grad else plain)(policy, now, *rest)

    compiled = copy.copy(task)
    compiled.substep = body  # pyright: ignore[reportAttributeAccessIssue]
    return compiled
