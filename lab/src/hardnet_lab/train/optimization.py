"""Optimization: Adam or AdamW for all seeds at once, a cosine schedule, and gradient clipping per seed.

Everything here can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from hardnet_lab.train.settings import Settings

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
