"""Several processes share every batch: each takes its rows, and all take the same step with the summed gradients."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hardnet_lab.train.stacked import StackedBatchNorm


@dataclass(frozen=True)
class World:
    """The processes that train together: this one's `rank` among `size`."""

    rank: int = 0
    size: int = 1

    def share(self, start: int, stop: int) -> slice:
        """This process's rows of the batch ``start:stop``: consecutive, with counts that differ by at most one."""
        count = stop - start
        return slice(start + count * self.rank // self.size, start + count * (self.rank + 1) // self.size)

    def total(self, value: Tensor) -> Tensor:
        """The sum of `value` over the processes."""
        if self.size == 1:
            return value
        summed = value.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(summed)
        return summed

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes, in one transfer.

        A parameter that some process used has a gradient in all of them, or they would take different steps.
        """
        if self.size == 1:
            return
        owners = list(parameters)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in owners]
        known = torch.tensor([p.grad is not None for p in owners]).to(gradients[0])
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), known])
        torch.distributed.all_reduce(flat)
        *sums, known = flat.split([*(gradient.numel() for gradient in gradients), len(owners)])
        for owner, summed, count in zip(owners, sums, known.tolist(), strict=True):
            owner.grad = summed.view_as(owner).clone() if count else None

    def synchronize_statistics(self, model: nn.Module) -> None:
        """Make batch normalization use the whole batch, not only this process's rows."""
        if self.size > 1:
            for module in model.modules():
                if isinstance(module, StackedBatchNorm):
                    module.total = self.total

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process, so that all processes make the same decision."""
        if self.size == 1:
            return flag
        flags = torch.tensor(int(flag), device=device)
        torch.distributed.all_reduce(flags)
        return bool(flags)

    def wait(self) -> None:
        """Wait until every process has reached this call."""
        if self.size > 1:
            torch.distributed.barrier()


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The process group that ``torchrun`` set up in the environment, or this process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        torch.distributed.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """This process's own GPU if ``torchrun`` started one process per GPU."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
