"""A step repeated a given number of times: plain operations, or one loop operation in an exported graph.

An exported graph with every step written out has thousands of operations, takes minutes to make, and runs all of them;
a loop is one operation (ONNX: Loop) that ends when the last sample is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

State = tuple[Tensor, ...]


def repeat(
    step: Callable[..., State],
    state: State,
    count: int,
    going: Callable[..., Tensor] | None = None,
    *,
    exported: bool,
) -> State:
    """``step(*state)`` up to `count` times.

    The tensors of the state, and those that the step reads, should have no dimension of size 1: the ONNX exporter
    treats it as a dimension of any size, which does not broadcast.

    Args:
        step: Maps the state to tensors of the same number, shapes and dtypes.
        state: The tensors to start from.
        count: How many times.
        going: From the state, a bool ``()`` that says whether some sample is not done; an exported loop ends when none
            is left.
        exported: Whether the graph is exported.
    """
    if not exported:
        for _ in range(count):
            state = step(*state)
        return state
    return _loop(step, state, count, going)


def _loop(step: Callable[..., State], state: State, count: int, going: Callable[..., Tensor] | None) -> State:
    """The same as one loop operation of the graph."""
    from torch._higher_order_ops.while_loop import while_loop

    def more(done: Tensor, *parts: Tensor) -> Tensor:
        left = done < count
        return left if going is None else left & going(*parts)

    def once(done: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        return done + 1, *(part.clone(memory_format=torch.contiguous_format) for part in step(*parts))

    start: Any = tuple(part.detach().clone(memory_format=torch.contiguous_format) for part in state)
    done = torch.zeros((), dtype=torch.int64, device=state[0].device)
    return tuple(while_loop(more, once, (done, *start)))[1:]
