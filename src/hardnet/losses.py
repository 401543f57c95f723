"""Losses beside the task's own: what a network can be asked for in training besides good enforced outputs.

Called by users.
"""

from __future__ import annotations

from torch import Tensor

from hardnet.errors import ShapeError, sentence


def displacement(raw: Tensor, y: Tensor) -> Tensor:
    """``mean |y - raw|^2`` over the samples: how far the enforcement moved the outputs.

    Added to a loss with a small weight it pulls raw outputs towards C(x), where the enforcement passes gradients.
    y is taken as it is, without a gradient of its own, so that the pull acts on raw alone.

    Args:
        raw: The network's outputs, ``(*batch, n)``, as from ``y, raw = model(x, return_raw=True)``.
        y: The enforced outputs, of the same shape.
    """
    if raw.shape != y.shape:
        remedy = "a method whose network emits other numbers than y has no displacement"
        raise ShapeError(sentence("raw", f"the shape of y, {tuple(y.shape)}", tuple(raw.shape), remedy))
    return (y.detach() - raw).square().sum(dim=-1).mean()
