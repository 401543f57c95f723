"""Networks of several seeds as one module: weights ``(seeds, in, out)``, data ``(seeds, batch, n)``.

The seeds share only the kernel launches: each has its own weights, its own normalization statistics and its own
random stream, so a seed's numbers do not depend on which other seeds are stacked with it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from hardnet.errors import HardNetError, OptionError, ShapeError, sentence

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


Encode = Callable[[Tensor], Tensor]
WeightBias = tuple[Tensor, Tensor]


def streams_of(seeds: Sequence[int]) -> list[Generator]:
    """One CPU generator per seed; it initializes the seed's network and then shuffles its batches."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def initial_linears(
    sizes: Sequence[int], stream: Generator, dtype: torch.dtype, kaiming: bool = True
) -> list[WeightBias]:
    """The weights ``(out, in)`` and biases ``(out,)`` that torch would give the Linear layers of one seed.

    First every layer draws torch's default weight and bias in order; then, if `kaiming`, every weight is drawn again,
    Kaiming-normal (fan-in, gain sqrt 2). The draws equal those after ``torch.manual_seed``, but the global generator
    is not touched.
    """
    linears: list[WeightBias] = []
    for fan_in, fan_out in pairwise(sizes):
        weight = nn.init.kaiming_uniform_(torch.empty(fan_out, fan_in, dtype=dtype), a=math.sqrt(5), generator=stream)
        bound = 1 / math.sqrt(fan_in)
        bias = torch.empty(fan_out, dtype=dtype).uniform_(-bound, bound, generator=stream)
        linears.append((weight, bias))
    for weight, _ in linears if kaiming else ():
        nn.init.kaiming_normal_(weight, generator=stream)
    return linears


