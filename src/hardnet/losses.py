"""Additional loss terms for training, besides the loss of the task."""

from __future__ import annotations

from torch import Tensor

from hardnet.errors import ShapeError, sentence


def displacement(raw: Tensor, y: Tensor) -> Tensor:
    """``mean |y - raw|^2`` over the samples: how far the enforcement moved the outputs.

    Added to a loss with a small weight, it pulls raw outputs toward C(x), where the enforcement passes gradients
    through. y is detached, so that the term acts only on raw.

    Args:
        raw: The network's outputs, ``(*batch, n)``, as from ``y, raw = model(x, return_raw=True)``.
        y: The enforced outputs, of the same shape.
    """
    if raw.shape != y.shape:
        remedy = "a method whose network emits other numbers than y has no displacement"
        raise ShapeError(sentence("raw", f"the shape of y, {tuple(y.shape)}", tuple(raw.shape), remedy))
    return (y.detach() - raw).square().sum(dim=-1).mean()
