"""Any network stacked over seeds with torch.func, for problems that bring their own network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from hardnet.errors import HardNetError
from hardnet_lab.train.stacked import Encode, Stacked


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
