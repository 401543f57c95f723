"""A step taken a stated number of times: plain operations where they run, one loop of the graph where it is exported.

An exported graph with every step written out has thousands of operations, takes minutes to make, and runs all of them;
its loop is one operation (ONNX: Loop) that ends with the last sample.

Called by `hardnet.solvers.polyhedron.box_interior`, `hardnet.solvers.polyhedron.box_rows` and
`hardnet.solvers.polyhedron.fixed`.
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

    Tensors that go through a loop, or that its step reads, should have no dimension of size 1: the exporter to ONNX
    takes it for one of any size, which does not spread.

    Args:
        step: From tensors to as many of the same shapes and dtypes.
        state: The tensors to start from.
        count: How many times.
        going: Whether some sample has not come to rest, a bool ``()`` of the state: an exported loop ends where not.
        exported: Whether a graph is exported.
    """
    if not exported:
        for _ in range(count):
            state = step(*state)
        return state
    return _loop(step, state, count, going)


def _loop(step: Callable[..., State], state: State, count: int, going: Callable[..., Tensor] | None) -> State:
    """The same as one loop of the graph."""
    from torch._higher_order_ops.while_loop import while_loop

    def more(done: Tensor, *parts: Tensor) -> Tensor:
        left = done < count
        return left if going is None else left & going(*parts)

    def once(done: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        return done + 1, *(part.clone(memory_format=torch.contiguous_format) for part in step(*parts))

    start: Any = tuple(part.detach().clone(memory_format=torch.contiguous_format) for part in state)
    done = torch.zeros((), dtype=torch.int64, device=state[0].device)
    return tuple(while_loop(more, once, (done, *start)))[1:]
