"""What stands around a call: transforms of torch.func, forward mode, export, autocast; and refusals in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from hardnet.errors import UnsupportedSetError, sentence
from hardnet.modes import forward_mode, transformed

exporting = torch.compiler.is_exporting


def outside_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is, also where a compiled graph calls it: for loops whose length depends on the data.

    `torch.compiler.disable` would import the compiler with the library, which takes seconds; this does at the first
    call from compiled code.
    """
    disabled = torch._disable_dynamo(function)

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        call = disabled if torch.compiler.is_compiling() else function
        return call(*arguments, **options)

    return run


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of tensors, with autocast off: products in half precision would leave the set.

    The device is that of the first tensor among the arguments.
    """

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        device = next((part.device.type for part in arguments if isinstance(part, torch.Tensor)), None)
        if device is None or not torch.is_autocast_enabled(device):
            return function(*arguments, **options)
        with torch.autocast(device, enabled=False):
            return function(*arguments, **options)

    return run


def refuse_transforms(solver: str, *, mapped: bool = False) -> None:
    """Refuse export, forward mode and, unless the solver can be `mapped`, every transform of torch.func.

    Args:
        solver: The solver, in a phrase for people.
        mapped: Whether vmap, grad and jacrev work.
    """
    if torch.compiler.is_exporting():
        remedy = "export a model whose method has no iterations (hn.methods()), or the network without its layer"
        raise UnsupportedSetError(sentence("torch.export", "a fixed graph", f"{solver}, which iterates", remedy))
    if forward_mode():
        remedy = "use reverse mode: backward, torch.autograd.functional"
        raise UnsupportedSetError(sentence("torch.func", f"no forward mode through {solver}", "one", remedy))
    if not mapped and transformed():
        remedy = "use torch.autograd; batch dimensions need no vmap"
        raise UnsupportedSetError(sentence("torch.func", f"no transform around {solver}", "one", remedy))