class StackedLinear(nn.Module):
    """``x W + b`` for each seed.

    Args:
        linears: Weight ``(out, in)`` and bias ``(out,)`` of each seed.
    """

    def __init__(self, linears: Sequence[WeightBias]) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.stack([weight.T for weight, _ in linears]).contiguous())
        self.bias: nn.Parameter = nn.Parameter(torch.stack([bias for _, bias in linears]).unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``(seeds, batch, in)`` to ``(seeds, batch, out)``."""
        return torch.baddbmm(self.bias, x, self.weight)


class StackedDropout(nn.Module):
    """``x * mask / keep`` in training; the mask ``(seeds, batch, width)`` is drawn by the training loop.

    Attributes:
        mask: The units that each sample keeps (bool). None means that nothing is dropped.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Drop units of x ``(seeds, batch, width)`` by the mask."""
        if not self.training or self.mask is None:
            return x
        return x * self.mask.to(x.dtype).mul_(1 / (1 - self.rate))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "silu": nn.functional.silu}


class Stacked(nn.Module):
    """Networks of several seeds as one module.

    Attributes:
        seeds: Number of seeds.
        sizes: Widths ``(in, hidden, ..., out)``, where they are known.
        encode: Maps x to the features that the networks take.
        norms: The batch normalizations; where there are any, captured steps do not pad a short last batch.
        dropouts: The dropouts, for which the training loop draws masks.
    """

    seeds: int
    sizes: tuple[int, ...]
    encode: Encode | None
    norms: nn.ModuleList
    dropouts: nn.ModuleList

    def features(self, x: Tensor) -> Tensor:
        """``encode(x)`` ``(seeds, batch, in)`` of x ``(seeds, batch, n)``, or ``(batch, n)`` shared by all seeds."""
        features = x if self.encode is None else self.encode(x)
        return features.expand(self.seeds, *features.shape) if features.dim() == 2 else features

    @torch.no_grad()
    def only(self, index: int) -> Self:
        """A copy that holds only one of the seeds."""
        single = copy.deepcopy(self)
        single.seeds = 1
        for tensor in (*single.parameters(), *single.buffers()):
            tensor.data = tensor.data[index : index + 1].clone()
        return single


class StackedMLP(Stacked):
    """Linear layers with an activation between them, one network per seed; optionally BatchNorm and Dropout.

    Args:
        sizes: Widths ``(in, hidden, ..., out)``; `in` is the width of the encoded input.
        streams: One CPU generator per seed; each is advanced by the initialization of its seed.
        batch_norm: Whether hidden layers are Linear, BatchNorm, activation instead of Linear, activation.
        dropout: The share of hidden units dropped in training, after the activation; one number, or one per hidden
            layer.
        activation: ``"relu"`` or ``"silu"``.
        skip: Whether a linear map of the features, initialized to zero, is added to the output.
        kaiming: Whether weights start Kaiming-normal; otherwise torch's default, 2.4 times smaller.
        encode: Maps x to the features that the first layer takes.
        dtype: Dtype of weights and outputs.
    """

    activation: str

    def __init__(
        self,
        sizes: Sequence[int],
        streams: Sequence[Generator],
        *,
        batch_norm: bool = False,
        dropout: float | Sequence[float] = 0.0,
        activation: str = "relu",
        skip: bool = False,
        kaiming: bool = True,
        encode: Encode | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if len(sizes) < 2 or not streams:
            raise ShapeError(sentence("sizes and streams", "two widths and one seed at least", (sizes, len(streams))))
        if activation not in ACTIVATIONS:
            raise OptionError(sentence("activation", f"one of {', '.join(ACTIVATIONS)}", repr(activation)))
        rates = [dropout] * (len(sizes) - 2) if isinstance(dropout, (int, float)) else list(dropout)
        if len(rates) != len(sizes) - 2:
            raise ShapeError(sentence("dropout", f"one share, or {len(sizes) - 2} of them", len(rates)))
        by_seed = [initial_linears(sizes, stream, dtype, kaiming) for stream in streams]
        self.linears: nn.ModuleList = nn.ModuleList(StackedLinear(layer) for layer in zip(*by_seed, strict=True))
        norms = [StackedBatchNorm(len(streams), width, dtype) for width in sizes[1:-1]] if batch_norm else []
        self.norms = nn.ModuleList(norms)
        self.dropouts = nn.ModuleList(StackedDropout(rate) for rate in rates) if any(rates) else nn.ModuleList()
        zero = torch.zeros(sizes[-1], sizes[0], dtype=dtype), torch.zeros(sizes[-1], dtype=dtype)
        self.skip: StackedLinear | None = StackedLinear([zero] * len(streams)) if skip else None
        self.sizes, self.seeds, self.encode, self.activation = tuple(sizes), len(streams), encode, activation

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``(seeds, batch, n)``, or ``(batch, n)`` shared by all seeds, to ``(seeds, batch, out)``."""
        raw = features = self.features(x)
        for layer in range(len(self.linears) - 1):
            raw = self._hidden(layer, raw)
        raw = self.linears[-1](raw)
        return raw if self.skip is None else raw + self.skip(features)

    def _hidden(self, layer: int, features: Tensor) -> Tensor:
        features = self.linears[layer](features)
        if self.norms:
            features = self.norms[layer](features)
        features = ACTIVATIONS[self.activation](features)
        return self.dropouts[layer](features) if self.dropouts else features


# Any network stacked over seeds with torch.func, for problems that bring their own network.


class StackedModule(Stacked):
    """``net_s(x_s)`` for every seed s at once: parameters ``(seeds, ...)``, data ``(seeds, batch, n)``.

    Each seed's network is built after ``torch.manual_seed(seed)``; the global generator is restored afterwards.
    Random numbers that the network draws in training (dropout) come from the global generator, so a resumed run with
    dropout draws different ones.

    Args:
        build: Makes one network.
        streams: One generator per seed; its initial seed is the seed.
        encode: Maps x to the input of the network.
        dtype: Dtype of weights and outputs.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        streams: Sequence[Generator],
        *,
        encode: Encode | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        networks = [_build(build, stream.initial_seed()).to(dtype) for stream in streams]
        parameters, buffers = torch.func.stack_module_state(networks)
        self._names = {name: name.replace(".", "__") for name in (*parameters, *buffers)}
        for name, value in parameters.items():
            self.register_parameter(self._names[name], nn.Parameter(value.detach().contiguous()))
        for name, value in buffers.items():
            self.register_buffer(self._names[name], value)
        self._parameter_names, self._buffer_names = list(parameters), list(buffers)
        self._skeleton = [copy.deepcopy(networks[0]).to("meta")]  # in a list, so that it is not a submodule
        self.seeds, self.encode = len(networks), encode
        self.sizes = ()
        self.norms, self.dropouts = nn.ModuleList(), nn.ModuleList()  # empty: the loop draws no masks

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``(seeds, batch, n)``, or ``(batch, n)`` shared by all seeds, to ``(seeds, batch, out)``."""
        skeleton = self._skeleton[0].train(self.training)

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Any:
            return torch.func.functional_call(skeleton, (parameters, buffers), (x,))

        parameters, buffers = self._state(self._parameter_names), self._state(self._buffer_names)
        return torch.vmap(one, randomness="different")(parameters, buffers, self.features(x))

    def _state(self, names: list[str]) -> dict[str, Tensor]:
        """The stacked tensors, keyed by their names in a single network."""
        return {name: getattr(self, self._names[name]) for name in names}


def _build(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """One seed's network; user code may raise anything."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network = build()
        except Exception as error:
            raise HardNetError(f"network: cannot be built; {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise HardNetError(f"network: expected an nn.Module, got {type(network).__name__}")
    return network
