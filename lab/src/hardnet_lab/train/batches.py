"""Sample order and dropout masks of one epoch, drawn for each seed from its own random stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from hardnet_lab.train.stacked import StackedMLP
from hardnet_lab.train.stacked_module import StackedModule


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
