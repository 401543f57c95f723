"""The loop that retraction and nearest point share: passes over a batch, in which each sample takes one trial step.

Where values may be looked at, refused samples search a shorter step at once, and samples that have ended leave the
batch. Where they may not, a refused sample stands still and tries the shorter step in the next pass, so that passes
are a fixed program. Either way nothing of a sample depends on how its mates fared.

Called by `hardnet.solvers.nonlinear.solve`, `hardnet.solvers.nonlinear.nearest` and others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.nonlinear.rows import Rows

WORTH = 0.75
"""Share of open samples below which the others are taken out of the batch, where looks are not free."""
TRIALS = 3
"""Passes for each step that is allowed, where a pass is one trial: some are refused."""


class Pace(NamedTuple):
    """How often values may be looked at.

    Attributes:
        every: Passes between two looks at which samples are open; 0 for none, so that the passes can be captured.
        free: Whether a look inside of a pass is free, as on a CPU.
    """

    every: int = 1
    free: bool = True


EVERY_PASS = Pace()
"""A look in every pass, as on a CPU."""


def run(
    rows: Rows,
    state: Any,
    one: Callable[[Rows, Any], Any],
    result: Callable[[Any], tuple[Tensor, ...]],
    passes: int,
    pace: Pace,
) -> tuple[Tensor, ...]:
    """Up to `passes` passes over a state with the field ``going`` ``(b,)``; what `result` reads from it at the end.

    Args:
        rows: The rows of the batch.
        state: A NamedTuple of tensors with the batch in front.
        one: One pass: ``(rows, state) -> state``. Where looks are free it sees open samples alone, else it leaves
            closed ones as they are.
        result: The part of the state that is wanted.
        passes: The most passes.
        pace: When values may be looked at.
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
    """The results of the batch with those of some samples written to it."""
    if whole is None:
        return list(part)
    return [old.index_copy(0, index, new) for old, new in zip(whole, part, strict=True)]
