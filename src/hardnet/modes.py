"""Where a call runs and what stands around it: the only questions about devices and transforms that hardnet asks.

Values may decide what is computed, and compiled kernels may read memory, in plain eager code alone. Everything else
(torch.compile, export, tracing, vmap, forward mode, tensor subclasses) takes formulas in tensor operations.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def transformed() -> bool:
    """Whether a function transform (vmap, grad, jacrev, ...) of torch.func is at work."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]


def forward_mode() -> bool:
    """Whether derivatives are carried forward: jvp, jacfwd, hessian, or dual numbers."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def may_look(tensor: Tensor) -> bool:
    """Whether a value may decide what is computed: eager code on a CPU, where a look costs no synchronisation."""
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu" and not transformed()


def plain(*tensors: Tensor | None) -> bool:
    """Whether these are memory to read: no subclass, no wrapper, and nobody traces or intercepts operations."""
    if (
        torch.compiler.is_compiling()  # first: the compiler does not get past the rest
        or torch._C._is_tracing()  # pyright: ignore[reportAttributeAccessIssue]
        or torch._C._len_torch_dispatch_stack()  # pyright: ignore[reportAttributeAccessIssue]
        or torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]
        or forward_ad._current_level >= 0
    ):
        return False
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in PLAIN_TYPES or not torch._C._has_storage(tensor) or tensor._is_zerotensor()
        ):
            return False
    return True
