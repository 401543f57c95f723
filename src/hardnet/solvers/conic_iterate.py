"""The iterate of a projection onto blocks, and how far it is from optimal: ``G(y) = P_K(G(y) + dual)`` and the rest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.stack import Stack


class State(NamedTuple):
    """The iterate of a batch: point ``(B, n)``, multipliers ``(B, r)``, penalty ``(B, 1)``, residual ``(B,)``."""

    y: Tensor
    dual: Tensor
    penalty: Tensor
    residual: Tensor


def start(raw: Tensor, y: Tensor, stack: Stack) -> State:
    """From y, without multipliers."""
    dual = raw.new_zeros(raw.shape[0], sum(stack.sizes))
    penalty = raw.new_full((raw.shape[0], 1), 10.0)
    return State(y, dual, penalty, optimality(raw, stack, y, dual))


def scale(raw: Tensor) -> Tensor:
    """``1 + max |raw|``, ``(B,)``."""
    return 1 + raw.abs().amax(-1)


def pull(stack: Stack, y: Tensor, dual: Tensor) -> Tensor:
    """``DG(y)' dual``, ``(B, n)``."""
    pieces = zip(stack.images, stack.split(dual), strict=True)
    return torch.stack([(image.jacobian(y).mT @ own.unsqueeze(-1)).squeeze(-1) for image, own in pieces]).sum(0)


def conditions(raw: Tensor, stack: Stack, y: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
    """``y - raw + DG'dual`` and ``G - P_K(G + dual)``: ``(B, n)`` and ``(B, r)``, both zero at the projection."""
    value = stack.value(y)
    return y - raw + pull(stack, y, dual), value - stack.project(finite(value + dual))


def optimality(raw: Tensor, stack: Stack, y: Tensor, dual: Tensor) -> Tensor:
    """The largest entry of both conditions over ``1 + max |raw|``, ``(B,)``; NaN counts as infinite."""
    first, second = conditions(raw, stack, y, dual)
    size = torch.maximum(first.abs().amax(-1), second.abs().amax(-1)) / scale(raw)
    return torch.where(size.isnan(), torch.inf, size)


def select(state: State, index: Tensor) -> State:
    """The samples `index` alone."""
    return State(*(field[index] for field in state))


def merge(state: State, index: Tensor, part: State) -> State:
    """`state` with the samples `index` replaced by `part`."""
    return State(*(field.index_copy(0, index, new) for field, new in zip(state, part, strict=True)))


def finite(v: Tensor) -> Tensor:
    """NaN and infinities of bad samples as zero, so that an eigendecomposition does not refuse the batch."""
    return torch.where(v.isfinite(), v, torch.zeros_like(v))


def miss(stack: Stack, y: Tensor) -> Tensor:
    """``|G(y) - P_K(G(y))|``, row by row: ``(B, r)``."""
    value = finite(stack.value(y))
    return (value - stack.project(value)).abs()
