"""Training steps on a GPU as CUDA graphs: forward, backward and Adam in one launch, without a look at the data.

The graph counts its own steps on the device. A step whose inner loop was too short for some sample changes
nothing and is not counted, and neither is any step after it: at the end of the epoch the host sees how many
steps were taken, captures a longer loop, and goes on from there. So every step that counts is exact.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ConvergenceError

if TYPE_CHECKING:
    from hardnet.train.loop import Training

GROWTH = 1.25
"""A loop that was too short is captured again longer by this factor."""
LONGEST = 5000
"""A loop that is still too short at this length is given up."""
WARM_UP = 2
"""Runs before a capture, in which libraries set up and kernels compile."""


class Key(NamedTuple):
    """What a captured step depends on."""

    size: int
    enforce: bool


class CapturedSteps:
    """One epoch of captured steps: ``steps(enforce)`` returns the summed loss of each seed.

    Args:
        training: The run whose model and optimizer the steps move.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self.budget = training.task.loop_budget
        device = training.batches.samples.device
        self.taken = torch.zeros((), dtype=torch.long, device=device)
        self.summed = torch.zeros(len(training.streams), dtype=torch.float64, device=device)
        self.skip = torch.zeros((), dtype=torch.float32, device=device)
        # Fused Adam leaves parameters and step counts alone where this number on the device is 1.
        training.optimizer.found_inf = self.skip  # pyright: ignore[reportAttributeAccessIssue]
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, enforce: bool) -> Tensor:
        """Take all steps of an epoch: the full batches, then what is left."""
        count, size = self.training.batches.samples.shape[0], self.training.settings.batch_size
        self.taken.zero_()
        self.summed.zero_()
        full, rest = divmod(count, size)
        if full:
            self._take(Key(size, enforce), full)
        if rest:
            self._take(Key(rest, enforce), full + 1)
        return self.summed.clone()

    def _take(self, key: Key, until: int) -> None:
        """Replay the step until so many are taken in this epoch, with a longer loop where one was too short."""
        while (missing := until - int(self.taken)) > 0:
            graph = self._graphs.get(key) or self._capture(key)
            for _ in range(missing):
                graph.replay()
            if int(self.taken) < until:
                self._lengthen()

    def _lengthen(self) -> None:
        if self.budget >= LONGEST or self.training.task.loop_budget == 1:
            raise ConvergenceError(f"training: a sample needs more than {self.budget} steps of its inner loop")
        self.budget = int(self.budget * GROWTH) + 1
        self._graphs.clear()

    def _capture(self, key: Key) -> torch.cuda.CUDAGraph:
        """Record one step; nothing of it is executed yet."""
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._gradients(key)
        torch.cuda.current_stream().wait_stream(stream)
        self.training.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            self._step(key)
        self._graphs[key] = graph
        return graph

    def _step(self, key: Key) -> None:
        """One step as it is recorded: gradients, then an update that counts only where every sample finished."""
        loss, unfinished = self._gradients(key)
        stop = unfinished.any()
        self.skip.copy_(stop)
        self.training.optimizer.step()
        self.summed += loss.detach().sum(1).where(~stop, 0.0)
        self.taken += ~stop

    def _gradients(self, key: Key) -> tuple[Tensor, Tensor]:
        """Loss and gradients of the batch that is next, picked by the counter on the device."""
        training = self.training
        rows = self.taken * training.settings.batch_size + torch.arange(key.size, device=self.taken.device)
        x = training.batches.take(rows)
        policy = partial(training.model, enforce=key.enforce)
        loss, unfinished = training.task.bounded_loss(policy, x, training.settings.soft_weight, self.budget)
        training.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        return loss, unfinished
