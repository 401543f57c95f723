"""The loop shared by retraction and nearest point: passes over a batch, in which each sample takes one trial step.

A sample whose trial is refused stays where it is and tries a shorter step in the next pass, so that a pass is a fixed
program. Where values may be read, samples that have ended leave the batch. Either way the result of a sample does not
depend on the other samples of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear.rows import Rows

WORTH = 0.75
"""Share of open samples below which the others are taken out of the batch, where reading values is not free."""
TRIALS = 3
"""Passes per allowed step, where a pass is one trial: some trials are refused."""


class Pace(NamedTuple):
    """How often values may be read.

    Attributes:
        every: Passes between two checks of which samples are open; 0 for no checks, so that passes can be captured.
        free: Whether reading values inside a pass is free, as on a CPU.
    """

    every: int = 1
    free: bool = True


EVERY_PASS = Pace()
"""Read values in every pass, as on a CPU."""


def run(
    rows: Rows,
    state: Any,
    one: Callable[[Rows, Any], Any],
    result: Callable[[Any], tuple[Tensor, ...]],
    passes: int,
    pace: Pace,
) -> tuple[Tensor, ...]:
    """Run up to `passes` passes over a state with the field ``going`` ``(b,)``; return `result` of the final state.

    Args:
        rows: The rows of the batch.
        state: A NamedTuple of tensors whose first dimension is the batch.
        one: One pass: ``(rows, state) -> state``. Where reading values is free it gets only open samples, else it
            leaves closed ones unchanged.
        result: Extracts the wanted part of the state.
        passes: The maximum number of passes.
        pace: When values may be read.
    """
    whole: list[Tensor] | None = None
    index = torch.arange(state.going.shape[0], device=state.going.device)
    for count in range(passes):
        if pace.every and count % pace.every == 0:
            going = state.going.nonzero().squeeze(-1)
            if len(going) == 0:
                break
            if len(going) < len(index) and (pace.free or len(going) <= WORTH * len(index)):
                whole = _place(whole, index, result(state))
                rows, index = rows.take(going), index[going]
                state = type(state)(*(None if part is None else part[going] for part in state))
        state = one(rows, state)
    return tuple(_place(whole, index, result(state)))


def _place(whole: list[Tensor] | None, index: Tensor, part: tuple[Tensor, ...]) -> list[Tensor]:
    """The results of the batch, with those of the samples `index` replaced."""
    if whole is None:
        return list(part)
    return [old.index_copy(0, index, new) for old, new in zip(whole, part, strict=True)]
