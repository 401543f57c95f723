"""Batch normalization of stacked networks, with its derivative in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.errors import ShapeError, sentence

Total = Callable[[Tensor], Tensor]


class StackedBatchNorm(nn.Module):
    """``(x - mean) / sqrt(var + eps) * weight + bias``, with the statistics of each seed over its own batch.

    Attributes:
        total: Sums a tensor over the processes that share a batch; None where one process has the whole batch.
    """

    eps: float
    momentum: float

    def __init__(self, seeds: int, width: int, dtype: torch.dtype, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.total: Total | None = None
        self.weight: nn.Parameter = nn.Parameter(torch.ones(seeds, 1, width, dtype=dtype))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(seeds, 1, width, dtype=dtype))
        self.register_buffer("running_mean", torch.zeros(seeds, 1, width, dtype=dtype))
        self.register_buffer("running_var", torch.ones(seeds, 1, width, dtype=dtype))
        self.running_mean: Tensor
        self.running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x ``(seeds, batch, width)``: by the batch in training, by the running statistics in evaluation."""
        if not self.training:
            scale = self.weight * torch.rsqrt(self.running_var + self.eps)
            return torch.addcmul(self.bias - self.running_mean * scale, x, scale)
        if self.total is None and x.shape[1] < 2:
            remedy = "choose a batch size that does not leave one sample over"
            raise ShapeError(sentence("batch", "at least 2 samples to normalize over", x.shape[1], remedy))
        out, mean, var, count = _Normalize.apply(x, self.weight, self.bias, self.eps, self.total)  # pyright: ignore[reportGeneralTypeIssues]
        self._follow(mean, var, count)
        return out

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, count: Tensor | int) -> None:
        """Move the running statistics toward those of the batch, with the unbiased variance."""
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (count / (count - 1)), self.momentum)


class _Normalize(torch.autograd.Function):
    """The normalized batch, its mean and variance, and the number of samples in it.

    With z the normalized x, n the number of samples and g the cotangent:
    ``g_x = (g - sum g / n - z sum(g z) / n) * weight / sqrt(var + eps)``. Autograd would take three times as many
    passes over the batch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, total: Total | None) -> Any:
        """Two passes for the moments, one for the result."""
        add_up = total or _itself
        count = x.shape[1] if total is None else add_up(x.new_full((), x.shape[1]))
        mean = add_up(x.sum(1, keepdim=True)) / count
        normal = x - mean
        var = add_up(normal.square().sum(1, keepdim=True)) / count
        inverse = torch.rsqrt(var + eps)
        normal *= inverse
        ctx.save_for_backward(normal, inverse, weight)
        ctx.count, ctx.total = count, add_up
        ctx.mark_non_differentiable(mean, var)
        return torch.addcmul(bias, normal, weight), mean, var, count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients; those of weight and bias cover this process's rows only and are summed later."""
        normal, inverse, weight = ctx.saved_tensors
        for_bias, for_weight = gradient.sum(1, keepdim=True), (gradient * normal).sum(1, keepdim=True)
        shared_bias, shared_weight = ctx.total(for_bias), ctx.total(for_weight)
        for_x = torch.addcmul(gradient - shared_bias / ctx.count, normal, -shared_weight / ctx.count)
        return for_x.mul_(weight * inverse), for_weight, for_bias, None, None


def _itself(value: Tensor) -> Tensor:
    return value
